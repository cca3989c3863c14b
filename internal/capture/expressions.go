// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// instruction is one step of a rule as the kernel runs it. A lookup names its
// anonymous set by content, so that two rules compare equal whatever name the
// kernel gave the set.
type instruction struct {
	expr expr.Any // nil for a lookup
	set  *set     // of a lookup
}

// set is the content of an anonymous set.
type set struct {
	key      keyType
	elements []element
}

// keyType is what the elements of a set are.
type keyType string

const (
	keyAddress  keyType = "address"
	keyPort     keyType = "port"
	keyProtocol keyType = "protocol"
)

// element is a key in network byte order. In a set of ranges an end is the first
// key past a range.
type element struct {
	key string
	end bool
}

// Offsets in the IPv4 and TCP headers, and the TCP flags that tell a first
// segment.
const (
	offsetDestination = 16
	offsetPort        = 2
	offsetTCPFlags    = 13
	flagSYN           = 0x02
	flagACK           = 0x10
	loopbackIndex     = 1 // lo has index 1 in every network namespace
	register          = 1
	portRegister      = 2
)

// encode turns a rule into the kernel's instructions, the same ones nft makes.
func encode(r Rule) ([]instruction, error) {
	var out []instruction
	for _, m := range r.Match {
		in, err := encodeMatch(m)
		if err != nil {
			return nil, fmt.Errorf("encode rule %q: %w", r, err)
		}
		out = append(out, in...)
	}
	for _, a := range r.Do {
		in, err := encodeAction(a)
		if err != nil {
			return nil, fmt.Errorf("encode rule %q: %w", r, err)
		}
		out = append(out, in...)
	}
	return out, nil
}

func encodeMatch(m Match) ([]instruction, error) {
	switch m := m.(type) {
	case MarkIs:
		return steps(loadMeta(expr.MetaKeyMARK), equal(native(m.Mark))), nil
	case CtMarkIs:
		return steps(loadCt(expr.CtKeyMARK), equal(native(m.Mark))), nil
	case ReplyDirection:
		return steps(loadCt(expr.CtKeyDIRECTION), equal([]byte{1})), nil
	case FromLoopback:
		return steps(loadMeta(expr.MetaKeyIIF), equal(native(loopbackIndex))), nil
	case ProtocolIs:
		load := loadMeta(expr.MetaKeyL4PROTO)
		if len(m) == 1 {
			return steps(load, equal([]byte{byte(m[0])})), nil
		}
		return append(steps(load), instruction{set: protocolSet(m)}), nil
	case LaterSegment:
		return steps(loadPayload(expr.PayloadBaseTransportHeader, offsetTCPFlags, 1),
			&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 1, Mask: []byte{flagSYN | flagACK}, Xor: []byte{0}},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: []byte{flagSYN}}), nil
	case DestinationIn:
		load := loadPayload(expr.PayloadBaseNetworkHeader, offsetDestination, 4)
		return append(steps(load), instruction{set: addressSet(m.Ranges)}), nil
	case DestinationLocal:
		return steps(&expr.Fib{Register: register, FlagDADDR: true, ResultADDRTYPE: true}, equal(native(unix.RTN_LOCAL))), nil
	case PortIn:
		load := loadPayload(expr.PayloadBaseTransportHeader, offsetPort, 2)
		return append(steps(load), instruction{set: portSet(m.Ports)}), nil
	case OverRate:
		return steps(&expr.Limit{
			Type: expr.LimitTypePkts, Rate: uint64(m.PerSecond), Over: true, Unit: expr.LimitTimeSecond, Burst: m.PerSecond,
		}), nil
	}
	return nil, fmt.Errorf("no encoding for match %T", m)
}

func encodeAction(a Action) ([]instruction, error) {
	switch a := a.(type) {
	case SetMark:
		return steps(immediate(register, native(a.Mark)),
			&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: register}), nil
	case SetCtMark:
		return steps(immediate(register, native(a.Mark)),
			&expr.Ct{Key: expr.CtKeyMARK, SourceRegister: true, Register: register}), nil
	case Accept:
		return steps(&expr.Verdict{Kind: expr.VerdictAccept}), nil
	case Divert:
		addr := a.To.Addr().As4()
		return steps(immediate(register, addr[:]), immediate(portRegister, network16(a.To.Port())),
			&expr.TProxy{Family: unix.NFPROTO_IPV4, TableFamily: unix.NFPROTO_IPV4, RegAddr: register, RegPort: portRegister}), nil
	case Reset:
		return steps(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}), nil
	case Drop:
		return steps(&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}), nil
	}
	return nil, fmt.Errorf("no encoding for action %T", a)
}

