// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"aether.io/aether/internal/sandbox/echo"
)

// TestService is about Services that have endpoints: what a client can do
// through the node proxy, and which address and port lead where.
func TestService(t *testing.T) {
	n := up(t, server("web-1", "app: web")+server("web-2", "app: web")+
		perPodPort("mixed-1", 8080)+perPodPort("mixed-2", 8181)+
		client("client")+uncaptured("bare")+
		outside("database", "203.0.113.20", 5432)+
		service("web", "10.96.0.10", `selector: {app: web}, ports: [
  {name: http, port: 80, targetPort: 8080},
  {name: echo, port: 7, targetPort: 9000},
  {name: greeting, port: 25, targetPort: 9001}]`)+
		service("mixed", "10.96.0.11", `selector: {app: mixed}, ports: [{port: 80, targetPort: page}]`)+
		service("other", "10.96.0.12", `selector: {app: mixed}, ports: [{name: greeting, port: 25, targetPort: 9001}]`)+
		service("database", "10.96.0.20", `ports: [{name: sql, port: 5432}]`)+
		slice("database-by-hand", "database", "sql", 5432, "203.0.113.20"))
	t.Run("HTTP", func(t *testing.T) { testHTTP(t, n) })
	t.Run("server first", func(t *testing.T) { testServerFirst(t, n) })
	t.Run("half-close", func(t *testing.T) { testHalfClose(t, n, "10.96.0.10:7") })
	t.Run("100 MB each way", func(t *testing.T) { testTransfer(t, n) })
	t.Run("2000 connections", func(t *testing.T) { testManyConnections(t, n) })
	t.Run("target port by name and pod", func(t *testing.T) { testPerPodPort(t, n) })
	t.Run("two ports of one address, one port of two", func(t *testing.T) { testPorts(t, n) })
	t.Run("slice by hand, no selector", func(t *testing.T) { testHandMade(t, n) })
	t.Run("a pod reaches itself", func(t *testing.T) { testHairpin(t, n, n.PodIP("web-1")) })
	t.Run("uncaptured beside captured", func(t *testing.T) { testUncaptured(t, n) })
}

// perPodPort is a server whose port named page has a number of its own.
func perPodPort(name string, page int) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: mixed}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: echo
    image: aether/echo
    args: [--name, %s, --http, ":%d", --server-first, ":9001"]
    ports: [{name: page, containerPort: %d}]
    readinessProbe: {tcpSocket: {port: page}, periodSeconds: 1}
