// SPDX-License-Identifier: Apache-2.0

package xds_test

import (
	"fmt"
	"io"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"aether.io/aether/internal/xds"
)

// TestWithEnvoy runs the server against Envoy 1.40: what the pretended Envoy of
// the other tests is taken to do, this one does.
func TestWithEnvoy(t *testing.T) {
	e := newRealEnvoy(t)
	base := e.onDemandListener("capture:x/base", "0.0.0.0", 18001)
	n := newNode(t, xds.Config{})
	n.path = filepath.Join(e.dir, "xds.sock")
	n.onAsked = func(a xds.Asked) {
		if a.Type == xds.Cluster {
			for _, name := range a.Names {
				n.publish(e.service(name)...)
			}
		}
	}
	n.publish(base)
	n.serve()
	e.start()
	event(n, func(a xds.Acked) bool { return a.Type == xds.Listener && a.Resources[0].Name == base.Name })
	opened := event(n, func(xds.StreamOpened) bool { return true }).Stream
	if opened.PID != e.cmd.Process.Pid || opened.Version != "1.40.0" || opened.Epoch != 1 {
		t.Errorf("opened by %+v, want pid %d", opened, e.cmd.Process.Pid)
	}
	if first := event(n, func(f xds.FirstRequest) bool { return f.Type == xds.Cluster }); !first.Fresh {
		t.Errorf("first request %+v, want a fresh Envoy", first)
	}
	t.Run("cold connections are answered", func(t *testing.T) { coldConnections(t, e) })
	t.Run("a changed cluster warms at once", func(t *testing.T) { changedCluster(t, e, n) })
	t.Run("a rejected listener keeps the good ones", func(t *testing.T) { rejectedListener(t, e, n) })
	t.Run("a rejected assignment keeps the others", func(t *testing.T) { rejectedAssignment(t, e, n) })
	t.Run("a restart of the server sends nothing again", func(t *testing.T) { restartedServer(t, e, n) })
}

func coldConnections(t *testing.T, e *realEnvoy) {
	var cold, warm []time.Duration
	for i := range 200 {
		addr := fmt.Sprintf("127.0.1.%d:18001", i+1)
		for _, took := range []*[]time.Duration{&cold, &warm} {
			c, d, err := e.hello(addr)
			if err != nil {
				t.Fatalf("dial %s: %v", addr, err)
			}
			*took = append(*took, d)
			_ = c.Close()
		}
	}
	slices.Sort(cold)
	slices.Sort(warm)
	t.Logf("first connection: p50 %v p99 %v; later ones: p50 %v p99 %v", cold[100], cold[198], warm[100], warm[198])
	if limit := 500 * time.Millisecond; cold[100] > limit {
		t.Errorf("half of the first connections took more than %v", limit)
	}
}

// changedCluster would take the whole initial fetch timeout (1 s) if the
// assignment were not sent after the cluster.
func changedCluster(t *testing.T, e *realEnvoy, n *node) {
	const name = "svc:127.0.1.1:18001"
	c := e.service(name)[0]
	c.Message.(*clusterv3.Cluster).AltStatName = "changed"
	begun := time.Now()
	n.publish(c)
	for {
		s := e.stats("cluster_manager.")
		if s["cluster_manager.cluster_modified"] == "1" && s["cluster_manager.warming_clusters"] == "0" {
			break
		}
		if time.Since(begun) > patience {
			t.Fatalf("not warm: %v", s)
		}
		time.Sleep(time.Millisecond)
	}
	took := time.Since(begun)
	t.Logf("warm after %v", took)
	if took > 900*time.Millisecond {
		t.Errorf("warm after %v, want less than the initial fetch timeout", took)
	}
}

func rejectedListener(t *testing.T, e *realEnvoy, n *node) {
	bad := e.onDemandListener("capture:x/bad", "0.0.0.0", 18002)
	bad.Message.(*listenerv3.Listener).Address.GetSocketAddress().NetworkNamespaceFilepath = "/var/run/netns/xdstest-none"
	undecodable := e.onDemandListener("capture:x/undecodable", "", 18003)
	good := e.onDemandListener("capture:x/good", "0.0.0.0", 18004)
	n.publish(bad, good)
	n.publish(undecodable)
	for _, r := range []xds.Resource{bad, undecodable} {
		nacked := event(n, func(x xds.Nacked) bool { return slices.Contains(x.Names, r.Name) })
		if len(nacked.Names) != 1 {
			t.Errorf("rejected together: %v", nacked.Names)
		}
		words, _ := n.server.Nack(xds.Listener, r.Name)
		t.Logf("%s: %.100q", r.Name, words)
	}
	event(n, func(a xds.Acked) bool {
		return slices.ContainsFunc(a.Resources, func(a xds.Accepted) bool { return a.Name == good.Name })
	})
	for _, port := range []string{"18001", "18004"} {
		c, _, err := e.hello("127.0.1.1:" + port)
		if err != nil {
			t.Errorf("port %s: %v", port, err)
			continue
		}
		_ = c.Close()
	}
}

