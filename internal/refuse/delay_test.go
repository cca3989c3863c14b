// SPDX-License-Identifier: Apache-2.0

package refuse

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var testLaw = law{base: 5 * time.Millisecond, limit: 250 * time.Millisecond, quiet: 200, storm: 2000}

func TestDelayGrowsFromQuietToStorm(t *testing.T) {
	for _, c := range []struct {
		rate float64
		want time.Duration
	}{
		{0, 5 * time.Millisecond},
		{200, 5 * time.Millisecond},
		{1100, 127500 * time.Microsecond},
		{2000, 250 * time.Millisecond},
		{1e9, 250 * time.Millisecond},
	} {
		if got := testLaw.delay(c.rate); got != c.want {
			t.Errorf("delay(%v) = %s, want %s", c.rate, got, c.want)
		}
	}
}

func TestDelayNeverShrinksAsTheRateGrows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.Float64Range(0, 5000).Draw(t, "a")
		b := rapid.Float64Range(a, 5000).Draw(t, "b")
		if testLaw.delay(a) > testLaw.delay(b) {
			t.Fatalf("delay(%v) > delay(%v)", a, b)
		}
	})
}

func TestRateFollowsAStormAndForgetsIt(t *testing.T) {
	var r rate
	now := time.Unix(1000, 0)
	if got := r.at(now); got != 0 {
		t.Errorf("rate before anything = %v", got)
	}
	for range 5000 { // 1,000 per second for five seconds
		now = now.Add(time.Millisecond)
		r.add(now)
	}
	if got := r.at(now); got < 900 || got > 1100 {
		t.Errorf("rate in a storm of 1,000 per second = %v", got)
	}
	if got := r.at(now.Add(10 * time.Second)); got > 1 {
		t.Errorf("rate ten seconds after the storm = %v", got)
	}
	if got := r.at(now.Add(-time.Hour)); got > 1100 {
		t.Errorf("a clock that goes back makes the rate %v", got)
	}
}

// Clients that retry at once settle at a rate well below what they could do
// without the growing wait.
func TestAStormSlowsItselfDown(t *testing.T) {
	const clients = 32
	var r rate
	next := make([]time.Time, clients)
	start := time.Unix(1000, 0)
	for i := range next {
		next[i] = start
	}
	count := 0
	for end := start.Add(20 * time.Second); ; {
		first := 0
		for i := range next {
			if next[i].Before(next[first]) {
				first = i
			}
		}
		if next[first].After(end) {
			break
		}
		if next[first].After(end.Add(-10 * time.Second)) {
			count++
		}
		next[first] = next[first].Add(testLaw.delay(r.add(next[first])))
	}
	if perSecond := float64(count) / 10; perSecond > 1000 {
		t.Errorf("%d clients settle at %.0f refusals per second; without the law they would make 6,400", clients, perSecond)
	}
}
