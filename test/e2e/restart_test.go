// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"aether.io/aether/internal/sandbox/echo"
)

// restartWorld has a Service that the tests dial before anything happens, and
// others that nobody has dialled.
func restartWorld() string {
	yaml := firstRange + server("web", "app: web") + client("alice") + client("bob")
	for i := range 5 {
		name := "known"
		if i > 0 {
			name = fmt.Sprintf("cold-%d", i)
		}
		yaml += service(name, fmt.Sprintf("10.96.0.%d", 10+i),
			"selector: {app: web}, ports: [{name: greet, port: 80, targetPort: 9001}, {name: echo, port: 7, targetPort: 9000}]")
	}
	return yaml + service("empty", "10.96.0.30", "selector: {app: nobody}, ports: [{name: greet, port: 80}]")
}

const (
	knownService = "10.96.0.10:80"
	emptyService = "10.96.0.30:80"
	nobodys      = "10.96.9.9:80"
)

// learn dials what the node is to know, and waits until it is on disk.
func (n *node) learn(t *testing.T) live {
	t.Helper()
	l := n.live(t, "alice", "10.96.0.10:7", "to a known Service")
	wantAllOK(t, []echo.Verdict{n.dial(t, "alice", serverFirst(knownService)), n.dial(t, "bob", serverFirst(knownService))})
	for _, target := range []string{emptyService, nobodys} {
		if v := n.dial(t, "alice", echo.Client{Mode: "silent", Target: target}); v.Outcome != echo.Reset {
			t.Errorf("%s: %s, want a refusal", target, told(v))
		}
	}
	return l
}

// keepTalking exchanges a line on each connection again and again until stop is
// called, which returns how many rounds there were.
func keepTalking(t *testing.T, lives ...live) (stop func() int) {
	t.Helper()
	end := make(chan struct{})
	rounds := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			for _, l := range lives {
				if err := l.try(); err != nil {
					t.Errorf("the connection %s broke: %v", l.what, err)
					return
				}
			}
			rounds++
			select {
			case <-time.After(5 * time.Millisecond):
			case <-end:
				return
			}
		}
	})
	stop = sync.OnceValue(func() int {
		close(end)
		wg.Wait()
		return rounds
	})
	t.Cleanup(func() { stop() })
	return stop
}

// awaitConnected waits until Envoy, of another process than before, and the
// agent work together.
func (n *node) awaitConnected(t *testing.T, notAgent, notEnvoy int) {
	t.Helper()
	eventually(t, settled, "agent and Envoy are connected", func() error {
		if a, e := n.AgentPID(), n.EnvoyPID(); a == 0 || e == 0 || a == notAgent || e == notEnvoy {
			return fmt.Errorf("agent %d, Envoy %d", a, e)
		}
		s, err := n.tryStatus(t.Context())
		if err == nil && (!s.Envoy.Connected || !s.Synced) {
			err = errors.New("not connected")
		}
		if err != nil {
			return err
		}
		for _, p := range s.Pods {
			if p.Listener != "ready" {
				return fmt.Errorf("the listener of %s is %s", p.Name, p.Listener)
			}
		}
		return nil
	})
}

// TestAgentAway: the agent is killed and comes back under load, and is away for a
// while.
func TestAgentAway(t *testing.T) {
	n := upReady(t, restartWorld())
	n.keepAccount()
	n.expectUnclean("the agent is killed")
	envoyPID := n.EnvoyPID()
	l := n.learn(t)

	t.Run("killed under load", func(t *testing.T) {
		rounds := keepTalking(t, l)
		load := n.meanwhile(t, "bob", "--mode", "server-first", "--concurrency", "4", "--duration", "4s", knownService)
		for range 2 {
			time.Sleep(500 * time.Millisecond) // under load, with the agent there
			pid := n.AgentPID()
			if err := n.KillAgent(); err != nil {
				t.Fatal(err)
			}
			n.awaitConnected(t, pid, 0)
		}
		vs := load()
		wantAllOK(t, vs)
		t.Logf("%d new connections, p99 %.1f ms, and %d rounds on an old one over two kills of the agent", len(vs), percentile(vs, 99), rounds())
	})
	t.Run("away", n.agentAway)
	n.awaitLines(t, 2, "unanswered: the two dials of a new name", func(l logLine) bool { return l.Outcome == "unanswered" })
	l.check(t, "after the agent was away")
	if pid := n.EnvoyPID(); pid != envoyPID {
		t.Errorf("Envoy is process %d, was %d", pid, envoyPID)
	}
	n.noListenerDrained(t)
	t.Run("names are remembered", n.namesRemembered)
}

