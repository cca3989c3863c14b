// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/sandbox"
	"aether.io/aether/internal/sandbox/echo"
)

// handoverShutdown is the shutdown time of these tests: what connections of an old
// Envoy live to.
const handoverShutdown = 6 * time.Second

func shortDrain(c *sandbox.Config) {
	c.EnvoyDrainTime, c.EnvoyShutdownTime = 2*time.Second, handoverShutdown
}

// proxy asks Envoy's supervisor for its state.
func (n *node) proxy(t *testing.T) api.ProxyStatus {
	t.Helper()
	st, err := n.ProxyStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// restartEnvoy hot restarts, and returns how long that took, with the wait for an
// older one's end.
func (n *node) restartEnvoy(t *testing.T) time.Duration {
	t.Helper()
	old, began := n.EnvoyPID(), time.Now()
	if err := n.RestartEnvoy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := n.EnvoyPID(); now == old || now == 0 {
		t.Fatalf("Envoy is process %d after a hot restart, was %d", now, old)
	}
	return time.Since(began)
}

// awaitDrained waits until one Envoy is left.
func (n *node) awaitDrained(t *testing.T) {
	t.Helper()
	eventually(t, 40*time.Second, "old Envoys have ended", func() error {
		if st := n.proxy(t); len(st.Epochs) != 1 || st.PID == 0 {
			return fmt.Errorf("%+v", st.Epochs)
		}
		return nil
	})
}

// lifetime talks on a connection until it breaks, and returns when that was.
func lifetime(l live) (ended time.Time, err error) {
	for {
		if err := l.try(); err != nil {
			return time.Now(), err
		}
		time.Sleep(5 * time.Millisecond) // the pace of talking
	}
}

// TestHotRestart: three hot restarts in a row under load from several pods. No new
// connection fails; what is established lives for the shutdown time and no shorter.
func TestHotRestart(t *testing.T) {
	pods := []string{"alice", "bob", "carol", "dave"}
	n := upReady(t, restartWorld()+client("carol")+client("dave"), shortDrain)
	n.keepAccount()
	n.learn(t)
	var loads []func() []echo.Verdict
	for _, pod := range pods {
		loads = append(loads, n.meanwhile(t, pod, "--mode", "server-first", "--concurrency", "4", "--pause", "3ms",
			"--duration", "24s", "--timeout", "8s", knownService, "10.96.0.11:80"))
	}
	for round := range 3 {
		lives := make([]live, len(pods))
		for i, pod := range pods {
			lives[i] = n.live(t, pod, "10.96.0.10:7", fmt.Sprintf("of %s in round %d", pod, round))
		}
		ends := make([]time.Time, len(pods))
		var wg sync.WaitGroup
		for i, l := range lives {
			wg.Go(func() { ends[i], _ = lifetime(l) })
		}
		asked := time.Now()
		took := n.restartEnvoy(t)
		handed := time.Now()
		wg.Wait()
		for i, at := range ends {
			// The handover is somewhere between the two.
			if at.Sub(asked) < handoverShutdown || at.Sub(handed) > handoverShutdown+2*time.Second {
				t.Errorf("round %d: an established connection of %s lived for %v after the handover, want %v", round, pods[i], at.Sub(handed), handoverShutdown)
			}
		}
		t.Logf("round %d: the new Envoy served after %d ms; established connections lived for %.2f s", round, took.Milliseconds(), slices.MinFunc(ends, time.Time.Compare).Sub(handed).Seconds())
		n.awaitDrained(t)
	}
	for i, load := range loads {
		vs := load()
		worst, failed := 0.0, 0
		for _, v := range vs {
			worst = max(worst, v.TotalMS)
			if v.Outcome != echo.OK {
				if failed++; failed <= 3 {
					t.Errorf("from %s: %s after %.0f ms at %s", pods[i], told(v), v.TotalMS, v.Time.Format("05.000"))
				}
			}
		}
		t.Logf("%s: %d new connections, %d failed, p99 %.1f ms, worst %.1f ms", pods[i], len(vs), failed, percentile(vs, 99), worst)
	}
	st := n.proxy(t)
	if st.HotRestarts != 3 || st.Restarts != 0 || st.FailedRestarts != 0 {
		t.Errorf("the supervisor counts %+v", st)
	}
	n.checkRemembered(t)
	for _, target := range []string{emptyService, nobodys} {
		if v := n.dial(t, "alice", echo.Client{Mode: "silent", Target: target}); v.Outcome != echo.Reset {
			t.Errorf("%s: %s, want a refusal as before", target, told(v))
		}
	}
}
