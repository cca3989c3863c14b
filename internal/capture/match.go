// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Protocol is a transport protocol by its IP number.
type Protocol uint8

// The protocols that rules name.
const (
	TCP Protocol = 6
	UDP Protocol = 17
)

func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// Match is one condition of a rule. The set of its types is closed.
type Match interface {
	// holds says whether the packet, as it is now, meets the condition.
	holds(p *Packet) bool
	// text is the condition as nft prints it in a rule on tcp alone (onTCP) or not.
	text(onTCP bool) string
}

// Action is one thing a rule does. The set of its types is closed.
type Action interface {
	// apply changes the packet. An outcome other than none ends the chain; ok
	// false ends the rule, and the packet goes on to the next.
	apply(p *Packet) (o Outcome, ok bool)
	actionText() string
}

// The matches.
type (
	// MarkIs holds for a packet with exactly this mark.
	MarkIs struct{ Mark uint32 }
	// CtMarkIs holds for a packet of a tracked connection with exactly this mark.
	CtMarkIs struct{ Mark uint32 }
	// ReplyDirection holds for a packet that answers the side which began.
	ReplyDirection struct{}
	// FromLoopback holds for a packet that came in on lo.
	FromLoopback struct{}
	// ProtocolIs holds for any of these protocols.
	ProtocolIs []Protocol
	// LaterSegment holds for a TCP segment that does not begin a connection: any
	// but SYN without ACK. It stands behind ProtocolIs{TCP}.
	LaterSegment struct{}
	// DestinationIn holds for these destinations: ordered ranges that neither
	// overlap nor touch.
	DestinationIn struct{ Ranges []AddrRange }
	// DestinationLocal holds for the pod's own addresses.
	DestinationLocal struct{}
	// PortIn holds for these destination ports: ordered ranges that neither overlap
	// nor touch. It stands behind ProtocolIs.
	PortIn struct{ Ports []PortRange }
	// OverRate holds for what is beyond a rate of packets, after as many at once.
	OverRate struct{ PerSecond uint32 }
)

// nftBurst is the burst that nft leaves unsaid.
const nftBurst = 5

// The actions.
type (
	// SetMark sets the packet's mark.
	SetMark struct{ Mark uint32 }
	// SetCtMark sets the connection's mark; without a tracked connection it does
	// nothing.
	SetCtMark struct{ Mark uint32 }
	// Accept ends the chain: the packet goes on.
	Accept struct{}
	// Divert hands the packet to a transparent socket: the established one of its
	// connection, else the listener at To. When there is neither, the rule ends.
	Divert struct{ To netip.AddrPort }
	// Reset drops the TCP segment and answers it with a reset.
	Reset struct{}
	// Drop drops the packet, and counts it.
	Drop struct{}
)

func (m MarkIs) holds(p *Packet) bool       { return p.Mark == m.Mark }
func (m CtMarkIs) holds(p *Packet) bool     { return !p.Untracked && p.CtMark == m.Mark }
func (ReplyDirection) holds(p *Packet) bool { return !p.Untracked && p.CtReply }
func (FromLoopback) holds(p *Packet) bool   { return p.Iface == "lo" }
func (m ProtocolIs) holds(p *Packet) bool   { return slices.Contains(m, p.Proto) }
func (LaterSegment) holds(p *Packet) bool   { return !p.SYN }
func (OverRate) holds(p *Packet) bool       { return p.OverRate }
func (DestinationLocal) holds(p *Packet) bool {
	return p.DstLocal
}

func (m DestinationIn) holds(p *Packet) bool {
	return slices.ContainsFunc(m.Ranges, func(r AddrRange) bool {
		return r.First.Compare(p.Dst.Addr()) <= 0 && p.Dst.Addr().Compare(r.Last) <= 0
	})
}

func (m PortIn) holds(p *Packet) bool {
	return slices.ContainsFunc(m.Ports, func(r PortRange) bool {
		return r.First <= p.Dst.Port() && p.Dst.Port() <= r.Last
	})
}

func (m MarkIs) text(bool) string         { return fmt.Sprintf("meta mark 0x%08x", m.Mark) }
func (m CtMarkIs) text(bool) string       { return fmt.Sprintf("ct mark 0x%08x", m.Mark) }
func (ReplyDirection) text(bool) string   { return "ct direction reply" }
func (FromLoopback) text(bool) string     { return `iif "lo"` }
func (LaterSegment) text(bool) string     { return "tcp flags != syn / syn,ack" }
func (DestinationLocal) text(bool) string { return "fib daddr type local" }

func (m OverRate) text(bool) string {
	if m.PerSecond == nftBurst {
		return fmt.Sprintf("limit rate over %d/second", m.PerSecond)
	}
	return fmt.Sprintf("limit rate over %d/second burst %d packets", m.PerSecond, m.PerSecond)
}

func (m ProtocolIs) text(bool) string {
	if len(m) == 1 {
		return "meta l4proto " + m[0].String()
	}
	return "meta l4proto " + setText(m, Protocol.String)
}

func (m DestinationIn) text(bool) string { return "ip daddr " + setText(m.Ranges, AddrRange.String) }

func (m PortIn) text(onTCP bool) string {
	if onTCP {
		return "tcp dport " + setText(m.Ports, PortRange.String)
	}
	return "th dport " + setText(m.Ports, PortRange.String)
}

func (a SetMark) apply(p *Packet) (Outcome, bool) {
	p.Mark = a.Mark
	return none, true
}

func (a SetCtMark) apply(p *Packet) (Outcome, bool) {
	if !p.Untracked {
		p.CtMark = a.Mark
	}
	return none, true
}

func (Accept) apply(*Packet) (Outcome, bool) { return Accepted, true }
func (Reset) apply(*Packet) (Outcome, bool)  { return Rejected, true }
func (Drop) apply(*Packet) (Outcome, bool)   { return Dropped, true }

func (a Divert) apply(p *Packet) (Outcome, bool) {
	if p.NoProxy {
		return none, false
	}
	p.divertedTo = a.To
	return none, true
}

func (a SetMark) actionText() string   { return fmt.Sprintf("meta mark set 0x%08x", a.Mark) }
func (a SetCtMark) actionText() string { return fmt.Sprintf("ct mark set 0x%08x", a.Mark) }
func (Accept) actionText() string      { return "accept" }
func (a Divert) actionText() string    { return "tproxy to " + a.To.String() }
func (Reset) actionText() string       { return "reject with tcp reset" }
func (Drop) actionText() string        { return "counter packets 0 bytes 0 drop" }

// String is an address, a CIDR where the range is one, or "first-last".
func (r AddrRange) String() string {
	if r.First == r.Last {
		return r.First.String()
	}
	for bits := 31; bits >= 0; bits-- {
		p := netip.PrefixFrom(r.First, bits)
		if p.Masked().Addr() != r.First {
			break
		}
		if lastOf(p) == r.Last {
			return p.String()
		}
	}
	return r.First.String() + "-" + r.Last.String()
}

func setText[T any](list []T, text func(T) string) string {
	parts := make([]string, len(list))
	for i, e := range list {
		parts[i] = text(e)
	}
	return "{ " + strings.Join(parts, ", ") + " }"
}
