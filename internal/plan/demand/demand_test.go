// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"aether.io/aether/internal/plan"
)

func wantAnswer(t *testing.T, n *node, at netip.AddrPort, want string) {
	t.Helper()
	if got := n.answer(at); got != want {
		t.Errorf("%s is answered %q, want %q", at, got, want)
	}
}

func wantKind(t *testing.T, n *node, at netip.AddrPort, want Kind) {
	t.Helper()
	if got := n.Look(at).Kind; got != want {
		t.Errorf("%s is %s, want %s", at, got, want)
	}
}

func TestAskedOf(t *testing.T) {
	for _, c := range []struct {
		name   string
		what   thing
		answer string
		kind   Kind
		saved  bool
	}{
		{"served Service port", served, "balance", KindService, true},
		{"Service port without endpoints", empty, "refuse no-endpoints", KindService, true},
		{"undeclared port", undeclared, "refuse port-not-declared", KindOther, false},
		{"another balancer's", foreign, "passthrough", KindOther, false},
		{"unknown address in balance", passed, "passthrough", KindOther, false},
		{"unknown address in enforce is held", unknown, "none", KindHeld, false},
		{"outside the range", external, "none", KindOutside, false},
		{"the API server", apiServer, "none", KindOutside, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := syncedNode(Config{Hold: DefaultHold})
			n.w[target(1)] = c.what
			f := n.do(Asked{Stream: 1, Targets: targets(1)})
			wantAnswer(t, n, target(1), c.answer)
			wantKind(t, n, target(1), c.kind)
			if f.Save != c.saved || (len(n.Remembered()) == 1) != c.saved {
				t.Errorf("save %t, remembered %v; want saved %t", f.Save, n.Remembered(), c.saved)
			}
			if len(f.TurnAway)+len(f.Withdraw) > 0 {
				t.Errorf("unexpected effects %+v", f)
			}
		})
	}
}

func TestMalformedNamesNeverEnter(t *testing.T) {
	n := syncedNode(Config{})
	bad := []netip.AddrPort{
		{},
		netip.MustParseAddrPort("10.96.0.1:0"),
		netip.MustParseAddrPort("[fd00::1]:80"),
		netip.MustParseAddrPort("[::ffff:10.96.0.1]:80"),
	}
	n.do(Asked{Stream: 1, Targets: bad})
	n.do(Opened{Stream: 2, Held: bad, Asked: bad})
	if got := n.Targets(); len(got) != 0 {
		t.Errorf("names %v entered", got)
	}
}

func TestNothingIsAnsweredBeforeSync(t *testing.T) {
	n := newNode(Config{}, dialledAt(target(3), epoch))
	n.w[target(1)], n.w[target(3)] = served, served
	n.do(Opened{Stream: 1, Held: targets(1), Asked: targets(2)})
	n.is(target(1), served)
	n.wait(time.Minute)
	if len(n.published) != 0 {
		t.Fatalf("published %v before sync", n.published)
	}
	n.do(Synced{})
	wantAnswer(t, n, target(1), "balance")
	wantAnswer(t, n, target(2), "refuse no-service")
	wantAnswer(t, n, target(3), "balance")
}

