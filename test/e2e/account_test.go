// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"aether.io/aether/internal/sandbox/echo"
)

// TestAccounting makes connections that end in every way there is, and wants
// each in the counters and in the log with its outcome: what a client saw as
// failed has a cause written down, and nothing is counted that was not made.
func TestAccounting(t *testing.T) {
	n := up(t, server("web-1", "app: web")+client("dead")+client("client")+outside("world", "203.0.113.20", 5432)+
		service("web", "10.96.0.10", `selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}, {name: echo, port: 7, targetPort: 9000}]`)+
		service("empty", "10.96.0.11", `selector: {app: nobody}, ports: [{name: http, port: 80}]`)+
		service("dead", "10.96.0.12", `ports: [{name: http, port: 80}]`)+
		service("silent", "10.96.0.13", `ports: [{name: http, port: 80}]`)+slice("silent-1", "silent", "http", 80, "198.51.100.7")+
		service("rude", "10.96.0.14", `ports: [{name: http, port: 80}]`))
	n.keepAccount()
	rude := n.serve(t, "dead", 7000, func(c *net.TCPConn) {
		_, _ = io.ReadFull(c, make([]byte, 5))
		_ = c.SetLinger(0)
		c.Close()
	})
	n.write(t, "slices.yaml", slice("dead-1", "dead", "http", 81, n.PodIP("dead").String())+
		slice("rude-1", "rude", "http", int(rude.Port()), rude.Addr().String()))
	n.awaitUsed(t, "10.96.0.12:80", 1)
	n.awaitUsed(t, "10.96.0.14:80", 1)

	want := map[string]int{} // by outcome
	failed := map[echo.Outcome]bool{echo.Reset: true, echo.Closed: true}
	var mu sync.Mutex
	dial := func(outcome string, times int, c echo.Client) {
		for range times {
			v := n.dial(t, "client", c)
			l := n.awaitLogged(t, v)
			if l.Outcome != outcome {
				t.Errorf("%s: logged as %+v, want outcome %s", told(v), l, outcome)
			}
			if ok := outcome == "ok"; ok != (v.Outcome == echo.OK) || !ok && !failed[v.Outcome] {
				t.Errorf("the client sees %s, logged as %s", told(v), outcome)
			}
			mu.Lock()
			want[outcome]++
			mu.Unlock()
		}
	}
	patient := 15 * time.Second
	var slow sync.WaitGroup
	slow.Go(func() { dial("timeout", 1, echo.Client{Mode: "http", Target: "10.96.0.13:80", Timeout: patient}) })
	dial("ok", 10, echo.Client{Mode: "http", Target: "10.96.0.10:80"})
	dial("ok", 5, echo.Client{Mode: "half-close", Target: "10.96.0.10:7"})
	dial("ok", 2, echo.Client{Mode: "server-first", Target: "203.0.113.20:5432"}) // passed through
	dial("refused", 4, echo.Client{Mode: "talk", Target: "10.96.0.11:80"})
	dial("refused", 3, echo.Client{Mode: "silent", Target: "10.96.77.77:80"})
	dial("refused", 2, echo.Client{Mode: "http", Target: "10.96.0.10:81"})
	dial("connect-failed", 5, echo.Client{Mode: "http", Target: "10.96.0.12:80"})
	dial("connect-failed", 2, echo.Client{Mode: "http", Target: "203.0.113.20:1"}) // passed through
	dial("server-reset", 3, echo.Client{Mode: "http", Target: "10.96.0.14:80"})

	// A name that was never asked for has no answer while the agent is away.
	if err := n.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	dial("unanswered", 1, echo.Client{Mode: "talk", Target: "10.96.88.88:80", Timeout: patient})
	if err := n.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}

	slow.Wait()
	want["client-reset"] = testClientResets(t, n, "10.96.0.10:7", 3)

	total := 0
	c := n.counters(t)
	for outcome, times := range want {
		total += times
		if err := c.want("aether_egress_connections", labels{"outcome": outcome, "source_service_account": "client"}, times); err != nil {
			t.Error(err)
		}
	}
	if err := c.want("aether_egress_connections", nil, total); err != nil {
		t.Errorf("in all: %v", err)
	}
	n.awaitLines(t, total, "any", func(logLine) bool { return true })
	t.Logf("%d connections: %v", total, want)
}

// testClientResets makes connections that the client resets. The log calls them
// ok and says who reset them; the counter has an outcome of its own.
func testClientResets(t *testing.T, n *node, target string, times int) int {
	t.Helper()
	for i := range times {
		began := time.Now()
		c := n.conn(t, "client", target)
		if err := exchange(c, fmt.Sprint("line ", i)); err != nil {
			t.Error(err)
		}
		_ = c.SetLinger(0)
		c.Close()
		l := n.awaitLogged(t, echo.Verdict{Time: began, Local: c.LocalAddr().String(), Remote: target, Mode: "reset", Target: target})
		if l.Outcome != "ok" || l.ClientClose != "RemoteReset" {
			t.Errorf("a connection that the client reset was logged as %+v", l)
		}
	}
	return times
}
