// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"aether.io/aether/internal/plan"
)

// lookingNode has synced, has the Envoy of stream 1, and somebody who looks.
func lookingNode() *node {
	return syncedNode(Config{Hold: DefaultHold, LookRate: DefaultLookRate, LookBurst: DefaultLookBurst})
}

func (n *node) ask(ns ...int) Effects { return n.do(Asked{Stream: 1, Targets: targets(ns...)}) }

// finds answers the look that the last step began.
func (n *node) finds(t *testing.T, found plan.Look) Effects {
	t.Helper()
	if len(n.effects.Look) != 1 {
		t.Fatalf("looks begun: %v, want one", n.effects.Look)
	}
	return n.do(Looked{LookAt: n.effects.Look[0], Found: found})
}

func blind(c plan.Cause) plan.Look { return plan.Look{Sight: plan.Blind, Cause: c} }

var (
	absent    = plan.Look{Sight: plan.Absent, At: epoch}
	ofService = plan.Look{Sight: plan.OfService, Owner: "default/web", At: epoch}
	ofOther   = plan.Look{Sight: plan.OfOther, Owner: "gateways default/gw", At: epoch}
)

func TestLookDecides(t *testing.T) {
	for _, c := range []struct {
		found  plan.Look
		answer string
		kind   Kind
	}{
		{absent, "refuse no-service", KindOther},
		{ofService, "none", KindHeld},
		{ofOther, "passthrough", KindOther},
		{blind(plan.Unreachable), "passthrough", KindOther},
		{blind(plan.TimedOut), "passthrough", KindOther},
		{blind(plan.Forbidden), "passthrough", KindOther},
		{blind(plan.NotServed), "passthrough", KindOther},
		{blind(plan.Refused), "passthrough", KindOther},
		{blind(plan.Malformed), "passthrough", KindOther},
	} {
		t.Run(fmt.Sprint(c.found.Sight, c.found.Cause), func(t *testing.T) {
			n := lookingNode()
			n.ask(1)
			wantKind(t, n, target(1), KindHeld)
			n.finds(t, c.found)
			wantAnswer(t, n, target(1), c.answer)
			wantKind(t, n, target(1), c.kind)
		})
	}
}

func TestOwnedAddressWaitsForTheWatch(t *testing.T) {
	n := lookingNode()
	n.ask(1)
	n.finds(t, ofService)
	n.wait(500 * time.Millisecond)
	wantAnswer(t, n, target(1), "none")
	n.is(target(1), empty) // the Service first, then its endpoints
	wantAnswer(t, n, target(1), "none")
	n.wait(50 * time.Millisecond)
	n.is(target(1), served)
	wantAnswer(t, n, target(1), "balance")
}

func TestServiceWithoutEndpointsEndsTheWaitSoon(t *testing.T) {
	n := lookingNode()
	n.ask(1)
	n.finds(t, ofService)
	n.wait(time.Second)
	n.is(target(1), empty)
	n.wait(DefaultHold - time.Millisecond)
	wantAnswer(t, n, target(1), "none")
	n.wait(time.Millisecond)
	wantAnswer(t, n, target(1), "refuse no-endpoints")
}

// The watch tells of a Service before it tells of its slices, which are written
// later: a dial in between waits for them, but not for ever, and not where nobody
// writes any.
func TestServiceWhoseEndpointsAreYetToBeTold(t *testing.T) {
	n := lookingNode()
	n.w[target(1)], n.w[target(2)], n.w[target(3)] = early, early, early
	n.ask(1, 2, 3)
	for i := 1; i <= 3; i++ {
		wantKind(t, n, target(i), KindHeld)
	}
	n.wait(LookWait - time.Millisecond)
	n.is(target(1), served)
	wantAnswer(t, n, target(1), "balance")
	n.is(target(2), empty)
	wantAnswer(t, n, target(3), "none")
	n.wait(time.Millisecond)
	wantAnswer(t, n, target(2), "refuse no-endpoints")
	wantAnswer(t, n, target(3), "refuse no-endpoints")
	wantKind(t, n, target(3), KindService)

	// Once it has been answered nothing waits any more.
	n.is(target(1), early)
	wantAnswer(t, n, target(1), "refuse no-endpoints")

	n = syncedNode(Config{Hold: DefaultHold}) // manifests
	n.w[target(1)] = early
	n.ask(1)
	wantAnswer(t, n, target(1), "refuse no-endpoints")
}

// A Service port that is held has no place in the budget of other names.
func TestHeldServicePortIsOutsideTheBudget(t *testing.T) {
	n := syncedNode(Config{Budget: 1, LookRate: DefaultLookRate, LookBurst: DefaultLookBurst})
	n.w[target(1)], n.w[target(2)] = early, early
	n.ask(1, 2, 3)
	wantKind(t, n, target(1), KindHeld)
	wantKind(t, n, target(2), KindHeld)
	wantKind(t, n, target(3), KindHeld)
	n.ask(4)
	wantKind(t, n, target(4), KindOverLimit)
	n.wait(LookWait)
	n.ask(5)
	wantKind(t, n, target(5), KindOverLimit)
	wantKind(t, n, target(3), KindOther)
}

