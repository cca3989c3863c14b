// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// errForeign marks a rule that holds something no rule of ours has.
var errForeign = errors.New("not one of ours")

func table() *nftables.Table {
	return &nftables.Table{Name: TableName, Family: nftables.TableFamilyIPv4}
}

// baseChain is the kernel's form of a chain without its rules.
func baseChain(t *nftables.Table, c Chain) *nftables.Chain {
	policy := nftables.ChainPolicyAccept
	out := &nftables.Chain{
		Name: string(c.Hook), Table: t, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle, Policy: &policy,
	}
	if c.Hook == Output {
		out.Hooknum = nftables.ChainHookOutput
	}
	if c.Reroute {
		out.Type = nftables.ChainTypeRoute
	}
	return out
}

// writeTable makes the table hold exactly the rule set, in one transaction.
//
// Chains that are there already are emptied and refilled, not deleted: the kernel
// switches a chain's old rules for its new ones at one instant, while a new chain
// stands beside the old one for a moment and a packet between the two would meet
// neither's rules.
func writeTable(conn *nftables.Conn, s RuleSet) error {
	found, err := readChains(conn)
	if err != nil {
		return err
	}
	t := conn.AddTable(table())
	if !canRefill(found, s) {
		conn.DelTable(t)
		t = conn.AddTable(table())
	}
	var setID uint32
	for _, c := range s.Chains {
		chain := conn.AddChain(baseChain(t, c))
		conn.FlushChain(chain)
		for _, r := range c.Rules {
			in, err := encode(r)
			if err != nil {
				return err
			}
			exprs := make([]expr.Any, len(in))
			for i, step := range in {
				exprs[i] = step.expr
				if step.set == nil {
					continue
				}
				setID++
				if exprs[i], err = addSet(conn, t, setID, step.set); err != nil {
					return fmt.Errorf("encode rule %q: %w", r, err)
				}
			}
			conn.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: exprs})
		}
	}
	return conn.Flush()
}

// canRefill is true when every chain found is as the rule set wants it, rules
// apart.
func canRefill(found []*nftables.Chain, s RuleSet) bool {
	for _, f := range found {
		if !slices.ContainsFunc(s.Chains, func(c Chain) bool { return sameBase(f, baseChain(f.Table, c)) }) {
			return false
		}
	}
	return true
}

// sameBase compares all of a chain but its policy, which a transaction can change.
func sameBase(a, b *nftables.Chain) bool {
	return a.Name == b.Name && a.Type == b.Type &&
		a.Hooknum != nil && *a.Hooknum == *b.Hooknum &&
		a.Priority != nil && *a.Priority == *b.Priority
}

// addSet queues an anonymous set and returns the lookup in it. id is unique
// within the transaction.
func addSet(conn *nftables.Conn, t *nftables.Table, id uint32, s *set) (expr.Any, error) {
	kernelSet := &nftables.Set{Table: t, ID: id, Name: "__set%d", Anonymous: true, Constant: true}
	switch s.key {
	case keyAddress:
		kernelSet.KeyType, kernelSet.Interval = nftables.TypeIPAddr, true
	case keyPort:
		kernelSet.KeyType, kernelSet.Interval = nftables.TypeInetService, true
	case keyProtocol:
		kernelSet.KeyType = nftables.TypeInetProto
	}
	elements := make([]nftables.SetElement, len(s.elements))
	for i, e := range s.elements {
		elements[i] = nftables.SetElement{Key: []byte(e.key), IntervalEnd: e.end}
	}
	if err := conn.AddSet(kernelSet, elements); err != nil {
		return nil, err
	}
	return &expr.Lookup{SourceRegister: register, SetName: kernelSet.Name, SetID: id}, nil
}

// deleteTable removes the table; that there is none is no error.
func deleteTable(conn *nftables.Conn) error {
	// Adding it first makes the deletion succeed in any case; both are one
	// transaction, so nothing shows in between.
	conn.DelTable(conn.AddTable(table()))
	return conn.Flush()
}

