// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/sandbox"
	"aether.io/aether/internal/sandbox/echo"
)

// TestSources: whose address servers see, what marks Envoy's sockets have, and
// what a NetworkPolicy on the pod's interface still sees, in both source modes.
// The mode is changed at run time by restarting the agent.
func TestSources(t *testing.T) {
	n := upReady(t, passedThroughWorld()+client("bob"))
	envoyPID := n.EnvoyPID()
	lives := []live{n.greeted(t, "alice", "10.96.0.10:80", "web"), n.greeted(t, "bob", "203.0.113.80:80", "website")}
	t.Run("pod", func(t *testing.T) {
		n.checkSource(t, "pod")
		t.Run("policy holds", n.policyHolds)
	})
	for _, source := range []string{"node", "pod"} {
		if err := n.RestartAgent(t.Context(), sandbox.AgentSettings{EgressSource: source}); err != nil {
			t.Fatal(err)
		}
		t.Run("changed to "+source, func(t *testing.T) {
			n.checkSource(t, source)
			for _, l := range lives {
				l.check(t, "after the source changed to "+source)
			}
			if source == "node" {
				t.Run("policy is bypassed", n.policyBypassed)
				t.Run("forged marks", func(t *testing.T) { n.marksDoNotHelp(t, "alice", n.Status().NodeIP) })
			}
		})
	}
	if pid := n.EnvoyPID(); pid != envoyPID {
		t.Errorf("Envoy is process %d, was %d: the source must not restart it", pid, envoyPID)
	}
}

// sourceTargets are one target for each kind of cluster.
func sourceTargets(n *node) map[string]string {
	return map[string]string{
		"a Service":           "10.96.0.10:80",
		"a pod, by its IP":    fmt.Sprintf("%s:%d", n.PodIP("web"), portServerFirst),
		"a foreign Service":   "10.96.0.21:80",
		"an external address": "203.0.113.80:80",
		"the API server":      "10.96.0.1:443",
	}
}

// checkSource dials everything from two pods and compares the address that the
// server sees and the log names. After a change of the source Envoy has the new
// clusters some milliseconds after the agent has connected.
func (n *node) checkSource(t *testing.T, source string) {
	t.Helper()
	wanted := func(pod string) string {
		if source == "node" {
			return n.Status().NodeIP
		}
		return n.PodIP(pod).String()
	}
	for what, target := range sourceTargets(n) {
		for _, pod := range []string{"alice", "bob"} {
			var v echo.Verdict
			eventually(t, settled, fmt.Sprintf("%s from %s", what, pod), func() error {
				v = n.dial(t, pod, serverFirst(target))
				if got, want := hostOf(identity(t, v).Remote), wanted(pod); got != want {
					return fmt.Errorf("the server sees %s, want %s", got, want)
				}
				return nil
			})
			line := n.awaitLogged(t, v)
			if got, want := hostOf(line.UpstreamSource), wanted(pod); got != want {
				t.Errorf("%s from %s: logged with source %s, want %s", what, pod, got, want)
			}
			if got, want := line.Source, "spiffe://aether.internal/ns/default/sa/"+pod; got != want {
				t.Errorf("%s from %s: logged as %s, want %s", what, pod, got, want)
			}
		}
	}
	for what, target := range map[string]string{"a Service": "10.96.0.10:7", "a pod, by its IP": fmt.Sprintf("%s:%d", n.PodIP("web"), portEcho)} {
		eventually(t, settled, "the marks on Envoy's sockets, "+what, func() error { return n.checkMark(t, target, source) })
	}
}

// checkMark looks at the marks of Envoy's sockets while a connection to the echo
// port of web is open, the only one there is.
func (n *node) checkMark(t *testing.T, target, source string) error {
	t.Helper()
	mark := envoy.UpstreamMark
	if source == "node" {
		mark = 0
	}
	l := n.live(t, "alice", target, "to "+target)
	defer l.c.Close()
	upstream := 0
	for _, s := range n.envoySockets(t) {
		if s.remote.Addr() != n.PodIP("web") || s.remote.Port() != portEcho {
			continue
		}
		if s.mark != mark {
			return fmt.Errorf("%s → %s has mark %#x, want %#x", s.local, s.remote, s.mark, mark)
		}
		upstream++
	}
	if upstream == 0 {
		return errors.New("there is no upstream socket")
	}
	return nil
}

// policyDials dials one server of web's from alice in every way, at once: through
// its Service, by its IP, and past capture with the mark that capture lets by.
func (n *node) policyDials(t *testing.T) (byService, byIP, uncaptured echo.Verdict) {
	t.Helper()
	server := fmt.Sprintf("%s:%d", n.PodIP("web"), portServerFirst)
	var wg sync.WaitGroup
	for out, c := range map[*echo.Verdict]echo.Client{
		&byService:  {Mode: "server-first", Target: "10.96.0.10:80", Timeout: 15 * time.Second},
		&byIP:       {Mode: "server-first", Target: server, Timeout: 15 * time.Second},
		&uncaptured: {Mode: "server-first", Target: server, Timeout: 2 * time.Second, Mark: envoy.UpstreamMark},
	} {
		wg.Go(func() { *out = n.dial(t, "alice", c) })
	}
	wg.Wait()
	return byService, byIP, uncaptured
}

// toServer matches what goes to the server that policyDials dials.
func toServer(n *node) string {
	return fmt.Sprintf("ip daddr %s tcp dport %d", n.PodIP("web"), portServerFirst)
}

// policyHolds: a rule that drops alice's traffic to a server on her interface
// stops her captured dials as it stops the uncaptured one, and nobody else's.
func (n *node) policyHolds(t *testing.T) {
	byService, byIP, uncaptured := n.policyDials(t)
	wantAllOK(t, []echo.Verdict{byService, byIP, uncaptured})
	undo := n.drop(t, "alice", toServer(n))
	defer undo()
	byService, byIP, uncaptured = n.policyDials(t)
	if uncaptured.Outcome != echo.Timeout || uncaptured.Phase != echo.PhaseConnect {
		t.Fatalf("uncaptured: %s: the rule does not do what the test wants", told(uncaptured))
	}
	for what, v := range map[string]echo.Verdict{"by Service": byService, "by IP": byIP} {
		if v.Outcome != echo.Closed && v.Outcome != echo.Reset {
			t.Errorf("%s: %s, want it to fail", what, told(v))
			continue
		}
		if line := n.awaitLogged(t, v); line.Outcome != "timeout" {
			t.Errorf("%s: logged as %s after %d attempts (%s), want timeout", what, line.Outcome, line.Attempts, line.Flags)
		}
	}
	if got := n.dial(t, "bob", serverFirst("10.96.0.10:80")); got.Outcome != echo.OK {
		t.Errorf("the rule is alice's, bob's dial: %s", told(got))
	}
	undo()
	byService, byIP, uncaptured = n.policyDials(t)
	wantAllOK(t, []echo.Verdict{byService, byIP, uncaptured})
}

// policyBypassed: with node-sourced egress the same rule never sees alice's
// captured traffic. That is why pod is the default, and what the documents say.
func (n *node) policyBypassed(t *testing.T) {
	defer n.drop(t, "alice", toServer(n))()
	byService, byIP, uncaptured := n.policyDials(t)
	wantAllOK(t, []echo.Verdict{byService, byIP})
	if uncaptured.Outcome != echo.Timeout {
		t.Errorf("uncaptured: %s, want the rule to hold", told(uncaptured))
	}
}
