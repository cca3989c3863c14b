// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"aether.io/aether/internal/plan"
)

type (
	nameSet map[netip.AddrPort]bool
	// reference is the machine told naively: a set of names for each thing a
	// name can be, counted whenever a number is needed, one event at a time.
	reference struct {
		now      time.Time
		w        world
		synced   bool
		answered nameSet
		service  nameSet // once a Service port's
		held     nameSet
		turned   nameSet
		outside  nameSet
		holdEnd  map[netip.AddrPort]time.Time
		dialled  map[netip.AddrPort]time.Time
		wanters  map[netip.AddrPort]map[StreamID]bool // of every name known
		open     map[StreamID]uint64
		newest   uint64
		forget   bool
		turnings uint64
	}
)

func newReference(w world, remembered []Name) *reference {
	r := &reference{
		w: w, answered: nameSet{}, service: nameSet{}, held: nameSet{}, turned: nameSet{}, outside: nameSet{},
		holdEnd: map[netip.AddrPort]time.Time{}, dialled: map[netip.AddrPort]time.Time{},
		wanters: map[netip.AddrPort]map[StreamID]bool{}, open: map[StreamID]uint64{},
	}
	for _, n := range remembered {
		r.service[n.Target] = true
		r.dialled[n.Target] = n.LastDial
		r.wanters[n.Target] = map[StreamID]bool{}
	}
	return r
}

func (r *reference) step(now time.Time, evs []Event) {
	r.now = now
	for at := range maps.Clone(r.held) {
		if !now.Before(r.holdEnd[at]) {
			r.answer(at)
		}
	}
	for _, ev := range evs {
		r.event(ev)
	}
}

// answer gives a known name its answer, or says why it gets none.
func (r *reference) answer(at netip.AddrPort) {
	if !r.synced {
		return
	}
	a := r.w.look(at)
	wasHeld, wasTurned := r.held[at], r.turned[at]
	delete(r.held, at)
	delete(r.turned, at)
	delete(r.outside, at)
	places := len(r.held)
	for other := range r.answered {
		if !r.service[other] {
			places++
		}
	}
	switch {
	case wasHeld && a.Verdict == plan.Refuse && r.now.Before(r.holdEnd[at]):
		r.held[at] = true
	case a.Lasting():
		r.answered[at], r.service[at] = true, true
	case r.answered[at], r.service[at]:
		r.answered[at] = true
	case a.Class == plan.ClassExternal, a.Class == plan.ClassAPIServer:
		r.outside[at] = true
	case !wasHeld && places >= propBudget:
		r.turned[at] = true
		if !wasTurned {
			r.turnings++
		}
	case a.Reason == plan.NoService && r.now.Before(r.holdEnd[at]):
		r.held[at] = true
	default:
		r.answered[at] = true
	}
}

func (r *reference) event(ev Event) {
	switch ev := ev.(type) {
	case Synced:
		r.sync()
	case Opened:
		r.openStream(ev)
	case Asked:
		for _, at := range ev.Targets {
			r.want(ev.Stream, at)
			r.dialled[at] = r.now
			r.ask(at)
		}
	case Closed:
		delete(r.open, ev.Stream)
		for _, wanters := range r.wanters {
			delete(wanters, ev.Stream)
		}
		r.maybeForget()
	case Dialled:
		if r.wanters[ev.Target] != nil && ev.At.After(r.dialled[ev.Target]) {
			r.dialled[ev.Target] = ev.At
		}
	case Changed:
		for _, at := range ev.Targets {
			a := r.w.look(at)
			if r.wanters[at] != nil && (!r.turned[at] || a.Lasting()) {
				r.answer(at)
			}
		}
	}
}

func (r *reference) sync() {
	if r.synced {
		return
	}
	r.synced = true
	for at := range r.wanters {
		if r.dialled[at].IsZero() {
			r.dialled[at] = r.now
		}
	}
	r.maybeForget()
	all := slices.SortedFunc(maps.Keys(r.wanters), func(a, b netip.AddrPort) int {
		return cmp.Or(r.holdEnd[a].Compare(r.holdEnd[b]), a.Compare(b))
	})
	for _, at := range all {
		r.answer(at)
	}
}

