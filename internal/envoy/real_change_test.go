// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"aether.io/aether/internal/plan"
)

// open dials an echo Service and proves that the connection works.
func (l *lab) open(pod, addr string) *net.TCPConn {
	l.t.Helper()
	c := l.dial(pod, addr)
	l.must(ping(c))
	return c
}

// ping sends a line over an echoing connection and reads it back.
func ping(c *net.TCPConn) error {
	if _, err := io.WriteString(c, "ping\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && line != "ping\n" {
		err = fmt.Errorf("got %q", line)
	}
	return err
}

// TestRealAnswerChanges takes a Service port from serving to refusing, back, to
// passing through and to serving again, with a connection that lives through it.
func TestRealAnswerChanges(t *testing.T) {
	l := startServing(t, PodSource)
	const vip = "10.96.0.10:80"
	server := serverIP(1) + ":80"
	live := l.open("a", vip)
	version := func() string {
		body, err := l.admin("/stats?filter=^cluster_manager.cluster_modified$")
		l.must(err)
		return body
	}
	before := version()
	becomes := func(what string, a plan.Answer, ok func(got string, err error) bool) {
		t.Helper()
		l.answer(a)
		l.eventually(what, func() error {
			if got, err := l.exchange(vip, halfClosing); !ok(got, err) {
				return errors.New("last seen: " + strconv.Quote(got) + ", " + fmt.Sprint(err))
			}
			return nil
		})
		if err := ping(live); err != nil {
			t.Errorf("%s: the established connection: %v", what, err)
		}
	}
	isReset := func(_ string, err error) bool { return errors.Is(err, syscall.ECONNRESET) }
	isServed := func(got string, err error) bool { return got == "hello\n" && err == nil }
	refused := noEndpoints(vip, "echo", "tcp")
	becomes("refusing", refused, isReset)
	becomes("serving again", served(vip, "echo", "tcp", server), isServed)
	becomes("refusing again", refused, isReset)
	if after := version(); after != before {
		t.Errorf("the cluster was replaced: %s, before %s", after, before)
	}
	// Nothing listens on the VIP itself, so passing through is seen as a failed connect.
	run(t, "ip", "-n", l.node, "addr", "add", "10.96.0.10/32", "dev", "lo")
	becomes("passing through", passedThrough(refused), isReset)
	l.serve(vip, afterEnd)
	becomes("passing through to a server", passedThrough(refused), func(got string, err error) bool { return got == "6 bytes" && err == nil })
	becomes("serving at last", served(vip, "echo", "tcp", server), isServed)
}

// TestRealMatcherChangesInPlace changes ranges and mode of a listener that holds
// a connection.
func TestRealMatcherChangesInPlace(t *testing.T) {
	l := startServing(t, PodSource)
	l.answer(served("10.97.0.10:80", "late", "tcp", serverIP(1)+":80"))
	run(t, "ip", "-n", l.node, "addr", "add", "10.96.0.10/32", "dev", "lo") // passing through fails at once
	live := l.open("a", "10.96.0.10:80")
	for i, step := range []struct {
		name    string
		change  func(*plan.Capture)
		address string
		chain   string
	}{
		{"second range", func(c *plan.Capture) { c.Service = append(c.Service, netip.MustParsePrefix("10.97.0.0/16")) }, "10.97.0.10:80", ChainService},
		{"measuring", func(c *plan.Capture) { c.OnDemand = false }, "10.96.0.10:80", ChainServicePassthrough},
		{"API server elsewhere", func(c *plan.Capture) { c.APIServer = []netip.Addr{netip.MustParseAddr("10.96.0.10")} }, "10.96.0.10:80", ChainPassthrough},
		{"never proxied", func(c *plan.Capture) {
			c.NeverProxied = append(c.NeverProxied, netip.MustParsePrefix("10.96.0.10/32"))
		}, "10.96.0.10:80", ChainClosed},
		{"no range", func(c *plan.Capture) { c.Service, c.APIServer = nil, nil }, serverIP(1) + ":80", ChainPassthrough},
	} {
		c := testCapture()
		step.change(&c)
		l.capture(c)
		l.eventually(step.name, func() error {
			body, err := l.admin("/stats?filter=^listener_manager.listener_in_place_updated$")
			if err == nil && !strings.HasSuffix(strings.TrimSpace(body), fmt.Sprintf(": %d", i+1)) {
				err = errors.New(body)
			}
			return err
		})
		n := len(l.lines())
		_, _ = l.exchange(step.address, func(d *net.TCPConn) (string, error) {
			_ = d.CloseWrite()
			_, err := io.Copy(io.Discard, d)
			return "", err
		})
		if line := l.waitLines(n + 1)[n]; line["chain"] != step.chain {
			t.Errorf("%s: %s went to %v, want %s", step.name, step.address, line["chain"], step.chain)
		}
		if err := ping(live); err != nil {
			t.Errorf("%s: the established connection: %v", step.name, err)
		}
	}
}

