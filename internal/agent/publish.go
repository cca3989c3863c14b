// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"reflect"
	"time"

	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
	"aether.io/aether/internal/plan/demand"
	"aether.io/aether/internal/xds"
)

// turnAwayTime is how long a name that is turned away stays published as an
// empty cluster when Envoy does not acknowledge it sooner.
const turnAwayTime = time.Second

// published is what was published, as far as later publications depend on it.
type published struct {
	base     map[string]bool // clusters that every node has
	assigned map[netip.AddrPort]bool
	stats    map[netip.AddrPort]string // statistics names of Service ports
	// turning are names that are published empty, to be withdrawn when Envoy has
	// them, at the latest at that time.
	turning map[netip.AddrPort]time.Time
	turned  []netip.AddrPort // of them, those that Envoy has
	capture *plan.Capture    // of every listener; nil before the first one
}

func newPublished() published {
	return published{
		base:     map[string]bool{},
		assigned: map[netip.AddrPort]bool{},
		stats:    map[netip.AddrPort]string{},
		turning:  map[netip.AddrPort]time.Time{},
	}
}

// tookAway notes that Envoy has a cluster; if it is one to be withdrawn, it is.
func (p *published) tookAway(target netip.AddrPort) {
	if _, ok := p.turning[target]; ok {
		p.turned = append(p.turned, target)
	}
}

// publish has the effects of a turn translated and published.
func (l *loop) publish(t *turn, f demand.Effects) {
	if !l.synced {
		return
	}
	l.turnedAway(t)
	if len(l.published.base) == 0 {
		for _, c := range envoy.BaseClusters(l.cfg.Envoy) {
			l.published.base[c.GetName()] = true
			t.set(xds.Cluster, c.GetName(), c)
		}
		for name, b := range envoy.RateLimits(l.cfg.Envoy) {
			t.set(xds.TokenBucket, name, b)
		}
	}
	for _, a := range f.Publish {
		l.publishAnswer(t, a)
	}
	for _, target := range f.Withdraw {
		l.withdraw(t, target)
	}
	for _, target := range f.TurnAway {
		l.publishEmpty(t, target)
	}
	l.publishListeners(t)
	if len(t.update) == 0 {
		return
	}
	begun := time.Now()
	if err := l.xds.Publish(t.sum()); err != nil {
		l.log.Error("publish", "err", err)
	}
	l.meter.publish.Observe(time.Since(begun).Seconds())
}

func (l *loop) publishAnswer(t *turn, a plan.Answer) {
	p := &l.published
	name := envoy.ClusterName(a.Target)
	delete(p.turning, a.Target)
	delete(p.stats, a.Target)
	if a.Service != nil && (a.Policy != nil || a.Verdict == plan.Passthrough) {
		p.stats[a.Target] = envoy.StatName(a.Service.Service, a.Service.Port)
	}
	l.pace.answered(a.Target, t.now, len(a.Candidates))
	r := envoy.Translate(a, l.cfg.Envoy)
	t.set(xds.Cluster, name, r.Cluster)
	// What is not remembered no Envoy gets but by asking.
	t.named[name] = l.demand.Look(a.Target).Kind != demand.KindService
	switch {
	case r.Assignment != nil:
		t.set(xds.Assignment, name, r.Assignment)
		p.assigned[a.Target] = true
	case p.assigned[a.Target]:
		t.remove(xds.Assignment, name)
		delete(p.assigned, a.Target)
	}
}

func (l *loop) withdraw(t *turn, target netip.AddrPort) {
	p := &l.published
	name := envoy.ClusterName(target)
	t.remove(xds.Cluster, name)
	if p.assigned[target] {
		t.remove(xds.Assignment, name)
	}
	delete(p.assigned, target)
	delete(p.stats, target)
	delete(p.turning, target)
	l.pace.forget(target)
}

// publishEmpty answers a name that is past the budget: the connection that waits
// fails at once, and Envoy is not left with a cluster. The withdrawal waits until
// Envoy has the cluster, for what is set and removed in one go is never sent.
func (l *loop) publishEmpty(t *turn, target netip.AddrPort) {
	l.withdraw(t, target)
	t.set(xds.Cluster, envoy.ClusterName(target), envoy.EmptyCluster(target))
	t.named[envoy.ClusterName(target)] = true
	l.published.turning[target] = t.now.Add(turnAwayTime)
}

// turnedAway withdraws the empty clusters that Envoy has or that waited too long.
func (l *loop) turnedAway(t *turn) {
	p := &l.published
	for _, target := range p.turned {
		if _, ok := p.turning[target]; ok {
			l.withdraw(t, target)
		}
	}
	p.turned = nil
	for target, until := range p.turning {
		if !t.now.Before(until) {
			l.withdraw(t, target)
		}
	}
}

// publishListeners publishes the listeners of the pods that changed, or of all
// of them when what they tell apart did.
func (l *loop) publishListeners(t *turn) {
	if t.remake || t.dirty.Range {
		c := plan.CaptureFor(l.state, l.settings)
		if l.published.capture == nil || !reflect.DeepEqual(c, *l.published.capture) {
			l.published.capture = &c
			for w := range l.state.Workloads() {
				l.publishListener(t, w)
			}
		}
	}
	for _, w := range t.retry {
		l.publishListener(t, w)
	}
	for name := range t.dirty.Workloads {
		if w, ok := l.state.Workload(name); ok {
			l.publishListener(t, w)
			continue
		}
		t.remove(xds.Listener, envoy.ListenerName(name))
	}
}

func (l *loop) publishListener(t *turn, w model.Workload) {
	if x := l.pods.byName[w.Name]; x != nil && x.held {
		return
	}
	t.set(xds.Listener, envoy.ListenerName(w.Name), envoy.Listener(w, *l.published.capture, l.cfg.Envoy))
}
