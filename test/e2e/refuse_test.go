// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"

	"aether.io/aether/internal/sandbox/echo"
)

// refusal is an address that is refused, and what is to be said about it.
type refusal struct {
	reason, address          string
	namespace, service, port string // empty where no Service has the address
}

var refusals = []refusal{
	{"no-endpoints", "10.96.0.10:80", "default", "empty", "http"},
	{"no-local-endpoints", "10.96.0.11:80", "default", "remote", "http"},
	{"port-not-declared", "10.96.0.12:81", "default", "web", "81"},
	{"no-service", "10.96.200.200:80", "", "", ""},
	{"not-proxied", "127.0.0.1:18001", "", "", ""},
}

// TestRefusals: every reason there is, to clients of several tempers. Each
// refusal is a reset, counted once and logged once, and explained.
func TestRefusals(t *testing.T) {
	n := up(t, nodes+server("web-1", "app: web")+server("far-1", "app: far", "nodeName: n2")+client("client")+
		service("empty", "10.96.0.10", `selector: {app: nobody}, ports: [{name: http, port: 80}]`)+
		service("remote", "10.96.0.11", `selector: {app: far}, internalTrafficPolicy: Local, ports: [{name: http, port: 80, targetPort: 8080}]`)+
		service("web", "10.96.0.12", `selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]`))
	made := 0
	for _, r := range refusals {
		t.Run(r.reason, func(t *testing.T) {
			made += testRefusedClients(t, n, r)
			made += testRefusedWriters(t, n, r)
			e := n.explain(t, r.address)
			if e.Answer != "refuse" || e.Reason != r.reason {
				t.Errorf("explained as %s", decision(e))
			}
			if s := e.Service; r.service != "" && (s == nil || s.Namespace != r.namespace || s.Name != r.service || s.Port != r.port) {
				t.Errorf("explained as Service %+v, want %s/%s port %s", s, r.namespace, r.service, r.port)
			}
			if r.service == "" && e.Service != nil {
				t.Errorf("explained as Service %+v, want none", e.Service)
			}
		})
	}
	t.Run("while the agent is down", func(t *testing.T) {
		n.ask(t, "client", "10.96.0.12:80")
		if err := n.StopAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, r := range refusals {
			for _, mode := range []string{"silent", "talk"} {
				made++
				v := testRefused(t, n, r, echo.Client{Mode: mode, Target: r.address})
				if v.Outcome != echo.Reset && v.Outcome != echo.Closed {
					t.Errorf("%s: a client that is %s sees %s, want a reset or a close", r.reason, mode, told(v))
				}
			}
		}
		n.ask(t, "client", "10.96.0.12:80")
		if err := n.StartAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, r := range refusals {
			made++
			if v := testRefused(t, n, r, echo.Client{Mode: "silent", Target: r.address}); v.Outcome != echo.Reset {
				t.Errorf("%s: with the agent back a client sees %s, want a reset", r.reason, told(v))
			}
		}
	})
	if got := n.counters(t).sum("aether_proxy_svc_refused", nil); got != made {
		t.Errorf("%d refusals counted in all, %d were made", got, made)
	}
	n.awaitLines(t, made, "refused", func(l logLine) bool { return l.Outcome == "refused" })
}

// testRefusedClients: one that is silent and some that talk. When the first word
// of a client meets the refusal half-way, Envoy's write fails before its read
// tells of the reset, and the client sees a close; that is rare.
func testRefusedClients(t *testing.T, n *node, r refusal) (made int) {
	t.Helper()
	closed := 0
	modes := []string{"silent", "talk", "talk", "http", "http"}
	for _, mode := range modes {
		v := testRefused(t, n, r, echo.Client{Mode: mode, Target: r.address})
		switch {
		case v.Outcome == echo.Reset && v.Errno == "ECONNRESET":
		case v.Outcome == echo.Closed && mode != "silent" && closed == 0:
			closed++
		default:
			t.Errorf("a client that is %s sees %s, want a reset", mode, told(v))
		}
	}
	return len(modes)
}

// testRefused makes one connection and checks what was logged and counted.
func testRefused(t *testing.T, n *node, r refusal, c echo.Client) echo.Verdict {
	t.Helper()
	before := n.counters(t)
	v := n.dial(t, "client", c)
	if v.LatencyMS > 1000 {
		t.Errorf("%s: it took %.0f ms to be refused", r.reason, v.LatencyMS)
	}
	l := n.awaitLogged(t, v)
	if l.Outcome != "refused" || l.Reason != r.reason || l.Source != "spiffe://aether.internal/ns/default/sa/client" ||
		l.ServiceNamespace != r.namespace || l.ServiceName != r.service || l.ServicePort != r.port {
		t.Errorf("%s: logged as %+v", r.reason, l)
	}
	delta := n.counters(t).since(before)
	source := labels{"source_namespace": "default", "source_service_account": "client"}
	all := labels{"reason": r.reason, "namespace": r.namespace, "service": r.service, "port": r.port}
	for k, v := range source {
		all[k] = v
	}
	if delta.sum("aether_proxy_svc_refused", nil) != 1 || delta.sum("aether_proxy_svc_refused", all) != 1 {
		t.Errorf("%s: counted as %v, want one refusal with %v", r.reason, delta, all)
	}
	if delta.sum("aether_egress_connections", nil) != 1 ||
		delta.sum("aether_egress_connections", labels{"outcome": "refused", "service": r.service, "source_service_account": "client"}) != 1 {
		t.Errorf("%s: counted as %v, want one connection with outcome refused", r.reason, delta)
	}
	return v
}

// testRefusedWriters: a client that has written 200 kB when it is refused. Here
// too a reset may rarely come as a close.
func testRefusedWriters(t *testing.T, n *node, r refusal) (made int) {
	t.Helper()
	made = 20
	before := n.counters(t)
	seen := map[echo.Outcome]int{}
	var last echo.Verdict
	for range made {
		last = n.dial(t, "client", echo.Client{Mode: "half-close", Target: r.address, Bytes: 200_000, Timeout: 3 * time.Second})
		seen[last.Outcome]++
	}
	if seen[echo.Reset] < made-1 || seen[echo.Reset]+seen[echo.Closed] != made {
		t.Errorf("clients that wrote 200 kB see %v, want resets; the last one %s", seen, told(last))
	}
	eventually(t, settled, "writers are counted", func() error {
		return n.counters(t).since(before).want("aether_proxy_svc_refused", labels{"reason": r.reason, "service": r.service}, made)
	})
	return made
}
