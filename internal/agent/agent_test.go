// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"aether.io/aether/internal/agent/api"
)

func TestConfigValidate(t *testing.T) {
	good := DefaultConfig()
	good.Node = "n1"
	if err := good.Validate(); err != nil {
		t.Fatalf("the defaults: %v", err)
	}
	prefix := func(s string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(s)} }
	for _, c := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.Node = "" }, "node name is empty"},
		{func(c *Config) { c.Mode = "on" }, `service egress "on"`},
		{func(c *Config) { c.ServiceRange = prefix("fd00::/112") }, `service range "fd00::/112"`},
		{func(c *Config) { c.ServiceRange = prefix("10.96.0.1/16") }, "want 10.96.0.0/16"},
		{func(c *Config) { c.RunDir = "run" }, `run dir "run": not an absolute path`},
		{func(c *Config) { c.StateDir = "" }, `state dir "": not an absolute path`},
		{func(c *Config) { c.DemandWindow = 0 }, "demand window 0s"},
		{func(c *Config) { c.NoServiceHold = -1 }, "no-service hold"},
		{func(c *Config) { c.NoServiceHold = 4 * time.Second }, "want 0 to 3s"},
		{func(c *Config) { c.NameBudget = 0 }, "name budget 0"},
		{func(c *Config) { c.LookRate = 0 }, "look rate 0"},
		{func(c *Config) { c.ScrapeInterval = 0 }, "scrape interval 0s"},
		{func(c *Config) { c.MetricsAddress = "18090" }, `metrics address "18090"`},
		{func(c *Config) { c.Envoy.EgressSource = "both" }, `egress source "both"`},
		{func(c *Config) { c.Envoy.TrustDomain = "" }, "trust domain"},
		{func(c *Config) { c.RunDir = "/" + strings.Repeat("x", 120) }, "longer than 107 bytes"},
	} {
		bad := good
		c.change(&bad)
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
		if _, err := New(bad, Deps{Source: Manifests(nil)}); err == nil {
			t.Errorf("New takes what Validate refuses as %q", c.want)
		}
	}
	if _, err := New(good, Deps{}); err == nil {
		t.Error("New takes no source")
	}
}

func TestMetricsLint(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	m := NewMetrics(r)
	m.mode.WithLabelValues("enforce")
	m.names.WithLabelValues("held")
	m.pods.WithLabelValues(listenerReady)
	m.damaged.WithLabelValues(demandFile)
	m.unsaved.WithLabelValues(demandFile)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(families) != 19 {
		t.Errorf("%d metrics are checked, want all 19", len(families))
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// A pod may be dialled thousands of ways; no metric may have a series for each.
func TestLabelsAreClosedSets(t *testing.T) {
	n := newLoopTest(t)
	n.sync(t)
	before := series(t, n.registry)
	var ts []netip.AddrPort
	for i := range 3000 {
		ts = append(ts, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(1 + i>>8), byte(i)}), 80))
	}
	n.ask(t, ts...)
	n.clock.Advance(4 * second)
	n.turn(nil)
	if after := series(t, n.registry); after != before {
		t.Errorf("%d series after 3,000 names, %d before", after, before)
	}
}

func series(t *testing.T, g prometheus.Gatherer) int {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range families {
		n += len(f.GetMetric())
	}
	return n
}

