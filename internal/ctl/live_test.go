// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aether.io/aether/internal/agent/api"
)

// fakeAgent answers like an agent with what a test gives it.
type fakeAgent struct {
	explanation api.Explanation
	rows        []api.ServiceRow
	status      api.Status
	mode        api.Mode
	asked       string // the address of the last explain
}

// serve starts the agent and returns its socket.
func (f *fakeAgent) serve(t *testing.T) string {
	t.Helper()
	reply := func(w http.ResponseWriter, v any) {
		if err := json.NewEncoder(w).Encode(v); err != nil {
			t.Error(err)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/explain", func(w http.ResponseWriter, r *http.Request) {
		f.asked = r.URL.Query().Get("address")
		reply(w, f.explanation)
	})
	mux.HandleFunc("GET /v1/services", func(w http.ResponseWriter, _ *http.Request) { reply(w, f.rows) })
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { reply(w, f.status) })
	mux.HandleFunc("GET /v1/mode", func(w http.ResponseWriter, _ *http.Request) { reply(w, f.mode) })
	mux.HandleFunc("PUT /v1/mode", func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&f.mode); err != nil {
			t.Error(err)
		}
		reply(w, f.mode)
	})
	return serveAgent(t, mux)
}

// serveAgent serves what stands for the agent and returns its socket.
func serveAgent(t *testing.T, h http.Handler) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l)
	}()
	t.Cleanup(func() {
		srv.Close()
		<-done
	})
	return socket
}

func liveRows() []api.ServiceRow {
	return []api.ServiceRow{
		{
			Address: "10.96.0.99:80", Class: "unknown", Answer: "refuse", Reason: "no-service", Demand: "asked",
			Live: api.Live{Asked: true, Looked: "absent at 2026-08-30T12:00:00Z"},
		},
		{
			Address: "10.96.0.10:80", Service: &api.ServiceRef{Namespace: "shop", Name: "web", Port: "http"},
			Class: "service", Answer: "balance", Used: 2, Ready: 2, Total: 4, Balancing: "round-robin", Demand: "asked",
			Policy: &api.Policy{Affinity: "None", InternalTrafficPolicy: "Cluster", Topology: "zone", Balancing: "round-robin"},
			Live:   api.Live{Asked: true, LastDial: "2026-08-30T12:00:00Z", Connections: 42, Active: 3},
		},
		{
			Address: "10.96.0.11:6379", Service: &api.ServiceRef{Namespace: "shop", Name: "cache", Port: "6379"},
			Class: "service", Answer: "refuse", Reason: "no-local-endpoints", Ready: 1, Total: 1, Balancing: "ring-hash", Demand: "remembered",
			Policy: &api.Policy{Affinity: "ClientIP", InternalTrafficPolicy: "Local", Topology: "none", Balancing: "ring-hash"},
		},
		{
			Address: "10.96.0.1:443", Service: &api.ServiceRef{Namespace: "default", Name: "kubernetes", Port: "https"},
			Class: "service", Answer: "balance", Used: 1, Ready: 1, Total: 1, Balancing: "round-robin", Demand: "asked",
			Live: api.Live{Asked: true, Connections: 1, Nack: "bad thing"},
		},
	}
}

func TestServiceList(t *testing.T) {
	f := &fakeAgent{rows: liveRows()}
	socket := f.serve(t)
	golden(t, "svc-list.txt", ok(t, "svc", "list", "--agent-socket", socket).out)
	golden(t, "svc-list-wide.txt", ok(t, "svc", "list", "--agent-socket", socket, "-o", "wide").out)
	golden(t, "svc-list-namespace.txt", ok(t, "svc", "list", "--agent-socket", socket, "-n", "shop").out)
	golden(t, "svc-list.json", ok(t, "svc", "list", "--agent-socket", socket, "-o", "json").out)
	golden(t, "svc-list.yaml", ok(t, "svc", "list", "--agent-socket", socket, "-o", "yaml").out)
}