// agentAway: what was asked before works as it did, but that refusals are closes;
// a new name waits for the agent.
func (n *node) agentAway(t *testing.T) {
	if err := n.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantAllOK(t, []echo.Verdict{n.dial(t, "alice", serverFirst(knownService))})
	for target, reason := range map[string]string{emptyService: "no-endpoints", nobodys: "no-service"} {
		v := n.dial(t, "alice", echo.Client{Mode: "silent", Target: target})
		if line := n.awaitLogged(t, v); v.Outcome != echo.Closed || line.Outcome != "refused" || line.Reason != reason {
			t.Errorf("%s: %s, logged as %s %s; want it closed, and logged as refused: %s", target, told(v), line.Outcome, line.Reason, reason)
		}
	}
	// The first dial of a new name fails at the timeout, and so does a second one
	// while the agent is away.
	for range 2 {
		v := n.dial(t, "alice", echo.Client{Mode: "server-first", Target: "10.96.0.11:80", Timeout: 8 * time.Second})
		if line := n.awaitLogged(t, v); v.Outcome != echo.Closed || v.TotalMS < 2_800 || v.TotalMS > 4_500 || line.Outcome != "unanswered" {
			t.Errorf("a new name: %s after %.0f ms, logged as %s; want it closed at the timeout of 3 s as unanswered", told(v), v.TotalMS, line.Outcome)
		}
	}
	// One that waits when the agent comes back is served, if that is in time.
	open, began := n.gauge(t, "listener.capture.downstream_cx_active"), time.Now()
	waiting := n.meanwhile(t, "alice", "--mode", "server-first", "--timeout", "8s", "10.96.0.12:80")
	eventually(t, settled, "a dial waits", func() error {
		if n.gauge(t, "listener.capture.downstream_cx_active") == open {
			return errors.New("there is none")
		}
		return nil
	})
	if err := n.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := time.Since(began)
	if v := waiting()[0]; v.Outcome != echo.OK && (back < 2500*time.Millisecond || v.TotalMS < 2_800) {
		t.Errorf("a dial that waited for %.0f ms while the agent came back in %d ms: %s", v.TotalMS, back.Milliseconds(), told(v))
	}
	vs := []echo.Verdict{
		n.dial(t, "alice", serverFirst("10.96.0.11:80")), // asked while the agent was away
		n.dial(t, "alice", serverFirst("10.96.0.12:80")),
		n.dial(t, "alice", serverFirst("10.96.0.13:80")), // never asked
		n.dial(t, "alice", serverFirst(knownService)),
	}
	wantAllOK(t, vs)
	t.Logf("the agent was back after %d ms, the dial that waited was served after %.0f ms", back.Milliseconds(), waiting()[0].TotalMS)
	if v := n.dial(t, "alice", echo.Client{Mode: "silent", Target: emptyService}); v.Outcome != echo.Reset {
		t.Errorf("with the agent back: %s, want a reset", told(v))
	}
}

