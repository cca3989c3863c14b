// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"net/netip"
	"slices"
	"time"

	"aether.io/aether/internal/plan"
)

// The pace of looks.
const (
	// DefaultLookRate is how many looks a second are begun when many are due, and
	// DefaultLookBurst how many at once after a quiet time.
	DefaultLookRate  = 50
	DefaultLookBurst = 100
	// MaxLooks is how many looks may be under way at a time.
	MaxLooks = 8
	// LookWait is how long the first dial of an unknown address waits at most for
	// looks and for the watch. It leaves the answer the time to get to Envoy.
	LookWait = OnDemandTimeout - 500*time.Millisecond
	// minPause and maxPause are the time without looks after one that could not see:
	// the first, then twice as long each time.
	minPause = time.Second
	maxPause = time.Minute
	// passedAgain is when an address is looked at again that somebody had and of
	// which the watch does not tell; refusedAgain the same of an address that
	// nobody had, if it is still dialled.
	passedAgain  = time.Minute
	refusedAgain = 5 * time.Minute
)

type (
	// Looked is what a look came to that Effects.Look asked for.
	Looked struct {
		LookAt
		Found plan.Look
	}
	// Behind says since when the sources are behind what they tell of, or, with the
	// zero Time, that they have caught up.
	Behind struct{ Since time.Time }
	// LookAt is a look to be made at once.
	LookAt struct {
		Addr   netip.Addr
		Number uint64 // of looks begun, this one included
	}
)

func (Looked) isEvent() {}
func (Behind) isEvent() {}

// queue is where an address waits for its look.
type queue uint8

const (
	nowhere queue = iota
	soon          // a connection waits for it
	later
)

// suspect is an address in the range that the index does not know and that would
// be refused for that.
type suspect struct {
	found  plan.Look // the newest look that could see; zero before it
	number uint64    // of that look
	flight uint64    // number of the newest look under way, 0 for none
	queued queue
	again  time.Time // when it is looked at again; zero for never
}

// looks are the looks at suspects: those made, those under way, those due.
type looks struct {
	interval time.Duration // between looks in the long run; zero when nobody looks
	slack    time.Duration // how far looks may be ahead of that
	suspects map[netip.Addr]*suspect
	soon     []netip.Addr // entries whose suspect is not queued there do not count
	later    []netip.Addr
	flying   map[uint64]netip.Addr
	number   uint64    // of the look begun last
	void     uint64    // looks up to this one count no more
	next     time.Time // when the next look would be due if there were no slack
	again    time.Time // the first suspect's again, or sooner

	behind time.Time // since when the sources are; zero when they are not

	cause plan.Cause    // why the last look could not see; none when it could
	since time.Time     // since when
	pause time.Duration // how long no look is made, until
	until time.Time
	deaf  uint64 // the looks up to this one were begun before the pause
}

func newLooks(c Config) looks {
	l := looks{suspects: map[netip.Addr]*suspect{}, flying: map[uint64]netip.Addr{}}
	if c.LookRate > 0 {
		l.interval = time.Second / time.Duration(c.LookRate)
		l.slack = l.interval * time.Duration(max(c.LookBurst, 1)-1)
	}
	return l
}

// looking reports whether suspects are looked at.
func (l *looks) looking() bool { return l.interval > 0 }

// Looking reports whether there is somebody who looks.
func (d *Demand) Looking() bool { return d.looking() }

// Blind returns why looks cannot see now, and since when; NoCause when they can.
func (d *Demand) Blind() (plan.Cause, time.Time) { return d.cause, d.since }

// IsBehind reports whether the sources are known to be behind.
func (d *Demand) IsBehind() bool { return !d.behind.IsZero() }

// due returns when the next look may begin, and false while none may.
func (l *looks) due() (time.Time, bool) {
	at := l.next.Add(-l.slack)
	if l.cause != plan.NoCause {
		if len(l.flying) > 0 {
			return at, false // one look says whether the others could see
		}
		if at.Before(l.until) {
			at = l.until
		}
	}
	return at, l.behind.IsZero() && len(l.flying) < MaxLooks
}