// TestServiceListEmpty: nothing asked for is an answer, and an empty list.
func TestServiceListEmpty(t *testing.T) {
	socket := (&fakeAgent{}).serve(t)
	if r := ok(t, "svc", "list", "--agent-socket", socket, "-o", "json"); r.out != "[]\n" || !strings.HasPrefix(r.err, "note: ") {
		t.Errorf("stdout %q, stderr %q", r.out, r.err)
	}
}

func TestStatusText(t *testing.T) {
	f := &fakeAgent{status: api.Status{
		Node: "n1", Zone: "za", Mode: "enforce", EgressSource: "pod", RangeKnown: true, Range: []string{"10.96.0.0/16", "243.0.0.5/32"},
		Synced: true, Envoy: api.EnvoyStatus{Connected: true, Version: "1.40.0"}, Version: "v1",
		Pods: []api.PodStatus{
			{Namespace: "shop", Name: "client", IP: "10.244.1.5", Listener: "ready"},
			{Namespace: "shop", Name: "odd", IP: "10.244.1.6", Listener: "rejected", Nack: "no such namespace"},
		},
		Names:    api.NameCounts{Services: 3, Other: 1, OverLimit: 2},
		Problems: []api.Problem{{Source: "web.yaml: Service shop/web: spec.ports[0].port", Text: "is 0"}},
		Extra:    map[string]string{"demand file": "/var/lib/aether/demand.json"},
	}}
	socket := f.serve(t)
	golden(t, "status.txt", ok(t, "status", "--agent-socket", socket).out)
	golden(t, "status-wide.txt", ok(t, "status", "--agent-socket", socket, "-o", "wide").out)
	f.status = api.Status{Node: "n1", Mode: "passthrough", EgressSource: "node"}
	golden(t, "status-starting.txt", ok(t, "status", "--agent-socket", socket).out)
}

func TestMode(t *testing.T) {
	f := &fakeAgent{mode: api.Mode{Mode: "passthrough"}}
	socket := f.serve(t)
	for _, c := range []struct {
		args []string
		out  string
	}{
		{nil, "passthrough\n"},
		{[]string{"enforce"}, "enforce (was passthrough)\n"},
		{[]string{"enforce"}, "enforce (as before)\n"},
		{nil, "enforce\n"},
		{[]string{"-o", "json"}, "{\n  \"mode\": \"enforce\"\n}\n"},
	} {
		r := ok(t, append([]string{"mode", "--agent-socket", socket}, c.args...)...)
		if r.out != c.out {
			t.Errorf("mode %v prints %q, want %q", c.args, r.out, c.out)
		}
		if changed := len(c.args) == 1; changed != strings.Contains(r.err, "restart of the agent returns to its flag") {
			t.Errorf("mode %v says %q", c.args, r.err)
		}
	}
}

