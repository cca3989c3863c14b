// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"aether.io/aether/internal/sandbox/echo"
)

// deadPeerWithin is how soon a captured client notices a peer that is gone.
const deadPeerWithin = 35 * time.Second

// TestDeadPeer: a server's host vanishes from the network, both ways and without
// a word. Whoever talks to it and whoever merely listens to it notices within
// 35 s; whoever connects to it is told at the connect timeouts. Meanwhile another
// connection is silent for as long, kept alive by probes on the wire, and lives.
// Most of it is waiting, so it runs beside others that wait.
func TestDeadPeer(t *testing.T) {
	t.Parallel()
	n := upReady(t, restartWorld()+server("gone", "app: gone")+
		service("gone", "10.96.0.50", "ports: [{name: echo, port: 7}, {name: greet, port: 80}]"))
	n.keepAccount()
	// Slices by hand: they call the endpoint ready whatever its probe finds.
	address := n.PodIP("gone").String()
	n.write(t, "gone.yaml", slice("gone-echo", "gone", "echo", portEcho, address)+slice("gone-greet", "gone", "greet", portServerFirst, address))
	n.awaitUsed(t, "10.96.0.50:7", 1)
	n.awaitUsed(t, "10.96.0.50:80", 1)
	wantAllOK(t, []echo.Verdict{n.dial(t, "alice", serverFirst("10.96.0.50:80"))})
	talker := n.live(t, "alice", "10.96.0.50:7", "that talks")
	silent := n.live(t, "bob", "10.96.0.50:7", "that is silent")
	quiet := n.live(t, "alice", knownEcho, "that nobody uses")
	n.checkNoIdleTimeout(t)

	probes := n.countPackets(t, fmt.Sprintf("ip daddr %s tcp dport %d ip length < 61", n.PodIP("web"), portEcho))
	began := time.Now()
	undo := n.blackhole(t, "gone")
	defer undo()
	if _, err := fmt.Fprintln(talker.c, "hello?"); err != nil {
		t.Fatal(err)
	}
	var connecting echo.Verdict
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		connecting = n.dial(t, "alice", echo.Client{Mode: "server-first", Target: "10.96.0.50:80", Timeout: 20 * time.Second})
	})
	for _, l := range []live{talker, silent} {
		wg.Go(func() {
			if err := l.c.SetReadDeadline(began.Add(60 * time.Second)); err != nil {
				t.Error(err)
			}
			_, err := l.c.Read(make([]byte, 1))
			took := time.Since(began)
			if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) || took > deadPeerWithin {
				t.Errorf("the connection %s: %v after %v, want its end within %v", l.what, err, took, deadPeerWithin)
			}
			t.Logf("the connection %s: %v after %.1f s", l.what, err, took.Seconds())
		})
	}
	wg.Wait()
	if v := connecting; v.Outcome != echo.Closed && v.Outcome != echo.Reset || v.TotalMS > 12_000 {
		t.Errorf("a connect to the dead host: %s after %.0f ms, want it closed after five connect timeouts of 2 s", told(v), v.TotalMS)
	}
	line := n.awaitLogged(t, connecting)
	if line.Outcome != "timeout" || line.Attempts != 5 {
		t.Errorf("a connect to the dead host: logged as %s after %d attempts", line.Outcome, line.Attempts)
	}
	idle := time.Since(began)
	if got := probes(); got < 1 {
		t.Errorf("in %v of silence %d packets kept the connection %s alive", idle, got, quiet.what)
	}
	quiet.check(t, fmt.Sprintf("after %.0f s of silence", idle.Seconds()))
	t.Logf("connect to the dead host: %s after %.1f s; silent for %.0f s, with %d probes on the wire: alive", told(connecting), connecting.TotalMS/1000, idle.Seconds(), probes())
}

// knownEcho is the echo port of the Service that knownService is of.
const knownEcho = "10.96.0.10:7"

// blackhole drops all that comes from a pod and all that goes to it.
func (n *node) blackhole(t *testing.T, pod string) (undo func()) {
	t.Helper()
	link := n.hostInterface(t, pod)
	n.inNode(t, fmt.Sprintf(`table ip e2e_blackhole {
	chain input { type filter hook input priority filter; policy accept; iifname %[1]q drop; }
	chain output { type filter hook output priority filter; policy accept; oifname %[1]q drop; }
	chain forward { type filter hook forward priority filter; policy accept; iifname %[1]q drop; oifname %[1]q drop; }
}`, link), "nft", "-f", "-")
	return sync.OnceFunc(func() { n.inNode(t, "", "nft", "delete", "table", "ip", "e2e_blackhole") })
}

var packetCount = regexp.MustCompile(`counter packets (\d+)`)

// countPackets counts what the node forwards and matches.
func (n *node) countPackets(t *testing.T, match string) (count func() int) {
	t.Helper()
	n.inNode(t, fmt.Sprintf(`table ip e2e_count {
	chain forward { type filter hook forward priority filter - 5; policy accept; %s counter; }
}`, match), "nft", "-f", "-")
	return func() int {
		m := packetCount.FindStringSubmatch(n.inNode(t, "", "nft", "list", "table", "ip", "e2e_count"))
		if m == nil {
			t.Fatal("the rule counts nothing")
		}
		packets, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		return packets
	}
}

// checkNoIdleTimeout reads what Envoy runs with: no chain and no cluster of ours
// ends a connection for its age or its silence.
func (n *node) checkNoIdleTimeout(t *testing.T) {
	t.Helper()
	checkIdleTimeouts(t, n)
	b, err := n.AdminGet(t.Context(), "/config_dump")
	if err != nil {
		t.Fatal(err)
	}
	var dump any
	if err := json.Unmarshal(b, &dump); err != nil {
		t.Fatal(err)
	}
	clusters, keepalives := 0, 0
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(path, e)
			}
		case map[string]any:
			if kind, _ := v["@type"].(string); strings.HasSuffix(kind, ".cluster.v3.Cluster") {
				clusters++
			}
			for k, e := range v {
				limits := k == "idle_timeout" && e != "0s" || k == "max_connection_duration" || k == "max_downstream_connection_duration" || k == "tcp_pool_idle_timeout"
				if limits && !strings.Contains(path, "bootstrap") {
					t.Errorf("Envoy runs with %s/%s: %v", path, k, e)
				}
				if k == "tcp_keepalive" {
					keepalives++
				}
				walk(path+"/"+k, e)
			}
		}
	}
	walk("", dump)
	if clusters < 4 || keepalives < clusters-2 {
		t.Errorf("Envoy runs %d clusters and %d keepalives: this shows nothing", clusters, keepalives)
	}
	t.Logf("%d clusters and all chains without a limit of time, %d keepalive settings", clusters, keepalives)
}