func rejectedAssignment(t *testing.T, e *realEnvoy, n *node) {
	// Envoy does not say which assignment it rejects.
	bad := assignment("svc:127.0.1.2:18001", 80)
	bad.Message.(*endpointv3.ClusterLoadAssignment).Endpoints[0].LbEndpoints[0].GetEndpoint().Address.GetSocketAddress().Address = "host.example"
	var all []xds.Resource
	for i := range 20 {
		a := e.service(fmt.Sprintf("svc:127.0.1.%d:18001", i+1))[1]
		if a.Name == bad.Name {
			a = bad
		} else {
			weigh(a, uint32(i+2))
		}
		all = append(all, a)
	}
	n.clear()
	n.publish(all...)
	nacked := event(n, func(x xds.Nacked) bool { return x.Type == xds.Assignment })
	if !slices.Equal(nacked.Names, []string{bad.Name}) {
		t.Errorf("rejected %v, want %s", nacked.Names, bad.Name)
	}
	t.Logf("%s: %.100q", bad.Name, nacked.Message)
	accepted := map[string]bool{}
	for len(accepted) < len(all)-1 {
		event(n, func(a xds.Acked) bool {
			found := false
			for _, r := range a.Resources {
				found = found || r.Newest && a.Type == xds.Assignment && !accepted[r.Name]
				accepted[r.Name] = true
			}
			return found
		})
	}
	c, _, err := e.hello("127.0.1.2:18001") // the last accepted assignment
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

func restartedServer(t *testing.T, e *realEnvoy, n *node) {
	live, _, err := e.hello("127.0.1.1:18001")
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	kept := map[xds.Key]xds.Resource{}
	for _, r := range n.server.Status().Resources {
		switch {
		case r.Rejection == "":
			kept[r.Key] = n.last[r.Key]
		case r.Accepted != "": // the assignment that was rejected later
			kept[r.Key] = e.service(r.Name)[1]
		}
	}
	before := e.updates()
	n.stop()

	c, took, err := e.hello("127.0.1.3:18001")
	if err != nil {
		t.Fatalf("without a server: %v", err)
	}
	t.Logf("without a server: %v", took)
	_ = c.Close()

	again := newNode(t, xds.Config{})
	again.path = n.path
	again.onAsked = func(a xds.Asked) {
		if a.Type == xds.Cluster {
			again.publish(e.service(a.Names[0])...)
		}
	}
	again.publish(slices.Collect(maps.Values(kept))...)
	again.serve()
	first := event(again, func(f xds.FirstRequest) bool { return f.Type == xds.Cluster })
	if len(first.Held) != 201 || len(first.Subscribed) != 201 || first.Fresh || first.Stream.Epoch != 0 {
		t.Errorf("first request: %d held, %d subscribed, fresh %v, epoch %d", len(first.Held), len(first.Subscribed), first.Fresh, first.Stream.Epoch)
	}
	for _, typ := range []xds.Type{xds.Cluster, xds.Assignment, xds.Listener} {
		event(again, func(a xds.Acked) bool { return a.Type == typ })
	}
	for _, typ := range []string{"cluster", "assignment", "listener"} {
		for _, name := range []string{"aether_xds_resources_sent_total", "aether_xds_resources_removed_total"} {
			if sent := metric(t, again.metrics, name, typ).GetCounter().GetValue(); sent != 0 {
				t.Errorf("%s{%s} is %v", name, typ, sent)
			}
		}
	}
	if after := e.updates(); !maps.Equal(before, after) {
		t.Errorf("envoy was changed: before %v, after %v", before, after)
	}
	if _, err := io.WriteString(live, "still there\n"); err != nil {
		t.Error(err)
	}
	answer := make([]byte, len("still there\n"))
	if _, err := io.ReadFull(live, answer); err != nil {
		t.Errorf("the live connection: %v", err)
	}
	// And it goes on answering.
	var fresh net.Conn
	if fresh, _, err = e.hello("127.0.2.1:18001"); err != nil {
		t.Fatal(err)
	}
	_ = fresh.Close()
}
