// SPDX-License-Identifier: Apache-2.0

// Package upstream_test restates the tests of Kubernetes' own end-to-end suite
// (test/e2e/network of 1.37) that dial a ClusterIP over TCP from a pod, each under
// its name there. The client is a captured pod in mode enforce; an uncaptured pod
// beside it does the same through kube-proxy, which has to pass: that shows that
// the restatement is right. docs/upstream-tests.md is the table of all of them.
//
// A row says what was predicted before it ever ran, and what is seen; what is not
// as predicted needs an explanation, and what is not as the row says fails.
package upstream_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"aether.io/aether/test/lab"
	"aether.io/aether/test/lab/labtest"
)

// nodes are two in each of three zones, as the tests of topology want. Ours is n1.
var nodes = []lab.NodeConfig{
	{Name: "n1", Zone: "zone-a"},
	{Name: "n2", Zone: "zone-b"},
	{Name: "n3", Zone: "zone-c"},
	{Name: "n4", Zone: "zone-a"},
	{Name: "n5", Zone: "zone-b"},
	{Name: "n6", Zone: "zone-c"},
}

// atOnce is how many rows run at the same time: they wait more than they work.
const atOnce = "6"

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", atOnce); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	labtest.Main(m, lab.Config{Nodes: nodes})
}

// TestUpstream runs every row that does not stop a program, several at a time, and
// then those that do.
func TestUpstream(t *testing.T) {
	home := labtest.New(t)
	home.Apply(labtest.Client("captured", true), labtest.Client("plain", false))
	home.Ready("captured", "plain")
	clients := []string{home.Namespace + "/captured", home.Namespace + "/plain"}
	t.Run("Parallel", func(t *testing.T) {
		for _, r := range rows {
			if r.applies != no && !r.disruptive {
				t.Run(r.group+": "+r.name, func(t *testing.T) {
					t.Parallel()
					r.test(t, clients)
				})
			}
		}
	})
	for _, r := range rows {
		if r.applies != no && r.disruptive {
			t.Run(r.group+": "+r.name, func(t *testing.T) { r.test(t, clients) })
		}
	}
	lines, err := home.AccessLog()
	home.Must(err)
	for _, l := range lines {
		if l.PodName == "plain" {
			t.Fatalf("the uncaptured pod's connections are in our access log: %+v", l)
		}
	}
}

// test runs a row and holds what came of it against what the row says.
func (r row) test(t *testing.T, clients []string) {
	s := &scene{Space: labtest.New(t), t: t, clients: clients, failed: map[string]error{}}
	r.run(s)
	captured, plain := s.failed[clients[0]], s.failed[clients[1]]
	if plain != nil {
		t.Errorf("through kube-proxy, which passes this test: %v", plain)
	}
	switch {
	case r.seen == pass && captured != nil:
		t.Errorf("captured: %v", captured)
	case r.seen == fail && captured == nil:
		t.Errorf("captured: it passes, and the table says that it fails: %s", r.why)
	case r.seen == fail && !errors.Is(captured, r.fails):
		t.Errorf("captured: it fails otherwise than the table says: %v, want %v", captured, r.fails)
	}
	if !t.Failed() {
		s.wasOurs()
	}
	t.Logf("captured: %s", resultOf(captured))
}

func resultOf(err error) string {
	if err == nil {
		return string(pass)
	}
	return string(fail) + ": " + err.Error()
}

// scene is one run of a row. A check that fails for a client is the end of the test
// for that client, and the other goes on.
type scene struct {
	*labtest.Space
	t       *testing.T
	clients []string

	mu     sync.Mutex
	failed map[string]error
}

// each makes a check from both clients at the same time.
func (s *scene) each(what string, check func(client string) error) {
	var wg sync.WaitGroup
	for _, c := range s.clients {
		s.mu.Lock()
		over := s.failed[c] != nil
		s.mu.Unlock()
		if over {
			continue
		}
		wg.Go(func() {
			if err := check(c); err != nil {
				s.mu.Lock()
				s.failed[c] = fmt.Errorf("%s: %w", what, err)
				s.mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// isCaptured tells the two clients apart.
func (s *scene) isCaptured(client string) bool { return client == s.clients[0] }

// wasOurs fails the test unless we served, or refused, Services of it by name.
func (s *scene) wasOurs() {
	s.t.Helper()
	s.Eventually("the access log names Services of this test", func() error {
		lines, err := s.AccessLog()
		if err != nil {
			return err
		}
		for _, l := range lines {
			if l.ServiceNamespace == s.Namespace && strings.HasPrefix(l.Chain, "cap_svc") {
				return nil
			}
		}
		return errors.New("none is")
	})
}
