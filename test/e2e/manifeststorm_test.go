// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"aether.io/aether/internal/agent/api"
)

const (
	// storm of rewrites: how many, and within what time.
	rewrites      = 1_000
	rewritesEvery = 30 * time.Millisecond
	// settledAt is how many of them pass before the agent's memory is taken as what
	// it needs for this.
	settledAt = 400
)

// TestManifestsRewritten: the manifest directory is rewritten 1,000 times within
// a minute: files appear, change, break, are renamed, touched and removed. Known
// Services are served all the while, the agent neither grows nor leaks, and what
// holds at the end is what the files say at the end.
func TestManifestsRewritten(t *testing.T) {
	n := upReady(t, restartWorld(), plainAgent(t)) // the race detector needs memory of its own
	n.keepAccount()
	n.expectUnclean("manifests are broken on purpose")
	envoyPID, agentPID := n.EnvoyPID(), n.AgentPID()
	l := n.learn(t)
	n.write(t, "known.yaml", service("twin", "10.96.2.1", "selector: {app: web}, ports: [{name: greet, port: 80, targetPort: 9001}]"))
	n.awaitUsed(t, "10.96.2.1:80", 1)
	s := &manifestStorm{n: n, dir: n.dir, known: "known.yaml", rand: rand.New(rand.NewPCG(1, 2))}
	ended := make(chan struct{})
	known, twin := n.loadTo(t, "bob", knownService, ended), n.loadTo(t, "alice", "10.96.2.1:80", ended)
	rounds := keepTalking(t, l)
	began := time.Now()
	tick := time.NewTicker(rewritesEvery)
	defer tick.Stop()
	var memory, files int
	for i := range rewrites {
		if i == settledAt {
			memory, files = processMemory(t, agentPID), len(descriptors(t, agentPID))
		}
		s.step(t)
		<-tick.C
	}
	took := time.Since(began)
	s.last(t)
	wrote := time.Now()
	if took > time.Minute {
		t.Errorf("%d rewrites took %v, want them within a minute", rewrites, took)
	}
	n.awaitExplain(t, "10.96.2.200:80", "a Service of the last rewrite", func(e api.Explanation) bool { return e.Answer == "balance" })
	right := time.Since(wrote)
	if right > time.Second {
		t.Errorf("the last state was right only after %v, want a second at most", right)
	}
	close(ended)
	vs, ws := known(), twin()
	wantAllOK(t, vs)
	wantAllOK(t, ws)
	for i := range manifestFiles {
		if e := n.explain(t, fmt.Sprintf("10.96.2.%d:80", 10+i)); e.Answer != "refuse" || e.Reason != "no-service" {
			t.Errorf("a Service whose file is gone: %s", decision(e))
		}
	}
	n.awaitProblem(t, "storm", "", false)
	if pid := n.AgentPID(); pid != agentPID {
		t.Errorf("the agent is process %d, was %d", pid, agentPID)
	}
	if pid := n.EnvoyPID(); pid != envoyPID {
		t.Errorf("Envoy is process %d, was %d", pid, envoyPID)
	}
	moreMemory, moreFiles := processMemory(t, agentPID)-memory, len(descriptors(t, agentPID))-files
	const room = 24 << 20 // the collector needs some
	if moreMemory > room || moreFiles > 8 {
		t.Errorf("the agent has %d MiB and %d descriptors more than after %d rewrites, want it flat", moreMemory>>20, moreFiles, settledAt)
	}
	t.Logf("%d rewrites in %.1f s (%v); %d dials of known Services, none failed, p99 %.1f ms; right after %d ms; %d rounds on an old connection; agent %+d KiB, %+d descriptors",
		rewrites, took.Seconds(), s.done, len(vs)+len(ws), max(percentile(vs, 99), percentile(ws, 99)), right.Milliseconds(), rounds(), moreMemory>>10, moreFiles)
}

// manifestFiles is how many files the storm plays with.
const manifestFiles = 20

// manifestStorm changes a directory of manifests at random.
type manifestStorm struct {
	n     *node
	dir   string
	known string // file of a Service that is to be served throughout
	rand  *rand.Rand
	turn  int
	done  map[string]int
}

func (s *manifestStorm) file(i int) string { return fmt.Sprintf("storm-%d.yaml", i) }

// step makes one change.
func (s *manifestStorm) step(t *testing.T) {
	t.Helper()
	if s.done == nil {
		s.done = map[string]int{}
	}
	s.turn++
	i := s.rand.IntN(manifestFiles)
	name := s.file(i)
	path := filepath.Join(s.dir, name)
	good := service(fmt.Sprintf("storm-%d", i), fmt.Sprintf("10.96.2.%d", 10+i), fmt.Sprintf("selector: {app: web}, ports: [{name: p%d, port: 80, targetPort: 9001}]", s.turn%7))
	what := [...]string{"written", "written", "written", "broken", "half written", "removed", "touched", "renamed", "known touched", "known renamed"}[s.rand.IntN(10)]
	s.done[what]++
	var err error
	switch what {
	case "written":
		s.n.write(t, name, good)
	case "broken":
		s.n.write(t, name, "kind: [")
	case "half written": // in place, as an editor without care does
		err = os.WriteFile(path, []byte(good[:len(good)/2]), 0o644)
	case "removed":
		err = os.Remove(path)
	case "touched":
		err = os.Chtimes(path, time.Now(), time.Now())
	case "renamed":
		err = os.Rename(path, filepath.Join(s.dir, s.file(s.rand.IntN(manifestFiles))))
	case "known touched":
		err = os.Chtimes(filepath.Join(s.dir, s.known), time.Now(), time.Now())
	case "known renamed":
		next := fmt.Sprintf("known-%d.yaml", s.turn)
		err = os.Rename(filepath.Join(s.dir, s.known), filepath.Join(s.dir, next))
		s.known = next
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}

// last removes what the storm left and writes one new Service.
func (s *manifestStorm) last(t *testing.T) {
	t.Helper()
	for i := range manifestFiles {
		if err := os.Remove(filepath.Join(s.dir, s.file(i))); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	s.n.write(t, "storm-last.yaml", service("storm-last", "10.96.2.200", "selector: {app: web}, ports: [{name: greet, port: 80, targetPort: 9001}]"))
}
