// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// host plays Envoys and the shell around a machine, at random.
type host struct {
	t        *rapid.T
	m        machine
	now      time.Time
	alive    map[int]start     // started and not ended
	drainers map[int]time.Time // since when an epoch drains
	cut      map[int]bool      // a request said not to wait for it, or to end everything
	prepares []int             // under way
	owed     map[uint64]bool   // requests without an answer
	next     uint64
	stopping bool
}

func (h *host) feed(ev event) {
	for queue := []event{ev}; len(queue) > 0; queue = queue[1:] {
		for _, f := range h.m.step(h.now, queue[0]) {
			h.perform(f)
		}
	}
	h.check()
}

func (h *host) perform(f effect) {
	switch f := f.(type) {
	case prepare:
		h.prepares = append(h.prepares, f.serial)
	case start:
		for id, other := range h.alive {
			if other.slot == f.slot && other.number == f.number {
				h.t.Fatalf("epoch %d of slot %d is started while process %d is it", f.number, f.slot, id)
			}
			if other.slot == f.slot && f.number == 0 {
				h.t.Fatalf("a chain begins in slot %d while process %d lives there", f.slot, id)
			}
		}
		h.alive[f.id] = f
	case kill:
		if since, drains := h.drainers[f.id]; drains && !h.cut[f.id] && !h.stopping && h.now.Sub(since) < testTiming.shutdown {
			h.t.Fatalf("process %d is ended after draining for %v", f.id, h.now.Sub(since))
		}
	case answer:
		for _, r := range f.to {
			delete(h.owed, r.id)
		}
	case clearMark:
		for id, e := range h.alive {
			if p := h.m.find(id); e.slot == f.slot && p != nil && p.phase == starting {
				h.t.Fatalf("the mark of slot %d is cleared while process %d starts", f.slot, id)
			}
		}
	case tidy:
		for id, e := range h.alive {
			if e.slot == f.slot {
				h.t.Fatalf("slot %d is tidied while process %d lives", f.slot, id)
			}
		}
	}
}

// check is what holds after every step.
func (h *host) check() {
	serve, starts := 0, 0
	for _, e := range h.m.epochs {
		if _, alive := h.alive[e.id]; !alive {
			h.t.Fatalf("process %d is known and not alive", e.id)
		}
		switch e.phase {
		case serving:
			serve++
		case starting:
			starts++
		case draining:
			if _, known := h.drainers[e.id]; !known {
				h.drainers[e.id] = h.now
			}
		}
	}
	if serve > 1 || starts > 1 || len(h.m.epochs) != len(h.alive) {
		h.t.Fatalf("%d serve, %d start: %+v", serve, starts, h.m.epochs)
	}
	if h.stopping || !h.m.begun {
		return
	}
	// Something always serves, is being started, or is waited for.
	if at, wakes := h.m.wake(); serve == 0 && starts == 0 && !wakes && !h.m.full {
		h.t.Fatalf("nothing serves and nothing will: wake %v, %+v", at, h.m)
	}
}

// act does one thing that may happen.
func (h *host) act() {
	t := h.t
	h.now = h.now.Add(rapid.SampledFrom([]time.Duration{0, time.Millisecond, time.Second, 10 * time.Second, testTiming.shutdown}).Draw(t, "pause"))
	var ids []int
	for _, e := range h.m.epochs {
		ids = append(ids, e.id)
	}
	kind := rapid.IntRange(0, 9).Draw(t, "kind")
	switch {
	case kind == 0:
		h.next++
		r := request{id: h.next, reason: "r", at: h.now, full: rapid.IntRange(0, 4).Draw(t, "full") == 0, now: rapid.Bool().Draw(t, "now")}
		if r.full || r.now {
			for _, id := range ids {
				h.cut[id] = true
			}
		}
		h.owed[r.id] = true
		h.feed(asked{r})
	case kind <= 2 && len(h.prepares) > 0:
		serial := h.prepares[0]
		h.prepares = h.prepares[1:]
		var err error
		if rapid.IntRange(0, 3).Draw(t, "fails") == 0 {
			err = errors.New("no")
		}
		h.feed(prepared{serial: serial, err: err})
	case kind <= 5 && len(ids) > 0:
		id := rapid.SampledFrom(ids).Draw(t, "who")
		if h.m.find(id).phase == starting {
			h.feed(live{id})
		}
	case kind <= 7 && len(ids) > 0:
		id := rapid.SampledFrom(ids).Draw(t, "who")
		took := h.m.find(id).phase == starting && rapid.Bool().Draw(t, "took over")
		delete(h.alive, id)
		delete(h.drainers, id)
		h.feed(exited{id: id, how: "x", tookOver: took, clean: rapid.Bool().Draw(t, "clean")})
	default:
		if at, ok := h.m.wake(); ok && at.After(h.now) {
			h.now = at
		}
		h.feed(ticked{})
	}
}

// TestHistories: whatever happens in whatever order, at most one epoch serves, no
// process is mistaken for another, established connections have their time, and in
// the end everybody has an answer and nothing lives.
func TestHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &host{
			t: t, m: machine{timing: testTiming}, now: origin, alive: map[int]start{}, drainers: map[int]time.Time{},
			cut: map[int]bool{}, owed: map[uint64]bool{},
		}
		h.feed(begun{})
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			h.act()
		}
		h.stopping = true
		h.feed(stopped{})
		for range 2 {
			h.now = h.now.Add(testTiming.grace)
			h.feed(ticked{})
		}
		for id := range h.alive {
			delete(h.alive, id)
			h.feed(exited{id: id, how: "signal: killed"})
		}
		if !h.m.finished() || len(h.owed) > 0 {
			t.Fatalf("finished %t, without an answer: %v", h.m.finished(), h.owed)
		}
	})
}