// namesRemembered: agent and Envoy are both killed, so only the disk knows. The
// next Envoy has the clusters of known Services before anybody dials; what was
// refused, and belongs to no Service port, is not among them.
func (n *node) namesRemembered(t *testing.T) {
	agent, envoy := n.AgentPID(), n.EnvoyPID()
	if err := errors.Join(n.KillEnvoy(), n.KillAgent()); err != nil {
		t.Fatal(err)
	}
	n.awaitConnected(t, agent, envoy)
	n.checkRemembered(t)
	for _, target := range []string{knownService, "10.96.0.11:80", "10.96.0.12:80", "10.96.0.13:80"} {
		v := n.dial(t, "alice", serverFirst(target))
		wantAllOK(t, []echo.Verdict{v})
		if wait := n.awaitLogged(t, v).WaitUS; wait > 1e6 {
			t.Errorf("%s, a remembered name, waited %.0f ms", target, wait/1000)
		}
	}
}

// checkRemembered compares Envoy's clusters with the names of Service ports that
// were dialled, before anybody dials again.
func (n *node) checkRemembered(t *testing.T) {
	t.Helper()
	var names []string
	for _, c := range n.clusters(t) {
		if strings.HasPrefix(c, "svc:") {
			names = append(names, c)
		}
	}
	s := n.agentStatus(t).Names
	for _, target := range []string{knownService, emptyService, "10.96.0.10:7"} {
		if !slices.Contains(names, "svc:"+target) {
			t.Errorf("Envoy began with %v: %s is not remembered", names, target)
		}
	}
	if slices.Contains(names, "svc:"+nobodys) || s.Other != 0 {
		t.Errorf("Envoy began with %v and the agent with %d names that are nobody's: %s was remembered", names, s.Other, nobodys)
	}
	if s.Services != len(names) {
		t.Errorf("Envoy began with %d names, the agent says %d", len(names), s.Services)
	}
}

// TestEnvoyKilled: Envoy is killed under load, several times. Dials fail at once
// while it is away, none hangs, and with the new one everything is as before.
func TestEnvoyKilled(t *testing.T) {
	n := upReady(t, restartWorld())
	n.keepAccount()
	n.expectUnclean("Envoy is killed")
	n.learn(t)
	var away []time.Duration
	for range 3 {
		old := n.EnvoyPID()
		l := n.live(t, "alice", "10.96.0.10:7", "of before")
		load := n.meanwhile(t, "bob", "--mode", "server-first", "--concurrency", "2", "--pause", "2ms", "--duration", "2500ms", "--timeout", "2s", knownService)
		time.Sleep(300 * time.Millisecond) // under load
		killed := time.Now()
		if err := n.KillEnvoy(); err != nil {
			t.Fatal(err)
		}
		if err := l.try(); err == nil {
			t.Error("a connection outlived the Envoy that carried it")
		}
		vs := load()
		n.awaitConnected(t, 0, old)
		n.checkRemembered(t)
		last := killed
		for _, v := range vs {
			if v.Outcome == echo.OK {
				continue
			}
			last = later(last, v.Time.Add(time.Duration(v.TotalMS*float64(time.Millisecond))))
			if v.Outcome == echo.Timeout || v.TotalMS > 1500 {
				t.Errorf("a dial hung while Envoy was away: %s after %.0f ms", told(v), v.TotalMS)
			}
			if v.Time.Before(killed.Add(-time.Second)) {
				t.Errorf("a dial failed before Envoy was killed: %s", told(v))
			}
		}
		away = append(away, last.Sub(killed))
		wantAllOK(t, []echo.Verdict{n.dial(t, "alice", serverFirst(knownService)), n.dial(t, "bob", serverFirst(knownService))})
		for _, target := range []string{emptyService, nobodys} {
			if v := n.dial(t, "alice", echo.Client{Mode: "silent", Target: target}); v.Outcome != echo.Reset {
				t.Errorf("%s: %s, want a refusal as before", target, told(v))
			}
		}
	}
	t.Logf("from the kill to the last failed dial: %v", away)
	for _, d := range away {
		if d > 5*time.Second {
			t.Errorf("pods were without network for %v, want at most 5 s", d)
		}
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