func TestOwnedAddressIsPassedThroughWhenTheWatchIsLate(t *testing.T) {
	n := lookingNode()
	n.ask(1)
	n.finds(t, ofService)
	n.wait(LookWait - time.Millisecond)
	wantAnswer(t, n, target(1), "none")
	n.wait(time.Millisecond)
	wantAnswer(t, n, target(1), "passthrough")
	// Its Service was never stored: later nobody has it.
	n.wait(passedAgain)
	n.finds(t, absent)
	wantAnswer(t, n, target(1), "refuse no-service")
}

func TestSlowLookNeverKeepsADialBeyondTheBound(t *testing.T) {
	n := lookingNode()
	f := n.ask(1)
	n.wait(LookWait)
	wantAnswer(t, n, target(1), "passthrough")
	n.do(Looked{LookAt: f.Look[0], Found: absent})
	wantAnswer(t, n, target(1), "refuse no-service")
}

func TestRefusedAddressFollowsTheWatchAtOnce(t *testing.T) {
	n := lookingNode()
	n.ask(1)
	n.finds(t, absent)
	wantAnswer(t, n, target(1), "refuse no-service")
	n.is(target(1), served)
	wantAnswer(t, n, target(1), "balance")
	// The source that told of it tells that it is gone: that needs no look.
	if f := n.is(target(1), unknown); len(f.Look) != 0 {
		t.Errorf("looks %v", f.Look)
	}
	wantAnswer(t, n, target(1), "refuse no-service")
}

// A look says nothing about a dial that comes after it was begun.
func TestLookCountsForEarlierDialsOnly(t *testing.T) {
	n := lookingNode()
	other := target(1)
	first := n.do(Asked{Stream: 1, Targets: targets(1)})
	sibling := netip.AddrPortFrom(other.Addr(), 81)
	second := n.do(Asked{Stream: 1, Targets: []netip.AddrPort{sibling}})
	if len(first.Look) != 1 || len(second.Look) != 1 {
		t.Fatalf("looks %v and %v", first.Look, second.Look)
	}
	n.do(Looked{LookAt: first.Look[0], Found: absent})
	wantAnswer(t, n, other, "refuse no-service")
	wantAnswer(t, n, sibling, "none")
	n.do(Looked{LookAt: second.Look[0], Found: absent})
	wantAnswer(t, n, sibling, "refuse no-service")
	// Dials of one moment share a look.
	if f := n.do(Asked{Stream: 1, Targets: []netip.AddrPort{netip.AddrPortFrom(other.Addr(), 82), netip.AddrPortFrom(other.Addr(), 83)}}); len(f.Look) != 1 {
		t.Errorf("looks %v, want one", f.Look)
	}
}

func TestNobodyWaitsWhileBlind(t *testing.T) {
	n := lookingNode()
	n.ask(1)
	n.finds(t, blind(plan.Unreachable))
	if f := n.ask(2); len(f.Look) != 0 {
		t.Errorf("looks %v within the pause", f.Look)
	}
	wantAnswer(t, n, target(2), "passthrough")
	n.wait(minPause - 1)
	if len(n.effects.Look) != 0 {
		t.Errorf("looks %v within the pause", n.effects.Look)
	}
	// One look tries whether the others could see, after twice the time each.
	n.wait(1)
	n.finds(t, blind(plan.Unreachable))
	if n.wait(2*minPause - 1); len(n.effects.Look) != 0 {
		t.Errorf("looks %v within the pause", n.effects.Look)
	}
	n.wait(1)
	f := n.finds(t, absent)
	if len(f.Look) != 1 {
		t.Fatalf("looks %v, want the other one", f.Look)
	}
	n.finds(t, absent)
	wantAnswer(t, n, target(1), "refuse no-service")
	wantAnswer(t, n, target(2), "refuse no-service")
}

func TestPauseIsBounded(t *testing.T) {
	n := lookingNode()
	n.ask(1)
	n.finds(t, blind(plan.NotServed))
	for range 12 {
		at, ok := n.Wake()
		if !ok || at.Sub(n.now) > maxPause {
			t.Fatalf("wakes at %v (%t), now is %v", at, ok, n.now)
		}
		n.wait(at.Sub(n.now))
		n.finds(t, blind(plan.NotServed))
	}
}

func TestBehind(t *testing.T) {
	n := lookingNode()
	n.ask(1)
	n.finds(t, absent)
	n.do(Behind{Since: n.now})
	wantAnswer(t, n, target(1), "passthrough")
	if f := n.ask(2); len(f.Look) != 0 {
		t.Errorf("looks %v while behind", f.Look)
	}
	wantAnswer(t, n, target(2), "passthrough")
	// What was found before does not count any more.
	f := n.do(Behind{})
	if len(f.Look) != 2 {
		t.Fatalf("looks %v, want two", f.Look)
	}
	wantAnswer(t, n, target(1), "passthrough")
	for _, l := range f.Look {
		n.do(Looked{LookAt: l, Found: absent})
	}
	wantAnswer(t, n, target(1), "refuse no-service")
	wantAnswer(t, n, target(2), "refuse no-service")
}

