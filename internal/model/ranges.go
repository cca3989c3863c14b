// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// ranges works the Service range out anew from every object that exists. It
// keeps no counts: two ServiceCIDRs may hold the same prefix, overlap or nest
// (KEP-1880), and a prefix stays for as long as any object names it.
func (s *State) ranges() ranges {
	prefixes := s.options.RangeOverride
	if len(prefixes) == 0 {
		prefixes = slices.Concat(slices.Collect(maps.Values(s.cidrs))...)
	}
	var r ranges
	if set := ipv4Set(prefixes); len(set.Ranges()) > 0 {
		r.service = set
		r.list = set.Prefixes()
	}
	for vip := range s.importVIPs.all() {
		if r.service == nil || !r.service.Contains(vip) {
			r.outside = append(r.outside, vip)
		}
	}
	slices.SortFunc(r.outside, netip.Addr.Compare)
	for _, vip := range r.outside {
		r.list = append(r.list, netip.PrefixFrom(vip, vip.BitLen()))
	}
	slices.SortFunc(r.list, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return r
}

// equal compares the Service range, its being known, and the ClusterSetIPs: the
// list without the part outside is the Service range.
func (r ranges) equal(o ranges) bool {
	return slices.Equal(r.list, o.list) && slices.Equal(r.outside, o.outside)
}

// ipv4Set unites the IPv4 prefixes of a list; host bits and repetition do not
// matter.
func ipv4Set(prefixes []netip.Prefix) *netipx.IPSet {
	var b netipx.IPSetBuilder
	for _, p := range prefixes {
		if p.IsValid() && p.Addr().Is4() {
			b.AddPrefix(p.Masked())
		}
	}
	set, err := b.IPSet()
	if err != nil { // only an invalid prefix is an error, and none was added
		panic("model: " + err.Error())
	}
	return set
}

func withCIDR(cidrs map[string][]netip.Prefix, name string, prefixes []netip.Prefix) map[string][]netip.Prefix {
	next := maps.Clone(cidrs)
	if next == nil {
		next = map[string][]netip.Prefix{}
	}
	next[name] = prefixes
	return next
}