func TestHold(t *testing.T) {
	t.Run("ends in no-service", func(t *testing.T) {
		n := syncedNode(Config{Hold: 300 * time.Millisecond})
		n.do(Asked{Stream: 1, Targets: targets(1)})
		if at, ok := n.Wake(); !ok || !at.Equal(epoch.Add(300*time.Millisecond)) {
			t.Fatalf("wake %v %t, want after 300 ms", at, ok)
		}
		n.wait(299 * time.Millisecond)
		wantAnswer(t, n, target(1), "none")
		n.wait(time.Millisecond)
		wantAnswer(t, n, target(1), "refuse no-service")
		if _, ok := n.Wake(); ok {
			t.Error("still wants to be woken")
		}
	})
	t.Run("a Service that appears is served at once", func(t *testing.T) {
		n := syncedNode(Config{Hold: 300 * time.Millisecond})
		n.do(Asked{Stream: 1, Targets: targets(1)})
		n.now = n.now.Add(10 * time.Millisecond)
		n.is(target(1), served)
		wantAnswer(t, n, target(1), "balance")
		wantKind(t, n, target(1), KindService)
	})
	t.Run("a change to mode balance ends it", func(t *testing.T) {
		n := syncedNode(Config{Hold: 300 * time.Millisecond})
		n.do(Asked{Stream: 1, Targets: targets(1)})
		n.is(target(1), passed)
		wantAnswer(t, n, target(1), "passthrough")
	})
	t.Run("a range that shrinks ends it without an answer", func(t *testing.T) {
		n := syncedNode(Config{Hold: 300 * time.Millisecond})
		n.do(Asked{Stream: 1, Targets: targets(1)})
		n.is(target(1), external)
		n.wait(time.Second)
		wantAnswer(t, n, target(1), "none")
		wantKind(t, n, target(1), KindOutside)
	})
	t.Run("a Service that comes before its endpoints does not end it", func(t *testing.T) {
		n := syncedNode(Config{Hold: 300 * time.Millisecond})
		n.do(Asked{Stream: 1, Targets: targets(1, 2)})
		n.wait(100 * time.Millisecond)
		n.is(target(1), empty)
		n.is(target(2), undeclared)
		wantAnswer(t, n, target(1), "none")
		wantKind(t, n, target(2), KindHeld)
		n.is(target(1), served)
		wantAnswer(t, n, target(1), "balance")
		n.wait(200 * time.Millisecond)
		wantAnswer(t, n, target(2), "refuse port-not-declared")
	})
	t.Run("an empty Service is refused when it is over", func(t *testing.T) {
		n := syncedNode(Config{Hold: 300 * time.Millisecond})
		n.do(Asked{Stream: 1, Targets: targets(1)})
		n.is(target(1), empty)
		n.wait(300 * time.Millisecond)
		wantAnswer(t, n, target(1), "refuse no-endpoints")
		wantKind(t, n, target(1), KindService)
	})
	t.Run("never outlasts Envoy's own timeout", func(t *testing.T) {
		n := syncedNode(Config{Hold: time.Hour})
		n.do(Asked{Stream: 1, Targets: targets(1)})
		n.wait(OnDemandTimeout)
		wantAnswer(t, n, target(1), "refuse no-service")
	})
	t.Run("is counted from the ask, not from the sync", func(t *testing.T) {
		n := newNode(Config{Hold: 300 * time.Millisecond})
		n.do(Opened{Stream: 1, Epoch: 1}, Asked{Stream: 1, Targets: targets(1)})
		n.now = n.now.Add(200 * time.Millisecond)
		n.do(Synced{})
		wantKind(t, n, target(1), KindHeld)
		n.wait(100 * time.Millisecond)
		wantAnswer(t, n, target(1), "refuse no-service")
	})
	t.Run("none when it is zero", func(t *testing.T) {
		n := syncedNode(Config{})
		n.do(Asked{Stream: 1, Targets: targets(1)})
		wantAnswer(t, n, target(1), "refuse no-service")
	})
}

func TestAnsweredNameFollowsItsService(t *testing.T) {
	n := syncedNode(Config{Hold: DefaultHold})
	n.w[target(1)] = served
	n.do(Asked{Stream: 1, Targets: targets(1)})
	for _, c := range []struct {
		what   thing
		answer string
	}{
		{empty, "refuse no-endpoints"},
		{unknown, "refuse no-service"}, // no hold: the name has its answer
		{undeclared, "refuse port-not-declared"},
		{external, "passthrough"},
		{served, "balance"},
	} {
		n.is(target(1), c.what)
		wantAnswer(t, n, target(1), c.answer)
		wantKind(t, n, target(1), KindService)
		if len(n.Remembered()) != 1 {
			t.Errorf("forgotten when it became %q", c.answer)
		}
	}
}

