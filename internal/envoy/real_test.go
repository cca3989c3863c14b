// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"aether.io/aether/internal/plan"
)

// Clients of the tests with a real Envoy. Each returns what it read and the
// error that ended it, nil for a clean end.

// silent sends nothing.
func silent(c *net.TCPConn) (string, error) {
	b, err := io.ReadAll(c)
	return string(b), err
}

// talking sends a line and waits for the end.
func talking(c *net.TCPConn) (string, error) {
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return "", err
	}
	return silent(c)
}

// halfClosing sends a line and its end of stream, and waits for the other end.
func halfClosing(c *net.TCPConn) (string, error) {
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return "", err
	}
	if err := c.CloseWrite(); err != nil {
		return "", err
	}
	return silent(c)
}

// resetting resets after the first byte of an answer.
func resetting(c *net.TCPConn) (string, error) {
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return "", err
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		return "", err
	}
	if err := c.SetLinger(0); err != nil {
		return "", err
	}
	return "", c.Close()
}

// exchange dials from pod a, runs a client and closes.
func (l *lab) exchange(addr string, client func(*net.TCPConn) (string, error)) (string, error) {
	l.t.Helper()
	c, err := l.tryDial("a", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return client(c)
}

// Servers.

func echo(c *net.TCPConn) { _, _ = io.Copy(c, c) }

// banner speaks first, then says what address it sees.
func banner(c *net.TCPConn) {
	host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
	_, _ = fmt.Fprintf(c, "you are %s", host)
}

// afterEnd answers once the client has ended its stream.
func afterEnd(c *net.TCPConn) {
	b, _ := io.ReadAll(c)
	_, _ = fmt.Fprintf(c, "%d bytes", len(b))
}

// reset resets the client after a few bytes.
func reset(c *net.TCPConn) {
	_, _ = io.WriteString(c, "bye")
	_, _ = c.Read(make([]byte, 64))
	_ = c.SetLinger(0)
}

// startServing starts a lab with one pod and the Services that these tests dial.
func startServing(t *testing.T, source EgressSource) *lab {
	l := newServing(t, source)
	l.start(testCapture())
	return l
}

// newServing is startServing before the start.
func newServing(t *testing.T, source EgressSource) *lab {
	l := newLab(t, source, "a")
	l.stopRefuser = l.refuse()
	for port, handle := range map[string]func(*net.TCPConn){":80": echo, ":81": banner, ":82": afterEnd, ":83": reset} {
		l.serve(serverIP(1)+port, handle)
	}
	for _, a := range []plan.Answer{
		served("10.96.0.10:80", "echo", "tcp", serverIP(1)+":80"),
		served("10.96.0.10:81", "banner", "tcp", serverIP(1)+":81"),
		served("10.96.0.10:82", "after-end", "8082", serverIP(1)+":82"),
		served("10.96.0.10:83", "reset", "tcp", serverIP(1)+":83"),
		served("10.96.0.10:84", "dead", "tcp", serverIP(1)+":84"),
		served("10.96.0.10:85", "silent", "tcp", serverIP(8)+":85"),
		served("10.96.0.10:86", "n-1", "tcp", serverIP(1)+":84", serverIP(2)+":84", serverIP(1)+":80"),
		noEndpoints("10.96.0.11:80", "empty", "http"),
		portNotDeclared("10.96.0.10:99", "echo", "99"),
		noService("10.96.9.9:80"),
	} {
		l.answer(a)
	}
	l.set(Resources{Cluster: EmptyCluster(netip.MustParseAddrPort("10.96.9.10:80"))})
	return l
}

func bothSources(t *testing.T, f func(t *testing.T, source EgressSource)) {
	for _, source := range []EgressSource{PodSource, NodeSource} {
		t.Run(string(source), func(t *testing.T) { f(t, source) })
	}
}

func TestRealServing(t *testing.T) {
	bothSources(t, func(t *testing.T, source EgressSource) {
		l := startServing(t, source)
		seen := map[EgressSource]string{PodSource: "you are 10.244.0.2", NodeSource: "you are " + serverIP(1)}[source]
		for _, tc := range []struct {
			name, address string
			client        func(*net.TCPConn) (string, error)
			want          string
		}{
			{"echo, cold", "10.96.0.10:80", halfClosing, "hello\n"},
			{"echo, warm", "10.96.0.10:80", halfClosing, "hello\n"},
			{"server speaks first", "10.96.0.10:81", silent, seen},
			{"answer after the client's end", "10.96.0.10:82", halfClosing, "6 bytes"},
			{"passed through", serverIP(1) + ":81", silent, seen},
			{"two of three dead", "10.96.0.10:86", halfClosing, "hello\n"},
		} {
			if got, err := l.exchange(tc.address, tc.client); err != nil || got != tc.want {
				t.Errorf("%s: %q, %v, want %q", tc.name, got, err, tc.want)
			}
		}
		lines := l.waitLines(6)
		checkFirstLine(t, lines[0])
		web := []string{`source_namespace="default"`, `source_service_account="a-sa"`, `namespace="default"`, `service="echo"`, `port="tcp"`}
		l.waitMetric(2, "envoy_aether_egress_connections", slices.Concat(web, []string{`outcome="ok"`})...)
		l.waitMetric(12, "envoy_aether_egress_bytes_sent", web...)
		l.waitMetric(12, "envoy_aether_egress_bytes_received", web...)
		l.waitMetric(1, "envoy_aether_egress_connections", slices.Concat(web[:2], []string{`namespace=""`, `service=""`, `port=""`, `outcome="ok"`})...)
		l.waitMetric(2, "envoy_cluster_upstream_cx_total", `envoy_cluster_name="svc"`, `namespace="default"`, `service="echo"`, `port="tcp"`)
		if body, err := l.admin("/stats?filter=^cluster.svc.*upstream_rq"); err != nil || strings.TrimSpace(body) != "" {
			t.Errorf("statistics of HTTP are kept: %v %s", err, body)
		}
	})
}

// checkFirstLine compares a served connection's log line with the schema.
func checkFirstLine(t *testing.T, line logLine) {
	t.Helper()
	var keys, schema []string
	for k := range line {
		keys = append(keys, k)
	}
	for _, f := range LogSchema() {
		schema = append(schema, f.Key)
		switch v := line[f.Key].(type) {
		case nil:
		case string:
			if f.Type != "string" {
				t.Errorf("%s is the string %q", f.Key, v)
			}
		case float64:
			if f.Type != "number" {
				t.Errorf("%s is the number %v", f.Key, v)
			}
		default:
			t.Errorf("%s is %v", f.Key, v)
		}
	}
	if diff := cmp.Diff(slices.Sorted(slices.Values(schema)), slices.Sorted(slices.Values(keys))); diff != "" {
		t.Errorf("keys of the log (-schema +line):\n%s", diff)
	}
	if _, err := time.Parse(time.RFC3339Nano, fmt.Sprint(line["time"])); err != nil {
		t.Error(err)
	}
	wanted := logLine{
		"source": "spiffe://aether.internal/ns/default/sa/a-sa", "pod_namespace": "default", "pod_name": "a",
		"dialled": "10.96.0.10:80", "chain": "cap_svc", "service_namespace": "default", "service_name": "echo",
		"service_port": "tcp", "cluster": "svc:10.96.0.10:80", "endpoint": serverIP(1) + ":80", "attempts": 1.0,
		"attempted": serverIP(1) + ":80", "bytes_sent": 6.0, "bytes_received": 6.0, "outcome": "ok", "flags": "-",
		"reason": nil, "client_close": "Normal", "close_reason": nil, "failure": nil,
	}
	for k, want := range wanted {
		if line[k] != want {
			t.Errorf("log line: %s is %v, want %v", k, line[k], want)
		}
	}
	if wait, ok := line["wait_us"].(float64); !ok || wait < 1 {
		t.Errorf("log line: wait_us is %v", line["wait_us"])
	}
}

func TestRealHTTP(t *testing.T) {
	l := newLab(t, PodSource, "a")
	var ln net.Listener
	l.must(within("/run/netns/"+l.node, func() (err error) {
		ln, err = net.Listen("tcp4", serverIP(1)+":8080")
		return err
	}))
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) })}
	go func() { _ = srv.Serve(ln) }()
	t.Cleanup(func() { _ = srv.Close() })
	l.answer(served("10.96.0.12:80", "web", "http", serverIP(1)+":8080"))
	l.start(testCapture())
	client := http.Client{Timeout: waitLimit, Transport: &http.Transport{
		DialContext: func(_ context.Context, _, addr string) (c net.Conn, err error) {
			err = within(l.pods["a"].NetNS, func() error { c, err = net.Dial("tcp4", addr); return err })
			return c, err
		},
	}}
	t.Cleanup(client.CloseIdleConnections)
	var wg sync.WaitGroup
	for i := range 10 { // ten clients on one cold name
		wg.Go(func() {
			path := fmt.Sprintf("/%d", i)
			resp, err := client.Get("http://10.96.0.12" + path)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); err != nil || string(body) != path {
				t.Errorf("GET %s: %q, %v", path, body, err)
			}
		})
	}
	wg.Wait()
}