// decode is the reverse of encode: ok is false for instructions that no rule of
// ours has.
func decode(in []instruction) (r Rule, ok bool) {
	for rest := in; len(rest) > 0; {
		m, a, n := decodeStep(rest)
		switch {
		case m != nil && len(r.Do) == 0:
			r.Match = append(r.Match, m)
		case a != nil:
			r.Do = append(r.Do, a)
		default:
			return Rule{}, false
		}
		rest = rest[n:]
	}
	// What decodeStep did not look at must be as encode would have it.
	again, err := encode(r)
	return r, err == nil && reflect.DeepEqual(again, uncounted(in))
}

// uncounted returns the instructions as they are before they have counted.
func uncounted(in []instruction) []instruction {
	out := slices.Clone(in)
	for i := range out {
		if _, counts := out[i].expr.(*expr.Counter); counts {
			out[i].expr = &expr.Counter{}
		}
	}
	return out
}

// counted returns how many packets the rules have dropped.
func counted(rules [][]instruction) (packets uint64) {
	for _, in := range rules {
		for _, i := range in {
			if c, counts := i.expr.(*expr.Counter); counts {
				packets += c.Packets
			}
		}
	}
	return packets
}

// decodeStep recognises the match or action at the head of in and says how many
// instructions it takes; it returns neither when it knows none.
func decodeStep(in []instruction) (Match, Action, int) {
	if v, isVerdict := in[0].expr.(*expr.Verdict); isVerdict && v.Kind == expr.VerdictAccept {
		return nil, Accept{}, 1
	}
	if _, isReject := in[0].expr.(*expr.Reject); isReject {
		return nil, Reset{}, 1
	}
	if limit, isLimit := in[0].expr.(*expr.Limit); isLimit {
		return OverRate{uint32(limit.Rate)}, nil, 1
	}
	if len(in) < 2 {
		return nil, nil, 0
	}
	switch load := in[0].expr.(type) {
	case *expr.Immediate:
		a, n := decodeAction(load, in[1:])
		return nil, a, n
	case *expr.Meta:
		return decodeMeta(load.Key, in[1]), nil, 2
	case *expr.Ct:
		cmp, isCmp := in[1].expr.(*expr.Cmp)
		if isCmp && load.Key == expr.CtKeyDIRECTION {
			return ReplyDirection{}, nil, 2
		}
		if isCmp && load.Key == expr.CtKeyMARK && len(cmp.Data) == 4 {
			return CtMarkIs{binary.NativeEndian.Uint32(cmp.Data)}, nil, 2
		}
	case *expr.Fib:
		return DestinationLocal{}, nil, 2
	case *expr.Counter:
		return nil, Drop{}, 2
	case *expr.Payload:
		switch s := in[1].set; {
		case s != nil && s.key == keyAddress:
			return DestinationIn{s.addresses()}, nil, 2
		case s != nil && s.key == keyPort:
			return PortIn{s.ports()}, nil, 2
		case s == nil && len(in) > 2:
			return LaterSegment{}, nil, 3
		}
	}
	return nil, nil, 0
}

func decodeMeta(key expr.MetaKey, operand instruction) Match {
	if operand.set != nil {
		return ProtocolIs(operand.set.protocols())
	}
	cmp, ok := operand.expr.(*expr.Cmp)
	switch {
	case !ok:
		return nil
	case key == expr.MetaKeyIIF:
		return FromLoopback{}
	case key == expr.MetaKeyL4PROTO && len(cmp.Data) == 1:
		return ProtocolIs{Protocol(cmp.Data[0])}
	case key == expr.MetaKeyMARK && len(cmp.Data) == 4:
		return MarkIs{binary.NativeEndian.Uint32(cmp.Data)}
	}
	return nil
}