func TestBudget(t *testing.T) {
	n := syncedNode(Config{Budget: 2, Hold: DefaultHold})
	n.do(Asked{Stream: 1, Targets: targets(1, 2, 3)})
	wantKind(t, n, target(1), KindHeld)
	wantKind(t, n, target(2), KindHeld)
	wantKind(t, n, target(3), KindOverLimit)
	if d := cmp.Diff(targets(3), n.effects.TurnAway, cmp.Comparer(eq)); d != "" {
		t.Errorf("turned away (-want +got):\n%s", d)
	}
	n.wait(DefaultHold)
	wantAnswer(t, n, target(2), "refuse no-service")

	// A Service port needs no place in the budget.
	n.w[target(4)] = served
	n.do(Asked{Stream: 1, Targets: targets(4)})
	wantAnswer(t, n, target(4), "balance")

	// The name that was turned away is taken over by a Service.
	n.is(target(3), served)
	wantAnswer(t, n, target(3), "balance")

	// A name leaves the budget when a Service takes it over, and makes room.
	n.is(target(1), empty)
	wantKind(t, n, target(1), KindService)
	n.do(Asked{Stream: 1, Targets: targets(5)})
	wantKind(t, n, target(5), KindHeld)

	// It does not come back into it while Envoy may hold it.
	n.is(target(1), unknown)
	wantAnswer(t, n, target(1), "refuse no-service")
	if n.Count(KindOther)+n.Count(KindHeld) != 2 || n.OverLimit() != 1 {
		t.Errorf("other %d held %d over-limit %d", n.Count(KindOther), n.Count(KindHeld), n.OverLimit())
	}
}

func eq(a, b netip.AddrPort) bool { return a == b }

func TestTurnedAwayNameStaysSo(t *testing.T) {
	n := syncedNode(Config{Budget: 1})
	n.do(Asked{Stream: 1, Targets: targets(1, 2)})
	wantKind(t, n, target(2), KindOverLimit)
	n.is(target(1), served) // room again
	n.is(target(2), undeclared)
	wantKind(t, n, target(2), KindOverLimit)

	// Another Envoy's ask is a new one.
	n.do(Opened{Stream: 2, Epoch: 2}, Asked{Stream: 2, Targets: targets(2)})
	wantAnswer(t, n, target(2), "refuse port-not-declared")
	if n.OverLimit() != 1 {
		t.Errorf("over-limit %d, want 1", n.OverLimit())
	}
}

// A thousand names in an Envoy's first request are no thousand connections that
// wait: they are turned away without a word.
func TestReconnectTurnsAwayQuietly(t *testing.T) {
	n := newNode(Config{Budget: 1})
	n.do(Synced{})
	n.do(Opened{Stream: 1, Held: targets(9), Asked: targets(1, 2, 3)})
	wantAnswer(t, n, target(9), "refuse no-service")
	for i := 1; i <= 3; i++ {
		wantKind(t, n, target(i), KindOverLimit)
	}
	if len(n.effects.TurnAway) != 0 {
		t.Errorf("turned away %v aloud", n.effects.TurnAway)
	}
}

func TestHeldNamesAreAnsweredWithoutHold(t *testing.T) {
	n := newNode(Config{Hold: DefaultHold})
	n.do(Synced{})
	n.do(Opened{Stream: 1, Held: targets(1), Asked: targets(2)})
	wantAnswer(t, n, target(1), "refuse no-service")
	wantKind(t, n, target(2), KindHeld)
}

