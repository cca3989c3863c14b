// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"aether.io/aether/internal/plan"
)

const (
	propNames   = 8
	propBudget  = 3
	propHold    = 300 * time.Millisecond
	propWindow  = time.Hour
	propStreams = 3
)

// history draws steps of one node's life: events, changes of the world, time.
type history struct {
	t      *rapid.T
	w      world
	now    time.Time
	open   []StreamID
	next   StreamID
	epochs uint64
	synced bool
}

func genTarget(t *rapid.T) netip.AddrPort { return target(rapid.IntRange(1, propNames).Draw(t, "n")) }

func genTargets(t *rapid.T, label string) []netip.AddrPort {
	return targets(rapid.SliceOfN(rapid.IntRange(1, propNames), 0, 4).Draw(t, label)...)
}

// batch draws the events of one Step.
func (h *history) batch() []Event {
	h.now = h.now.Add(rapid.SampledFrom([]time.Duration{
		0, time.Millisecond, propHold / 2, propHold, propWindow / 2, 2 * propWindow,
	}).Draw(h.t, "pause"))
	var evs []Event
	// Changes come first: the world does not move while a Step goes on.
	for range rapid.IntRange(0, 2).Draw(h.t, "changes") {
		at := genTarget(h.t)
		h.w[at] = thing(rapid.IntRange(0, int(things)-1).Draw(h.t, "what"))
		evs = append(evs, Changed{Targets: []netip.AddrPort{at}})
	}
	for range rapid.IntRange(0, 4).Draw(h.t, "events") {
		evs = append(evs, h.event())
	}
	return evs
}

func (h *history) event() Event {
	stream := StreamID(0)
	if len(h.open) > 0 {
		stream = rapid.SampledFrom(h.open).Draw(h.t, "stream")
	}
	switch k := rapid.IntRange(0, 9).Draw(h.t, "event"); {
	case !h.synced && k > 6:
		h.synced = true
		return Synced{}
	case stream == 0, k == 0 && len(h.open) < propStreams:
		h.next++
		h.open = append(h.open, h.next)
		if rapid.Bool().Draw(h.t, "fresh") {
			h.epochs++
			return Opened{Stream: h.next, Epoch: h.epochs}
		}
		return Opened{
			Stream: h.next, Epoch: rapid.Uint64Range(0, h.epochs).Draw(h.t, "epoch"),
			Held: genTargets(h.t, "held"), Asked: genTargets(h.t, "subscribed"),
		}
	case k == 1:
		h.open = slices.DeleteFunc(h.open, func(s StreamID) bool { return s == stream })
		return Closed{Stream: stream}
	case k == 2:
		return Dialled{Target: genTarget(h.t), At: h.now.Add(-time.Minute)}
	default:
		return Asked{Stream: stream, Targets: genTargets(h.t, "asked")}
	}
}

func genHistory(t *rapid.T) (*history, Config, []Name) {
	h := &history{t: t, w: world{}, now: epoch}
	for i := 1; i <= propNames; i++ {
		h.w[target(i)] = thing(rapid.IntRange(0, int(things)-1).Draw(t, "first"))
	}
	var remembered []Name
	known := rapid.SliceOfNDistinct(rapid.IntRange(1, propNames), 0, 4, rapid.ID).Draw(t, "remembered")
	for _, at := range targets(known...) {
		when := rapid.SampledFrom([]time.Time{{}, epoch.Add(-time.Minute), epoch.Add(-2 * propWindow)}).Draw(t, "last dial")
		remembered = append(remembered, dialledAt(at, when))
	}
	return h, Config{Budget: propBudget, Hold: propHold, Window: propWindow}, remembered
}

// watcher checks what must hold after every Step, from the effects alone.
type watcher struct {
	published map[netip.AddrPort]plan.Answer
	// owed are names that an open stream asked for or holds and that were
	// published since: they must stay.
	owed map[StreamID]map[netip.AddrPort]bool
	want map[StreamID]map[netip.AddrPort]bool
	// service are names that were a Service port's while known here.
	service map[netip.AddrPort]bool
	synced  bool
}

func newWatcher(remembered []Name) *watcher {
	w := &watcher{
		published: map[netip.AddrPort]plan.Answer{},
		owed:      map[StreamID]map[netip.AddrPort]bool{},
		want:      map[StreamID]map[netip.AddrPort]bool{},
		service:   map[netip.AddrPort]bool{},
	}
	for _, n := range remembered {
		w.service[n.Target] = true
	}
	return w
}

func (w *watcher) events(evs []Event) {
	for _, ev := range evs {
		switch ev := ev.(type) {
		case Synced:
			w.synced = true
		case Opened:
			w.owed[ev.Stream] = map[netip.AddrPort]bool{}
			w.want[ev.Stream] = map[netip.AddrPort]bool{}
			for _, t := range slices.Concat(ev.Held, ev.Asked) {
				w.want[ev.Stream][t] = true
			}
		case Asked:
			for _, t := range ev.Targets {
				w.want[ev.Stream][t] = true
			}
		case Closed:
			delete(w.owed, ev.Stream)
			delete(w.want, ev.Stream)
		}
	}
}