// A look that was under way when the sources fell behind does not count.
func TestLookAcrossBehind(t *testing.T) {
	n := lookingNode()
	f := n.ask(1)
	n.do(Behind{Since: n.now})
	n.do(Behind{})
	n.do(Looked{LookAt: f.Look[0], Found: absent})
	wantAnswer(t, n, target(1), "passthrough")
}

func TestHeldByEnvoyIsPassedThroughUntilLookedAt(t *testing.T) {
	n := newNode(Config{Hold: DefaultHold, LookRate: 50, LookBurst: 100}, dialledAt(target(2), epoch))
	n.do(Opened{Stream: 1, Epoch: 1, Held: targets(1, 2)})
	f := n.do(Synced{})
	wantAnswer(t, n, target(1), "passthrough")
	wantAnswer(t, n, target(2), "passthrough")
	for _, l := range f.Look {
		n.do(Looked{LookAt: l, Found: absent})
	}
	wantAnswer(t, n, target(1), "refuse no-service")
	wantAnswer(t, n, target(2), "refuse no-service")
}

func TestRangeKnownLate(t *testing.T) {
	n := lookingNode()
	n.w[target(1)] = external
	n.ask(1)
	wantKind(t, n, target(1), KindOutside)
	n.wait(time.Second)
	n.is(target(1), unknown)
	wantAnswer(t, n, target(1), "none") // its dial still waits
	n.finds(t, absent)
	wantAnswer(t, n, target(1), "refuse no-service")
	n.w[target(2)] = external
	n.ask(2)
	n.wait(LookWait)
	n.is(target(2), unknown)
	wantAnswer(t, n, target(2), "passthrough") // none waits any more
	n.finds(t, absent)
	wantAnswer(t, n, target(2), "refuse no-service")
}

func TestModeDecidesWhetherToLook(t *testing.T) {
	n := lookingNode()
	n.w[target(1)] = passed
	if f := n.ask(1); len(f.Look) != 0 {
		t.Errorf("looks %v though nothing is to be refused", f.Look)
	}
	n.is(target(1), unknown)
	wantAnswer(t, n, target(1), "passthrough")
	n.finds(t, absent)
	wantAnswer(t, n, target(1), "refuse no-service")
}

// A scan takes the budget and no more looks than that, at the rate; who would not
// be looked at in time does not wait.
func TestScan(t *testing.T) {
	n := lookingNode()
	all := make([]int, 5000)
	for i := range all {
		all[i] = i + 1
	}
	f := n.ask(all...)
	if got := n.Count(KindOverLimit); got != 5000-DefaultBudget {
		t.Errorf("%d turned away", got)
	}
	if got, most := n.Count(KindHeld), DefaultLookBurst+DefaultLookRate*3; got == 0 || got > most {
		t.Errorf("%d wait, want at most %d", got, most)
	}
	var begun int
	for {
		begun += len(f.Look)
		if most := DefaultLookBurst + int(n.now.Sub(epoch)/(time.Second/DefaultLookRate)); begun > most {
			t.Fatalf("%d looks after %v, want at most %d", begun, n.now.Sub(epoch), most)
		}
		if len(n.flying) > MaxLooks {
			t.Fatalf("%d looks under way", len(n.flying))
		}
		if len(f.Look) > 0 {
			var evs []Event
			for _, l := range f.Look {
				evs = append(evs, Looked{LookAt: l, Found: absent})
			}
			f = n.do(evs...)
			continue
		}
		at, ok := n.Wake()
		if !ok || begun >= DefaultBudget {
			break
		}
		f = n.wait(at.Sub(n.now))
	}
	if begun != DefaultBudget {
		t.Errorf("%d looks, want %d", begun, DefaultBudget)
	}
	if got := n.now.Sub(epoch); got > 25*time.Second {
		t.Errorf("the last look was begun after %v", got)
	}
	for _, t1 := range targets(1, DefaultBudget) {
		wantAnswer(t, n, t1, "refuse no-service")
	}
}

func TestRefusedAddressIsLookedAtAgainWhileDialled(t *testing.T) {
	n := lookingNode()
	n.ask(1)
	n.finds(t, plan.Look{Sight: plan.Absent, At: n.now})
	n.wait(refusedAgain)
	if len(n.effects.Look) != 0 {
		t.Errorf("looks %v though nobody dialled", n.effects.Look)
	}
	n.do(Dialled{Target: target(1), At: n.now})
	n.wait(refusedAgain)
	n.finds(t, ofService)
	wantAnswer(t, n, target(1), "passthrough")
}

func TestForgottenSuspectIsNotLookedAt(t *testing.T) {
	n := lookingNode()
	f := n.ask(1)
	n.do(Closed{Stream: 1}, Opened{Stream: 2, Epoch: 2})
	wantKind(t, n, target(1), KindNone)
	n.do(Looked{LookAt: f.Look[0], Found: absent})
	if len(n.suspects)+len(n.flying) != 0 {
		t.Errorf("suspects %v, under way %v", n.suspects, n.flying)
	}
	if _, ok := n.Wake(); ok {
		t.Error("something is due")
	}
}