// A name outside the range is answered when a new ServiceCIDR takes it in, for
// Envoy will not ask again.
func TestOutsideNameIsAnsweredWhenTheRangeGrows(t *testing.T) {
	n := syncedNode(Config{Hold: DefaultHold})
	n.w[target(1)], n.w[target(2)] = external, external
	n.do(Asked{Stream: 1, Targets: targets(1, 2)})
	n.wait(time.Minute)
	n.is(target(1), served)
	n.is(target(2), unknown)
	wantAnswer(t, n, target(1), "balance")
	wantAnswer(t, n, target(2), "refuse no-service")
}

func TestRestart(t *testing.T) {
	n := newNode(Config{}, dialledAt(target(1), epoch), dialledAt(target(2), epoch))
	n.w[target(1)] = served // the other's Service is gone
	if got := len(n.Remembered()); got != 2 {
		t.Fatalf("%d remembered before sync, want 2", got)
	}
	n.do(Synced{})
	wantAnswer(t, n, target(1), "balance")
	wantAnswer(t, n, target(2), "refuse no-service")
	wantKind(t, n, target(2), KindService)
	if v := n.Look(target(1)); v.Asked || !v.LastDial.Equal(epoch) {
		t.Errorf("remembered name is %+v", v)
	}
	n.do(Opened{Stream: 1, Held: targets(1, 2)})
	if v := n.Look(target(1)); !v.Asked {
		t.Errorf("held name is %+v", v)
	}
	wantAnswer(t, n, target(2), "refuse no-service")
}

func TestFreshEnvoyStartsWithRememberedServicePorts(t *testing.T) {
	n := syncedNode(Config{Window: time.Hour})
	n.w[target(1)], n.w[target(2)], n.w[target(3)] = served, served, served
	n.do(Asked{Stream: 1, Targets: targets(1, 2, 3, 4)})
	n.do(Closed{Stream: 1})
	n.is(target(3), unknown) // gone
	n.now = n.now.Add(2 * time.Hour)
	n.do(Dialled{Target: target(2), At: n.now.Add(-time.Minute)})
	if len(n.published) != 4 {
		t.Fatalf("published %v after the stream closed, want all 4", n.published)
	}
	f := n.do(Opened{Stream: 2, Epoch: 2})
	if d := cmp.Diff(targets(1, 3, 4), f.Withdraw, cmp.Comparer(eq)); d != "" {
		t.Errorf("withdrawn (-want +got):\n%s", d)
	}
	if got := n.Targets(); len(got) != 1 || got[0] != target(2) || !f.Save {
		t.Errorf("left %v, save %t", got, f.Save)
	}
}

// A name that a person wrote into the file by hand has no last dial.
func TestRememberedWithoutLastDialIsKept(t *testing.T) {
	n := newNode(Config{Window: time.Hour}, Name{Target: target(1)})
	n.w[target(1)] = served
	n.do(Synced{})
	n.do(Opened{Stream: 1, Epoch: 1})
	wantAnswer(t, n, target(1), "balance")
	n.now = n.now.Add(2 * time.Hour)
	n.do(Closed{Stream: 1}, Opened{Stream: 2, Epoch: 2})
	wantAnswer(t, n, target(1), "none")
}

func TestHotRestartForgetsWhenTheOldEpochIsGone(t *testing.T) {
	n := syncedNode(Config{})
	n.w[target(1)] = served
	n.do(Asked{Stream: 1, Targets: targets(1, 2, 3)})
	n.do(Opened{Stream: 2, Epoch: 2})
	n.do(Asked{Stream: 2, Targets: targets(3)})
	if len(n.published) != 3 {
		t.Fatalf("published %v while the old epoch lives, want all 3", n.published)
	}
	// The old epoch loses its stream while the new one has none either, comes
	// back, and ends.
	n.do(Closed{Stream: 2})
	n.do(Closed{Stream: 1})
	n.do(Opened{Stream: 3, Epoch: 1, Held: targets(1, 2, 3)})
	wantAnswer(t, n, target(2), "refuse no-service")
	n.do(Opened{Stream: 4, Epoch: 2, Held: targets(3)})
	wantAnswer(t, n, target(2), "refuse no-service")
	n.do(Closed{Stream: 3})
	wantAnswer(t, n, target(1), "balance")
	wantAnswer(t, n, target(2), "none")
	wantAnswer(t, n, target(3), "refuse no-service")
}