// gone checks that what is withdrawn is owed to nobody.
func (w *watcher) gone(t *rapid.T, ts []netip.AddrPort, how string) {
	for _, at := range ts {
		for id, owed := range w.owed {
			if owed[at] {
				t.Fatalf("%s was %s while the Envoy of stream %d lives", at, how, id)
			}
		}
	}
}

func (w *watcher) effects(t *rapid.T, f Effects, lookup world) {
	if !w.synced && len(f.Publish)+len(f.TurnAway) > 0 {
		t.Fatalf("answered before the sources synced: %+v", f)
	}
	w.gone(t, f.Withdraw, "withdrawn")
	w.gone(t, f.TurnAway, "turned away")
	for _, at := range slices.Concat(f.Withdraw, f.TurnAway) {
		delete(w.published, at)
		delete(w.service, at)
	}
	for _, a := range f.Publish {
		_, before := w.published[a.Target]
		if c := a.Class; !before && !w.service[a.Target] && (c == plan.ClassExternal || c == plan.ClassAPIServer) {
			t.Fatalf("%s of class %s entered", a.Target, c)
		}
		w.published[a.Target] = a
	}
	for at, a := range w.published {
		now := lookup.look(at)
		if !reflect.DeepEqual(a, now) {
			t.Fatalf("%s is published as %+v, its answer is %+v", at, a, now)
		}
		if now.Lasting() {
			w.service[at] = true
		}
		for id, want := range w.want {
			if want[at] {
				w.owed[id][at] = true
			}
		}
	}
}

func (w *watcher) state(t *rapid.T, d *Demand, now time.Time, lookup world) {
	other := 0
	for at := range w.published {
		if !w.service[at] {
			other++
		}
	}
	if held := d.Count(KindHeld); other+held > propBudget {
		t.Fatalf("%d names that are no Service's and %d held, the budget is %d", other, held, propBudget)
	}
	if at, ok := d.Wake(); ok && (!at.After(now) || at.After(now.Add(propHold))) {
		t.Fatalf("wakes at %v, now is %v", at, now)
	}
	for _, n := range d.Remembered() {
		if !w.service[n.Target] {
			t.Fatalf("%s is remembered and was never a Service port", n.Target)
		}
	}
	for id, want := range w.want {
		for at := range want {
			v := d.Look(at)
			a := lookup.look(at)
			if !v.Asked || v.Kind == KindNone {
				t.Fatalf("%s, which stream %d wants, is %+v", at, id, v)
			}
			onItsWay := v.Kind == KindHeld && a.Verdict == plan.Refuse
			if _, ok := w.published[at]; w.synced && a.Lasting() && !ok && !onItsWay {
				t.Fatalf("%s is a Service port, is wanted, and is not published (%s)", at, v.Kind)
			}
		}
	}
}

// The promises of the package, for any life of a node.
func TestPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, c, remembered := genHistory(t)
		d, w := New(c, remembered), newWatcher(remembered)
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			evs := h.batch()
			f := d.Step(h.now, evs, h.w.look)
			w.events(evs)
			w.effects(t, f, h.w)
			w.state(t, d, h.now, h.w)
		}
	})
}

// Equal histories give equal states and effects, and so does a history whose
// batches are taken apart.
func TestDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, c, remembered := genHistory(t)
		one, two, apart := New(c, remembered), New(c, remembered), New(c, remembered)
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			evs := h.batch()
			f1, f2 := one.Step(h.now, evs, h.w.look), two.Step(h.now, evs, h.w.look)
			if !reflect.DeepEqual(f1, f2) {
				t.Fatalf("effects %+v and %+v", f1, f2)
			}
			for _, ev := range evs {
				apart.Step(h.now, []Event{ev}, h.w.look)
			}
			apart.Step(h.now, nil, h.w.look)
			for _, other := range []*Demand{two, apart} {
				if !reflect.DeepEqual(describe(one), describe(other)) {
					t.Fatalf("states %+v and %+v", describe(one), describe(other))
				}
			}
		}
	})
}

// state is a Demand for comparison: everything that a later Step may depend on,
// but the order in which streams are noted with a name.
type state struct {
	Names     map[netip.AddrPort]entry
	Streams   map[StreamID]uint64
	Newest    uint64
	Forget    bool
	OverLimit uint64
}

func describe(d *Demand) state {
	s := state{
		Names: map[netip.AddrPort]entry{}, Streams: maps.Clone(d.streams),
		Newest: d.newest, Forget: d.forget, OverLimit: d.overLimit,
	}
	for at, e := range d.names {
		c := *e
		c.holders = append([]StreamID{}, slices.Sorted(slices.Values(e.holders))...)
		s.Names[at] = c
	}
	return s
}
