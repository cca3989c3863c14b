// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"time"
)

// timing are the constants of the machine.
type timing struct {
	start    time.Duration // a new epoch may take as long
	shutdown time.Duration // established connections outlive a hot restart by it
	grace    time.Duration // between SIGTERM and SIGKILL
}

// The wait before a dead Envoy's successor: none at first, then from backMin
// doubling up to backMax, and none again after one that lived for backStable.
const (
	backMin    = 50 * time.Millisecond
	backMax    = 5 * time.Second
	backStable = time.Second
	// overdue is how much later than its shutdown time a draining Envoy is ended by
	// us: its child does it, unless that has died.
	overdue = 5 * time.Second
	// early is how much earlier than its shutdown time the end of a draining Envoy
	// is taken for its child's doing.
	early = 500 * time.Millisecond
)

var (
	// errStopping is the answer to whoever asks a supervisor that ends.
	errStopping = errors.New("the supervisor ends")
	// errNotServing wraps why a new Envoy did not come to serve.
	errNotServing = errors.New("the new Envoy did not work")
)

// machine is the life of all epochs. It is deterministic: equal histories give
// equal states and effects. Time is an argument.
type machine struct {
	timing timing
	epochs []epoch // living, oldest first
	lastID int

	preparing bool
	serial    int       // of the preparation under way
	under     []request // whom the restart under way answers
	waiting   []request // told that they wait
	full      bool      // all epochs are to end, then one is to start

	begun, stopping bool
	retryAt         time.Time // not before that is an epoch started
	back            time.Duration

	restarts, hotRestarts, failures, stillborns int
	lastExit                                    string
	lastDone                                    done
}

// done is the last restart that came to an end.
type done struct {
	request
	outcome
	ended time.Time
}

// step takes in one event and returns what is to be done.
func (m *machine) step(now time.Time, ev event) []effect {
	s := &stepping{machine: m, now: now}
	switch ev := ev.(type) {
	case begun:
		m.begun = true
	case asked:
		s.ask(ev.request)
	case prepared:
		s.prepared(ev)
	case started:
		if e := m.find(ev.id); e != nil {
			e.pid = ev.pid
		}
	case live:
		s.live(ev.id)
	case exited:
		s.exited(ev)
	case stopped:
		s.stop()
	}
	s.deadlines()
	s.next()
	return s.effects
}

// stepping is one step under way.
type stepping struct {
	*machine
	now     time.Time
	effects []effect
}

func (s *stepping) do(f effect) { s.effects = append(s.effects, f) }

func (s *stepping) say(l slog.Level, e epoch, text, reason string) {
	s.do(say{level: l, text: text, epoch: e, reason: reason})
}

func (m *machine) find(id int) *epoch {
	for i := range m.epochs {
		if m.epochs[i].id == id && id != 0 {
			return &m.epochs[i]
		}
	}
	return nil
}

// in returns the youngest epoch of that phase, nil when there is none.
func (m *machine) in(p phase) *epoch {
	for i := len(m.epochs) - 1; i >= 0; i-- {
		if m.epochs[i].phase == p {
			return &m.epochs[i]
		}
	}
	return nil
}

// child returns the living epoch that takes, or took, over from that one.
func (m *machine) child(id int) *epoch {
	for i := range m.epochs {
		if m.epochs[i].parent == id {
			return &m.epochs[i]
		}
	}
	return nil
}

// pid returns the process that takes new connections.
func (m *machine) pid() int {
	if e := m.in(serving); e != nil {
		return e.pid
	}
	return 0
}

// finished reports that all has ended after stopped.
func (m *machine) finished() bool { return m.stopping && len(m.epochs) == 0 }

