// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"cmp"
	"net/netip"
	"slices"
)

// Hook is where in a packet's way a chain is called.
type Hook string

// The hooks in use, by the names nft has for them.
const (
	Output     Hook = "output"
	Prerouting Hook = "prerouting"
)

// RuleSet is the rules of one pod, in the order the kernel runs them.
type RuleSet struct{ Chains []Chain }

// Chain is a base chain at priority mangle, after conntrack and before any NAT,
// with policy accept. It is named after its hook.
type Chain struct {
	Hook Hook
	// Reroute is true for a chain of type route: when a rule changed the mark the
	// kernel looks the route up anew.
	Reroute bool
	Rules   []Rule
}

// Rule does Do, in order, with a packet for which every Match holds.
type Rule struct {
	Match []Match
	Do    []Action
}

// Rules builds the rule set for a valid Config.
func Rules(c Config) RuleSet {
	return RuleSet{Chains: []Chain{
		{Hook: Output, Reroute: true, Rules: outputRules(c)},
		{Hook: Prerouting, Rules: preroutingRules()},
	}}
}

// outputRules see every packet the pod sends and decide on first segments only;
// the connection mark (ct mark) they set carries the decision from then on.
func outputRules(c Config) []Rule {
	accept := []Action{Accept{}}
	rules := []Rule{
		// A process with NET_RAW can set any mark. DivertMark is ours to give: with
		// it kept, a packet to 127.0.0.1 would reach the proxy.
		{Match: []Match{MarkIs{DivertMark}}, Do: []Action{SetMark{0}}},
		// Envoy's own upstream connections, or they would come back to it for ever.
		{Match: []Match{MarkIs{ProxyMark}}, Do: accept},
		// Answers: of the pod to those who dialled it, of the proxy to the pod.
		{Match: []Match{ReplyDirection{}}, Do: accept},
		// Captured when it began: every later segment follows.
		{Match: []Match{ProtocolIs{TCP}, CtMarkIs{DivertMark}}, Do: []Action{SetMark{DivertMark}, Accept{}}},
		// Not captured when it began, or begun before there was capture.
		{Match: []Match{ProtocolIs{TCP}, LaterSegment{}}, Do: accept},

		{Match: []Match{DestinationIn{addrRanges(NeverCaptured())}}, Do: accept},
		// The pod's own addresses: such a dial never leaves the pod, and captured it
		// could be aimed at the proxy's own listeners.
		{Match: []Match{DestinationLocal{}}, Do: accept},
		{Match: []Match{ProtocolIs{TCP, UDP}, PortIn{[]PortRange{{53, 53}}}}, Do: accept},
	}
	if ranges := addrRanges(c.ExcludeRanges); len(ranges) > 0 {
		rules = append(rules, Rule{Match: []Match{DestinationIn{ranges}}, Do: accept})
	}
	if ports := portRanges(c.ExcludePorts); len(ports) > 0 {
		rules = append(rules, Rule{Match: []Match{ProtocolIs{TCP, UDP}, PortIn{ports}}, Do: accept})
	}
	// First the connection's mark, from it the packet's: a packet that conntrack
	// does not follow takes no connection mark and so is not captured half.
	begins := []Match{ProtocolIs{TCP}}
	if !c.RedirectAll {
		begins = append(begins, meshPorts())
	}
	if c.ConnectionRate > 0 {
		rules = append(rules, Rule{Match: append(slices.Clone(begins), OverRate{c.ConnectionRate}), Do: []Action{Drop{}}})
	}
	return append(rules,
		Rule{Match: begins, Do: []Action{SetCtMark{DivertMark}}},
		Rule{Match: []Match{ProtocolIs{TCP}, CtMarkIs{DivertMark}}, Do: []Action{SetMark{DivertMark}}})
}

func meshPorts() PortIn {
	return PortIn{portRanges([]PortRange{{MeshHTTPPort, MeshHTTPPort}, {MeshTCPPort, MeshTCPPort}})}
}

// preroutingRules see what the output chain marked, as it comes back in on lo.
func preroutingRules() []Rule {
	return []Rule{
		// The connection mark tells what the output chain decided from a frame that a
		// process wrote to lo by itself, packet mark included.
		{
			Match: []Match{FromLoopback{}, MarkIs{DivertMark}, CtMarkIs{DivertMark}, ProtocolIs{TCP}},
			Do:    []Action{Divert{ListenerAddress()}, Accept{}},
		},
		// Nobody took it: the proxy is not there. Without this rule the route makes
		// the packet local, and a server of the pod that listens on 0.0.0.0 would
		// answer in the name of whatever was dialled.
		{Match: []Match{FromLoopback{}, MarkIs{DivertMark}, ProtocolIs{TCP}}, Do: []Action{Reset{}}},
	}
}

// AddrRange is the addresses First to Last, both included.
type AddrRange struct{ First, Last netip.Addr }

// addrRanges returns the IPv4 prefixes as ordered ranges that neither overlap nor
// touch, the form in which the kernel takes them.
func addrRanges(prefixes []netip.Prefix) []AddrRange {
	spans := make([]span, 0, len(prefixes))
	for _, p := range prefixes {
		if !p.IsValid() || !p.Addr().Is4() {
			continue
		}
		spans = append(spans, span{addrNumber(p.Masked().Addr()), addrNumber(lastOf(p))})
	}
	var out []AddrRange
	for _, s := range merge(spans) {
		out = append(out, AddrRange{numberAddr(s.first), numberAddr(s.last)})
	}
	return out
}

// portRanges does the same for ports.
func portRanges(ports []PortRange) []PortRange {
	spans := make([]span, 0, len(ports))
	for _, p := range ports {
		if p.First <= p.Last {
			spans = append(spans, span{uint32(p.First), uint32(p.Last)})
		}
	}
	var out []PortRange
	for _, s := range merge(spans) {
		out = append(out, PortRange{uint16(s.first), uint16(s.last)})
	}
	return out
}

// span is a range of numbers, both ends included.
type span struct{ first, last uint32 }

// merge orders spans and joins those that overlap or touch.
func merge(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	var out []span
	for _, s := range spans {
		n := len(out)
		if n > 0 && uint64(s.first) <= uint64(out[n-1].last)+1 {
			out[n-1].last = max(out[n-1].last, s.last)
			continue
		}
		out = append(out, s)
	}
	return out
}

// lastOf returns the last address of an IPv4 prefix.
func lastOf(p netip.Prefix) netip.Addr {
	hostBits := uint32(uint64(1)<<(32-p.Bits()) - 1)
	return numberAddr(addrNumber(p.Addr()) | hostBits)
}

func addrNumber(a netip.Addr) uint32 {
	b := a.As4()
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

func numberAddr(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}
