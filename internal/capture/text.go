// SPDX-License-Identifier: Apache-2.0

package capture

import "strings"

// Text is the rule set as "nft list table ip aether_capture" prints it (the
// spelling of nft 1.0.6).
func (s RuleSet) Text() string {
	var b strings.Builder
	b.WriteString("table ip " + TableName + " {\n")
	for i, c := range s.Chains {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString("\tchain " + string(c.Hook) + " {\n")
		b.WriteString("\t\ttype " + c.kind() + " hook " + string(c.Hook) + " priority mangle; policy accept;\n")
		for _, r := range c.Rules {
			b.WriteString("\t\t" + r.String() + "\n")
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

func (c Chain) kind() string {
	if c.Reroute {
		return "route"
	}
	return "filter"
}

// String is the rule as nft prints it. A condition on tcp alone goes unsaid
// where what follows says it too.
func (r Rule) String() string {
	var parts []string
	onTCP := r.onTCP()
	for _, m := range r.Match {
		if p, ok := m.(ProtocolIs); ok && len(p) == 1 && r.impliesTCP() {
			continue
		}
		parts = append(parts, m.text(onTCP))
	}
	for _, a := range r.Do {
		parts = append(parts, a.actionText())
	}
	return strings.Join(parts, " ")
}

// onTCP is true for a rule that only tcp can meet.
func (r Rule) onTCP() bool {
	for _, m := range r.Match {
		if p, ok := m.(ProtocolIs); ok {
			return len(p) == 1 && p[0] == TCP
		}
	}
	return false
}

// impliesTCP is true for a rule whose text has something that only tcp has.
func (r Rule) impliesTCP() bool {
	if !r.onTCP() {
		return false
	}
	for _, m := range r.Match {
		switch m.(type) {
		case PortIn, LaterSegment:
			return true
		}
	}
	for _, a := range r.Do {
		if a == (Reset{}) {
			return true
		}
	}
	return false
}