// tableExists says whether the table is there.
func tableExists(conn *nftables.Conn) (bool, error) {
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return false, fmt.Errorf("list nft tables: %w", err)
	}
	return slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == TableName }), nil
}

// readChains returns the chains of the table, without their rules.
func readChains(conn *nftables.Conn) ([]*nftables.Chain, error) {
	all, err := conn.ListChainsOfTableFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return nil, fmt.Errorf("list nft chains: %w", err)
	}
	return slices.DeleteFunc(all, func(c *nftables.Chain) bool { return c.Table.Name != TableName }), nil
}

// readRules returns the instructions of each rule of a chain. A rule that has
// any of another kind is nil.
func readRules(conn *nftables.Conn, chain string) ([][]instruction, error) {
	msgs, err := list("the rules of nft chain "+chain, func() ([][]byte, error) { return dumpRules(chain) })
	if err != nil {
		return nil, err
	}
	var rules [][]instruction
	for _, m := range msgs {
		in, err := readRule(conn, m)
		if err != nil && !errors.Is(err, errForeign) {
			return nil, fmt.Errorf("read rule %d of nft chain %s: %w", len(rules)+1, chain, err)
		}
		rules = append(rules, in)
	}
	return rules, nil
}

// dumpRules asks for the rules of a chain, in the network namespace of the thread.
func dumpRules(chain string) ([][]byte, error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP)
	req.AddRawData([]byte{unix.NFPROTO_IPV4, unix.NFNETLINK_V0, 0, 0})
	req.AddRawData(nl.NewRtAttr(unix.NFTA_RULE_TABLE, nl.ZeroTerminated(TableName)).Serialize())
	req.AddRawData(nl.NewRtAttr(unix.NFTA_RULE_CHAIN, nl.ZeroTerminated(chain)).Serialize())
	return req.Execute(unix.NETLINK_NETFILTER, 0)
}

// readRule parses one rule message: a 4-byte header, then attributes.
func readRule(conn *nftables.Conn, msg []byte) ([]instruction, error) {
	rule, err := attributes(msg[min(4, len(msg)):])
	if err != nil {
		return nil, err
	}
	list, err := nl.ParseRouteAttr(rule[unix.NFTA_RULE_EXPRESSIONS])
	if err != nil {
		return nil, err
	}
	var out []instruction
	for _, item := range list {
		e, err := attributes(item.Value)
		if err != nil {
			return nil, err
		}
		name := strings.TrimRight(string(e[unix.NFTA_EXPR_NAME]), "\x00")
		in, err := readExpression(conn, name, e[unix.NFTA_EXPR_DATA])
		if err != nil {
			return nil, err
		}
		out = append(out, in)
	}
	return out, nil
}

// readExpression reads the kinds of expressions our rules are made of. Reading
// whole rules with the library would not do: it drops the kinds it does not know,
// tproxy among them, and reads "ct mark set" as "ct mark".
func readExpression(conn *nftables.Conn, name string, data []byte) (instruction, error) {
	var e expr.Any
	switch name {
	case "meta":
		e = &expr.Meta{}
	case "cmp":
		e = &expr.Cmp{}
	case "payload":
		e = &expr.Payload{}
	case "bitwise":
		e = &expr.Bitwise{}
	case "fib":
		e = &expr.Fib{}
	case "reject":
		e = &expr.Reject{}
	case "limit":
		e = &expr.Limit{}
	case "counter":
		e = &expr.Counter{}
	case "immediate":
		return readImmediate(data)
	case "ct":
		return readCt(data)
	case "tproxy":
		return readTproxy(data)
	case "lookup":
		return readLookup(conn, data)
	default:
		return instruction{}, errForeign
	}
	if err := expr.Unmarshal(unix.NFPROTO_IPV4, data, e); err != nil {
		return instruction{}, fmt.Errorf("read %s expression: %w", name, err)
	}
	return instruction{expr: e}, nil
}