func newTestScenario(t *testing.T) *scenario {
	t.Helper()
	s, err := newScenario(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	return s
}

// freePort returns an address on loopback where nobody listens now.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestWhatIsServedWhere(t *testing.T) {
	s := newTestScenario(t)
	address := freePort(t)
	if err := s.startAgent([]string{"metrics=" + address}, (*scenario).awaitReady); err != nil {
		t.Fatal(err)
	}
	tcp := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	agent := s.agent.client[agentSocket]
	for _, c := range []struct {
		client    *http.Client
		url, body string
		code      int
	}{
		{tcp, "http://" + address + "/healthz", "ok", 200},
		{tcp, "http://" + address + "/readyz", "ok", 200},
		{tcp, "http://" + address + "/metrics", "aether_agent_sources_synced 1", 200},
		{tcp, "http://" + address + "/metrics", "aether_xds_streams 0", 200},
		{tcp, "http://" + address + "/metrics", "aether_build_info{", 200},
		{tcp, "http://" + address + "/debug/pprof/", "404", 404},
		{tcp, "http://" + address + "/v1/mode", "404", 404},
		{agent, "http://agent/debug/pprof/cmdline", "", 200},
		{agent, "http://agent/v1/pods", `{"error":"GET /v1/pods: 404 page not found"}`, 404},
		{agent, "http://agent/v1//status", `{"error":"GET /v1//status: not found"}`, 404},
		{agent, "http://agent/v1/explain", `address \"\": want IP:port`, 400},
		{agent, "http://agent/v1/explain?address=10.96.0.1", "want IP:port", 400},
		{agent, "http://agent/v1/explain?address=10.96.0.1:0", "want IP:port", 400},
		{agent, "http://agent/v1/explain?address=10.96.0.1:80", `"class":"external"`, 200},
		{agent, "http://agent/v1/explain?address=%5Bfd00::1%5D:80", `"class":"external"`, 200},
		{agent, "http://agent/v1/services", "[]", 200},
	} {
		resp, err := c.client.Get(c.url)
		if err != nil {
			t.Errorf("%s: %v", c.url, err)
			continue
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.code || !strings.Contains(string(body), c.body) {
			t.Errorf("%s: %d %.200s %v; want %d with %q", c.url, resp.StatusCode, body, err, c.code, c.body)
		}
	}
	for name, mode := range map[string]fs.FileMode{
		xdsSocket: envoyMode, refuseSocket: envoyMode, cniSocket: ownMode, agentSocket: ownMode,
	} {
		if info, err := os.Stat(filepath.Join(s.run, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v %v, want mode %v", name, info, err, mode)
		}
	}
}

func TestRequestsThatCannotBeRead(t *testing.T) {
	s := newTestScenario(t)
	if err := s.startAgent(nil, (*scenario).awaitReady); err != nil {
		t.Fatal(err)
	}
	huge := `{"namespace":"` + strings.Repeat("x", maxBody) + `"}`
	for _, c := range []struct{ socket, method, path, body, want string }{
		{cniSocket, "POST", "/v1/pods", "", "read pod: EOF"},
		{cniSocket, "POST", "/v1/pods", "[1]", "read pod: json"},
		{cniSocket, "POST", "/v1/pods", huge, "too large"},
		{cniSocket, "DELETE", "/v1/pods/default/A_b", "", "no name of a pod: default/A_b"},
		{agentSocket, "PUT", "/v1/mode", "enforce", "read mode"},
		{agentSocket, "PUT", "/v1/mode", "{}", `mode \"\"`},
	} {
		req, err := http.NewRequest(c.method, "http://agent"+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.agent.client[c.socket].Do(req)
		if err != nil {
			t.Errorf("%s %s: %v", c.method, c.path, err)
			continue
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), c.want) {
			t.Errorf("%s %s: %d %.200s; want 400 with %q", c.method, c.path, resp.StatusCode, body, c.want)
		}
	}
}

// A stopped agent leaves neither sockets nor goroutines (TestMain), and whoever
// waits for it is told.
func TestStop(t *testing.T) {
	s := newTestScenario(t)
	if err := s.startAgent(nil, (*scenario).awaitReady); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.netns, "a"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { // nobody acknowledges its listener
		_, err := s.agent.call(cniSocket, http.MethodPost, "/v1/pods", api.Pod{
			Namespace: "default", Name: "a",
			ServiceAccount: "a", IP: "10.244.0.2", NetNS: filepath.Join(s.netns, "a"),
		}, nil)
		result <- err
	}()
	if err := s.awaitPod("default", "a"); err != nil {
		t.Fatal(err)
	}
	s.agent.cancel()
	if err := <-s.agent.done; err != nil {
		t.Errorf("run: %v", err)
	}
	s.agent.done <- nil
	if err := <-result; err == nil || !strings.Contains(err.Error(), "503: the agent is stopping") {
		t.Errorf("the pod's caller got %v", err)
	}
	left, err := filepath.Glob(filepath.Join(s.run, "*.sock"))
	if err != nil || len(left) > 0 {
		t.Errorf("sockets left: %v %v", left, err)
	}
	if b, err := os.ReadFile(filepath.Join(s.state, podsFile)); err != nil || !strings.Contains(string(b), `"name":"a"`) {
		t.Errorf("pod records %q, %v", b, err)
	}
}

// What a socket's path is taken by is not taken away.
func TestForeignFileInTheRunDirectory(t *testing.T) {
	s := newTestScenario(t)
	path := filepath.Join(s.run, xdsSocket)
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := s.startAgent(nil, (*scenario).awaitReady)
	if !errors.Is(err, errEnded) || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("start: %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("the file holds %q, %v", b, err)
	}
}