// wake returns when a look begins though nothing happens.
func (l *looks) wake() (time.Time, bool) {
	at, ok := l.again, !l.again.IsZero()
	if due, may := l.due(); may && len(l.soon)+len(l.later) > 0 && (!ok || due.Before(at)) {
		at, ok = due, true
	}
	return at, ok
}

// covered returns the number that a look must be above to count for a name: it
// was begun after the name was asked for and after the sources caught up.
func (l *looks) covered(e *entry) uint64 { return max(e.after, l.void) }

// sight returns what is known of a suspect for one of its names.
func (l *looks) sight(a netip.Addr, e *entry) plan.Look {
	if !l.behind.IsZero() {
		return plan.Look{Sight: plan.Blind, Cause: plan.Stale, At: l.behind}
	}
	sus := l.suspects[a]
	if sus != nil && sus.number > l.covered(e) {
		return sus.found
	}
	if l.cause != plan.NoCause {
		return plan.Look{Sight: plan.Blind, Cause: l.cause, At: l.since}
	}
	return plan.Look{}
}

// inTime reports whether a look at an address will have begun by the end of a
// name's hold.
func (s *step) inTime(a netip.Addr, e *entry) bool {
	if sus := s.suspects[a]; sus != nil && (sus.queued == soon || sus.flight > s.covered(e)) {
		return true
	}
	at := s.next.Add(-s.slack)
	if at.Before(s.now) {
		at = s.now
	}
	return at.Add(s.interval * time.Duration(len(s.soon))).Before(e.until)
}