---
`, name, name, page, page)
}

// uncaptured is a client that is not meshed.
func uncaptured(name string) string {
	return strings.Replace(client(name), "role: client", `aether.io/managed: "false"`, 1)
}

func testHTTP(t *testing.T, n *node) {
	clientIP := n.PodIP("client").String()
	seen := map[string]int{}
	before := n.counters(t)
	const times = 6
	for range times {
		v := n.dial(t, "client", echo.Client{Mode: "http", Target: "10.96.0.10:80"})
		id := identity(t, v)
		seen[id.Pod]++
		if host, _, _ := net.SplitHostPort(id.Remote); host != clientIP {
			t.Errorf("%s sees %s, want the pod's own address %s", id.Pod, id.Remote, clientIP)
		}
		l := n.awaitLogged(t, v)
		if l.Outcome != "ok" || l.Source != "spiffe://aether.internal/ns/default/sa/client" || l.PodName != "client" ||
			l.ServiceNamespace != "default" || l.ServiceName != "web" || l.ServicePort != "http" ||
			l.Endpoint != id.Local || l.UpstreamSource != id.Remote || l.Attempts != 1 {
			t.Errorf("answered by %s at %s, logged as %+v", id.Pod, id.Local, l)
		}
	}
	wantInTurn(t, seen, "web-1", "web-2")
	delta := n.counters(t).since(before)
	if got := delta.sum("aether_egress_connections", nil); got != times {
		t.Errorf("%d connections counted, want %d: %v", got, times, delta)
	}
	if got := delta.sum("aether_egress_connections", labels{
		"source_namespace": "default", "source_service_account": "client",
		"namespace": "default", "service": "web", "port": "http", "outcome": "ok",
	}); got != times {
		t.Errorf("%d counted under the right labels, want %d: %v", got, times, delta)
	}

	names := []string{"web:80", "web.default:80", "web.default.svc:80", "web.default.svc.cluster.local:80"}
	vs := n.client(t, "client", append([]string{"--mode", "http"}, names...)...)
	wantAllOK(t, vs)
	for _, v := range vs {
		if v.Remote != "10.96.0.10:80" {
			t.Errorf("%s is %s, want 10.96.0.10:80", v.Target, v.Remote)
		}
		if l := n.awaitLogged(t, v); l.ServiceName != "web" {
			t.Errorf("%s was logged as %+v", v.Target, l)
		}
	}
}

func testServerFirst(t *testing.T, n *node) {
	v := n.dial(t, "client", echo.Client{Mode: "server-first", Target: "10.96.0.10:25", Exchanges: 3})
	if id := identity(t, v); !strings.HasPrefix(id.Pod, "web-") {
		t.Errorf("greeted by %q", id.Pod)
	}
	wantAllOK(t, n.client(t, "client", "--mode", "server-first", "web:25"))
}

func testHalfClose(t *testing.T, n *node, target string) {
	for _, size := range []int64{1, 4 << 10, 300 << 10} {
		v := n.dial(t, "client", echo.Client{Mode: "half-close", Target: target, Bytes: size})
		wantAllOK(t, []echo.Verdict{v})
		if v.Received != size {
			t.Errorf("sent %d bytes and a FIN, %d came back", size, v.Received)
		}
	}
}

// testTransfer: every byte is compared with what the pattern says at its place.
func testTransfer(t *testing.T, n *node) {
	const size = 100 << 20
	v := n.dial(t, "client", echo.Client{Mode: "transfer", Target: "10.96.0.10:7", Bytes: size, Timeout: 20 * time.Second})
	wantAllOK(t, []echo.Verdict{v})
	l := n.awaitLogged(t, v)
	if l.BytesSent != size || l.BytesReceived != size || l.Outcome != "ok" {
		t.Errorf("logged as %+v, want %d bytes each way", l, size)
	}
	t.Logf("%.0f MB/s each way", size/1e6/(v.TotalMS/1e3))
}

func testManyConnections(t *testing.T, n *node) {
	const total, dialers = 2000, 20
	conns := make([]net.Conn, total)
	var wg sync.WaitGroup
	for d := range dialers {
		wg.Go(func() {
			if err := n.InPod("client", func() error {
				for i := d; i < total; i += dialers {
					c, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(t.Context(), "tcp4", "10.96.0.10:7")
					if err != nil {
						return err
					}
					conns[i] = c
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	defer func() {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
	}()
	if t.Failed() {
		return
	}
	round := func(word string) {
		for d := range dialers {
			wg.Go(func() {
				for i := d; i < total; i += dialers {
					_ = conns[i].SetDeadline(time.Now().Add(20 * time.Second))
					if err := exchange(conns[i], fmt.Sprintf("%s %d", word, i)); err != nil {
						t.Errorf("connection %d: %v", i, err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	round("first")
	if active := n.gauge(t, "cluster.svc.default.web.echo.upstream_cx_active"); active != total {
		t.Errorf("Envoy has %d connections open, want %d", active, total)
	}
	round("second")
}

func testPerPodPort(t *testing.T, n *node) {
	e := n.explain(t, "10.96.0.11:80")
	one, two := fmt.Sprintf("%s:8080", n.PodIP("mixed-1")), fmt.Sprintf("%s:8181", n.PodIP("mixed-2"))
	if got := used(e); len(got) != 2 || got[0] != one && got[1] != one || got[0] != two && got[1] != two {
		t.Errorf("used are %v, want %s and %s", got, one, two)
	}
	wantInTurn(t, n.askMany(t, "client", "10.96.0.11:80", 6), "mixed-1", "mixed-2")
}

func testPorts(t *testing.T, n *node) {
	if who := n.ask(t, "client", "10.96.0.10:80"); !strings.HasPrefix(who, "web-") {
		t.Errorf("10.96.0.10:80 is %s, want a pod of web", who)
	}
	wantAllOK(t, []echo.Verdict{n.dial(t, "client", echo.Client{Mode: "talk", Target: "10.96.0.10:7"})})
	if who := n.ask(t, "client", "10.96.0.11:80"); !strings.HasPrefix(who, "mixed-") {
		t.Errorf("10.96.0.11:80 is %s, want a pod of mixed", who)
	}
	for target, want := range map[string]string{"10.96.0.10:25": "web-", "10.96.0.12:25": "mixed-"} {
		if who := answeredBy(t, n.dial(t, "client", echo.Client{Mode: "server-first", Target: target})); !strings.HasPrefix(who, want) {
			t.Errorf("%s is %s, want a pod %s…", target, who, want)
		}
	}
}

func testHandMade(t *testing.T, n *node) {
	v := n.dial(t, "client", echo.Client{Mode: "server-first", Target: "10.96.0.20:5432"})
	if who := answeredBy(t, v); who != "database" {
		t.Errorf("answered by %q, want database", who)
	}
	if l := n.awaitLogged(t, v); l.ServiceName != "database" || l.ServicePort != "sql" || l.Endpoint != "203.0.113.20:5432" {
		t.Errorf("logged as %+v", l)
	}
}

// testHairpin: the pod's Service leads to the pod itself, among others. source is
// the address the server is to see.
func testHairpin(t *testing.T, n *node, source netip.Addr) {
	self := 0
	for range 6 {
		id := identity(t, n.dial(t, "web-1", echo.Client{Mode: "http", Target: "10.96.0.10:80"}))
		if id.Pod != "web-1" {
			continue
		}
		self++
		if host, _, _ := net.SplitHostPort(id.Remote); host != source.String() {
			t.Errorf("web-1 sees itself come from %s, want %s", id.Remote, source)
		}
	}
	if self < 2 || self > 4 {
		t.Errorf("%d of 6 connections came back to the pod itself, want half of them", self)
	}
}

// TestHairpinFromNode is the case of a pod that reaches itself where Envoy dials
// from the node.
func TestHairpinFromNode(t *testing.T) {
	n := up(t, server("web-1", "app: web")+server("web-2", "app: web")+
		service("web", "10.96.0.10", `selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]`),
		nodeSourced)
	testHairpin(t, n, netip.MustParseAddr(n.Status().NodeIP))
}

// testUncaptured: nothing but the node proxy serves a Service here.
func testUncaptured(t *testing.T, n *node) {
	v := n.dial(t, "bare", echo.Client{Mode: "http", Target: "10.96.0.10:80", Timeout: 700 * time.Millisecond})
	if v.Outcome != echo.Timeout || v.Phase != echo.PhaseConnect {
		t.Errorf("an uncaptured pod that dials a Service sees %s, want no answer to its SYN", told(v))
	}
	if who := n.ask(t, "bare", fmt.Sprintf("%s:%d", n.PodIP("web-1"), portHTTP)); who != "web-1" {
		t.Errorf("an uncaptured pod that dials a pod reaches %q, want web-1", who)
	}
	n.awaitLogged(t, n.dial(t, "client", echo.Client{Mode: "http", Target: "10.96.0.10:80"}))
	n.awaitLines(t, 0, "of the uncaptured pod", func(l logLine) bool { return l.PodName == "bare" })
}

// wantInTurn wants two endpoints to have answered about as often: each of
// Envoy's two workers goes round on its own.
func wantInTurn(t *testing.T, seen map[string]int, one, two string) {
	t.Helper()
	if difference := seen[one] - seen[two]; seen[one] == 0 || len(seen) != 2 || difference < -2 || difference > 2 {
		t.Errorf("answered by %v, want %s and %s in turn", seen, one, two)
	}
}
