// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"
	"slices"

	"aether.io/aether/internal/model"
)

// Build decides on every target: a full rebuild. Deciding only on Affected
// targets after each change must end with the same answers.
func Build(st *model.State, s Settings, targets []netip.AddrPort) map[netip.AddrPort]Answer {
	answers := make(map[netip.AddrPort]Answer, len(targets))
	for _, t := range targets {
		answers[t] = Decide(st, s, t)
	}
	return answers
}

// Affected returns those of the targets whose answer d may have changed, in their
// order. The settings are the ones in force before and after: a change of the
// settings themselves affects every target.
func Affected(d model.Dirty, s Settings, targets []netip.AddrPort) []netip.AddrPort {
	_, zone := d.Nodes[s.Node]
	if d.Range || (zone && s.Zone == "") {
		return slices.Clone(targets)
	}
	if len(d.Addrs) == 0 {
		return nil
	}
	var out []netip.AddrPort
	for _, t := range targets {
		if _, ok := d.Addrs[t.Addr().Unmap()]; ok {
			out = append(out, t)
		}
	}
	return out
}