func (r *reference) openStream(ev Opened) {
	r.forget = r.forget || ev.Epoch > r.newest
	r.newest = max(r.newest, ev.Epoch)
	r.open[ev.Stream] = ev.Epoch
	names := slices.Concat(ev.Held, ev.Asked)
	for _, at := range names {
		r.want(ev.Stream, at)
	}
	r.maybeForget()
	for i, at := range names {
		if r.dialled[at].IsZero() {
			r.dialled[at] = r.now
		}
		switch {
		case r.answered[at]:
		case i < len(ev.Held):
			r.holdEnd[at] = time.Time{}
			r.answer(at)
		default:
			r.ask(at)
		}
	}
}

func (r *reference) want(id StreamID, at netip.AddrPort) {
	if r.wanters[at] == nil {
		r.wanters[at] = map[StreamID]bool{}
		r.holdEnd[at] = r.now.Add(propHold)
	}
	if _, open := r.open[id]; open {
		r.wanters[at][id] = true
	}
}

func (r *reference) ask(at netip.AddrPort) {
	if r.answered[at] || r.held[at] {
		return
	}
	if r.turned[at] || r.outside[at] {
		r.holdEnd[at] = r.now.Add(propHold)
	}
	r.answer(at)
}

func (r *reference) maybeForget() {
	if !r.forget || !r.synced || len(r.open) == 0 || slices.Min(slices.Collect(maps.Values(r.open))) < r.newest {
		return
	}
	r.forget = false
	for at, wanters := range maps.Clone(r.wanters) {
		a := r.w.look(at)
		keep := r.service[at] && a.Lasting() && r.now.Sub(r.dialled[at]) < propWindow
		if len(wanters) > 0 || keep {
			continue
		}
		for _, set := range []nameSet{r.answered, r.service, r.held, r.turned, r.outside} {
			delete(set, at)
		}
		delete(r.holdEnd, at)
		delete(r.dialled, at)
		delete(r.wanters, at)
	}
}

func (r *reference) kind(at netip.AddrPort) Kind {
	switch {
	case r.answered[at] && r.service[at]:
		return KindService
	case r.answered[at]:
		return KindOther
	case r.held[at]:
		return KindHeld
	case r.turned[at]:
		return KindOverLimit
	case r.outside[at]:
		return KindOutside
	case r.wanters[at] != nil:
		return KindWaiting
	}
	return KindNone
}

func (r *reference) remembered() []Name {
	names := []Name{}
	for i := 1; i <= propNames; i++ {
		if at := target(i); r.service[at] {
			names = append(names, dialledAt(at, r.dialled[at]))
		}
	}
	return names
}

// The machine and the naive one agree on every name, whatever happens, and what
// the effects leave published is what the naive one has answered.
func TestAgreesWithReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, c, remembered := genHistory(t)
		d, r := New(c, remembered), newReference(h.w, remembered)
		published := nameSet{}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			evs := h.batch()
			f := d.Step(h.now, evs, h.w.look)
			r.step(h.now, evs)
			for _, a := range f.Publish {
				published[a.Target] = true
			}
			for _, at := range slices.Concat(f.Withdraw, f.TurnAway) {
				delete(published, at)
			}
			for i := 1; i <= propNames; i++ {
				if got, want := d.Look(target(i)).Kind, r.kind(target(i)); got != want {
					t.Fatalf("%s is %s, want %s", target(i), got, want)
				}
			}
			if !reflect.DeepEqual(published, r.answered) {
				t.Fatalf("published %v, want %v", published, r.answered)
			}
			if got, want := d.Remembered(), r.remembered(); !reflect.DeepEqual(got, want) {
				t.Fatalf("remembered %v, want %v", got, want)
			}
			if d.OverLimit() != r.turnings {
				t.Fatalf("turned away %d, want %d", d.OverLimit(), r.turnings)
			}
		}
	})
}
