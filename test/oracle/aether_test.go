// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"aether.io/aether/internal/convert"
	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

// kind is what becomes of a connection.
type kind string

// The kinds, in Aether's words. kube-proxy's nftables mode rejects noEndpoints and
// undeclared, and drops noLocal and unknown.
const (
	served      kind = "served"
	noEndpoints kind = kind(plan.NoEndpoints)
	noLocal     kind = kind(plan.NoLocalEndpoints)
	undeclared  kind = kind(plan.PortNotDeclared)
	unknown     kind = kind(plan.NoService)
	passed      kind = kind(plan.Passthrough) // to kube-proxy, whatever it does
)

// outcome is what one side does with a connection.
type outcome struct {
	kind      kind
	endpoints []string // "ip:port", sorted
	affinity  bool     // sessionAffinity ClientIP
}

func (o outcome) equal(p outcome) bool {
	return o.kind == p.kind && o.affinity == p.affinity && slices.Equal(sorted(o.endpoints), sorted(p.endpoints))
}

func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }

func (o outcome) String() string {
	text := string(o.kind)
	if len(o.endpoints) > 0 {
		text += " by " + strings.Join(sorted(o.endpoints), " ")
	}
	if o.affinity {
		text += " (ClientIP)"
	}
	return text
}

// aether is our side: the State, and the answers kept the way the agent keeps
// them, deciding again on nothing but what a change affects.
type aether struct {
	settings plan.Settings
	state    *model.State
	targets  []netip.AddrPort
	answers  map[netip.AddrPort]plan.Answer
	uids     map[key]string
	pending  []model.Change
}

func newAether(node string, targets []netip.AddrPort) *aether {
	a := &aether{
		settings: plan.Settings{Mode: plan.ModeEnforce, Node: node},
		targets:  targets,
		uids:     map[key]string{},
	}
	a.state, _ = model.New(model.Options{}).Apply([]model.Change{
		model.SetServiceCIDR{Name: "kubernetes", Prefixes: convert.ServiceCIDR(rangeObject())},
	})
	a.answers = plan.Build(a.state, a.settings, targets)
	return a
}

// apply converts an event as the sources of the agent do.
func (a *aether) apply(e event) {
	var c model.Change
	switch {
	case e.service != nil:
		s, _ := convert.Service(e.service)
		a.uids[keyOf(e.service)] = s.UID
		c = model.SetService{Service: s}
	case e.slice != nil:
		s, usable := convert.Slice(e.slice)
		c = model.SetSlice{Slice: s}
		if !usable {
			c = model.DeleteSlice{Name: nameOf(keyOf(e.slice))}
		}
	case e.node != nil:
		c = model.SetNode{Node: convert.Node(e.node)}
	case e.deleteService != nil:
		c = model.DeleteService{Name: nameOf(*e.deleteService), UID: a.uids[*e.deleteService]}
	default:
		c = model.DeleteSlice{Name: nameOf(*e.deleteSlice)}
	}
	a.pending = append(a.pending, c)
}

func nameOf(k key) model.Name { return model.Name{Namespace: k.Namespace, Name: k.Name} }

// sync applies what is pending in one batch and decides again.
func (a *aether) sync() {
	next, dirty := a.state.Apply(a.pending)
	a.state, a.pending = next, nil
	for _, t := range plan.Affected(dirty, a.settings, a.targets) {
		a.answers[t] = plan.Decide(a.state, a.settings, t)
	}
}

func (a *aether) dial(target netip.AddrPort) outcome { return outcomeOf(a.answers[target]) }

func outcomeOf(answer plan.Answer) outcome {
	var out outcome
	switch answer.Verdict {
	case plan.Passthrough:
		return outcome{kind: passed}
	case plan.Balance:
		out.kind = served
		for _, c := range answer.Candidates {
			if c.Chosen {
				out.endpoints = append(out.endpoints, c.Address)
			}
		}
	case plan.Refuse:
		out.kind = kind(answer.Reason)
	default:
		panic(fmt.Sprintf("oracle: verdict %q", answer.Verdict))
	}
	out.affinity = answer.Policy != nil && answer.Policy.ClientIPAffinity
	return out
}