// TestExplainLive: the agent is asked by address, also when a person gave a name.
func TestExplainLive(t *testing.T) {
	f := &fakeAgent{
		rows: liveRows(),
		explanation: api.Explanation{
			Address: "10.96.0.11:6379", Class: "service", Answer: "refuse", Reason: "no-local-endpoints",
			Service:   &api.ServiceRef{Namespace: "shop", Name: "cache", Port: "6379"},
			Policy:    &api.Policy{Affinity: "ClientIP", InternalTrafficPolicy: "Local", Topology: "none", Balancing: "ring-hash"},
			Endpoints: []api.Endpoint{{Address: "10.244.2.9:6379", Node: "n2", Ready: true, Serving: true, Why: "on node n2"}},
			Path:      []string{"it is the ClusterIP of Service shop/cache"},
			Live:      &api.Live{Asked: true, LastDial: "2026-08-30T12:00:00Z", Connections: 1, Nack: "bad thing"},
		},
	}
	socket := f.serve(t)
	for _, q := range []string{"10.96.0.11:6379", "cache.shop:6379"} {
		r := ok(t, "explain", q, "--agent-socket", socket)
		if f.asked != "10.96.0.11:6379" {
			t.Errorf("%s: the agent was asked about %q", q, f.asked)
		}
		golden(t, "explain-live.txt", strings.ReplaceAll(r.out, socket, "SOCKET"))
	}
	if r := run(t, "explain", "nobody.shop:80", "--agent-socket", socket); r.code != exitInput || !strings.Contains(r.err, "give the ClusterIP") {
		t.Errorf("exit code %d, %s", r.code, r.err)
	}
	var got api.Explanation
	if err := json.Unmarshal([]byte(ok(t, "explain", "10.96.0.11:6379", "--agent-socket", socket, "-o", "json").out), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(f.explanation, got); diff != "" {
		t.Errorf("not what the agent said\n%s", diff)
	}
}

// TestNextInCluster: every refusal of a node's agent has a command to try.
func TestNextInCluster(t *testing.T) {
	svc := &api.ServiceRef{Namespace: "shop", Name: "web", Port: "http"}
	for reason, want := range map[string]string{
		"no-endpoints":       "kubectl get endpointslices -n shop -l kubernetes.io/service-name=web -o yaml",
		"no-local-endpoints": "kubectl get endpointslices -n shop -l kubernetes.io/service-name=web -o jsonpath='{.items[*].endpoints[*].nodeName}'",
		"port-not-declared":  "kubectl get service -n shop web -o jsonpath='{.spec.ports}'",
	} {
		if got := nextAfter(api.Explanation{Address: "10.96.0.10:80", Answer: "refuse", Reason: reason, Service: svc}, origin{}); got != want {
			t.Errorf("%s: %s, want %s", reason, got, want)
		}
	}
	if got := nextAfter(api.Explanation{Address: "10.96.0.99:80", Answer: "refuse", Reason: "no-service"}, origin{}); !strings.HasSuffix(got, "grep -wF 10.96.0.99") {
		t.Error(got)
	}
	if got := nextAfter(api.Explanation{Address: "127.0.0.1:80", Answer: "refuse", Reason: "not-proxied"}, origin{}); got == "" {
		t.Error("nothing to try after not-proxied")
	}
	if got := nextAfter(api.Explanation{Answer: "balance"}, origin{}); got != "" {
		t.Error(got)
	}
}

// TestAgentTroubles: no agent, one that refuses, one that speaks otherwise.
func TestAgentTroubles(t *testing.T) {
	dir := t.TempDir()
	serve := func(name string, status int, body string) string {
		socket := filepath.Join(dir, name)
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		})}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = srv.Serve(l)
		}()
		t.Cleanup(func() {
			srv.Close()
			<-done
		})
		return socket
	}
	for _, c := range []struct {
		name   string
		socket string
		code   int
		says   string
	}{
		{"nobody", filepath.Join(dir, "none"), exitFailed, "no such file or directory\ntry: "},
		{"bad question", serve("a", http.StatusBadRequest, `{"error":"address is odd"}`), exitInput, "address is odd\ntry: "},
		{"agent in trouble", serve("b", http.StatusServiceUnavailable, `{"error":"not synced"}`), exitFailed, "not synced"},
		{"no words", serve("c", http.StatusInternalServerError, ``), exitFailed, "500 Internal Server Error"},
		{"not JSON", serve("d", http.StatusOK, `<html>`), exitFailed, "decode the reply"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run(t, "explain", "10.96.0.10:80", "--agent-socket", c.socket)
			if r.code != c.code || r.out != "" || !strings.Contains(r.err, c.says) {
				t.Errorf("exit code %d, want %d; stdout %q; stderr %q, want it to say %q", r.code, c.code, r.out, r.err, c.says)
			}
		})
	}
}

// TestNoAgentAnywhere: without an agent and a sandbox the way out is named.
func TestNoAgentAnywhere(t *testing.T) {
	t.Setenv(envSandbox, "")
	for _, args := range [][]string{{"svc", "list"}, {"status"}, {"mode"}, {"explain", "10.96.0.10:80"}} {
		c := &cli{agentSocket: filepath.Join(t.TempDir(), "none"), sandboxDir: t.TempDir()}
		_, err := c.agent(t.Context(), false)
		if err == nil || !strings.Contains(err.Error(), "no sandbox is running") {
			t.Errorf("%v: %v", args, err)
		}
	}
}
