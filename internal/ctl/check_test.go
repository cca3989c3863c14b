// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/check"
	"aether.io/aether/internal/daemon"
)

// checkedAgent answers checks and scrapes and returns its socket.
func checkedAgent(t *testing.T, c api.Check) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/check", func(w http.ResponseWriter, _ *http.Request) {
		if err := json.NewEncoder(w).Encode(c); err != nil {
			t.Error(err)
		}
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "aether_agent_mode{mode=\"enforce\"} 1\n") })
	mux.HandleFunc("GET /metrics/envoy", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("detail") == "" {
			http.Error(w, "read envoy's metrics: no such file", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, "envoy_cluster_membership_healthy{} 2\n")
	})
	return serveAgent(t, mux)
}

// finding is one for the tests of texts.
func finding(id, state, seen string, fix ...string) api.Finding {
	f := api.Finding{ID: id, State: state, Seen: seen, Docs: "docs/check.md#" + id}
	if state != api.FindingOK {
		f.Why, f.Fix = "Because of "+id+".", fix
	}
	return f
}

func checkOf(findings ...api.Finding) api.Check {
	return check.Sum(api.Check{
		Node: "n1", Version: daemon.Version(), Time: "2026-11-29T21:33:30Z",
		Sections: []api.CheckSection{{Name: "pods", Findings: findings}},
	})
}

func TestCheckCommand(t *testing.T) {
	good := finding("pod-listeners", api.FindingOK, "Envoy has the listeners of all 2 pods")
	note := finding("connect-only", api.FindingNote, "always so")
	unknown := finding("disk-space", api.FindingNotChecked, "not checked: it is a pipe")
	warning := finding("backlog", api.FindingWarning, "net.core.somaxconn is 128", "sysctl -w net.core.somaxconn=4096")
	failure := finding("pod-capture", api.FindingFailed, "pod shop/web: \x1b[31mno table", "first line\nsecond line", "another fix")
	for name, c := range map[string]struct {
		findings   []api.Finding
		exit, hard int // without and with --strict
		verdict    string
	}{
		"healthy":     {[]api.Finding{good, note}, 0, 0, "node n1 is healthy"},
		"not checked": {[]api.Finding{good, unknown}, 0, 1, "node n1: 1 not checked"},
		"a warning":   {[]api.Finding{good, warning}, 0, 1, "node n1: 1 warning"},
		"a failure":   {[]api.Finding{good, warning, warning, failure, unknown}, 1, 1, "node n1: 1 failed, 2 warnings, 1 not checked"},
	} {
		t.Run(name, func(t *testing.T) {
			socket := checkedAgent(t, checkOf(c.findings...))
			r := run(t, "check", "--agent-socket", socket)
			if r.code != c.exit || !strings.HasSuffix(r.out, "\n"+c.verdict+"\n") || r.err != "" {
				t.Errorf("exit code %d, want %d, and %q in\n%s%s", r.code, c.exit, c.verdict, r.out, r.err)
			}
			if strings.Contains(r.out, "healthy") != (name == "healthy") {
				t.Errorf("it is called healthy, or not:\n%s", r.out)
			}
			if r := run(t, "check", "--strict", "--agent-socket", socket); r.code != c.hard {
				t.Errorf("--strict: exit code %d, want %d", r.code, c.hard)
			}
			var got api.Check
			r = run(t, "check", "-o", "json", "--agent-socket", socket)
			if err := json.Unmarshal([]byte(r.out), &got); err != nil || r.code != c.exit || len(got.Sections) != 2 {
				t.Errorf("-o json: exit code %d, %v\n%s", r.code, err, r.out)
			}
		})
	}
	socket := checkedAgent(t, checkOf(good, note, unknown, warning, failure))
	text := run(t, "check", "--agent-socket", socket).out
	golden(t, "check.txt", strings.ReplaceAll(text, socket, "/run/aether/agent.sock"))
}

// Without an agent everything is said to be not checked.
func TestCheckWithoutAgent(t *testing.T) {
	r := run(t, "check", "--agent-socket", filepath.Join(t.TempDir(), "none.sock"), "-o", "json")
	var got api.Check
	if err := json.Unmarshal([]byte(r.out), &got); err != nil {
		t.Fatalf("%v: %s", err, r.out)
	}
	if r.code != 1 || got.State != api.FindingFailed || got.Failed != 1 || got.NotChecked != len(check.IDs())-2 {
		t.Errorf("exit code %d, %+v", r.code, got)
	}
	if fix := got.Sections[0].Findings[0].Fix; len(fix) != 1 || fix[0] != findAgent {
		t.Errorf("the fix is %q", fix)
	}
	if at, err := time.Parse(time.RFC3339, got.Time); err != nil || time.Since(at) > time.Minute {
		t.Errorf("the time is %s: %v", got.Time, err)
	}
}

func TestMetricsCommand(t *testing.T) {
	socket := checkedAgent(t, api.Check{})
	if r := ok(t, "metrics", "--agent-socket", socket); r.out != "aether_agent_mode{mode=\"enforce\"} 1\n" {
		t.Errorf("%q", r.out)
	}
	if r := ok(t, "metrics", "envoy", "--services", "--agent-socket", socket); r.out != "envoy_cluster_membership_healthy{} 2\n" {
		t.Errorf("%q", r.out)
	}
	if r := run(t, "metrics", "envoy", "--agent-socket", socket); r.code != 1 || r.out != "" || !strings.Contains(r.err, "503") {
		t.Errorf("Envoy is away: %+v", r)
	}
	if r := run(t, "metrics", "--services", "--agent-socket", socket); r.code != 2 || !strings.Contains(r.err, "try: aetherctl metrics envoy --services") {
		t.Errorf("--services for the agent: %+v", r)
	}
	if r := run(t, "metrics", "nobody"); r.code != 2 {
		t.Errorf("nobody's metrics: %+v", r)
	}
}

func TestCaptureInstallCommand(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no namespace":        {nil, 2, "netns"},
		"no pair":             {[]string{"--netns", "/run/netns/none", "--annotation", "x"}, 2, "want KEY=VALUE"},
		"a bad annotation":    {[]string{"--netns", "/run/netns/none", "--annotation", "capture.aether.io/redirect-all=maybe"}, 2, "redirect-all"},
		"a namespace is gone": {[]string{"--netns", "/run/netns/none"}, 1, "no such file"},
	} {
		if r := run(t, append([]string{"capture", "install"}, c.args...)...); r.code != c.code || !strings.Contains(r.err, c.want) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
