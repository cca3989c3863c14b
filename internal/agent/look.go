// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/plan"
	"aether.io/aether/internal/plan/demand"
)

const (
	// lookTimeout bounds one look. It is below what a dial is held for, so that an
	// API server that does not answer is found out while the dial waits.
	lookTimeout = 2 * time.Second
	// behindInterval is how often it is asked whether the source is behind. A source
	// takes seconds to find out that it is, and an agent with nothing to do should
	// not be woken for it more often than for anything else.
	behindInterval = 2 * time.Second
)

// Looker looks at addresses where they are handed out, which the source, whose
// changes come after the fact, cannot.
type Looker interface {
	// Look says whose an address is now. It never answers plan.NotLooked, returns
	// when ctx ends at the latest, and may be called by several goroutines.
	Look(ctx context.Context, a netip.Addr) plan.Look
	// Behind returns since when what the source told is known to be out of date, so
	// that a Service could be missing in it; the zero Time when it is not.
	Behind() time.Time
}

type (
	// lookOver is what a look came to.
	lookOver struct {
		demand.LookAt
		found plan.Look
		took  time.Duration
	}
	// sourceBehind tells since when the source is behind; zero when it is not.
	sourceBehind struct{ since time.Time }
)

func (lookOver) isMessage()     {}
func (sourceBehind) isMessage() {}

// lookWorker makes the looks that the loop asks for, each in a goroutine, and asks
// now and then whether the source is behind.
type lookWorker struct {
	looker Looker
	clock  Clock
	tell   func(message)
}

// run works from when the sources have synced, which ready tells, until ctx ends;
// every look is over then. A source that has yet to tell everything is behind, but
// nothing is answered then anyway, and what has just been told is current.
func (w lookWorker) run(ctx context.Context, ready <-chan struct{}, looks <-chan demand.LookAt) {
	select {
	case <-ready:
	case <-ctx.Done():
		return
	}
	var under sync.WaitGroup
	defer under.Wait()
	var was time.Time
	for {
		if since := w.looker.Behind(); since.IsZero() != was.IsZero() {
			was = since
			w.tell(sourceBehind{since})
		}
		tick := w.clock.After(behindInterval)
		for waiting := true; waiting; {
			select {
			case l := <-looks:
				under.Go(func() { w.look(ctx, l) })
			case <-tick:
				waiting = false
			case <-ctx.Done():
				return
			}
		}
	}
}

// look makes one look. It tells what came of it, also when nothing does in time.
func (w lookWorker) look(ctx context.Context, l demand.LookAt) {
	begun := w.clock.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seen := make(chan plan.Look, 1)
	var under sync.WaitGroup
	defer under.Wait()
	defer cancel()
	under.Go(func() { seen <- w.looker.Look(ctx, l.Addr) })
	found := plan.Look{Sight: plan.Blind, Cause: plan.TimedOut}
	select {
	case found = <-seen:
	case <-w.clock.After(lookTimeout):
	case <-ctx.Done():
	}
	found.At = begun
	w.tell(lookOver{LookAt: l, found: found, took: w.clock.Now().Sub(begun)})
}

// sendLooks has looks made. There is room for as many as can be under way.
func (l *loop) sendLooks(ls []demand.LookAt) {
	for _, at := range ls {
		l.lookAts <- at
	}
}

func (l *loop) lookedAt(t *turn, m lookOver) {
	t.events = append(t.events, demand.Looked{LookAt: m.LookAt, Found: m.found})
	result := string(m.found.Sight)
	if m.found.Sight == plan.Blind {
		result = string(m.found.Cause)
	}
	l.meter.looks.count.WithLabelValues(result).Inc()
	l.meter.looks.took.Observe(m.took.Seconds())
}

// tellBlindness says once when unknown addresses can no longer be looked at, and
// when they can be again.
func (l *loop) tellBlindness() {
	cause, _ := l.demand.Blind()
	if cause == l.blind {
		return
	}
	l.blind = cause
	if cause == plan.NoCause {
		l.log.Info("unknown addresses can be looked at again")
		return
	}
	l.log.Warn("unknown addresses cannot be looked at: they are passed through, not refused", "reason", string(cause))
}

// blindProblem is what a person should know of it.
func (l *loop) blindProblem() (api.Problem, bool) {
	cause, since := l.demand.Blind()
	if cause == plan.NoCause {
		return api.Problem{}, false
	}
	return api.Problem{Source: "look", Text: fmt.Sprintf(
		"whose an unknown address is cannot be seen since %s (%s): such addresses are passed through, not refused",
		since.UTC().Format(time.RFC3339), cause,
	)}, true
}

// lookMetrics are those of looks.
type lookMetrics struct {
	count  *prometheus.CounterVec
	took   prometheus.Histogram
	behind prometheus.Gauge
}

func newLookMetrics(r prometheus.Registerer) lookMetrics {
	m := lookMetrics{
		count: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "aether_agent_looks_total",
			Help: "Looks at addresses that no Service is known to have, by what they found or why they could not see.",
		}, []string{"result"}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "aether_agent_look_seconds",
			Help:    "How long a look took.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2},
		}),
		behind: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "aether_agent_source_behind",
			Help: "1 while the source is known to be out of date, so that no address is refused for being unknown.",
		}),
	}
	for _, s := range []plan.Sight{plan.Absent, plan.OfService, plan.OfOther} {
		m.count.WithLabelValues(string(s))
	}
	for _, c := range plan.Causes() {
		m.count.WithLabelValues(string(c))
	}
	r.MustRegister(m.count, m.took, m.behind)
	return m
}
