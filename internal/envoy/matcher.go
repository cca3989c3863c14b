// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"cmp"
	"net/netip"
	"slices"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	matcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	networkv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/network/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"aether.io/aether/internal/plan"
)

// matcher returns the destination matcher of a capture listener. What is never
// proxied is settled first, whatever the other ranges hold: Envoy's trie prefers
// the longest prefix, so a shared trie would let a longer range win over it.
// Within the second trie the API server's /32 comes before a range of the same
// length because equal prefixes keep their order.
func matcher(c plan.Capture) *matcherv3.Matcher {
	service := ChainServicePassthrough
	if c.OnDemand {
		service = ChainService
	}
	api := make([]netip.Prefix, 0, len(c.APIServer))
	for _, a := range c.APIServer {
		api = append(api, netip.PrefixFrom(a, a.BitLen()))
	}
	rest := trie(toChain(ChainPassthrough),
		rangeTo(api, ChainPassthrough),
		rangeTo(c.Service, service),
	)
	return trie(&matcherv3.Matcher_OnMatch{OnMatch: &matcherv3.Matcher_OnMatch_Matcher{Matcher: rest}},
		rangeTo(c.NeverProxied, ChainClosed),
	)
}

// trie returns a longest-prefix match on the dialled address. Ranges without
// prefixes are left out; a trie without ranges always takes otherwise.
func trie(otherwise *matcherv3.Matcher_OnMatch, ranges ...*matcherv3.IPMatcher_IPRangeMatcher) *matcherv3.Matcher {
	ranges = slices.DeleteFunc(ranges, func(r *matcherv3.IPMatcher_IPRangeMatcher) bool { return len(r.Ranges) == 0 })
	m := &matcherv3.Matcher{OnNoMatch: otherwise}
	if len(ranges) == 0 {
		return m
	}
	m.MatcherType = &matcherv3.Matcher_MatcherTree_{MatcherTree: &matcherv3.Matcher_MatcherTree{
		Input: &xdscorev3.TypedExtensionConfig{
			Name:        "destination_ip",
			TypedConfig: pack(&networkv3.DestinationIPInput{}),
		},
		TreeType: &matcherv3.Matcher_MatcherTree_CustomMatch{CustomMatch: &xdscorev3.TypedExtensionConfig{
			Name:        "ip",
			TypedConfig: pack(&matcherv3.IPMatcher{RangeMatchers: ranges}),
		}},
	}}
	return m
}

// rangeTo leads prefixes to a chain. They are sorted: a set has no order.
func rangeTo(prefixes []netip.Prefix, chain string) *matcherv3.IPMatcher_IPRangeMatcher {
	sorted := slices.Clone(prefixes)
	slices.SortFunc(sorted, func(x, y netip.Prefix) int {
		return cmp.Or(x.Addr().Compare(y.Addr()), cmp.Compare(x.Bits(), y.Bits()))
	})
	r := &matcherv3.IPMatcher_IPRangeMatcher{OnMatch: toChain(chain)}
	for _, p := range slices.Compact(sorted) {
		r.Ranges = append(r.Ranges, &xdscorev3.CidrRange{
			AddressPrefix: p.Addr().String(),
			PrefixLen:     u32(uint32(p.Bits())),
		})
	}
	return r
}

func toChain(name string) *matcherv3.Matcher_OnMatch {
	return &matcherv3.Matcher_OnMatch{OnMatch: &matcherv3.Matcher_OnMatch_Action{
		Action: &xdscorev3.TypedExtensionConfig{Name: name, TypedConfig: pack(wrapperspb.String(name))},
	}}
}
