// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"aether.io/aether/internal/sandbox/echo"
)

const (
	// scanAddresses are 65,000 addresses of the range, none a Service's, scanPorts
	// every port of one Service's address.
	scanAddresses = "10.96.1.0-10.96.254.231:80"
	scanPorts     = "10.96.0.10:1-65535"
	// scanAtOnce bounds the dials that are under way.
	scanAtOnce = 2_000
	// scanCompact is --compact-names here: above the first scan, so that its cost
	// shows and Envoy has all of its names to tell when it reconnects; the second
	// scan goes past it.
	scanCompact = 100_000
	// scanMemory is how much the first scan may cost Envoy for good.
	scanMemory = 150 << 20
)

// TestScan: one pod dials 65,000 addresses of the range and then 65,535 ports of
// one. Known Services are served all the while, Envoy grows within bounds, agent
// and Envoy find together again with all those names, and compaction forgets them.
func TestScan(t *testing.T) {
	n := upReady(t, restartWorld()+client("scanner"), withArgs("--compact-names", strconv.Itoa(scanCompact)), plainAgent(t))
	n.keepAccount()
	n.expectUnclean("the agent is killed, and Envoy restarted to forget names")
	n.learn(t)
	l := n.live(t, "bob", "10.96.0.10:7", "of before")
	quiet := n.client(t, "bob", "--mode", "server-first", "--count", "200", "--pause", "5ms", knownService)
	wantAllOK(t, quiet)
	idle := n.envoyMemory(t)
	// As many connections at once as the scan makes are open when Envoy's memory is
	// taken as what it was before: what they need it keeps, for the next ones.
	wantAllOK(t, n.client(t, "scanner", "--mode", "server-first", "--timeout", "15s", "--hold", "2s",
		"--count", strconv.Itoa(2*scanAtOnce), "--concurrency", strconv.Itoa(scanAtOnce), knownService))
	before := n.envoyMemory(t)

	vs := n.scanBeside(t, "65,000 addresses", 65_000, quiet, scanAddresses)
	refused := outcomes(vs)[echo.Reset]
	if s := n.agentStatus(t).Names; s.Other < 1_000 || s.Other > 1_024 || s.OverLimit < 60_000 || refused < 1_000 {
		t.Errorf("after the scan the agent has %+v, and %d dials were reset; want the budget of 1,024 used and the others over it", s, refused)
	}
	grew := n.envoyMemory(t) - before
	t.Logf("Envoy's memory: %d MiB idle, %d MiB after %d connections at once, %d MiB more after the scan", idle>>20, before>>20, scanAtOnce, grew>>20)
	if grew > scanMemory {
		t.Errorf("Envoy has %d MiB more after the scan, want at most %d", grew>>20, scanMemory>>20)
	}
	l.check(t, "after the first scan")

	n.agentKilledWithNames(t, 65_000)
	l.check(t, "after the agent was killed")

	n.scanBeside(t, "65,535 ports", 65_535, quiet, scanPorts)
	n.compacted(t)
	l.check(t, "after compaction, carried by the Envoy of before")
}

// scanBeside scans, with a neighbour that dials a known Service all the while.
func (n *node) scanBeside(t *testing.T, what string, count int, quiet []echo.Verdict, targets string) []echo.Verdict {
	t.Helper()
	ended := make(chan struct{})
	beside := n.loadUntil(t, "bob", ended)
	began := time.Now()
	vs := n.client(t, "scanner", "--mode", "silent", "--timeout", "8s", "--concurrency", strconv.Itoa(scanAtOnce), targets)
	took := time.Since(began)
	time.Sleep(time.Second) // and after
	close(ended)
	known := beside()
	wantAllOK(t, known)
	if len(vs) != count {
		t.Errorf("%s: %d were dialled", what, len(vs))
	}
	atTimeout := 0
	for _, v := range vs {
		if v.TotalMS > 2_500 {
			atTimeout++
		}
	}
	t.Logf("%s in %.1f s: %v, %d only at the timeout; known Services: %d dials, none failed, p50 %.1f → %.1f ms, p99 %.1f → %.1f ms",
		what, took.Seconds(), outcomes(vs), atTimeout, len(known), percentile(quiet, 50), percentile(known, 50), percentile(quiet, 99), percentile(known, 99))
	return vs
}

// agentKilledWithNames: Envoy tells the next agent every name it was asked for.
func (n *node) agentKilledWithNames(t *testing.T, names int) {
	t.Helper()
	pid := n.AgentPID()
	ended := make(chan struct{})
	beside := n.loadUntil(t, "bob", ended)
	began := time.Now()
	if err := n.KillAgent(); err != nil {
		t.Fatal(err)
	}
	n.awaitConnected(t, pid, 0)
	eventually(t, settled, "the next agent was told all names", func() error {
		s, err := n.tryStatus(t.Context())
		if err == nil && int(s.Names.OverLimit)+s.Names.Other < names {
			err = fmt.Errorf("%+v", s.Names)
		}
		return err
	})
	t.Logf("%d ms from the agent's end until the next one had all %d names", time.Since(began).Milliseconds(), names)
	close(ended)
	wantAllOK(t, beside())
}

// compacted waits until the agent has had Envoy restarted, and the names of the
// scans are forgotten: the new Envoy and the agent have none of them but what was
// dialled since.
func (n *node) compacted(t *testing.T) {
	t.Helper()
	const within = time.Minute
	eventually(t, within, "a new Envoy has forgotten names", func() error {
		b, err := os.ReadFile(n.Paths().AgentLog)
		if err != nil {
			return err
		}
		if !bytes.Contains(b, []byte("it is to be restarted to forget them")) {
			return errors.New("no restart was asked for")
		}
		clusters, err := n.tryClusters(t)
		if err != nil {
			return err
		}
		gone := func(c string) bool { return strings.HasPrefix(c, "svc:10.96.1.") }
		if slices.ContainsFunc(clusters, gone) || len(clusters) == 0 {
			return fmt.Errorf("it has %d clusters, with some of the first scan", len(clusters))
		}
		return nil
	})
	wantAllOK(t, []echo.Verdict{n.dial(t, "alice", serverFirst(knownService)), n.dial(t, "bob", serverFirst(knownService))})
	if v := n.dial(t, "alice", echo.Client{Mode: "silent", Target: emptyService}); v.Outcome != echo.Reset {
		t.Errorf("after compaction: %s, want a refusal", told(v))
	}
	t.Logf("Envoy's memory after compaction: %d MiB", n.envoyMemory(t)>>20)
}

// envoyMemory is what Envoy's process holds in memory, in bytes.
func (n *node) envoyMemory(t *testing.T) int {
	t.Helper()
	return processMemory(t, n.EnvoyPID())
}

// processMemory is a process's resident set, in bytes.
func processMemory(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatalf("read the memory of process %d: %v", pid, err)
	}
	fields := strings.Fields(string(b))
	pages, err := strconv.Atoi(fields[1])
	if err != nil {
		t.Fatalf("read the memory of process %d: %v", pid, err)
	}
	return pages * os.Getpagesize()
}
