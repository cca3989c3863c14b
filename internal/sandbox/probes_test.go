// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func TestProbeThresholds(t *testing.T) {
	timing := probeTiming{success: 2, failure: 3}
	cases := []struct{ results, want string }{
		{"+", "-"},
		{"++", "-+"},
		{"+-+", "---"},
		{"+-++", "---+"},
		{"++--", "-+++"},
		{"++---", "-+++-"},
		{"++--+--+", "-+++++++"},
		{"++---+", "-+++--"},
		{"++---++", "-+++--+"},
	}
	for _, c := range cases {
		var s probeState
		got := ""
		for _, r := range c.results {
			s = s.result(r == '+', timing)
			got += map[bool]string{true: "+", false: "-"}[s.ready]
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.results, got, c.want)
		}
	}
}

func TestProbeDefaults(t *testing.T) {
	got := timingOf(&corev1.Probe{})
	if want := (probeTiming{period: 10 * time.Second, timeout: time.Second, success: 1, failure: 3}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestProbeOverTime: with a clock that is not real, when the checks come and what
// is reported.
func TestProbeOverTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		at := func() time.Duration { return time.Since(begin) }
		goodFrom, goodUntil := 2350*time.Millisecond, 20*time.Second
		var checks []time.Duration
		var reports []string
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			probe(ctx, probeTiming{initialDelay: 2 * time.Second, period: 5 * time.Second, timeout: time.Second, success: 1, failure: 2},
				func(context.Context) error {
					checks = append(checks, at())
					if at() < goodFrom || at() > goodUntil {
						return errors.New("down")
					}
					return nil
				},
				func(ready bool, reason string) {
					reports = append(reports, fmt.Sprintf("%v %v %s", at(), ready, reason))
				})
		}()
		time.Sleep(30 * time.Second)
		cancel()
		<-done
		if checks[0] != 2*time.Second {
			t.Errorf("the first check came at %v, want after the initial delay", checks[0])
		}
		// Every 100 ms until the first good one, then every 5 s.
		if want := []time.Duration{2200 * time.Millisecond, 2300 * time.Millisecond, 2400 * time.Millisecond, 7400 * time.Millisecond}; !slices.Equal(checks[2:6], want) {
			t.Errorf("checks at %v, want %v", checks[2:6], want)
		}
		want := []string{"2s false down", "2.4s true ", "22.4s true down", "27.4s false down"}
		if !slices.Equal(reports, want) {
			t.Errorf("reports %q, want %q", reports, want)
		}
	})
}

func TestProbeTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		reports := make(chan string, 10)
		done := make(chan struct{})
		go func() {
			defer close(done)
			probe(ctx, probeTiming{period: time.Second, timeout: 3 * time.Second, success: 1, failure: 1},
				func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
				func(_ bool, r string) { reports <- r })
		}()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(reports) > 0 {
			t.Errorf("reported %q before the timeout", <-reports)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(reports) != 1 || <-reports != context.DeadlineExceeded.Error() {
			t.Error("the timeout is not reported")
		}
		cancel()
		<-done
	})
}

func TestBackoff(t *testing.T) {
	b := backoff{min: 50 * time.Millisecond, max: 300 * time.Millisecond, stable: time.Second}
	for i, c := range []struct{ ran, want time.Duration }{
		{0, 50 * time.Millisecond},
		{0, 100 * time.Millisecond},
		{0, 200 * time.Millisecond},
		{0, 300 * time.Millisecond},
		{0, 300 * time.Millisecond},
		{2 * time.Second, 50 * time.Millisecond},
		{0, 100 * time.Millisecond},
	} {
		if got := b.after(c.ran); got != c.want {
			t.Errorf("step %d: got %v, want %v", i, got, c.want)
		}
	}
}
