// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"fmt"
	"net/netip"
)

// Packet is what the rules can see of one packet at one hook.
type Packet struct {
	Hook     Hook
	Iface    string // the interface it came in on; "" at Output
	Src, Dst netip.AddrPort
	Proto    Protocol
	SYN      bool // a TCP segment that begins a connection: SYN without ACK
	DstLocal bool // Dst is an address of the pod itself

	Mark      uint32 // of the packet: 0, or what the sending socket set
	CtMark    uint32 // of its connection
	CtReply   bool   // it answers the side that began the connection
	Untracked bool   // conntrack has no entry for it (invalid or exempt)

	OverRate bool // it begins a connection beyond the pod's rate

	NoProxy bool // no transparent socket would take it: the proxy is not there

	divertedTo netip.AddrPort
}

// Outcome is what becomes of a packet at a hook.
type Outcome string

// The outcomes.
const (
	none Outcome = ""
	// Accepted packets go on: after Output by the route of their mark, after
	// Prerouting to whatever socket has their destination.
	Accepted Outcome = "accept"
	// Diverted packets are delivered to the proxy.
	Diverted Outcome = "divert"
	// Rejected packets are dropped and answered with a reset.
	Rejected Outcome = "reset"
	// Dropped packets are gone; whoever sent them may send them again.
	Dropped Outcome = "drop"
)

// Verdict is the outcome at one hook, the marks the packet and its connection
// leave it with, and the rules that applied, in order.
type Verdict struct {
	Outcome Outcome
	Mark    uint32
	CtMark  uint32
	Trace   []string
}

// Evaluate runs a packet through the chain of its hook as the kernel would.
func (s RuleSet) Evaluate(p Packet) Verdict {
	var trace []string
	outcome := none
	for _, c := range s.Chains {
		if c.Hook == p.Hook {
			outcome, trace = c.run(&p)
		}
	}
	switch {
	case outcome == none:
		outcome = Accepted
		trace = append(trace, fmt.Sprintf("%s: policy accept", p.Hook))
	case outcome == Accepted && p.divertedTo.IsValid():
		outcome = Diverted
	}
	return Verdict{Outcome: outcome, Mark: p.Mark, CtMark: p.CtMark, Trace: trace}
}

// run applies the rules until one of them ends the chain.
func (c Chain) run(p *Packet) (o Outcome, trace []string) {
	for i, r := range c.Rules {
		if !r.holds(p) {
			continue
		}
		line := fmt.Sprintf("%s %d: %s", c.Hook, i+1, r)
		for _, a := range r.Do {
			ended, ok := a.apply(p)
			if !ok {
				line += " (no socket takes it, the rule ends)"
				break
			}
			o = ended
		}
		trace = append(trace, line)
		if o != none {
			break
		}
	}
	return o, trace
}

func (r Rule) holds(p *Packet) bool {
	for _, m := range r.Match {
		if !m.holds(p) {
			return false
		}
	}
	return true
}
