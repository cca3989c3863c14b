// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"aether.io/aether/internal/sandbox/echo"
)

const (
	// noisyPairs is how many quiet and noisy windows are measured in turn, and
	// toldPairs how many where the outcome is only told.
	noisyPairs  = 5
	toldPairs   = 3
	noisyWindow = 2 * time.Second
	// noisyRest is between two windows: a storm is forgotten.
	noisyRest = 700 * time.Millisecond
	// noisyTries is how often it is measured: what else this machine does can make
	// a neighbour slower, never faster, so that one good try shows what holds.
	noisyTries = 3
	// noisyTimes is how many times its quiet p99 a neighbour may need.
	noisyTimes = 2
)

// TestNoisyNeighbour: one pod retries in a tight loop what is refused, and opens
// and closes connections to what is served as fast as it can. With a connection
// rate of its own it leaves another pod's p99 within twice what it is in the quiet
// windows between, and none of its connections fails for it. What it does without
// a rate is measured too, and only told: on two cores that is mostly the CPU it
// takes from everybody.
func TestNoisyNeighbour(t *testing.T) {
	n := upReady(t, firstRange+server("web", "app: web")+server("other", "app: other")+client("neighbour")+client("unbound")+
		settingsClient("bound", "", `capture.aether.io/connection-rate: "50"`)+
		service("web", "10.96.0.10", "selector: {app: web}, ports: [{name: greet, port: 80, targetPort: 9001}]")+
		service("empty", "10.96.0.11", "selector: {app: nobody}, ports: [{name: greet, port: 80}]")+
		service("other", "10.96.0.12", "selector: {app: other}, ports: [{name: greet, port: 80, targetPort: 9001}]"), plainAgent(t))
	n.keepAccount()
	envoyPID := n.EnvoyPID()
	for name, attack := range map[string]struct {
		args    []string
		outcome echo.Outcome
	}{
		"retry storm":      {[]string{"--mode", "silent", "--concurrency", "32", "10.96.0.11:80"}, echo.Reset},
		"connection flood": {[]string{"--mode", "server-first", "--concurrency", "32", "10.96.0.12:80"}, echo.OK},
	} {
		t.Run(name, func(t *testing.T) {
			var told []string
			holds := false
			for try := 0; try < noisyTries && !holds; try++ {
				m := n.besideAttack(t, noisyPairs, "bound", attack.args, attack.outcome)
				told, holds = append(told, m.String()), m.times() <= noisyTimes
			}
			t.Logf("attacker with a rate of 50: %v", told)
			if !holds {
				t.Errorf("the neighbour's p99 is more than %d times its quiet one in every try", noisyTimes)
			}
			t.Logf("attacker without a rate: %v", n.besideAttack(t, toldPairs, "unbound", attack.args, ""))
		})
	}
	if pid := n.EnvoyPID(); pid != envoyPID {
		t.Errorf("Envoy is process %d, was %d", pid, envoyPID)
	}
}

// neighbourTimes are medians over windows, in milliseconds.
type neighbourTimes struct {
	rate                 float64 // of the attacker, connections per second
	quiet50, quiet99     float64
	noisy50, noisy99     float64
	quietSpread, noisies []float64 // every window's p99
}

func (m neighbourTimes) times() float64 { return m.noisy99 / m.quiet99 }

func (m neighbourTimes) String() string {
	return fmt.Sprintf("%.0f connections/s; neighbour p50 %.2f → %.2f ms, p99 %.2f → %.2f ms (×%.2f; windows %.1f → %.1f)",
		m.rate, m.quiet50, m.noisy50, m.quiet99, m.noisy99, m.times(), m.quietSpread, m.noisies)
}

// besideAttack measures the neighbour in quiet and in noisy windows by turns. All
// the attacker's connections have to end as outcome says, unless it is empty.
func (n *node) besideAttack(t *testing.T, pairs int, attacker string, args []string, outcome echo.Outcome) neighbourTimes {
	t.Helper()
	ended := make(chan struct{})
	beside := n.loadTo(t, "neighbour", "10.96.0.10:80", ended)
	type window struct{ from, to time.Time }
	var quiet, noisy []window
	made := 0
	for range pairs {
		from := time.Now()
		time.Sleep(noisyWindow)
		quiet = append(quiet, window{from, time.Now()})
		vs := n.client(t, attacker, append([]string{"--timeout", "15s", "--duration", noisyWindow.String()}, args...)...)
		if len(vs) == 0 {
			t.Fatal("the attacker made no connection")
		}
		for _, v := range vs {
			if outcome != "" && v.Outcome != outcome {
				t.Errorf("the attacker's connection ended as %s, want %s: %+v", v.Outcome, outcome, v)
			}
		}
		made += len(vs)
		first := slices.MinFunc(vs, func(a, b echo.Verdict) int { return a.Time.Compare(b.Time) }).Time
		noisy = append(noisy, window{first, first.Add(noisyWindow)})
		time.Sleep(noisyRest)
	}
	close(ended)
	vs := beside()
	wantAllOK(t, vs)
	in := func(ws []window, p float64) []float64 {
		var out []float64
		for _, w := range ws {
			out = append(out, percentile(slices.DeleteFunc(slices.Clone(vs), func(v echo.Verdict) bool {
				return v.Time.Before(w.from) || !v.Time.Before(w.to)
			}), p))
		}
		return out
	}
	m := neighbourTimes{
		rate:        float64(made) / (float64(pairs) * noisyWindow.Seconds()),
		quietSpread: in(quiet, 99), noisies: in(noisy, 99),
		quiet50: median(in(quiet, 50)), noisy50: median(in(noisy, 50)),
	}
	m.quiet99, m.noisy99 = median(m.quietSpread), median(m.noisies)
	return m
}

// median of some values, 0 of none.
func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	if len(s) == 0 {
		return 0
	}
	return s[len(s)/2]
}
