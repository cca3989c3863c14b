// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"
	"slices"

	"go4.org/netipx"

	"aether.io/aether/internal/model"
)

// neverProxied are the destinations a node proxy must not dial for a pod: from
// the node's network namespace they mean the node itself (0/8, 127/8), the
// instance's metadata service (169.254/16) or no single peer at all (224/4).
var neverProxied = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/4"),
}

func isNeverProxied(a netip.Addr) bool {
	return slices.ContainsFunc(neverProxied, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Capture is what every pod's capture listener tells apart by destination. No
// address belongs to two of the lists, but that an API server's address may lie
// inside a longer Service prefix; the listed address is the stronger then.
type Capture struct {
	NeverProxied []netip.Prefix // closed as not-proxied
	APIServer    []netip.Addr   // passed through before anything else is asked
	Service      []netip.Prefix // the Service range and ClusterSetIPs, merged and sorted; may be empty
	// OnDemand is true when the Service branch asks for an answer by name, and
	// false in mode passthrough.
	OnDemand bool
}

// CaptureFor returns what the listeners must tell apart now.
func CaptureFor(st *model.State, s Settings) Capture {
	c := Capture{
		NeverProxied: slices.Clone(neverProxied),
		Service:      proxied(st.Range()),
		OnDemand:     s.Mode == ModeBalance || s.Mode == ModeEnforce,
	}
	if vip, ok := st.APIServer(); ok && !isNeverProxied(vip) {
		c.APIServer = []netip.Addr{vip}
		c.Service = slices.DeleteFunc(c.Service, func(p netip.Prefix) bool {
			return p == netip.PrefixFrom(vip, vip.BitLen())
		})
	}
	return c
}

// proxied returns a copy of the prefixes without the never-proxied part. A range
// that has none of it, as every sane one, comes out as it went in.
func proxied(prefixes []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range prefixes {
		if !slices.ContainsFunc(neverProxied, p.Overlaps) {
			out = append(out, p)
			continue
		}
		var b netipx.IPSetBuilder
		b.AddPrefix(p)
		for _, never := range neverProxied {
			b.RemovePrefix(never)
		}
		if set, err := b.IPSet(); err == nil {
			out = append(out, set.Prefixes()...)
		}
	}
	return out
}
