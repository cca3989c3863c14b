// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

var (
	testTiming = timing{start: 30 * time.Second, shutdown: 60 * time.Second, grace: 3 * time.Second}
	origin     = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
)

// story is a machine in a test, with the effects of its last step in words.
type story struct {
	t   *testing.T
	m   machine
	now time.Time
	req uint64
}

func newStory(t *testing.T) *story {
	return &story{t: t, m: machine{timing: testTiming}, now: origin}
}

// words of an effect; logs are left out.
func words(f effect) string {
	switch f := f.(type) {
	case prepare:
		return "prepare"
	case start:
		return fmt.Sprintf("start %d slot %d epoch %d", f.id, f.slot, f.number)
	case kill:
		return fmt.Sprintf("%s %d", map[syscall.Signal]string{syscall.SIGTERM: "term", syscall.SIGKILL: "kill"}[f.signal], f.id)
	case answer:
		var ids []string
		for _, r := range f.to {
			ids = append(ids, fmt.Sprint(r.id))
		}
		what := "done"
		if f.outcome.scheduled != "" {
			what = "wait"
		}
		if f.outcome.err != nil {
			what = "error"
		}
		return fmt.Sprintf("answer %s %s", strings.Join(ids, ","), what)
	case clearMark:
		return fmt.Sprintf("clear slot %d", f.slot)
	case tidy:
		return fmt.Sprintf("tidy slot %d", f.slot)
	case stand:
		return fmt.Sprintf("stand in for slot %d epoch %d to %d", f.slot, f.number, f.child)
	case leave:
		return fmt.Sprintf("leave %d", f.child)
	}
	return ""
}

// step takes a step and wants these effects, in order; "leave" is wanted only when
// the test is about it.
func (s *story) step(ev event, want ...string) {
	s.t.Helper()
	var got []string
	for _, f := range s.m.step(s.now, ev) {
		w := words(f)
		if w == "" || strings.HasPrefix(w, "leave") && !slices.Contains(want, w) {
			continue
		}
		got = append(got, w)
	}
	if !slices.Equal(got, want) {
		s.t.Fatalf("%T %+v: %q, want %q", ev, ev, got, want)
	}
}

func (s *story) ask(full, now bool, want ...string) {
	s.t.Helper()
	s.req++
	s.step(asked{request{id: s.req, reason: fmt.Sprintf("r%d", s.req), full: full, now: now, at: s.now}}, want...)
}

func (s *story) pass(d time.Duration) { s.now = s.now.Add(d) }

// phases of the living epochs, oldest first.
func (s *story) phases(want string) {
	s.t.Helper()
	var got []string
	for _, e := range s.m.epochs {
		got = append(got, fmt.Sprintf("%d %s", e.id, e.phase))
	}
	if g := strings.Join(got, ", "); g != want {
		s.t.Fatalf("epochs %q, want %q", g, want)
	}
}

// serves brings a machine to where epoch 1 serves.
func serves(t *testing.T) *story {
	t.Helper()
	s := newStory(t)
	s.step(begun{}, "start 1 slot 0 epoch 0")
	s.step(started{1, 101})
	s.pass(time.Second)
	s.step(live{1})
	s.phases("1 serving")
	return s
}

// drains brings a machine to where epoch 1 drains and epoch 2 serves.
func drains(t *testing.T) *story {
	t.Helper()
	s := serves(t)
	s.pass(time.Minute)
	s.ask(false, false, "prepare")
	s.step(prepared{serial: 1}, "start 2 slot 0 epoch 1")
	s.step(started{2, 102})
	s.step(live{2}, "answer 1 done")
	s.phases("1 draining, 2 serving")
	return s
}

func TestHotRestart(t *testing.T) {
	s := drains(t)
	s.pass(testTiming.shutdown)
	s.step(exited{id: 1, how: "exit code 0", clean: true}, "stand in for slot 0 epoch 0 to 2")
	s.phases("2 serving")
	if s.m.hotRestarts != 1 || s.m.restarts != 0 || s.m.pid() != 102 {
		t.Errorf("%+v", s.m)
	}
	s.ask(false, false, "prepare")
	s.step(prepared{serial: 2}, "start 3 slot 0 epoch 2")
	s.step(live{3}, "answer 2 done")
}

func TestRestartThatIsNotPossible(t *testing.T) {
	s := serves(t)
	s.ask(false, false, "prepare")
	s.ask(false, false, "answer 2 wait")
	s.step(prepared{serial: 1, err: errIncompatible}, "answer 1 error", "prepare") // the second begins
	s.step(prepared{serial: 1}, []string{}...)                                     // late, of the first
	s.step(prepared{serial: 2, err: errors.New("x")}, "answer 2 error")            // nobody waits for it any more
	s.phases("1 serving")
	if s.m.failures != 2 || s.m.lastDone.id != 2 {
		t.Errorf("%+v", s.m)
	}
}

