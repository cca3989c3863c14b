// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/sandbox"
	"aether.io/aether/internal/sandbox/echo"
)

// idlePod is a pod of one process that does nothing: the test dials from it.
func idlePod(name string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: idle, command: [sleep, "100000"]}]
---
`, name)
}

// crashBound is how long captured pods may be without network when Envoy dies, for
// 99 of 100 of them.
const crashBound = 2 * time.Second

// TestEnvoyKilledWithManyPods: with 100 pods, all of which dial, Envoy is killed
// again and again. Pods work again in time.
func TestEnvoyKilledWithManyPods(t *testing.T) {
	const pods, kills = 100, 5
	yaml := firstRange + server("web", "app: web") +
		service("known", "10.96.0.10", "selector: {app: web}, ports: [{name: greet, port: 80, targetPort: 9001}]")
	var names []string
	for i := range pods {
		names = append(names, fmt.Sprintf("p%02d", i))
		yaml += idlePod(names[i])
	}
	n := upReady(t, yaml, func(c *sandbox.Config) { c.ReadyTimeout = time.Minute })
	n.expectUnclean("Envoy is killed")
	n.keepAccount()
	wantAllOK(t, []echo.Verdict{n.dial(t, names[0], serverFirst(knownService))})
	var all []time.Duration
	for kill := range kills {
		if err := n.KillEnvoy(); err != nil {
			t.Fatal(err)
		}
		killed := time.Now()
		took := make([]time.Duration, pods)
		var wg sync.WaitGroup
		for i, pod := range names {
			wg.Go(func() {
				for {
					c := serverFirst(knownService)
					c.Timeout = 5 * time.Second
					v := n.dial(t, pod, c)
					took[i] = time.Since(killed)
					if v.Outcome == echo.OK || took[i] > 20*time.Second {
						return
					}
					time.Sleep(100 * time.Millisecond) // a client's pause between tries
				}
			})
		}
		wg.Wait()
		slices.Sort(took)
		t.Logf("kill %d: pods worked again after %d ms at the median, %d ms for the last; Envoy had %d ms of CPU time by then",
			kill, took[pods/2].Milliseconds(), took[pods-1].Milliseconds(), n.envoyCPU(t).Milliseconds())
		all = append(all, took...)
		eventually(t, settled, "Envoy has every listener", func() error {
			s, err := n.tryStatus(t.Context())
			if err != nil {
				return err
			}
			if n.EnvoyPID() == 0 {
				return errors.New("the supervisor has not seen it serve")
			}
			if i := slices.IndexFunc(s.Pods, func(p api.PodStatus) bool { return p.Listener != "ready" }); i >= 0 || !s.Envoy.Connected {
				return fmt.Errorf("connected %t, pod %d is not ready", s.Envoy.Connected, i)
			}
			return nil
		})
	}
	slices.Sort(all)
	p99 := all[len(all)*99/100]
	t.Logf("%d pods, %d kills: p50 %d ms, p99 %d ms, worst %d ms", pods, kills, all[len(all)/2].Milliseconds(), p99.Milliseconds(), all[len(all)-1].Milliseconds())
	if p99 > crashBound {
		t.Errorf("p99 until a pod worked again: %v, want at most %v", p99, crashBound)
	}
	if st := n.proxy(t); st.Restarts != kills {
		t.Errorf("the supervisor counts %d ends, want %d: %+v", st.Restarts, kills, st)
	}
}

// envoyCPU returns how much CPU time the youngest Envoy has had.
func (n *node) envoyCPU(t *testing.T) time.Duration {
	t.Helper()
	es := n.proxy(t).Epochs
	if len(es) == 0 {
		return 0
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", es[len(es)-1].PID))
	if err != nil {
		t.Errorf("read Envoy's CPU time: %v", err)
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	var user, system int64
	if f := strings.Fields(rest); len(f) > 12 {
		user, _ = strconv.ParseInt(f[11], 10, 64)
		system, _ = strconv.ParseInt(f[12], 10, 64)
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on Linux
	return time.Duration(user+system) * tick
}

// epochs returns the process ids of the living Envoys by state.
func epochs(st api.ProxyStatus) map[string][]int {
	out := map[string][]int{}
	for _, e := range st.Epochs {
		out[e.State] = append(out[e.State], e.PID)
	}
	return out
}

// TestCrashDuringHotRestart: any of the processes of a hot restart dies.
func TestCrashDuringHotRestart(t *testing.T) {
	n := upReady(t, restartWorld(), func(c *sandbox.Config) { c.EnvoyDrainTime, c.EnvoyShutdownTime = 2*time.Second, 12*time.Second })
	n.expectUnclean("Envoy is killed")
	n.keepAccount()
	n.learn(t)
	t.Run("the old one while the new one starts", n.oldDiesEarly)
	t.Run("the new one before it serves", n.newDiesEarly)
	t.Run("the new one when it serves", n.newDiesLate)
	t.Run("the old one while it drains", n.drainingDies)
	wantAllOK(t, []echo.Verdict{n.dial(t, "alice", serverFirst(knownService)), n.dial(t, "bob", serverFirst(knownService))})
}

// starting asks for a hot restart, and kills once a new Envoy is there that does not
// serve yet.
func (n *node) starting(t *testing.T, kill func(map[string][]int) int) (before api.ProxyStatus, restart error) {
	t.Helper()
	before = n.proxy(t)
	done := make(chan error, 1)
	go func() { done <- n.RestartEnvoy(t.Context()) }()
	eventually(t, settled, "a new Envoy starts", func() error {
		st := n.proxy(t)
		e := epochs(st)
		if len(e["starting"]) == 0 {
			return fmt.Errorf("%+v", st.Epochs)
		}
		n.envoyEnds()
		return syscall.Kill(kill(e), syscall.SIGKILL)
	})
	return before, <-done
}

func (n *node) oldDiesEarly(t *testing.T) {
	killed := time.Now()
	before, err := n.starting(t, func(e map[string][]int) int { return e["serving"][0] })
	if err == nil || !strings.Contains(err.Error(), "the one that served ended") {
		t.Errorf("the restart's answer: %v", err)
	}
	n.worksAgain(t, killed, before, 1)
}

// worksAgain waits for one serving Envoy after a crash, counted as such.
func (n *node) worksAgain(t *testing.T, killed time.Time, before api.ProxyStatus, crashes int) {
	t.Helper()
	eventually(t, settled, "pods work again", func() error {
		if v := n.dial(t, "bob", serverFirst(knownService)); v.Outcome != echo.OK {
			return fmt.Errorf("%s", told(v))
		}
		return nil
	})
	took := time.Since(killed)
	st := n.proxy(t)
	if st.Restarts != before.Restarts+crashes || st.PID == before.PID && crashes > 0 {
		t.Errorf("after a crash: %+v, before %+v", st, before)
	}
	t.Logf("pods worked after %d ms", took.Milliseconds())
}

func (n *node) newDiesEarly(t *testing.T) {
	n.awaitDrained(t)
	l := n.live(t, "alice", "10.96.0.10:7", "of the Envoy that goes on")
	load := n.meanwhile(t, "bob", "--mode", "server-first", "--duration", "2s", "--pause", "5ms", "--timeout", "5s", knownService)
	before, err := n.starting(t, func(e map[string][]int) int { return e["starting"][0] })
	if err == nil || !strings.Contains(err.Error(), "the new Envoy did not work") {
		t.Errorf("the restart's answer: %v", err)
	}
	wantAllOK(t, load())
	l.check(t, "after the new Envoy died")
	if st := n.proxy(t); st.PID != before.PID || st.Restarts != before.Restarts || st.FailedRestarts != before.FailedRestarts+1 {
		t.Errorf("the old Envoy goes on: %+v, before %+v", st, before)
	}
	// Another one takes over all the same.
	n.restartEnvoy(t)
	l.check(t, "after the next hot restart")
}

func (n *node) newDiesLate(t *testing.T) {
	st := n.proxy(t)
	if len(epochs(st)["draining"]) != 1 {
		t.Fatalf("no Envoy drains: %+v", st.Epochs)
	}
	// A connection of the draining one outlives the death of its child.
	until, err := time.Parse(time.RFC3339, st.Epochs[0].Until)
	if err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	if err := n.KillEnvoy(); err != nil {
		t.Fatal(err)
	}
	n.worksAgain(t, killed, st, 1)
	after := n.proxy(t)
	if e := epochs(after); len(e["draining"]) != 1 || e["draining"][0] != st.Epochs[0].PID {
		t.Errorf("the older Envoy, which drains until %v, is gone: %+v", until, after.Epochs)
	}
	n.awaitGone(t, st.Epochs[0].PID, time.Until(until)+15*time.Second)
	if at := time.Now(); at.Before(until) {
		t.Errorf("the older Envoy ended %v before its time", until.Sub(at))
	}
}

func (n *node) awaitGone(t *testing.T, pid int, within time.Duration) {
	t.Helper()
	eventually(t, within, fmt.Sprintf("process %d is gone", pid), func() error {
		if st := n.proxy(t); slices.ContainsFunc(st.Epochs, func(e api.ProxyEpoch) bool { return e.PID == pid }) {
			return fmt.Errorf("%+v", st.Epochs)
		}
		return nil
	})
}

// drainingDies: Envoy asks its parent for statistics every five seconds, and aborts
// ten seconds after it stopped answering. The supervisor answers.
func (n *node) drainingDies(t *testing.T) {
	n.restartEnvoy(t)
	before := n.proxy(t)
	if err := syscall.Kill(epochs(before)["draining"][0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	load := n.meanwhile(t, "bob", "--mode", "server-first", "--duration", "18s", "--pause", "20ms", "--timeout", "5s", knownService)
	wantAllOK(t, load())
	if st := n.proxy(t); st.PID != before.PID || st.Restarts != before.Restarts || len(st.Epochs) != 1 {
		t.Errorf("the Envoy that serves did not survive the end of the one that drained: %+v", st)
	}
}
