// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"aether.io/aether/internal/plan"
)

// thing is what an address is in a test's world.
type thing int

const (
	unknown    thing = iota // in the range, nobody's, mode enforce
	passed                  // in the range, nobody's, mode balance
	served                  // a declared Service port
	empty                   // a declared Service port without endpoints
	early                   // one whose endpoints are yet to be told
	undeclared              // a Service's address, another port
	foreign                 // another balancer's
	external                // outside the range
	apiServer
	things // how many there are
)

// world answers as package plan would.
type world map[netip.AddrPort]thing

func (w world) look(t netip.AddrPort) plan.Answer {
	a := plan.Answer{Target: t}
	switch w[t] {
	case unknown:
		a.Class, a.Verdict, a.Reason = plan.ClassUnknown, plan.Refuse, plan.NoService
	case passed:
		a.Class, a.Verdict = plan.ClassUnknown, plan.Passthrough
	case served:
		a.Class, a.Verdict, a.Policy = plan.ClassService, plan.Balance, &plan.Policy{}
	case empty:
		a.Class, a.Verdict, a.Reason = plan.ClassService, plan.Refuse, plan.NoEndpoints
		a.Policy = &plan.Policy{}
	case early:
		a.Class, a.Verdict, a.Reason = plan.ClassService, plan.Refuse, plan.NoEndpoints
		a.Policy, a.Awaited = &plan.Policy{}, true
	case undeclared:
		a.Class, a.Verdict, a.Reason = plan.ClassService, plan.Refuse, plan.PortNotDeclared
	case foreign:
		a.Class, a.Verdict = plan.ClassForeign, plan.Passthrough
	case external:
		a.Class, a.Verdict = plan.ClassExternal, plan.Passthrough
	case apiServer:
		a.Class, a.Verdict = plan.ClassAPIServer, plan.Passthrough
	}
	return a
}

// target is 10.96.0.n:80.
func target(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(n >> 8), byte(n)}), 80)
}

func targets(ns ...int) []netip.AddrPort {
	out := make([]netip.AddrPort, 0, len(ns))
	for _, n := range ns {
		out = append(out, target(n))
	}
	return out
}

// epoch is when every test begins.
var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// node is a Demand in a world with a clock, and what is published.
type node struct {
	*Demand
	w         world
	now       time.Time
	published map[netip.AddrPort]plan.Answer
	effects   Effects // of the last step
	saves     int
}

func newNode(c Config, remembered ...Name) *node {
	return &node{
		Demand: New(c, remembered), w: world{}, now: epoch,
		published: map[netip.AddrPort]plan.Answer{},
	}
}

// syncedNode is a node that has synced and has the Envoy of stream 1.
func syncedNode(c Config, remembered ...Name) *node {
	n := newNode(c, remembered...)
	n.do(Synced{}, Opened{Stream: 1, Epoch: 1})
	return n
}

func (n *node) do(evs ...Event) Effects {
	f := n.Step(n.now, evs, n.w.look)
	for _, a := range f.Publish {
		n.published[a.Target] = a
	}
	for _, t := range slices.Concat(f.Withdraw, f.TurnAway) {
		delete(n.published, t)
	}
	if f.Save {
		n.saves++
	}
	n.effects = f
	return f
}

// is changes what an address is and tells the node.
func (n *node) is(t netip.AddrPort, what thing) Effects {
	n.w[t] = what
	return n.do(Changed{Targets: []netip.AddrPort{t}})
}

func (n *node) wait(d time.Duration) Effects {
	n.now = n.now.Add(d)
	return n.do()
}

// answer describes what is published under t.
func (n *node) answer(t netip.AddrPort) string {
	a, ok := n.published[t]
	if !ok {
		return "none"
	}
	if a.Reason != "" {
		return fmt.Sprintf("%s %s", a.Verdict, a.Reason)
	}
	return string(a.Verdict)
}

func dialledAt(t netip.AddrPort, at time.Time) Name { return Name{Target: t, LastDial: at} }
