// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"aether.io/aether/internal/plan"
)

// apiServer is a Looker: an API server's allocations, and its moods.
type apiServer struct {
	clock Clock

	mu     sync.Mutex
	owners map[netip.Addr]plan.Look
	mood   string        // "answers", "silent" or a plan.Cause
	moved  chan struct{} // closed when the mood changes
	behind time.Time
	looks  int // that were begun
	under  int // that are under way
	most   int // that were ever under way at once
}

func newAPIServer(c Clock) *apiServer {
	return &apiServer{clock: c, owners: map[netip.Addr]plan.Look{}, mood: "answers", moved: make(chan struct{})}
}

func (a *apiServer) change(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	close(a.moved)
	a.moved = make(chan struct{})
}

// Look implements Looker.
func (a *apiServer) Look(ctx context.Context, addr netip.Addr) plan.Look {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.looks++
	a.under++
	a.most = max(a.most, a.under)
	defer func() { a.under-- }()
	for a.mood == "silent" {
		moved := a.moved
		a.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
		}
		a.mu.Lock()
		if ctx.Err() != nil {
			return plan.Look{Sight: plan.Blind, Cause: plan.TimedOut}
		}
	}
	if a.mood != "answers" {
		return plan.Look{Sight: plan.Blind, Cause: plan.Cause(a.mood)}
	}
	if l, ok := a.owners[addr]; ok {
		return l
	}
	return plan.Look{Sight: plan.Absent}
}

// Behind implements Looker.
func (a *apiServer) Behind() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.behind
}

// counts returns how many looks were begun and how many were under way at once.
func (a *apiServer) counts() (looks, most int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.looks, a.most
}

// allocate says whose addresses are: "ADDRESS service NAMESPACE/NAME",
// "ADDRESS other WHAT", "ADDRESS free".
func (s *scenario) allocate(_ *testscript.TestScript, args []string) error {
	addr, err := netip.ParseAddr(args[0])
	if err != nil {
		return err
	}
	var l plan.Look
	switch args[1] {
	case "service":
		l = plan.Look{Sight: plan.OfService, Owner: args[2]}
	case "other":
		l = plan.Look{Sight: plan.OfOther, Owner: args[2]}
	case "free":
	default:
		return fmt.Errorf("unknown word %q", args[1])
	}
	s.api.change(func() {
		if delete(s.api.owners, addr); l.Sight != plan.NotLooked {
			s.api.owners[addr] = l
		}
	})
	return nil
}

// apiserver sets its mood, or waits until it was asked so many times.
func (s *scenario) apiserver(_ *testscript.TestScript, args []string) error {
	if args[0] != "looked" {
		s.api.change(func() { s.api.mood = args[0] })
		return nil
	}
	return soon(func() error {
		if n, _ := s.api.counts(); fmt.Sprint(n) != args[1] {
			return fmt.Errorf("it looked %d times, want %s", n, args[1])
		}
		return nil
	})
}

// watch says whether the source is known to be behind, and waits until the agent
// knows.
func (s *scenario) watch(ts *testscript.TestScript, args []string) error {
	var since time.Time
	want := "aether_agent_source_behind 0"
	switch args[0] {
	case "behind":
		since, want = s.clock.Now(), "aether_agent_source_behind 1"
	case "current":
	default:
		return errors.New("want behind or current")
	}
	s.api.change(func() { s.api.behind = since })
	if err := s.advance(ts, []string{behindInterval.String()}); err != nil {
		return err
	}
	return until((*scenario).metrics)(s, ts, []string{"until", "^" + want})
}
