// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"aether.io/aether/internal/sandbox/echo"
)

// TestHandover: what a hot restart does to everything around the connections.
func TestHandover(t *testing.T) {
	n := upReady(t, restartWorld(), shortDrain)
	n.expectUnclean("hot restarts are made to fail")
	n.learn(t)
	t.Run("pods come and go", n.podsDuringHandover)
	t.Run("counters", n.countersAcrossHandover)
	t.Run("one asked for while one runs", n.restartWhileOneRuns)
	t.Run("a broken bootstrap", n.brokenBootstrap)
	t.Run("the agent is away", n.handoverWithoutAgent)
	n.awaitDrained(t)
}

// podsDuringHandover: a pod that is added, and one that is removed, around the moment
// at which the new Envoy takes over are right in the end, and leave nothing.
func (n *node) podsDuringHandover(t *testing.T) {
	const rounds = 2
	for round := range rounds {
		come, gone := fmt.Sprintf("come-%d", round), fmt.Sprintf("gone-%d", round)
		n.write(t, gone+".yaml", client(gone))
		n.awaitReady(t, gone)
		l := n.live(t, gone, "10.96.0.10:7", "of "+gone)
		netns := ""
		for _, p := range n.Status().Pods {
			if p.Name == gone {
				netns = p.NetNS
			}
		}
		done := make(chan error, 1)
		go func() { done <- n.RestartEnvoy(t.Context()) }()
		n.write(t, come+".yaml", client(come))
		n.remove(t, gone+".yaml")
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		n.awaitReady(t, come)
		wantAllOK(t, []echo.Verdict{n.dial(t, come, serverFirst(knownService)), n.dial(t, "alice", serverFirst(knownService))})
		eventually(t, 30*time.Second, gone+" leaves nothing", func() error {
			if _, err := os.Stat(netns); err == nil {
				return errors.New("its namespace is there")
			}
			if slices.Contains(n.listeners(t), "capture:default/"+gone) {
				return errors.New("Envoy has its listener")
			}
			return nil
		})
		if err := l.try(); err == nil {
			t.Error("a connection of the pod that is gone works")
		}
		if !slices.Contains(n.listeners(t), "capture:default/"+come) {
			t.Errorf("Envoy has %v, not the listener of %s", n.listeners(t), come)
		}
		n.awaitDrained(t)
	}
}

