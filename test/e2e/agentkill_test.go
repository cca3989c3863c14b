// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"

	"aether.io/aether/internal/sandbox"
	"aether.io/aether/internal/sandbox/echo"
)

// agentRounds is how often the agent ends in each source mode: by turns killed,
// stopped and started, and killed as soon as it is back.
const agentRounds = 6

// TestAgentRestartedUnderLoad: three pods make new connections and talk over old
// ones while the agent is killed and restarted again and again. None fails, in
// both source modes.
func TestAgentRestartedUnderLoad(t *testing.T) {
	for name, change := range map[string]func(*sandbox.Config){
		"pod-sourced":  func(*sandbox.Config) {},
		"node-sourced": nodeSourced,
	} {
		t.Run(name, func(t *testing.T) {
			n := upReady(t, restartWorld()+client("carol"), change)
			n.keepAccount()
			n.expectUnclean("the agent is killed")
			n.learn(t)
			n.endAgentUnderLoad(t)
		})
	}
}

func (n *node) endAgentUnderLoad(t *testing.T) {
	pods := []string{"alice", "bob", "carol"}
	envoyPID := n.EnvoyPID()
	var old []live
	for _, pod := range pods {
		old = append(old, n.live(t, pod, "10.96.0.10:7", "of before, from "+pod))
	}
	rounds := keepTalking(t, old...)
	ended := make(chan struct{})
	var loads []func() []echo.Verdict
	for _, pod := range pods {
		loads = append(loads, n.loadUntil(t, pod, ended))
	}
	var away time.Duration
	for round := range agentRounds {
		time.Sleep(200 * time.Millisecond) // under load, with the agent there
		pid, began := n.AgentPID(), time.Now()
		switch round % 3 {
		case 1:
			if err := n.StopAgent(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := n.StartAgent(t.Context()); err != nil {
				t.Fatal(err)
			}
		default:
			if err := n.KillAgent(); err != nil {
				t.Fatal(err)
			}
		}
		if round%3 == 2 { // once more, whatever it is at
			eventually(t, settled, "the next agent has started", func() error { return n.KillAgent() })
		}
		n.awaitConnected(t, pid, 0)
		away = max(away, time.Since(began))
	}
	close(ended)
	made, worst := 0, 0.0
	for _, load := range loads {
		vs := load()
		wantAllOK(t, vs)
		made, worst = made+len(vs), max(worst, percentile(vs, 99))
	}
	if got := rounds(); got < 100 {
		t.Errorf("%d rounds on the old connections, want many more: this shows nothing", got)
	}
	for _, l := range old {
		l.check(t, "after all of it")
	}
	if pid := n.EnvoyPID(); pid != envoyPID {
		t.Errorf("Envoy is process %d, was %d", pid, envoyPID)
	}
	n.noListenerDrained(t)
	t.Logf("%d new connections of %d pods over %d ends of the agent, at most %d ms from its end to work again: none failed, p99 %.1f ms; %d rounds on old ones",
		made, len(pods), agentRounds, away.Milliseconds(), worst, rounds())
}

// loadUntil dials a known Service from a pod, again and again, in this process.
func (n *node) loadUntil(t *testing.T, pod string, ended <-chan struct{}) (wait func() []echo.Verdict) {
	t.Helper()
	return n.loadTo(t, pod, knownService, ended)
}

// loadTo is loadUntil for any server-first target.
func (n *node) loadTo(t *testing.T, pod, target string, ended <-chan struct{}) (wait func() []echo.Verdict) {
	t.Helper()
	out := make(chan []echo.Verdict, 1)
	go func() {
		var vs []echo.Verdict
		for {
			vs = append(vs, n.dial(t, pod, serverFirst(target)))
			select {
			case <-ended:
				out <- vs
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	return func() []echo.Verdict { return <-out }
}