// A stream whose end the agent has not seen yet lies beside the same Envoy's new
// one: nothing it holds is withdrawn.
func TestReconnectBesideDeadStream(t *testing.T) {
	n := syncedNode(Config{})
	n.do(Asked{Stream: 1, Targets: targets(1, 2)})
	n.do(Opened{Stream: 2, Epoch: 1, Held: targets(1, 2)})
	n.do(Closed{Stream: 1})
	n.do(Closed{Stream: 2})
	n.do(Opened{Stream: 3, Epoch: 1, Held: targets(1, 2)})
	wantAnswer(t, n, target(1), "refuse no-service")
	wantAnswer(t, n, target(2), "refuse no-service")
}

func TestDialsAreSavedNowAndThen(t *testing.T) {
	n := syncedNode(Config{})
	n.w[target(1)] = served
	n.do(Asked{Stream: 1, Targets: targets(1)})
	n.saves = 0
	for range 120 {
		n.now = n.now.Add(time.Minute)
		n.do(Dialled{Target: target(1), At: n.now})
	}
	if n.saves != 2 {
		t.Errorf("%d saves in two hours of dials, want 2", n.saves)
	}
	n.do(Dialled{Target: target(1), At: n.now.Add(-time.Hour)}, Dialled{Target: target(8), At: n.now})
	if v := n.Look(target(1)); !v.LastDial.Equal(n.now) {
		t.Errorf("last dial %v, want %v", v.LastDial, n.now)
	}
	n.do(Dialled{Target: target(1), At: n.now.Add(time.Hour)})
	if v := n.Look(target(1)); v.LastDial.After(n.now) {
		t.Errorf("last dial %v lies in the future", v.LastDial)
	}
}

func TestTargetsOf(t *testing.T) {
	n := syncedNode(Config{})
	a := target(1).Addr()
	n.do(Asked{Stream: 1, Targets: []netip.AddrPort{
		netip.AddrPortFrom(a, 443), netip.AddrPortFrom(a, 80), target(2),
	}})
	want := []netip.AddrPort{netip.AddrPortFrom(a, 80), netip.AddrPortFrom(a, 443)}
	if d := cmp.Diff(want, n.TargetsOf(a), cmp.Comparer(eq)); d != "" {
		t.Errorf("names of %s (-want +got):\n%s", a, d)
	}
	n.do(Closed{Stream: 1}, Opened{Stream: 2, Epoch: 2})
	if got := n.TargetsOf(a); len(got) != 0 {
		t.Errorf("forgotten names %v are still indexed", got)
	}
}

func TestEffectsAreSortedAndOnce(t *testing.T) {
	n := syncedNode(Config{})
	f := n.do(Asked{Stream: 1, Targets: targets(3, 1, 2, 1)}, Asked{Stream: 1, Targets: targets(2)})
	var got []netip.AddrPort
	for _, a := range f.Publish {
		got = append(got, a.Target)
	}
	if d := cmp.Diff(targets(1, 2, 3), got, cmp.Comparer(eq)); d != "" {
		t.Errorf("published (-want +got):\n%s", d)
	}
	if f.Publish[0].Verdict != plan.Refuse {
		t.Errorf("answer %+v", f.Publish[0])
	}
}

func TestKindsHaveNames(t *testing.T) {
	seen := map[string]bool{KindNone.String(): true}
	for _, k := range Kinds() {
		if seen[k.String()] {
			t.Errorf("kind %d has the name %q of another", k, k)
		}
		seen[k.String()] = true
	}
	if len(seen) != int(KindOutside)+1 {
		t.Errorf("Kinds lists %d kinds, want %d", len(seen)-1, KindOutside)
	}
}
