// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/xds"
)

// A pod's listener counts when the youngest Envoy's workers run, whatever an older
// one acknowledges; when the youngest is gone, what the older one said counts again.
func TestListenersOfAStartingEnvoy(t *testing.T) {
	n := newLoopTest(t)
	lives := make(chan uint64, 1)
	n.lives = lives
	n.sync(t)
	name := model.Name{Namespace: "default", Name: "a"}
	key := xds.Key{Type: xds.Listener, Name: "capture:default/a"}
	n.pods.byName[name] = &pod{listener: listenerPending, workload: model.Workload{Name: name, NetNS: t.TempDir()}}
	n.loopTestPublished(key)
	want := func(when, state string) {
		t.Helper()
		if got := n.pods.byName[name].listener; got != state {
			t.Errorf("%s: the listener is %s, want %s", when, got, state)
		}
	}
	ack := func(stream, epoch uint64) {
		n.heardEvent(xds.Acked{Stream: xds.Stream{ID: stream, Epoch: epoch}, Type: xds.Listener, Resources: []xds.Accepted{{Name: key.Name, Newest: true}}})
	}
	ack(1, 1)
	want("acknowledged before the workers run", listenerPending)
	n.turn([]message{envoyLive{<-lives}})
	want("when they run", listenerReady)

	n.heardEvent(xds.StreamOpened{Stream: xds.Stream{ID: 2, Epoch: 2}})
	n.heardEvent(xds.FirstRequest{Stream: xds.Stream{ID: 2, Epoch: 2}, Type: xds.Cluster, Fresh: true, Done: func() {}})
	want("with a younger Envoy", listenerPending)
	ack(1, 1)
	want("acknowledged by the older one", listenerPending)
	n.turn([]message{envoyLive{<-lives}})
	ack(2, 2)
	want("acknowledged by the younger one, which listens", listenerReady)
	n.pods.byName[name].listener = listenerPending
	ack(1, 1)
	want("acknowledged by the older one again", listenerPending)
	n.heardEvent(xds.StreamClosed{Stream: xds.Stream{ID: 2, Epoch: 2}})
	want("when the younger one is gone", listenerReady)
	if len(n.starting) != 0 {
		t.Errorf("starting %v", n.starting)
	}
}

// What a starting Envoy would reject it gets when it lives.
func TestHeldBackFromAStartingEnvoy(t *testing.T) {
	n := newLoopTest(t)
	lives := make(chan uint64, 1)
	n.lives = lives
	n.sync(t)
	n.turn([]message{envoyLive{<-lives}})
	dir := t.TempDir()
	pods := map[string]string{"good": dir, "rejected": dir + "/.", "gone": dir + "/gone"}
	var changes []model.Change
	for name, netns := range pods {
		w := model.Workload{Name: model.Name{Namespace: "default", Name: name}, IP: netip.MustParseAddr("10.244.0.9"), NetNS: netns}
		n.pods.byName[w.Name] = &pod{listener: listenerReady, workload: w}
		changes = append(changes, model.SetWorkload{Workload: w})
	}
	n.clock.Advance(second)
	n.turn([]message{n.batch(true, changes...)})
	n.pods.rejected(model.Name{Namespace: "default", Name: "rejected"}, "no room")
	want := func(when string, names ...string) {
		t.Helper()
		for name := range pods {
			key := xds.Key{Type: xds.Listener, Name: "capture:default/" + name}
			if got := n.published[key]; got != slices.Contains(names, name) {
				t.Errorf("%s: the listener of %s is published: %v", when, name, got)
			}
		}
	}
	want("with an Envoy that lives", "good", "rejected", "gone")
	n.heardEvent(xds.StreamOpened{Stream: xds.Stream{ID: 2, Epoch: 2}})
	n.heardEvent(xds.FirstRequest{Stream: xds.Stream{ID: 2, Epoch: 2}, Type: xds.Cluster, Fresh: true, Done: func() {}})
	want("with one that starts", "good")
	if p := n.pods.byName[model.Name{Namespace: "default", Name: "gone"}]; p.listener != listenerRejected || !strings.Contains(p.nack, "does not exist") {
		t.Errorf("the pod that is gone is %+v", p)
	}
	n.clock.Advance(second)
	n.turn([]message{n.batch(true, model.SetServiceCIDR{Name: "second", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")}})})
	want("with another range", "good")
	n.turn([]message{envoyLive{<-lives}})
	want("when it lives", "good", "rejected", "gone")
}

// loopTestPublished makes Accepted true for a key.
func (n *loopTest) loopTestPublished(k xds.Key) { n.published[k] = true }

func TestAwaitWorkers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	admin := newUnixHTTP(path, time.Second)
	awaitWorkers(t.Context(), admin) // nobody can tell: at once
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) <= 3 {
			fmt.Fprintln(w, "listener_manager.workers_started: 0")
			return
		}
		fmt.Fprintln(w, "listener_manager.workers_started: 1")
	})}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	defer func() { s.Close(); <-done }()
	awaitWorkers(t.Context(), admin)
	if asked.Load() != 4 {
		t.Errorf("asked %d times, want until they run", asked.Load())
	}
	asked.Store(-1 << 20)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	awaitWorkers(ctx, admin) // ends with its caller
}
