// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestNamespaceDeletedInUse: the network namespace of a pod is taken away while
// its listener is bound and its connections are open, by somebody who tells
// nobody. Nobody else notices; a pod of the same name can come back.
func TestNamespaceDeletedInUse(t *testing.T) {
	const held = 20
	n := upReady(t, restartWorld())
	n.keepAccount()
	n.expectUnclean("a namespace vanishes")
	envoyPID := n.EnvoyPID()
	l := n.learn(t)
	rounds := keepTalking(t, l)
	ended := make(chan struct{})
	beside := n.loadUntil(t, "bob", ended)

	n.write(t, "dave.yaml", holder("dave", held, "10.96.0.11:80"))
	holds := func() error {
		if got := n.gauge(t, "cluster.svc.default.cold-1.greet.upstream_cx_active"); got != held {
			return fmt.Errorf("Envoy counts %d connections", got)
		}
		return nil
	}
	eventually(t, settled, "dave holds connections", holds)
	path := n.netns(t, "dave")
	if err := errors.Join(unix.Unmount(path, unix.MNT_DETACH), os.Remove(path)); err != nil {
		t.Fatalf("take dave's namespace away: %v", err)
	}
	// Others come, and change what Envoy has, as if nothing were.
	n.write(t, "erin.yaml", client("erin"))
	n.awaitReady(t, "erin")
	n.write(t, "range.yaml", `{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: more}, spec: {cidrs: [10.97.0.0/16]}}`)
	for _, pod := range []string{"alice", "bob", "erin"} {
		wantAllOK(t, n.dialAll(t, pod, 5, serverFirst(knownService)))
	}
	// The next agent notices that the pod is gone; Envoy drops its listener.
	pid := n.AgentPID()
	if err := n.KillAgent(); err != nil {
		t.Fatal(err)
	}
	n.awaitConnected(t, pid, 0)
	if s, err := n.listenerOf(t.Context(), "dave"); err == nil {
		t.Errorf("the next agent still has %+v", s)
	}
	// The pod is deleted, now with a word, and comes back under its name.
	n.remove(t, "dave.yaml")
	eventually(t, settled, "dave's connections are gone", func() error {
		if holds() == nil {
			return errors.New("they are there")
		}
		return nil
	})
	eventually(t, settled, "the sandbox has no dave", func() error {
		for _, p := range n.Status().Pods {
			if p.Name == "dave" {
				return fmt.Errorf("%+v", p)
			}
		}
		return nil
	})
	n.write(t, "dave.yaml", client("dave"))
	n.awaitReady(t, "dave")
	for _, pod := range []string{"alice", "bob", "erin", "dave"} {
		wantAllOK(t, n.dialAll(t, pod, 5, serverFirst(knownService)))
	}
	if left, err := filepath.Glob(path); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	close(ended)
	vs := beside()
	wantAllOK(t, vs)
	if pid := n.EnvoyPID(); pid != envoyPID {
		t.Errorf("Envoy is process %d, was %d", pid, envoyPID)
	}
	l.check(t, "after all of it")
	t.Logf("%d dials beside it, none failed, p99 %.1f ms; %d rounds on an old connection", len(vs), percentile(vs, 99), rounds())
}