// countersAcrossHandover: the new Envoy counts anew. What the old one's connections
// come to later it tells the new one, and so it does with what it counted since it
// last looked at its counters, which it does every five seconds.
func (n *node) countersAcrossHandover(t *testing.T) {
	const dials = 50
	want := labels{"source_service_account": "bob", "service": "known", "outcome": "ok"}
	held := n.live(t, "bob", "10.96.0.10:7", "that ends after the handover")
	wantAllOK(t, n.dialAll(t, "bob", dials, serverFirst(knownService)))
	before := 0
	eventually(t, settled, "the old Envoy counts what has ended", func() error {
		if before = n.counters(t).sum("aether_egress_connections", want); before < dials {
			return fmt.Errorf("%d of %d", before, dials)
		}
		return nil
	})
	looked := n.gauge(t, "server.uptime") // changes when Envoy looks
	eventually(t, settled, "the old Envoy looks at its counters", func() error {
		if n.gauge(t, "server.uptime") == looked {
			return errors.New("not yet")
		}
		return nil
	})
	n.restartEnvoy(t)
	wantAllOK(t, n.dialAll(t, "bob", dials, serverFirst(knownService)))
	held.c.Close()
	var after int
	// Envoy's parent tells its child every five seconds.
	eventually(t, 15*time.Second, "what the old Envoy counts comes to the new one", func() error {
		if after = n.counters(t).sum("aether_egress_connections", want); after < dials+1 {
			return fmt.Errorf("%d of %d", after, dials+1)
		}
		return nil
	})
	if after != dials+1 {
		t.Errorf("%d connections were counted after the handover, want %d: counted twice", after, dials+1)
	}
	eventually(t, settled, "the agent reads counts of the new Envoy", func() error {
		if row := n.services(t)[knownService]; row.Live.Connections < dials {
			return fmt.Errorf("%+v", row.Live)
		}
		for _, p := range n.agentStatus(t).Problems {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	t.Logf("counted: %d before the handover, %d after it for %d new connections", before, after, dials+1)
	n.awaitDrained(t)
}

// restartWhileOneRuns: the second waits for the old Envoy's end, and comes by itself.
func (n *node) restartWhileOneRuns(t *testing.T) {
	l := n.live(t, "alice", "10.96.0.10:7", "of the first of three Envoys")
	n.restartEnvoy(t)
	handed := time.Now()
	first := n.proxy(t)
	second := make(chan error, 1)
	go func() { second <- n.RestartEnvoy(t.Context()) }()
	eventually(t, settled, "the second is scheduled", func() error {
		if st := n.proxy(t); st.Scheduled == "" {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	ended, _ := lifetime(l)
	if lived := ended.Sub(handed); lived < handoverShutdown-time.Second {
		t.Errorf("a connection of the old Envoy lived for %v, want %v, whatever is asked for", lived, handoverShutdown)
	}
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	if st := n.proxy(t); st.HotRestarts != first.HotRestarts+1 || st.PID == first.PID {
		t.Errorf("after the second: %+v, before %+v", st, first)
	}
}

// brokenBootstrap: the old Envoy goes on, whole; the next one takes over when the
// bootstrap is good again.
func (n *node) brokenBootstrap(t *testing.T) {
	n.awaitDrained(t)
	path := n.Paths().Bootstrap
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.WriteFile(path, good, 0o644); err != nil {
			t.Error(err)
		}
	}()
	l := n.live(t, "alice", "10.96.0.10:7", "of the Envoy that goes on")
	before := n.proxy(t)
	for what, text := range map[string]string{
		"no JSON": "{", "of another program": `{"apiVersion": "v1"}`, "without an admin interface": "{}",
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if st := n.proxy(t); !slices.Equal(st.Changed, []string{"bootstrap"}) {
			t.Errorf("%s: changed %v", what, st.Changed)
		}
		if what == "without an admin interface" {
			continue // Envoy takes it, and it would never be seen to serve: a matter of the start timeout
		}
		if err := n.RestartEnvoy(t.Context()); err == nil || !strings.Contains(err.Error(), "does not take bootstrap") {
			t.Errorf("%s: the restart's answer: %v", what, err)
		}
	}
	l.check(t, "after bootstraps that are none")
	wantAllOK(t, []echo.Verdict{n.dial(t, "bob", serverFirst(knownService))})
	if st := n.proxy(t); st.PID != before.PID || st.FailedRestarts != before.FailedRestarts+2 {
		t.Errorf("%+v, before %+v", st, before)
	}
	if _, err := n.AdminGet(t.Context(), "/ready"); err != nil {
		t.Errorf("the old Envoy's admin interface: %v", err)
	}
	if err := os.WriteFile(path, good, 0o644); err != nil {
		t.Fatal(err)
	}
	n.restartEnvoy(t)
	l.check(t, "after the next hot restart")
}

// handoverWithoutAgent: a new Envoy would wait for its configuration for ever.
func (n *node) handoverWithoutAgent(t *testing.T) {
	n.awaitDrained(t)
	if err := n.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := n.proxy(t)
	if err := n.RestartEnvoy(t.Context()); err == nil || !strings.Contains(err.Error(), "the agent is away") {
		t.Errorf("the restart's answer: %v", err)
	}
	wantAllOK(t, []echo.Verdict{n.dial(t, "bob", serverFirst(knownService))})
	if st := n.proxy(t); st.PID != before.PID {
		t.Errorf("%+v, before %+v", st, before)
	}
	if err := n.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.restartEnvoy(t)
}

// TestCompaction: an Envoy that was asked for more names than --compact-names is hot
// restarted by itself. The next one knows the remembered Service ports only.
func TestCompaction(t *testing.T) {
	const limit, names = 300, 400
	n := upReady(t, restartWorld(), shortDrain, withArgs("--compact-names", fmt.Sprint(limit)))
	n.learn(t)
	beside := n.meanwhile(t, "bob", "--mode", "server-first", "--duration", "8s", "--pause", "10ms", "--timeout", "5s", knownService)
	old := n.EnvoyPID()
	vs := n.client(t, "alice", append([]string{"--mode", "silent", "--timeout", "8s", "--concurrency", "20"}, scanned(names)...)...)
	if got := outcomes(vs); got[echo.Reset]+got[echo.Closed] != names {
		t.Errorf("the scan went %v", got)
	}
	eventually(t, settled, "Envoy is restarted to forget names", func() error {
		if st := n.proxy(t); st.PID == old || st.HotRestarts != 1 || !strings.Contains(st.LastRestart.Reason, "more than 300 names") {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	scannedNames := map[string]bool{}
	for _, target := range scanned(names) {
		scannedNames["svc:"+target] = true
	}
	known := 0
	for _, c := range n.clusters(t) {
		if scannedNames[c] {
			known++
		}
	}
	// Those whose dial came after the handover are the new one's own.
	if asked := n.agentStatus(t).Names.Asked; known > asked || asked > names-limit {
		t.Errorf("the new Envoy knows %d names of the scan, and has asked for %d", known, asked)
	}
	n.awaitDrained(t)
	eventually(t, settled, "the agent forgets what only the old Envoy asked for", func() error {
		if s := n.agentStatus(t).Names; s.Other > s.Asked {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	wantAllOK(t, beside())
	n.checkKnown(t)
	n.checkNoSecond(t)
}

// checkKnown dials what is known, and what is nobody's, on the new Envoy.
func (n *node) checkKnown(t *testing.T) {
	t.Helper()
	wantAllOK(t, []echo.Verdict{n.dial(t, "alice", serverFirst(knownService)), n.dial(t, "bob", serverFirst(knownService))})
	for _, target := range []string{emptyService, nobodys, scanned(1)[0]} {
		if v := n.dial(t, "alice", echo.Client{Mode: "silent", Target: target, Timeout: 5 * time.Second}); v.Outcome != echo.Reset {
			t.Errorf("%s: %s, want a refusal", target, told(v))
		}
	}
}

// checkNoSecond checks that one compaction was asked for, and counted.
func (n *node) checkNoSecond(t *testing.T) {
	t.Helper()
	if st := n.proxy(t); st.HotRestarts != 1 || st.Scheduled != "" || st.Restarts != 0 {
		t.Errorf("one hot restart was needed: %+v", st)
	}
	if p := n.agentStatus(t).Problems; len(p) > 0 {
		t.Errorf("problems: %+v", p)
	}
}
