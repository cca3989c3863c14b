// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"net/netip"
	"slices"
	"time"

	"aether.io/aether/internal/plan"
)

// step is one Step under way.
type step struct {
	*Demand
	now     time.Time
	look    Lookup // each target is looked up once
	touched map[netip.AddrPort]touch
	save    bool
}

// touch is what the effects need to know of a name's past within the Step.
type touch struct {
	published bool // when the Step began
	loud      bool // turned away while a connection waits
}

// Step applies the events in order, then what is due at now, and returns what
// is to be done. Splitting one call into several with the same now and look
// leads to the same state, but for looks: they begin at the end of a call, and
// count only for names that were asked for before. Step with no events serves the
// timer of Wake.
func (d *Demand) Step(now time.Time, evs []Event, look Lookup) Effects {
	s := &step{Demand: d, now: now, look: once(look), touched: map[netip.AddrPort]touch{}}
	s.expire()
	s.lookAgain()
	for _, ev := range evs {
		s.event(ev)
	}
	return s.effects()
}

// once returns look with a memory.
func once(look Lookup) Lookup {
	known := map[netip.AddrPort]plan.Answer{}
	return func(t netip.AddrPort) plan.Answer {
		a, ok := known[t]
		if !ok {
			a = look(t)
			known[t] = a
		}
		return a
	}
}

func (s *step) event(ev Event) {
	switch ev := ev.(type) {
	case Synced:
		s.sync()
	case Opened:
		s.open(ev)
	case Asked:
		for _, t := range ev.Targets {
			if e := s.hold(ev.Stream, t); e != nil {
				s.dial(e, s.now)
				s.ask(t, e, true)
			}
		}
	case Closed:
		s.close(ev.Stream)
	case Dialled:
		if e := s.names[ev.Target]; e != nil {
			s.dial(e, ev.At)
		}
	case Changed:
		for _, t := range ev.Targets {
			if e := s.names[t]; e != nil {
				s.settle(t, e, false)
			}
		}
	case Looked:
		s.looked(ev)
	case Behind:
		s.fallBehind(ev)
	}
}

// sync answers everything that waited for the sources: what an Envoy holds
// before what it only asked for, so that held names have the budget first.
func (s *step) sync() {
	if s.synced {
		return
	}
	s.synced = true
	ts := s.Targets()
	for _, t := range ts {
		s.dialledAtLeast(s.names[t])
	}
	s.compact()
	ts = s.Targets()
	slices.SortStableFunc(ts, func(a, b netip.AddrPort) int {
		return s.names[a].until.Compare(s.names[b].until)
	})
	for _, t := range ts {
		s.settle(t, s.names[t], true)
	}
}

func (s *step) open(ev Opened) {
	if _, open := s.streams[ev.Stream]; open {
		return
	}
	s.streams[ev.Stream] = ev.Epoch
	if ev.Epoch > s.newest {
		s.newest, s.forget = ev.Epoch, true
	}
	for _, t := range ev.Held {
		s.hold(ev.Stream, t)
	}
	for _, t := range ev.Asked {
		s.hold(ev.Stream, t)
	}
	s.compact()
	for _, t := range ev.Held {
		if e := s.names[t]; e != nil && !e.kind.answered() {
			e.until = time.Time{}
			s.dialledAtLeast(e)
			s.settle(t, e, true)
		}
	}
	for _, t := range ev.Asked {
		if e := s.names[t]; e != nil {
			s.dialledAtLeast(e)
			s.ask(t, e, false)
		}
	}
}

// hold notes that the stream asked for t or holds it. It returns nil when t can
// be no name.
func (s *step) hold(id StreamID, t netip.AddrPort) *entry {
	if !valid(t) {
		return nil
	}
	e := s.names[t]
	if e == nil {
		e = s.add(t)
		s.takeTime(e)
	}
	if _, open := s.streams[id]; open && !slices.Contains(e.holders, id) {
		e.holders = append(e.holders, id)
		s.asked[id]++
	}
	return e
}

// takeTime gives a name that is asked for now the time it may be held.
func (s *step) takeTime(e *entry) {
	hold := s.cfg.Hold
	if s.looking() {
		hold = LookWait
	}
	e.until, e.after, e.found = s.now.Add(hold), s.number, false
}

// ask takes up a name that a stream wants. waits is true when a connection is
// known to wait for it: not so for the names that a stream begins with.
func (s *step) ask(t netip.AddrPort, e *entry, waits bool) {
	e.waits = e.waits || waits
	switch e.kind {
	case KindOverLimit, KindOutside:
		s.takeTime(e)
		s.settle(t, e, true)
	case KindWaiting:
		s.settle(t, e, true)
	}
}

// dial moves the last dial of a name forward.
func (s *step) dial(e *entry, at time.Time) {
	if at.After(s.now) {
		at = s.now
	}
	if !at.After(e.dialled) {
		return
	}
	e.dialled = at
	if e.service {
		s.stale = true
	}
}