// TestRealPodLimit fills a pod's limit: further connections of that pod are
// turned away and counted, another pod's are served.
func TestRealPodLimit(t *testing.T) {
	l := newLab(t, PodSource, "a", "b")
	l.settings.PodConnectionLimit = 3
	l.serve(serverIP(1)+":80", echo)
	l.answer(served("10.96.0.10:80", "echo", "tcp", serverIP(1)+":80"))
	l.start(testCapture())
	held := make([]*net.TCPConn, 3)
	for i := range held {
		held[i] = l.open("a", "10.96.0.10:80")
	}
	if got, err := l.exchange("10.96.0.10:80", silent); got != "" || err != nil {
		t.Errorf("over the limit: %q, %v", got, err)
	}
	if line := l.waitLines(1)[0]; line["close_reason"] != "over_connection_limit" || line["pod_name"] != "a" {
		t.Errorf("log line %v", line)
	}
	l.waitMetric(1, "envoy_aether_egress_connections", `source_namespace="default"`, `source_service_account="a-sa"`,
		`namespace=""`, `service=""`, `port=""`, `outcome="refused"`)
	if body, err := l.admin("/stats?filter=^connection_limit.capture.limited_connections$"); err != nil || !strings.Contains(body, ": 1\n") {
		t.Errorf("limited connections: %v %s", err, body)
	}
	l.open("b", "10.96.0.10:80")
	l.must(held[0].Close())
	l.waitLines(2)
	l.open("a", "10.96.0.10:80")
}

// TestRealNodeLimit dials more than the overload manager allows under a small
// descriptor limit: Envoy turns them away, counts them and lives.
func TestRealNodeLimit(t *testing.T) {
	l := newLab(t, PodSource, "a")
	l.boot.DescriptorLimit = minDescriptors
	l.serve(serverIP(1)+":80", echo)
	l.answer(served("10.96.0.10:80", "echo", "tcp", serverIP(1)+":80"))
	l.start(testCapture())
	limit := int(MaxConnections(minDescriptors))
	working := 0
	for range limit + 20 {
		if c, err := l.tryDial("a", "10.96.0.10:80"); err == nil && ping(c) == nil {
			working++
		}
	}
	if working != limit {
		t.Errorf("%d connections work, want %d", working, limit)
	}
	body, err := l.admin("/stats?filter=^listener.capture.downstream_global_cx_overflow$")
	if err != nil || !strings.Contains(body, ": 20\n") {
		t.Errorf("turned away: %v %s", err, body)
	}
}