// TestRealManyConnections holds more connections to one Service than Envoy's
// default circuit breaker allows.
func TestRealManyConnections(t *testing.T) {
	l := startServing(t, PodSource)
	for i := range 1200 {
		c := l.dial("a", "10.96.0.10:80")
		if _, err := io.WriteString(c, "x"); err != nil {
			t.Fatal(i, err)
		}
		if _, err := bufio.NewReader(c).ReadByte(); err != nil {
			t.Fatal(i, err)
		}
	}
}

// TestRealRefusals dials what is refused, silent and talking, with the refuser
// there and away: each is one reset (a close when it is away), one log line and
// one count.
func TestRealRefusals(t *testing.T) {
	bothSources(t, func(t *testing.T, source EgressSource) {
		l := startServing(t, source)
		refusals := []struct {
			address, reason, namespace, service, port string
		}{
			{"10.96.0.11:80", "no-endpoints", "default", "empty", "http"},
			{"10.96.0.10:99", "port-not-declared", "default", "echo", "99"},
			{"10.96.9.9:80", "no-service", "", "", ""},
			{"169.254.169.254:80", "not-proxied", "", "", ""},
		}
		lines, dialled := 0, 0
		count := func(want int) {
			t.Helper()
			for _, r := range refusals {
				l.waitMetric(want, "envoy_aether_proxy_svc_refused", fmt.Sprintf("reason=%q", r.reason), fmt.Sprintf("namespace=%q", r.namespace),
					fmt.Sprintf("service=%q", r.service), fmt.Sprintf("port=%q", r.port), `source_namespace="default"`, `source_service_account="a-sa"`)
			}
		}
		dialAll := func(wantReset bool) {
			t.Helper()
			for _, client := range []func(*net.TCPConn) (string, error){silent, talking} {
				for _, r := range refusals {
					got, err := l.exchange(r.address, client)
					if got != "" || wantReset && !errors.Is(err, syscall.ECONNRESET) || !wantReset && errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("%s: %q, %v", r.reason, got, err)
					}
					lines++
					line := l.waitLines(lines)[lines-1]
					text := func(k string) string { s, _ := line[k].(string); return s }
					if line["outcome"] != "refused" || line["reason"] != r.reason || line["dialled"] != r.address ||
						text("service_namespace") != r.namespace || text("service_name") != r.service || text("service_port") != r.port {
						t.Errorf("%s: log line %v", r.reason, line)
					}
				}
			}
			dialled += 2
			count(dialled)
		}
		dialAll(true)
		l.stopRefuser()
		dialAll(false)
		if got := len(l.lines()); got != lines {
			t.Errorf("%d log lines for %d refusals", got, lines)
		}
	})
}