func TestNewEpochThatDies(t *testing.T) {
	s := serves(t)
	s.ask(false, false, "prepare")
	s.step(prepared{serial: 1}, "start 2 slot 0 epoch 1")
	s.step(exited{id: 2, how: "exit status 1"}, "clear slot 0", "answer 1 error")
	s.phases("1 serving")
	if s.m.restarts != 0 || s.m.failures != 1 {
		t.Errorf("%+v", s.m)
	}
	s.ask(false, false, "prepare")
	s.step(prepared{serial: 2}, "start 3 slot 0 epoch 1")
	s.step(live{3}, "answer 2 done")
}

func TestNewEpochThatNeverServes(t *testing.T) {
	s := serves(t)
	s.ask(false, false, "prepare")
	s.step(prepared{serial: 1}, "start 2 slot 0 epoch 1")
	s.pass(testTiming.start - 1)
	s.step(ticked{})
	s.pass(1)
	if at, ok := s.m.wake(); !ok || !at.Equal(s.now) {
		t.Errorf("wakes at %v %t, want now", at, ok)
	}
	s.step(ticked{}, "kill 2")
	s.step(live{2}) // too late
	s.step(exited{id: 2, how: "signal: killed"}, "clear slot 0", "answer 1 error")
	s.phases("1 serving")
	if !strings.Contains(s.m.lastDone.err.Error(), "it did not serve within 30s") {
		t.Errorf("%v", s.m.lastDone.err)
	}
}

// The new epoch dies when the old one drains already, before that was noticed.
func TestNewEpochThatDiesHavingTakenOver(t *testing.T) {
	s := serves(t)
	s.ask(false, false, "prepare")
	s.step(prepared{serial: 1}, "start 2 slot 0 epoch 1")
	s.step(exited{id: 2, how: "segmentation fault", tookOver: true}, "answer 1 error", "start 3 slot 1 epoch 0")
	s.phases("1 draining, 3 starting")
	s.step(live{3})
	s.pass(testTiming.shutdown + overdue) // no child of its own ends it
	s.step(ticked{}, "term 1")
	s.step(exited{id: 1, how: "exit code 0", clean: true}, "tidy slot 0")
	s.phases("3 serving")
}

func TestCrashes(t *testing.T) {
	t.Run("while it serves alone", func(t *testing.T) {
		s := serves(t)
		s.pass(time.Hour)
		s.step(exited{id: 1, how: "signal: killed"}, "tidy slot 0", "start 2 slot 0 epoch 0")
		if s.m.restarts != 1 || s.m.lastExit != "pid 101: signal: killed" {
			t.Errorf("%+v", s.m)
		}
	})
	t.Run("while an older one drains", func(t *testing.T) {
		s := drains(t)
		s.pass(2 * time.Second)
		s.step(exited{id: 2, how: "signal: killed"}, "start 3 slot 1 epoch 0")
		s.step(live{3})
		s.phases("1 draining, 3 serving")
		s.ask(false, false, "answer 2 wait") // its connections live on
		s.pass(testTiming.shutdown)
		s.step(ticked{})
		s.phases("1 draining, 3 serving")
		s.pass(overdue)
		s.step(ticked{}, "term 1")
		s.step(exited{id: 1, clean: true}, "tidy slot 0", "prepare")
		s.step(prepared{serial: 2}, "start 4 slot 1 epoch 1")
	})
	t.Run("while the next one starts", func(t *testing.T) {
		s := serves(t)
		s.pass(time.Minute)
		s.ask(false, false, "prepare")
		s.step(prepared{serial: 1}, "start 2 slot 0 epoch 1")
		s.step(exited{id: 1, how: "signal: killed"}, "term 2", "answer 1 error", "kill 2", "start 3 slot 1 epoch 0")
		s.step(exited{id: 2, how: "signal: killed"}, "tidy slot 0")
		s.step(live{3})
		s.phases("3 serving")
	})
	t.Run("while a restart is prepared", func(t *testing.T) {
		s := serves(t)
		s.pass(time.Minute)
		s.ask(false, false, "prepare")
		s.step(exited{id: 1, how: "signal: killed"}, "answer 1 error", "tidy slot 0", "start 2 slot 0 epoch 0")
		s.step(prepared{serial: 1})
		s.step(live{2})
		s.phases("2 serving")
	})
	t.Run("of the draining one, too soon", func(t *testing.T) {
		s := drains(t)
		s.step(exited{id: 1, how: "signal: killed"}, "stand in for slot 0 epoch 0 to 2")
		s.step(exited{id: 2, how: "signal: killed"}, "leave 2", "tidy slot 0", "start 3 slot 0 epoch 0")
	})
}