// waits reports whether a name that would be refused is kept waiting instead.
func (s *step) waits(t netip.AddrPort, e *entry, a plan.Answer) bool {
	switch {
	case !s.now.Before(e.until):
		return false
	case !s.looking(), a.Early():
		return true
	case !a.Suspected():
		// Its Service has come, its endpoints may be on their way.
		if !e.found {
			e.found = true
			e.until = earlier(e.until, s.now.Add(s.cfg.Hold))
		}
		return s.now.Before(e.until)
	}
	switch s.sight(t.Addr(), e).Sight {
	case plan.NotLooked:
		return s.inTime(t.Addr(), e)
	case plan.OfService:
		return true
	default:
		return false
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// answer returns the answer to publish for a name.
func (s *step) answer(t netip.AddrPort, e *entry) plan.Answer {
	a := s.look(t)
	if !s.looking() || !a.Suspected() {
		return a
	}
	return a.AfterLook(s.sight(t.Addr(), e))
}

// suspected takes note of whether a name's address is a suspect now, and has it
// looked at if need be. It is called when the name has been settled.
func (s *step) suspected(t netip.AddrPort, e *entry, a plan.Answer) {
	before := e.class
	e.class = a.Class
	if !s.looking() {
		return
	}
	if !a.Suspected() {
		delete(s.suspects, t.Addr())
		return
	}
	if !e.kind.answered() && e.kind != KindHeld {
		return
	}
	sus := s.suspects[t.Addr()]
	if sus == nil {
		sus = &suspect{}
		s.suspects[t.Addr()] = sus
		if before == plan.ClassService || before == plan.ClassForeign {
			// The source has told that nobody has it any more.
			s.number++
			s.find(sus, s.number, plan.Look{Sight: plan.Absent, At: s.now})
		}
	}
	if sus.number > s.covered(e) || sus.flight > s.covered(e) {
		return
	}
	to := later
	if e.kind == KindHeld {
		to = soon
	}
	s.enqueue(t.Addr(), sus, to)
}

// enqueue has a suspect looked at. Where somebody waits for it comes first.
func (s *step) enqueue(a netip.Addr, sus *suspect, to queue) {
	switch {
	case sus.queued == to || sus.queued == soon:
		return
	case to == soon:
		s.soon = append(s.soon, a)
	default:
		s.later = append(s.later, a)
	}
	sus.queued = to
}

// find takes down what a look found.
func (s *step) find(sus *suspect, number uint64, found plan.Look) {
	sus.found, sus.number = found, number
	again := passedAgain
	if found.Sight == plan.Absent {
		again = refusedAgain
	}
	sus.again = s.now.Add(again)
	if s.again.IsZero() || sus.again.Before(s.again) {
		s.again = sus.again
	}
}

// looked takes in what a look came to.
func (s *step) looked(ev Looked) {
	if _, ok := s.flying[ev.Number]; !ok {
		return
	}
	delete(s.flying, ev.Number)
	sus := s.suspects[ev.Addr]
	if sus != nil && sus.flight == ev.Number {
		sus.flight = 0
	}
	if ev.Found.Sight == plan.Blind {
		s.blinded(ev)
		return
	}
	s.cause, s.since, s.pause = plan.NoCause, time.Time{}, 0
	if sus == nil {
		return
	}
	if ev.Number > sus.number {
		s.find(sus, ev.Number, ev.Found)
	}
	s.settleAll(ev.Addr)
}

// blinded begins a pause, and lets pass who waits for a look.
func (s *step) blinded(ev Looked) {
	if ev.Number > s.deaf {
		if s.cause == plan.NoCause {
			s.since = s.now
		}
		s.cause = ev.Found.Cause
		s.pause = min(max(2*s.pause, minPause), maxPause)
		s.until = s.now.Add(s.pause)
		s.deaf = s.number
	}
	if sus := s.suspects[ev.Addr]; sus != nil {
		s.enqueue(ev.Addr, sus, later)
	}
	s.settleSuspects()
}

// fallBehind and catching up change what every finding is worth.
func (s *step) fallBehind(ev Behind) {
	if s.behind.IsZero() && !ev.Since.IsZero() || ev.Since.IsZero() && !s.behind.IsZero() {
		s.void = s.number
	}
	s.behind = ev.Since
	s.settleSuspects()
}

func (s *step) settleSuspects() {
	all := make([]netip.Addr, 0, len(s.suspects))
	for a := range s.suspects {
		all = append(all, a)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	for _, a := range all {
		s.settleAll(a)
	}
}

func (s *step) settleAll(a netip.Addr) {
	for _, t := range s.TargetsOf(a) {
		s.settle(t, s.names[t], false)
	}
}

// lookAgain queues the suspects whose time has come.
func (s *step) lookAgain() {
	if s.again.IsZero() || s.now.Before(s.again) {
		return
	}
	s.again = time.Time{}
	var due []netip.Addr
	for a, sus := range s.suspects {
		switch {
		case sus.again.IsZero():
			continue
		case s.now.Before(sus.again):
		case sus.found.Sight == plan.Absent && !s.dialledSince(a, sus.found.At):
			sus.again = s.now.Add(refusedAgain)
		default:
			sus.again = time.Time{}
			due = append(due, a)
			continue
		}
		if s.again.IsZero() || sus.again.Before(s.again) {
			s.again = sus.again
		}
	}
	slices.SortFunc(due, netip.Addr.Compare)
	for _, a := range due {
		s.enqueue(a, s.suspects[a], later)
	}
}

func (s *step) dialledSince(a netip.Addr, at time.Time) bool {
	for _, t := range s.TargetsOf(a) {
		if s.names[t].dialled.After(at) {
			return true
		}
	}
	return false
}

// begin returns the looks that are to be made now.
func (s *step) begin() []LookAt {
	var out []LookAt
	for len(s.soon)+len(s.later) > 0 {
		from, is := &s.soon, soon
		if len(s.soon) == 0 {
			from, is = &s.later, later
		}
		a := (*from)[0]
		sus := s.suspects[a]
		if sus == nil || sus.queued != is {
			*from = (*from)[1:]
			continue
		}
		if at, may := s.due(); !may || s.now.Before(at) {
			break
		}
		*from = (*from)[1:]
		sus.queued = nowhere
		s.number++
		sus.flight = s.number
		s.flying[s.number] = a
		if s.next.Before(s.now) {
			s.next = s.now
		}
		s.next = s.next.Add(s.interval)
		out = append(out, LookAt{Addr: a, Number: s.number})
	}
	return out
}
