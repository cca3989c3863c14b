// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
	"aether.io/aether/internal/plan/demand"
	"aether.io/aether/internal/xds"
)

const (
	// sourceGap is the shortest time between two turns that are made for source
	// changes alone, so that a storm of them costs one turn per gap. Anything
	// else that happens ends the wait.
	sourceGap = 5 * time.Millisecond
	// maxTurn is how many messages one turn takes in at most.
	maxTurn = 1024
)

// Clock is the time of the loop.
type Clock interface {
	Now() time.Time
	// After sends once the duration has passed.
	After(time.Duration) <-chan time.Time
}

// publisher is the xDS server, as the loop sees it.
type publisher interface {
	Publish(xds.Update) error
	Nack(xds.Type, string) (words string, rejected bool)
	Accepted(xds.Type, string) bool
}

// loop is the one goroutine's state. Only run and what it calls touch it.
type loop struct {
	cfg   Config
	log   *slog.Logger
	clock Clock
	meter *Metrics
	xds   publisher
	// directory is told of each new state.
	directory *directory
	in        <-chan message
	// writes goes to the writer; it has room for one write of every file.
	writes chan<- write

	state    *model.State
	settings plan.Settings
	demand   *demand.Demand
	synced   bool
	ready    chan struct{} // closed when the first publication is done

	// pending are changes of the source that are not applied yet.
	pending   []model.Change
	pendingAt time.Time // when the oldest of them came
	appliedAt time.Time
	complete  bool // the source has told everything, pending included
	problems  []api.Problem

	published published
	pace      pace
	pods      pods
	envoys    map[uint64]xds.Stream // by stream
	nacks     map[xds.Key]string
	unasked   []func() // first requests that wait for the sync
	counts    counts
	files     files

	compaction compaction
	compacts   chan demand.StreamID // to the compactor; has room for one

	lookAts chan demand.LookAt // looks to be made; has room for all that can be under way
	blind   plan.Cause         // why none can see, as was told last

	starting map[uint64]bool // streams of Envoys that do not listen yet
	lives    chan<- uint64   // such streams, to be watched; nil when nobody does
	// checkNetNS says why a path is no pod's network namespace.
	checkNetNS func(string) error
}

// turn is one round of the loop.
type turn struct {
	now     time.Time
	events  []demand.Event
	urgent  bool // something other than a change of the source came
	remake  bool // every answer and listener may have changed
	dirty   model.Dirty
	retry   []model.Workload          // listeners that are to be published again
	asked   []time.Time               // when the asks of this turn came
	changed time.Time                 // when the oldest change of this turn came
	done    []func()                  // to be called after the publication
	update  map[xds.Key]proto.Message // nil removes
	named   map[string]bool           // clusters of update that only who asks for them gets
	judged  map[xds.Key]bool          // resources that Envoy accepted or rejected
}

// run takes turns until ctx ends.
func (l *loop) run(ctx context.Context) {
	for {
		var wake <-chan time.Time
		if at, ok := l.wake(); ok {
			wake = l.clock.After(at.Sub(l.clock.Now()))
		}
		select {
		case m := <-l.in:
			l.turn(l.drain(m))
		case <-wake:
			l.turn(nil)
		case <-ctx.Done():
			return
		}
	}
}

// drain takes what else has come.
func (l *loop) drain(first message) []message {
	ms := []message{first}
	for len(ms) < maxTurn {
		select {
		case m := <-l.in:
			ms = append(ms, m)
		default:
			return ms
		}
	}
	return ms
}

