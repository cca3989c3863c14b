// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"aether.io/aether/internal/agent/api"
)

// supervisor is a supervisor of Envoy that says what it is told to.
type supervisor struct {
	code  int
	reply any
	asked api.ProxyRestartRequest
}

func (s *supervisor) serve(t *testing.T) (agentSocket string) {
	t.Helper()
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, proxySocket))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked = api.ProxyRestartRequest{}
		_ = json.NewDecoder(r.Body).Decode(&s.asked)
		w.WriteHeader(s.code)
		_ = json.NewEncoder(w).Encode(s.reply)
	})}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() { server.Close(); <-done })
	return filepath.Join(dir, "agent.sock")
}

func TestProxy(t *testing.T) {
	s := &supervisor{}
	socket := s.serve(t)
	status := api.ProxyStatus{
		State: "serving", PID: 12, HotRestarts: 2, FailedRestarts: 1, LastExit: "pid 3: signal: killed", Restarts: 1,
		Epochs: []api.ProxyEpoch{
			{PID: 11, State: "draining", BaseID: 4096, Epoch: 1, Since: "2026-01-02T03:04:05Z", Until: "2026-01-02T03:19:05Z"},
			{PID: 12, State: "serving", BaseID: 4096, Epoch: 2, Since: "2026-01-02T03:04:05Z"},
		},
		LastRestart: &api.ProxyRestart{State: "failed", Reason: "upgrade", Error: "the new Envoy did not work", Time: "2026-01-02T03:05:00Z"},
		Scheduled:   "many names", Changed: []string{"binary"}, Envoy: "/usr/bin/envoy", Version: "1.40.0", Bootstrap: "/b.json",
		DrainTime: 600, ShutdownTime: 900,
	}
	for _, c := range []struct {
		args  []string
		code  int
		reply any
		exit  int
		want  []string
		asked api.ProxyRestartRequest
	}{
		{args: []string{"status"}, code: 200, reply: status, want: []string{
			"STATE                 serving", "/usr/bin/envoy 1.40.0", "CHANGED SINCE         binary", "2, 1 failed", "WAITING RESTART       many names",
			"10m0s, 15m0s", "11   draining  4096     1      2026-01-02T03:04:05Z  2026-01-02T03:19:05Z", "failed: upgrade the new Envoy did not work",
		}},
		{args: []string{"status", "-o", "json"}, code: 200, reply: status, want: []string{`"hotRestarts": 2`, `"scheduled": "many names"`}},
		{args: []string{"status", "-o", "yaml"}, code: 200, reply: status, want: []string{"hotRestarts: 2\n"}},
		{
			args: []string{"restart"}, code: 200, reply: api.ProxyRestart{State: "done", PID: 13, TookMS: 210},
			want: []string{"done: Envoy is process 13, it served after 210 ms"}, asked: api.ProxyRestartRequest{Reason: "asked for by hand"},
		},
		{
			args: []string{"restart", "--reason", "upgrade", "--now"}, code: 202, reply: api.ProxyRestart{State: "scheduled", Error: "another restart is under way"},
			want: []string{"scheduled: another restart is under way"}, asked: api.ProxyRestartRequest{Reason: "upgrade", Now: true},
		},
		{
			args: []string{"restart", "--full"}, code: 502, reply: api.Error{Error: "the new Envoy did not work: exit status 1"}, exit: exitFailed,
			want:  []string{"ask Envoy's supervisor at ", "the new Envoy did not work: exit status 1", "try: aetherctl proxy status --agent-socket"},
			asked: api.ProxyRestartRequest{Reason: "asked for by hand", Full: true},
		},
		{args: []string{"restart", "--full", "--now"}, exit: exitInput, want: []string{"--full and --now: want one of them"}},
		{args: []string{"restart", "--reason", " "}, exit: exitInput, want: []string{"reason: want 1 to 200 bytes"}},
	} {
		s.code, s.reply, s.asked = c.code, c.reply, api.ProxyRestartRequest{}
		var out bytes.Buffer
		exit := Main(t.Context(), append([]string{"--agent-socket", socket, "proxy"}, c.args...), IO{In: strings.NewReader(""), Out: &out, Err: &out})
		if exit != c.exit || s.asked != c.asked {
			t.Errorf("%v: exit code %d, asked %+v; want %d, %+v", c.args, exit, s.asked, c.exit, c.asked)
		}
		for _, want := range c.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%v: there is no %q in\n%s", c.args, want, out.String())
			}
		}
	}
	var out bytes.Buffer
	if exit := Main(t.Context(), []string{"--agent-socket", "/nowhere/agent.sock", "proxy", "status"}, IO{In: strings.NewReader(""), Out: &out, Err: &out}); exit != exitFailed ||
		!strings.Contains(out.String(), "try: pgrep -a -f 'aether-agent proxy'") {
		t.Errorf("without a supervisor: exit code %d, %s", exit, out.String())
	}
}