// dialledAtLeast gives a name whose last dial is not known one, as late as it can
// be: a name that Envoy holds or that somebody remembered was dialled at some time.
func (s *step) dialledAtLeast(e *entry) {
	if e.dialled.IsZero() {
		e.dialled = s.now
	}
}

// settle decides on a name whose answer may have changed or that was asked for.
func (s *step) settle(t netip.AddrPort, e *entry, asked bool) {
	if !s.synced {
		return
	}
	a := s.look(t)
	s.place(t, e, a, asked)
	s.suspected(t, e, a)
}

// place makes a name what its answer, before any look, makes it.
func (s *step) place(t netip.AddrPort, e *entry, a plan.Answer, asked bool) {
	switch {
	case e.kind == KindHeld && a.Verdict == plan.Refuse && s.waits(t, e, a):
		// Its Service, or that Service's endpoints, may still be on their way.
	case a.Lasting():
		if !e.service {
			e.service, s.save = true, true
		}
		if e.kind == KindWaiting && s.looking() && a.Early() && s.waits(t, e, a) {
			s.turn(t, e, KindHeld)
			return
		}
		s.turn(t, e, KindService)
	case e.kind == KindService, e.kind == KindOther:
		s.turn(t, e, e.kind) // answered before: only its answer changes
	case e.service:
		s.turn(t, e, KindService) // remembered, its Service gone
	case e.kind == KindOverLimit && !asked:
		// Only a Service takes over a name that was turned away.
	case a.Class == plan.ClassExternal, a.Class == plan.ClassAPIServer:
		s.turn(t, e, KindOutside)
	case e.kind != KindHeld && s.used() >= s.cfg.Budget:
		s.turnAway(t, e)
	case a.Suspected() && s.waits(t, e, a):
		s.turn(t, e, KindHeld)
	default:
		s.turn(t, e, KindOther)
	}
}

// turn makes a name one of kind k and has its answer, if any, published.
func (s *step) turn(t netip.AddrPort, e *entry, k Kind) {
	s.touch(t, e)
	s.become(t, e, k)
	if k.answered() {
		e.waits = false
	}
}

func (s *step) turnAway(t netip.AddrPort, e *entry) {
	if e.kind != KindOverLimit {
		s.overLimit++
	}
	s.turn(t, e, KindOverLimit)
	if e.waits {
		s.touched[t] = touch{published: s.touched[t].published, loud: true}
		e.waits = false
	}
}

func (k Kind) answered() bool { return k == KindService || k == KindOther }

func (s *step) touch(t netip.AddrPort, e *entry) {
	if _, ok := s.touched[t]; !ok {
		s.touched[t] = touch{published: e.kind.answered()}
	}
}

// expire answers the held names whose hold is over.
func (s *step) expire() {
	var over []netip.AddrPort
	for t, e := range s.held {
		if !s.now.Before(e.until) {
			over = append(over, t)
		}
	}
	slices.SortFunc(over, netip.AddrPort.Compare)
	for _, t := range over {
		s.settle(t, s.held[t], false)
	}
}

func (s *step) close(id StreamID) {
	if _, open := s.streams[id]; !open {
		return
	}
	delete(s.streams, id)
	delete(s.asked, id)
	for _, e := range s.names {
		e.holders = slices.DeleteFunc(e.holders, func(x StreamID) bool { return x == id })
	}
	s.compact()
}

// compact forgets what no open stream asked for, once a newer Envoy has come and
// no older one is left: everything but the Service ports that still exist and
// were dialled within the window.
func (s *step) compact() {
	if !s.forget || !s.synced || len(s.streams) == 0 {
		return
	}
	for _, epoch := range s.streams {
		if epoch < s.newest {
			return
		}
	}
	s.forget = false
	for t, e := range s.names {
		if len(e.holders) > 0 {
			continue
		}
		if e.service {
			a := s.look(t)
			if s.now.Sub(e.dialled) < s.cfg.Window && a.Lasting() {
				continue
			}
			s.save = true
		}
		s.touch(t, e)
		s.remove(t)
	}
}

// effects sums up what the Step came to.
func (s *step) effects() Effects {
	f := Effects{Look: s.begin()}
	for t, was := range s.touched {
		e := s.names[t]
		switch {
		case e != nil && e.kind.answered():
			f.Publish = append(f.Publish, s.answer(t, e))
		case e != nil && e.kind == KindOverLimit && was.loud:
			f.TurnAway = append(f.TurnAway, t)
		case was.published:
			f.Withdraw = append(f.Withdraw, t)
		}
	}
	slices.SortFunc(f.Publish, func(a, b plan.Answer) int { return a.Target.Compare(b.Target) })
	slices.SortFunc(f.Withdraw, netip.AddrPort.Compare)
	slices.SortFunc(f.TurnAway, netip.AddrPort.Compare)
	if s.stale && s.now.Sub(s.savedAt) >= min(saveStep, s.cfg.Window/10) {
		s.save = true
	}
	if s.save {
		s.stale, s.savedAt = false, s.now
	}
	f.Save = s.save
	return f
}