// TestRealAffinity dials a Service with ClientIP affinity from two pods: each
// always reaches one endpoint.
func TestRealAffinity(t *testing.T) {
	l := newLab(t, PodSource, "a", "b")
	var endpoints []string
	for i := 1; i <= 5; i++ {
		e := serverIP(i) + ":80"
		l.serve(e, func(c *net.TCPConn) { _, _ = io.WriteString(c, e) })
		endpoints = append(endpoints, e)
	}
	l.answer(clientIP(served("10.96.0.10:80", "sticky", "tcp", endpoints...)))
	l.start(testCapture())
	for _, pod := range []string{"a", "b"} {
		reached := map[string]bool{}
		for range 20 {
			c := l.dial(pod, "10.96.0.10:80")
			got, err := silent(c)
			_ = c.Close()
			if err != nil {
				t.Fatal(err)
			}
			reached[got] = true
		}
		if len(reached) != 1 {
			t.Errorf("pod %s reached %v", pod, reached)
		}
	}
}

// TestRealCounterBound gives all listeners together room for few counters: what
// does not fit is dropped and said, and nothing else is harmed.
func TestRealCounterBound(t *testing.T) {
	l := newLab(t, PodSource, "a", "b")
	l.serve(serverIP(1)+":80", echo)
	l.answer(served("10.96.0.10:80", "echo", "tcp", serverIP(1)+":80"))
	l.bound = 6 // a connection needs four
	l.start(testCapture())
	for _, pod := range []string{"a", "b"} {
		c := l.open(pod, "10.96.0.10:80")
		_ = c.Close()
	}
	l.waitLines(2)
	body, err := l.admin("/stats?filter=^aether_egress")
	if err != nil || strings.Count(body, "\n") != l.bound {
		t.Errorf("counters: %v\n%s", err, body)
	}
	l.waitMetric(2, "envoy_server_stats_overflow_counter")
}

// TestRealSampling logs no success at 0 % and every failure, and follows the
// runtime key.
func TestRealSampling(t *testing.T) {
	l := newLab(t, PodSource, "a")
	l.boot.AccessLogSuccessPercent = 0
	l.refuse()
	l.serve(serverIP(1)+":80", echo)
	l.answer(served("10.96.0.10:80", "echo", "tcp", serverIP(1)+":80"))
	l.answer(noEndpoints("10.96.0.11:80", "empty", "http"))
	l.start(testCapture())
	dial := func() {
		for range 5 {
			if got, err := l.exchange("10.96.0.10:80", halfClosing); got != "hello\n" || err != nil {
				t.Fatal(got, err)
			}
		}
		_, _ = l.exchange("10.96.0.11:80", talking)
	}
	dial()
	l.waitMetric(5, "envoy_aether_egress_connections", `source_namespace="default",source_service_account="a-sa",namespace="default",service="echo",port="tcp",outcome="ok"`)
	if lines := l.waitLines(1); len(lines) != 1 || lines[0]["reason"] != "no-endpoints" {
		t.Errorf("log lines %v", lines)
	}
	if _, err := l.adminPost("/runtime_modify?" + RuntimeSuccessPercent + "=100"); err != nil {
		t.Fatal(err)
	}
	dial()
	l.waitLines(7)
}

// TestRealDeadServer cuts a server off from an established connection with data
// in flight. Its time is made short for the test, in the cluster alone.
func TestRealDeadServer(t *testing.T) {
	bothSources(t, func(t *testing.T, source EgressSource) {
		l := newLab(t, source, "a")
		l.serve(serverIP(1)+":80", echo)
		r := Translate(served("10.96.0.10:80", "echo", "tcp", serverIP(1)+":80"), l.settings)
		for _, o := range r.Cluster.GetUpstreamBindConfig().GetSocketOptions() {
			if o.GetName() == tcpUserTimeout {
				o.Value = &corev3.SocketOption_IntValue{IntValue: 500}
			}
		}
		l.set(r)
		l.start(testCapture())
		c := l.open("a", "10.96.0.10:80")
		runInput(t, "table ip t { chain c { type filter hook input priority 0; ip daddr "+serverIP(1)+" drop; }; }", "ip", "netns", "exec", l.node, "nft", "-f", "-")
		began := time.Now()
		if err := ping(c); err == nil || time.Since(began) > waitLimit/2 {
			t.Errorf("the dead server was noticed after %v: %v", time.Since(began), err)
		}
	})
}
