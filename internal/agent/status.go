// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/daemon"
	"aether.io/aether/internal/explain"
	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
	"aether.io/aether/internal/plan/demand"
)

// maxOverLimitRows bounds how many of the names that were turned away are listed:
// a scan makes many thousands of them, all alike.
const maxOverLimitRows = 1000

// nameTarget is the one name that is asked about.
type nameTarget struct{ netip.AddrPort }

// names is what the loop gives to decide elsewhere: a state that never changes,
// and what is known of the names now.
type names struct {
	synced   bool
	state    *model.State
	settings plan.Settings
	known    []known
}

// known is what the loop knows of one name beside the decision.
type known struct {
	target netip.AddrPort
	view   demand.View
	live   api.Live
}

// names answers a namesQuery.
func (l *loop) names(only *nameTarget) names {
	n := names{synced: l.synced, state: l.state, settings: l.settings}
	if only != nil {
		n.known = []known{l.know(only.AddrPort)}
		return n
	}
	turnedAway := 0
	for _, t := range l.demand.Targets() {
		switch l.demand.Look(t).Kind {
		case demand.KindWaiting, demand.KindOutside:
			continue
		case demand.KindOverLimit:
			if turnedAway++; turnedAway > maxOverLimitRows {
				continue
			}
		}
		n.known = append(n.known, l.know(t))
	}
	return n
}

func (l *loop) know(t netip.AddrPort) known {
	v := l.demand.Look(t)
	c := l.counts.now[l.published.stats[t]]
	k := known{target: t, view: v, live: api.Live{
		Asked:       v.Kind != demand.KindNone,
		Connections: c.total,
		Active:      c.active,
		Nack:        l.nackOf(t),
	}}
	if v.Looks && v.Look.Sight != plan.NotLooked {
		k.live.Looked = v.Look.String()
	}
	if !v.LastDial.IsZero() {
		k.live.LastDial = v.LastDial.UTC().Format(time.RFC3339)
	}
	return k
}

// decide returns the decision on a name that is known, after what is known from
// looking at its address.
func (n names) decide(k known) plan.Answer {
	a := plan.Decide(n.state, n.settings, k.target)
	if k.view.Looks {
		return a.AfterLook(k.view.Look)
	}
	return a
}

// explain returns the decision on the one target that was asked about.
func (n names) explain() api.Explanation {
	k := n.known[0]
	e := explain.FromAnswer(n.decide(k))
	e.Live = &k.live
	if step := k.step(); step != "" {
		e.Path = append(e.Path, step)
	}
	return e
}

// step says, for people, what became of the name on this node.
func (k known) step() string {
	switch k.view.Kind {
	case demand.KindWaiting:
		return "a pod dialled it; the answer waits for the sources to sync"
	case demand.KindHeld:
		return "a pod dialled it; the answer is held for a moment, for its Service may be on its way"
	case demand.KindOverLimit:
		return "a pod dialled it and it was turned away: the budget of names that are no Service port's was used up"
	case demand.KindOutside:
		return "a pod dialled it when it was outside the Service range; it is answered when a range takes it in"
	case demand.KindService, demand.KindOther:
		if k.live.Nack != "" {
			return "Envoy rejected the answer: " + k.live.Nack
		}
	}
	return ""
}

// rows returns the list of names, Service ports by their names first.
func (n names) rows() []api.ServiceRow {
	rows := make([]api.ServiceRow, 0, len(n.known))
	for _, k := range n.known {
		r := explain.Row(n.decide(k))
		r.Live = k.live
		switch {
		case k.view.Kind == demand.KindOverLimit:
			r.Demand = "over-limit"
		case k.view.Asked:
			r.Demand = "asked"
		default:
			r.Demand = "remembered"
		}
		rows = append(rows, r)
	}
	slices.SortStableFunc(rows, func(a, b api.ServiceRow) int {
		switch {
		case (a.Service == nil) != (b.Service == nil):
			if a.Service == nil {
				return 1
			}
			return -1
		case a.Service == nil:
			return 0
		}
		return cmp.Or(
			cmp.Compare(a.Service.Namespace, b.Service.Namespace),
			cmp.Compare(a.Service.Name, b.Service.Name),
		)
	})
	return rows
}

// status answers a statusQuery.
func (l *loop) status() api.Status {
	s := api.Status{
		Node:         l.settings.Node,
		Zone:         l.zone(),
		Mode:         string(l.settings.Mode),
		EgressSource: string(l.cfg.Envoy.EgressSource),
		RangeKnown:   l.state.RangeKnown(),
		Range:        []string{},
		Synced:       l.synced,
		Pods:         []api.PodStatus{},
		Names: api.NameCounts{
			Services:  l.demand.Count(demand.KindService),
			Other:     l.demand.Count(demand.KindOther) + l.demand.Count(demand.KindHeld),
			OverLimit: l.demand.OverLimit(),
			Asked:     l.askedNames(),
		},
		Problems: l.allProblems(),
		Version:  daemon.Version(),
	}
	for _, p := range l.state.Range() {
		s.Range = append(s.Range, p.String())
	}
	for _, e := range l.envoys {
		s.Envoy.Connected = true
		s.Envoy.Version = max(s.Envoy.Version, e.Version)
	}
	for n, p := range l.pods.byName {
		s.Pods = append(s.Pods, api.PodStatus{
			Namespace: n.Namespace, Name: n.Name,
			IP: p.workload.IP.String(), Listener: p.listener, Nack: p.nack,
		})
	}
	slices.SortFunc(s.Pods, func(a, b api.PodStatus) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return s
}

// askedNames returns how many names the youngest Envoy asked for or holds.
func (l *loop) askedNames() int {
	_, n, _ := l.demand.Newest()
	return n
}

// zone returns the zone that decides, as package plan finds it.
func (l *loop) zone() string {
	if l.settings.Zone != "" {
		return l.settings.Zone
	}
	n, _ := l.state.Node(l.settings.Node)
	return n.Zone
}

// allProblems returns what a person should look at, sorted but for the source's
// own, which come first.
func (l *loop) allProblems() []api.Problem {
	ps := append([]api.Problem{}, l.problems...)
	var own []api.Problem
	for k, words := range l.nacks {
		own = append(own, api.Problem{Source: fmt.Sprintf("%s %s", k.Type, k.Name), Text: "rejected by Envoy: " + words})
	}
	for _, f := range l.files {
		if f.damaged != "" {
			own = append(own, api.Problem{Source: f.name, Text: "was damaged when the agent started: " + f.damaged})
		}
		if f.failing() {
			own = append(own, api.Problem{Source: f.name, Text: "is not saved: " + f.err.Error()})
		}
	}
	if l.counts.err != nil && len(l.envoys) > 0 {
		own = append(own, api.Problem{Source: adminSocket, Text: "connection counts are not read: " + l.counts.err.Error()})
	}
	if p, blind := l.blindProblem(); blind {
		own = append(own, p)
	}
	if err := l.compaction.problem(l.askedNames()); err != nil {
		own = append(own, api.Problem{Source: proxySocket, Text: fmt.Sprintf(
			"Envoy was asked for %d names and is not restarted to forget them: %v", l.askedNames(), err,
		)})
	}
	slices.SortFunc(own, func(a, b api.Problem) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Text, b.Text))
	})
	return append(ps, own...)
}