// wake returns when a turn is due though nothing comes.
func (l *loop) wake() (time.Time, bool) {
	var first time.Time
	sooner := func(at time.Time) {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	if at, ok := l.demand.Wake(); ok {
		sooner(at)
	}
	if l.hasPending() {
		sooner(l.appliedAt.Add(sourceGap))
	}
	if at, ok := l.pace.wake(); ok {
		sooner(at)
	}
	for _, at := range l.published.turning {
		sooner(at)
	}
	for _, p := range l.pods.waiting {
		sooner(p.until)
	}
	if stream, names, ok := l.demand.Newest(); ok {
		if at, ok := l.compaction.wake(stream, names); ok {
			sooner(at)
		}
	}
	for _, f := range l.files {
		if at, ok := f.wake(); ok {
			sooner(at)
		}
	}
	return first, !first.IsZero()
}

// turn takes in messages and does what they and the time call for.
func (l *loop) turn(ms []message) {
	t := &turn{now: l.clock.Now(), update: map[xds.Key]proto.Message{}, judged: map[xds.Key]bool{}, named: map[string]bool{}}
	for _, m := range ms {
		l.receive(t, m)
	}
	l.apply(t)
	f := l.demand.Step(t.now, t.events, l.look)
	l.sendLooks(f.Look)
	l.publish(t, f)
	l.judge(t)
	l.directory.update(l.state, len(t.dirty.Workloads) > 0)
	l.compactionDue(t.now)
	if f.Save {
		l.save(demandFile)
	}
	for _, done := range t.done {
		done()
	}
	l.answerPods(t.now)
	l.startSaves(t.now)
	l.tellBlindness()
	l.observe(t)
}

// look decides on one address by the state of now.
func (l *loop) look(target netip.AddrPort) plan.Answer {
	return plan.Decide(l.state, l.settings, target)
}

func (l *loop) receive(t *turn, m message) {
	switch m := m.(type) {
	case sourceBatch:
		if !l.hasPending() {
			l.pendingAt = m.at
		}
		l.pending = append(l.pending, m.Changes...)
		l.problems = m.Problems
		l.complete = l.complete || m.Synced
		return
	case saved:
		l.saved(m)
		return
	case scraped:
		l.scraped(t, m)
		return
	case compacted:
		l.compacted(m)
		return
	case envoyLive:
		l.lived(t, m)
	case recordsDialled:
		l.recordsDialled(t, m)
		return
	case lookOver:
		l.lookedAt(t, m)
	case sourceBehind:
		t.events = append(t.events, demand.Behind{Since: m.since})
	case xdsEvent:
		l.heard(t, m)
	case podAdd:
		l.addPod(t, m)
	case podDelete:
		l.deletePod(t, m)
	case modeChange:
		l.setMode(t, m)
	case statusQuery:
		t.done = append(t.done, func() { m.reply <- l.status() })
	case checkQuery:
		t.done = append(t.done, func() { m.reply <- l.checkFacts() })
	case namesQuery:
		t.done = append(t.done, func() { m.reply <- l.names(m.target) })
	}
	t.urgent = true
}

func (l *loop) hasPending() bool { return len(l.pending) > 0 || l.complete && !l.synced }

// apply takes the pending changes into the state and puts what they affect in
// front of the turn's events.
func (l *loop) apply(t *turn) {
	last := l.complete && !l.synced // what completes the picture must be in it
	if l.hasPending() && (t.urgent || last || !t.now.Before(l.appliedAt.Add(sourceGap))) {
		t.changed = l.pendingAt
		l.appliedAt = t.now
		var dirty model.Dirty
		wasKnown := l.state.RangeKnown()
		l.state, dirty = l.state.Apply(l.pending)
		l.pending = nil
		t.dirty = dirty
		l.tellRange(wasKnown, last)
	}
	var first []demand.Event
	if last {
		l.synced = true
		t.remake = true
		t.done = append(t.done, l.unasked...)
		l.unasked = nil
		first = append(first, demand.Synced{})
		t.done = append(t.done, func() { close(l.ready) })
		l.log.Info("sources have synced", "count", len(l.demand.Remembered()))
	}
	if ts := l.affected(t); len(ts) > 0 {
		first = append(first, demand.Changed{Targets: ts})
	}
	t.events = append(first, t.events...)
}

// affected returns the names whose answer may have changed in this turn, but for those
// that are paced.
func (l *loop) affected(t *turn) []netip.AddrPort {
	switch {
	case t.remake:
		return l.demand.Targets()
	case t.dirty.Range || len(t.dirty.Nodes) > 0:
		return plan.Affected(t.dirty, l.settings, l.demand.Targets())
	}
	came := t.changed
	ts, oldest := l.pace.due(t.now)
	if t.changed.IsZero() || !oldest.IsZero() && oldest.Before(t.changed) {
		t.changed = oldest
	}
	later := false
	for a := range t.dirty.Addrs {
		_, claimed := t.dirty.Claims[a]
		for _, target := range l.demand.TargetsOf(a) {
			if !claimed && l.pace.defers(target, t.now, came) {
				later = true
				continue
			}
			ts = append(ts, target)
		}
	}
	if later && len(ts) == 0 && len(t.dirty.Workloads) == 0 {
		t.changed = time.Time{} // it is told, and its lag counted, in a later turn
	}
	slices.SortFunc(ts, netip.AddrPort.Compare)
	return slices.Compact(ts)
}

// tellRange says once when the Service range becomes known or unknown.
func (l *loop) tellRange(was, first bool) {
	is := l.state.RangeKnown()
	switch {
	case !is && (was || first):
		l.log.Warn("the Service range is not known: every Service address is passed through",
			"reason", "no ServiceCIDR and no --service-range")
	case is && !was && !first:
		l.log.Info("the Service range is known")
	}
}

func (l *loop) setMode(t *turn, m modeChange) {
	if m.mode != l.settings.Mode {
		l.log.Info("mode changed", "mode", string(m.mode))
		l.settings.Mode = m.mode
		t.remake = true
	}
	t.done = append(t.done, func() { m.reply <- struct{}{} })
}

// set and remove add to what the turn publishes; of a name the last one counts.
func (t *turn) set(typ xds.Type, name string, m proto.Message) {
	t.update[xds.Key{Type: typ, Name: name}] = m
}

func (t *turn) remove(typ xds.Type, name string) {
	t.update[xds.Key{Type: typ, Name: name}] = nil
}

// sum returns what the turn publishes.
func (t *turn) sum() xds.Update {
	var u xds.Update
	for k, m := range t.update {
		if m == nil {
			u.Remove = append(u.Remove, k)
			continue
		}
		u.Set = append(u.Set, xds.Resource{
			Type: k.Type, Name: k.Name, Message: m, Named: k.Type == xds.Cluster && t.named[k.Name],
		})
	}
	return u
}