// wake returns when ticked is due.
func (m *machine) wake() (time.Time, bool) {
	var first time.Time
	sooner := func(at time.Time) {
		if !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	for _, e := range m.epochs {
		if e.phase != serving && e.failed == "" {
			sooner(e.until)
		}
	}
	if m.idle() {
		sooner(m.retryAt)
	}
	return first, !first.IsZero()
}

// idle reports that nothing serves and nothing is being started, though it should.
func (m *machine) idle() bool {
	return m.begun && !m.stopping && !m.full && m.in(serving) == nil && m.in(starting) == nil
}

func (s *stepping) ask(r request) {
	switch {
	case s.stopping:
		s.do(answer{to: []request{r}, outcome: outcome{err: errStopping}})
		return
	case r.full:
		// What is under way ends with everything else, and is answered with it.
		s.under = append(append(s.under, s.waiting...), r)
		s.waiting, s.full, s.preparing, s.retryAt = nil, true, false, time.Time{}
		s.say(slog.LevelInfo, epoch{}, "full restart of Envoy", r.reason)
		s.endAll()
		return
	}
	if why := s.mustWait(r); why != "" {
		s.waiting = append(s.waiting, r)
		s.do(answer{to: []request{r}, outcome: outcome{scheduled: why}})
		s.say(slog.LevelInfo, epoch{}, "hot restart has to wait: "+why, r.reason)
		return
	}
	s.waiting = append(s.waiting, r)
}

// mustWait says why a hot restart cannot begin at once.
func (m *machine) mustWait(r request) string {
	switch e := m.in(draining); {
	case m.full, m.preparing, m.in(starting) != nil:
		return "another restart is under way"
	case m.in(serving) == nil:
		return "no Envoy serves yet"
	case r.now:
		return ""
	case m.in(ending) != nil:
		return "an older Envoy is about to end"
	case e != nil:
		return fmt.Sprintf("established connections of process %d live until %s", e.pid, e.since.Add(m.timing.shutdown).UTC().Format(time.RFC3339))
	}
	return ""
}

// next begins what can begin.
func (s *stepping) next() {
	if !s.begun || s.stopping {
		return
	}
	if s.full {
		if len(s.epochs) > 0 {
			return
		}
		s.full = false
		s.begin(0)
		return
	}
	if s.idle() {
		if !s.now.Before(s.retryAt) {
			s.begin(0)
		}
		return
	}
	if len(s.waiting) == 0 || s.preparing || s.in(starting) != nil || s.in(serving) == nil {
		return
	}
	if (s.in(draining) != nil || s.in(ending) != nil) && !slices.ContainsFunc(s.waiting, func(r request) bool { return r.now }) {
		return
	}
	s.under, s.waiting, s.preparing = s.waiting, nil, true
	s.serial++
	s.do(prepare{s.serial})
}

// prepared starts the next epoch of the chain, or says why not.
func (s *stepping) prepared(ev prepared) {
	if !s.preparing || ev.serial != s.serial {
		return // a full restart, or the end, has come first
	}
	s.preparing = false
	parent := s.in(serving)
	switch {
	case ev.err != nil:
		s.conclude(outcome{err: ev.err})
	case parent == nil:
		s.conclude(outcome{err: fmt.Errorf("%w: the one that served died meanwhile", errNotServing)})
	default:
		s.begin(parent.id)
	}
}

// begin starts an epoch: the next of its parent's chain, or the first of its own.
func (s *stepping) begin(parent int) {
	e := epoch{phase: starting, parent: parent, since: s.now, until: s.now.Add(s.timing.start)}
	if p := s.find(parent); p != nil {
		e.slot, e.number = p.slot, p.number+1
		for i := range s.epochs {
			// Envoy ends the parent's parent when the third of a chain starts.
			if g := &s.epochs[i]; g.phase == draining && g.slot == e.slot {
				g.phase, g.since, g.until = ending, s.now, e.until.Add(s.timing.grace)
			}
		}
	} else if e.slot = s.freeSlot(); e.slot < 0 {
		// Only a crash loop gets here. The oldest makes room, and we are called again
		// when it has ended.
		s.end(&s.epochs[0])
		return
	}
	s.lastID++
	e.id = s.lastID
	s.epochs = append(s.epochs, e)
	s.do(start{id: e.id, slot: e.slot, number: e.number})
}

// freeSlot returns a base id that no living process uses, -1 when there is none.
func (m *machine) freeSlot() int {
	for i := range slots {
		if !slices.ContainsFunc(m.epochs, func(e epoch) bool { return e.slot == i }) {
			return i
		}
	}
	return -1
}

// live makes an epoch the serving one, and its parent drain.
func (s *stepping) live(id int) {
	e := s.find(id)
	if e == nil || e.phase != starting || e.failed != "" {
		return
	}
	s.takeOver(e)
	s.say(slog.LevelInfo, *e, "Envoy serves", s.reason())
	s.conclude(outcome{pid: e.pid})
}

func (s *stepping) takeOver(e *epoch) {
	e.phase, e.since, e.until = serving, s.now, time.Time{}
	if p := s.find(e.parent); p != nil && p.phase == serving {
		p.phase, p.since, p.until = draining, s.now, s.now.Add(s.timing.shutdown+overdue)
		s.hotRestarts++
	}
}

// reason returns the reasons of the restart under way.
func (m *machine) reason() string {
	var all []string
	for _, r := range m.under {
		all = append(all, r.reason)
	}
	return strings.Join(all, "; ")
}

// conclude answers those whose restart was under way.
func (s *stepping) conclude(o outcome) {
	if len(s.under) == 0 {
		return
	}
	first := slices.MinFunc(s.under, func(a, b request) int { return cmp.Compare(a.id, b.id) })
	first.reason = s.reason()
	s.lastDone = done{request: first, outcome: o, ended: s.now}
	if o.err != nil {
		s.failures++
		s.say(slog.LevelError, epoch{}, "restart of Envoy: "+o.err.Error(), first.reason)
	}
	s.do(answer{to: s.under, outcome: o})
	s.under = nil
}

// exited takes in the end of a process.
func (s *stepping) exited(ev exited) {
	i := slices.IndexFunc(s.epochs, func(e epoch) bool { return e.id == ev.id })
	if i < 0 {
		return
	}
	if e := &s.epochs[i]; ev.tookOver && e.phase == starting {
		s.takeOver(e)
	}
	e := s.epochs[i]
	s.epochs = slices.Delete(s.epochs, i, i+1)
	if e.failed != "" {
		ev.how = e.failed
	}
	s.do(leave{child: e.id})
	switch e.phase {
	case starting:
		s.stillborn(e, ev.how)
	case serving:
		s.crashed(e, ev.how)
	case draining, ending:
		s.drained(e, ev)
	}
	if !slices.ContainsFunc(s.epochs, func(x epoch) bool { return x.slot == e.slot }) {
		s.do(tidy{slot: e.slot})
	}
}

// stillborn: an epoch that never served. If there is a serving one it goes on.
func (s *stepping) stillborn(e epoch, how string) {
	s.lastExit = fmt.Sprintf("pid %d: %s", e.pid, how)
	if s.find(e.parent) != nil {
		s.do(clearMark{slot: e.slot})
	} else {
		s.stillborns++
		s.say(slog.LevelError, e, "Envoy ended before it served, starting it again", how)
		s.delay(0)
	}
	s.conclude(outcome{err: fmt.Errorf("%w: %s", errNotServing, how)})
}

// crashed: the serving epoch ended unasked. The next one starts at once, as its own
// chain. One that was about to take over from it waits for a dead process, and so
// makes room.
func (s *stepping) crashed(e epoch, how string) {
	s.restarts++
	s.lastExit = fmt.Sprintf("pid %d: %s", e.pid, how)
	s.say(slog.LevelError, e, "Envoy ended, starting it again", how)
	if c := s.child(e.id); c != nil {
		s.end(c)
		c.until = s.now // at once
	}
	s.delay(s.now.Sub(e.since))
	s.conclude(outcome{err: fmt.Errorf("%w: the one that served ended: %s", errNotServing, how)})
}

// drained: an older epoch is gone. Its child must not notice when that was too soon.
func (s *stepping) drained(e epoch, ev exited) {
	c := s.child(e.id)
	inTime := e.phase == ending || ev.clean || !s.now.Before(e.since.Add(s.timing.shutdown-early))
	if inTime || s.stopping || s.full {
		s.say(slog.LevelInfo, e, "old Envoy ended", ev.how)
	} else {
		s.say(slog.LevelError, e, "draining Envoy ended before its time, and its connections with it", ev.how)
	}
	if c != nil && c.phase != ending {
		s.do(stand{slot: e.slot, number: e.number, child: c.id})
	}
}

// delay sets when the next epoch is started after one that lived that long.
func (s *stepping) delay(lived time.Duration) {
	if lived >= backStable {
		s.back = 0
	}
	s.retryAt = s.now.Add(s.back)
	s.back = min(max(2*s.back, backMin), backMax)
}

// end tells an epoch to end.
func (s *stepping) end(e *epoch) {
	if e.phase == ending && e.until.Before(s.now.Add(s.timing.grace)) {
		return
	}
	e.phase, e.since, e.until, e.failed = ending, s.now, s.now.Add(s.timing.grace), ""
	s.do(kill{id: e.id, signal: syscall.SIGTERM})
}

func (s *stepping) stop() {
	if s.stopping {
		return
	}
	s.stopping, s.full, s.preparing = true, false, false
	s.under = append(s.under, s.waiting...)
	s.waiting = nil
	s.conclude(outcome{err: errStopping})
	s.endAll()
}

// endAll ends every epoch, the youngest first: a child does not see its parent go.
func (s *stepping) endAll() {
	for i := len(s.epochs) - 1; i >= 0; i-- {
		s.end(&s.epochs[i])
	}
}

// deadlines ends what has taken too long.
func (s *stepping) deadlines() {
	for i := range s.epochs {
		e := &s.epochs[i]
		if e.phase == serving || s.now.Before(e.until) || e.failed != "" {
			continue
		}
		switch e.phase {
		case starting:
			e.failed = fmt.Sprintf("it did not serve within %s", s.timing.start)
			s.do(kill{id: e.id, signal: syscall.SIGKILL})
		case draining:
			s.end(e)
		case ending:
			s.do(kill{id: e.id, signal: syscall.SIGKILL})
			e.until = s.now.Add(s.timing.grace)
		}
	}
}