// TestRealOutcomes brings every outcome about and finds it in the counter and,
// as far as the log can tell it, in the log.
func TestRealOutcomes(t *testing.T) {
	l := startServing(t, PodSource)
	runInput(t, "table ip t { chain c { type filter hook input priority 0; ip daddr "+serverIP(8)+" drop; }; }", "ip", "netns", "exec", l.node, "nft", "-f", "-")
	for i, tc := range []struct {
		address string
		client  func(*net.TCPConn) (string, error)
		labels  string
		outcome Outcome
		logged  Outcome
	}{
		{"10.96.0.10:80", halfClosing, `namespace="default",service="echo",port="tcp"`, OK, OK},
		{"10.96.0.10:80", resetting, `namespace="default",service="echo",port="tcp"`, ClientReset, OK},
		{"10.96.0.10:83", talking, `namespace="default",service="reset",port="tcp"`, ServerReset, ServerReset},
		{"10.96.0.10:84", talking, `namespace="default",service="dead",port="tcp"`, ConnectFailed, ConnectFailed},
		{"10.96.0.10:85", silent, `namespace="default",service="silent",port="tcp"`, Timeout, Timeout},
		{"10.96.0.11:80", silent, `namespace="default",service="empty",port="http"`, Refused, Refused},
		{"10.96.9.10:80", silent, `namespace="",service="",port=""`, Unanswered, Unanswered},
		{"10.96.9.11:80", silent, `namespace="",service="",port=""`, Unanswered, Unanswered},
	} {
		want := 1 + l.metric("envoy_aether_egress_connections", `source_namespace="default",source_service_account="a-sa"`, tc.labels, fmt.Sprintf("outcome=%q", tc.outcome))
		_, _ = l.exchange(tc.address, tc.client)
		line := l.waitLines(i + 1)[i]
		if line["outcome"] != string(tc.logged) || line["dialled"] != tc.address {
			t.Errorf("%s: want %s in the log line %v", tc.address, tc.logged, line)
		}
		if told := line["client_close"] == "RemoteReset"; told != (tc.outcome == ClientReset) {
			t.Errorf("%s: client_close is %v", tc.address, line["client_close"])
		}
		l.waitMetric(want, "envoy_aether_egress_connections", `source_namespace="default",source_service_account="a-sa"`, tc.labels, fmt.Sprintf("outcome=%q", tc.outcome))
	}
}