// decodeAction reads what follows an immediate value; n counts the immediate.
func decodeAction(value *expr.Immediate, rest []instruction) (a Action, n int) {
	if len(value.Data) != 4 {
		return nil, 0
	}
	switch user := rest[0].expr.(type) {
	case *expr.Meta:
		return SetMark{binary.NativeEndian.Uint32(value.Data)}, 2
	case *expr.Ct:
		return SetCtMark{binary.NativeEndian.Uint32(value.Data)}, 2
	case *expr.Immediate:
		if len(rest) > 1 && len(user.Data) == 2 {
			to := netip.AddrPortFrom(netip.AddrFrom4([4]byte(value.Data)), binary.BigEndian.Uint16(user.Data))
			return Divert{to}, 3
		}
	}
	return nil, 0
}

func steps(exprs ...expr.Any) []instruction {
	out := make([]instruction, len(exprs))
	for i, e := range exprs {
		out[i] = instruction{expr: e}
	}
	return out
}

func loadMeta(key expr.MetaKey) expr.Any { return &expr.Meta{Key: key, Register: register} }
func loadCt(key expr.CtKey) expr.Any     { return &expr.Ct{Key: key, Register: register} }
func equal(data []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: data}
}

func immediate(reg uint32, data []byte) expr.Any {
	return &expr.Immediate{Register: reg, Data: data}
}

func loadPayload(base expr.PayloadBase, offset, length uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: base, Offset: offset, Len: length}
}

func native(v uint32) []byte    { return binaryutil.NativeEndian.PutUint32(v) }
func network16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }

func protocolSet(list []Protocol) *set {
	s := &set{key: keyProtocol}
	for _, p := range list {
		s.elements = append(s.elements, element{key: string([]byte{byte(p)})})
	}
	return s
}

func (s *set) protocols() []Protocol {
	var out []Protocol
	for _, e := range s.elements {
		if len(e.key) == 1 {
			out = append(out, Protocol(e.key[0]))
		}
	}
	return out
}

func addressSet(ranges []AddrRange) *set {
	spans := make([]span, len(ranges))
	for i, r := range ranges {
		spans[i] = span{addrNumber(r.First), addrNumber(r.Last)}
	}
	return spanSet(keyAddress, 4, spans)
}

func portSet(ports []PortRange) *set {
	spans := make([]span, len(ports))
	for i, r := range ports {
		spans[i] = span{uint32(r.First), uint32(r.Last)}
	}
	return spanSet(keyPort, 2, spans)
}

// spanSet gives each range its first key and, unless it reaches the highest key
// there is, the first key past it. A set that does not begin at zero opens with
// an end at zero, as nft makes it.
func spanSet(key keyType, width int, spans []span) *set {
	s := &set{key: key}
	bytesOf := func(n uint32) string {
		return string(binary.BigEndian.AppendUint32(nil, n)[4-width:])
	}
	highest := uint32(uint64(1)<<(8*width) - 1)
	if len(spans) > 0 && spans[0].first > 0 {
		s.elements = append(s.elements, element{key: bytesOf(0), end: true})
	}
	for _, r := range spans {
		s.elements = append(s.elements, element{key: bytesOf(r.first)})
		if r.last < highest {
			s.elements = append(s.elements, element{key: bytesOf(r.last + 1), end: true})
		}
	}
	return s
}

// spans is the reverse of spanSet for elements in order.
func (s *set) spans(width int) []span {
	highest := uint32(uint64(1)<<(8*width) - 1)
	var out []span
	for _, e := range s.elements {
		if len(e.key) != width {
			return nil
		}
		n := binary.BigEndian.Uint32(append(bytes.Repeat([]byte{0}, 4-width), e.key...))
		switch {
		case !e.end:
			out = append(out, span{n, highest})
		case len(out) > 0:
			out[len(out)-1].last = n - 1
		}
	}
	return out
}

func (s *set) addresses() []AddrRange {
	var out []AddrRange
	for _, r := range s.spans(4) {
		out = append(out, AddrRange{numberAddr(r.first), numberAddr(r.last)})
	}
	return out
}

func (s *set) ports() []PortRange {
	var out []PortRange
	for _, r := range s.spans(2) {
		out = append(out, PortRange{uint16(r.first), uint16(r.last)})
	}
	return out
}