func TestBackOff(t *testing.T) {
	s := newStory(t)
	s.step(begun{}, "start 1 slot 0 epoch 0")
	for id, wait := range []time.Duration{0, 50, 100, 200, 400, 800, 1600, 3200, 5000, 5000} {
		id++
		wait *= time.Millisecond
		if wait == 0 {
			s.step(exited{id: id, how: "x"}, "tidy slot 0", fmt.Sprintf("start %d slot 0 epoch 0", id+1))
			continue
		}
		s.step(exited{id: id, how: "x"}, "tidy slot 0")
		if at, ok := s.m.wake(); !ok || at.Sub(s.now) != wait {
			t.Fatalf("after death %d: wakes in %v %t, want %v", id, at.Sub(s.now), ok, wait)
		}
		s.pass(wait - 1)
		s.step(ticked{})
		s.pass(1)
		s.step(ticked{}, fmt.Sprintf("start %d slot 0 epoch 0", id+1))
	}
	s.step(live{11})
	s.pass(backStable)
	s.step(exited{id: 11, how: "x"}, "tidy slot 0", "start 12 slot 0 epoch 0")
	if s.m.stillborns != 10 || s.m.restarts != 1 {
		t.Errorf("%+v", s.m)
	}
}

func TestRestartsInARow(t *testing.T) {
	s := drains(t)
	s.ask(false, false, "answer 2 wait")
	s.ask(false, false, "answer 3 wait")
	s.pass(testTiming.shutdown)
	s.step(exited{id: 1, clean: true}, "stand in for slot 0 epoch 0 to 2", "prepare")
	s.step(prepared{serial: 2}, "start 3 slot 0 epoch 2")
	s.ask(false, false, "answer 4 wait") // it may see what the one under way has not
	s.step(live{3}, "answer 2,3 done")
	if s.m.reason() != "" || s.m.lastDone.reason != "r2; r3" {
		t.Errorf("%q, last %q", s.m.reason(), s.m.lastDone.reason)
	}
	s.phases("2 draining, 3 serving")
	s.ask(false, true, "prepare") // now: with what waits
	s.step(prepared{serial: 3}, "start 4 slot 0 epoch 3")
	s.phases("2 ending, 3 serving, 4 starting")
	s.step(exited{id: 2, clean: true}, "stand in for slot 0 epoch 1 to 3")
	s.step(live{4}, "answer 4,5 done")
	s.phases("3 draining, 4 serving")
}

func TestFullRestart(t *testing.T) {
	s := drains(t)
	s.ask(true, false, "term 2", "term 1")
	s.ask(false, false, "answer 3 wait")
	s.step(exited{id: 1, clean: true})
	s.step(exited{id: 2, clean: true}, "tidy slot 0", "start 3 slot 0 epoch 0")
	s.step(live{3}, "answer 2 done", "prepare")
	if s.m.restarts != 0 {
		t.Errorf("%d restarts unasked", s.m.restarts)
	}
	// One that does not end is killed, and what is under way is answered with it.
	s.step(prepared{serial: 2}, "start 4 slot 0 epoch 1")
	s.ask(true, false, "term 4", "term 3")
	s.pass(testTiming.grace)
	s.step(ticked{}, "kill 3", "kill 4")
	s.step(exited{id: 4, how: "signal: killed"})
	s.step(exited{id: 3, how: "signal: killed"}, "tidy slot 0", "start 5 slot 0 epoch 0")
	s.step(live{5}, "answer 3,4 done")
}

func TestStop(t *testing.T) {
	s := drains(t)
	s.ask(false, false, "answer 2 wait")
	s.step(stopped{}, "answer 2 error", "term 2", "term 1")
	s.ask(false, false, "answer 3 error")
	s.step(exited{id: 2, clean: true})
	s.pass(testTiming.grace)
	s.step(ticked{}, "kill 1")
	if s.m.finished() {
		t.Error("finished with an epoch alive")
	}
	s.step(exited{id: 1, how: "signal: killed"}, "tidy slot 0")
	if _, wakes := s.m.wake(); !s.m.finished() || wakes {
		t.Errorf("finished %t, wakes %t", s.m.finished(), wakes)
	}
}