// readImmediate reads a value for a register or, for the verdict register, a
// verdict.
func readImmediate(data []byte) (instruction, error) {
	value := &expr.Immediate{}
	if err := expr.Unmarshal(unix.NFPROTO_IPV4, data, value); err != nil {
		return instruction{}, fmt.Errorf("read immediate expression: %w", err)
	}
	if value.Register != unix.NFT_REG_VERDICT {
		return instruction{expr: value}, nil
	}
	verdict := &expr.Verdict{}
	if err := expr.Unmarshal(unix.NFPROTO_IPV4, data, verdict); err != nil {
		return instruction{}, fmt.Errorf("read verdict: %w", err)
	}
	return instruction{expr: verdict}, nil
}

func readCt(data []byte) (instruction, error) {
	a, err := attributes(data)
	if err != nil {
		return instruction{}, fmt.Errorf("read ct expression: %w", err)
	}
	e := &expr.Ct{
		Key:       expr.CtKey(number(a[unix.NFTA_CT_KEY])),
		Register:  number(a[unix.NFTA_CT_DREG]),
		Direction: number(a[unix.NFTA_CT_DIRECTION]),
	}
	if source := a[unix.NFTA_CT_SREG]; source != nil {
		e.SourceRegister, e.Register = true, number(source)
	}
	return instruction{expr: e}, nil
}

func readTproxy(data []byte) (instruction, error) {
	a, err := attributes(data)
	if err != nil {
		return instruction{}, fmt.Errorf("read tproxy expression: %w", err)
	}
	return instruction{expr: &expr.TProxy{
		Family:      byte(number(a[expr.NFTA_TPROXY_FAMILY])),
		TableFamily: unix.NFPROTO_IPV4,
		RegAddr:     number(a[expr.NFTA_TPROXY_REG_ADDR]),
		RegPort:     number(a[expr.NFTA_TPROXY_REG_PORT]),
	}}, nil
}

// readLookup reads a lookup together with the content of its set.
func readLookup(conn *nftables.Conn, data []byte) (instruction, error) {
	lookup := &expr.Lookup{}
	if err := expr.Unmarshal(unix.NFPROTO_IPV4, data, lookup); err != nil {
		return instruction{}, fmt.Errorf("read lookup expression: %w", err)
	}
	if lookup.Invert || lookup.IsDestRegSet || lookup.SourceRegister != register {
		return instruction{}, errForeign
	}
	kernelSet, err := conn.GetSetByName(table(), lookup.SetName)
	if err != nil {
		return instruction{}, fmt.Errorf("read nft set %s: %w", lookup.SetName, err)
	}
	found, err := conn.GetSetElements(kernelSet)
	if err != nil {
		return instruction{}, fmt.Errorf("read elements of nft set %s: %w", lookup.SetName, err)
	}
	s := &set{}
	switch kernelSet.KeyType.Name {
	case nftables.TypeIPAddr.Name:
		s.key = keyAddress
	case nftables.TypeInetService.Name:
		s.key = keyPort
	case nftables.TypeInetProto.Name:
		s.key = keyProtocol
	default:
		return instruction{}, errForeign
	}
	for _, e := range found {
		s.elements = append(s.elements, element{key: string(e.Key), end: e.IntervalEnd})
	}
	// An end sorts before a begin of the same key: there the ranges touch.
	slices.SortFunc(s.elements, func(a, b element) int {
		if c := strings.Compare(a.key, b.key); c != 0 || a.end == b.end {
			return c
		}
		if a.end {
			return -1
		}
		return 1
	})
	return instruction{set: s}, nil
}

// attributes parses netlink attributes into a map by type, nesting flags off.
func attributes(b []byte) (map[uint16][]byte, error) {
	list, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, fmt.Errorf("parse netlink attributes: %w", err)
	}
	out := make(map[uint16][]byte, len(list))
	for _, a := range list {
		out[a.Attr.Type&^uint16(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)] = a.Value
	}
	return out, nil
}

// number reads a 32-bit attribute of nftables, which has network byte order; 0
// when it is absent.
func number(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}
