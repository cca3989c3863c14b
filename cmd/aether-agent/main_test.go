// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"aether.io/aether/internal/agent/api"
)

// asAgent makes the test binary be the agent.
const asAgent = "AETHER_TEST_AGENT"

func TestMain(m *testing.M) {
	if os.Getenv(asAgent) != "" {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestBadFlags(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // this is no pod
	ok := []string{"--node-name", "n1", "--manifest-dir", "/m"}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "node name is empty"},
		{[]string{"--node-name", "n1"}, "no API server: this is no pod of a cluster, and no --kubeconfig is given"},
		{[]string{"--node-name", "n1", "--kubeconfig", "/nowhere/config"}, "read kubeconfig /nowhere/config"},
		{append(ok, "--kubeconfig", "/c"), "two sources of Services: give --manifest-dir or --kubeconfig"},
		{[]string{"serve"}, `unknown command "serve"`},
		{append(ok, "more"), `unexpected argument "more"`},
		{append(ok, "--nonsense"), "-nonsense"},
		{append(ok, "--service-egress", "on"), `service egress "on": want passthrough, balance or enforce`},
		{append(ok, "--egress-source", "host"), `egress source "host": want "pod" or "node"`},
		{append(ok, "--service-range", "10.96.0.0/16,x"), `"x" is no CIDR such as 10.96.0.0/16`},
		{append(ok, "--service-range", "fd00::/112"), `want IPv4 prefixes`},
		{append(ok, "--run-dir", "run"), `run dir "run": not an absolute path`},
		{append(ok, "--no-service-hold", "5s"), "no-service hold 5s: want 0 to 3s"},
		{append(ok, "--demand-window", "a week"), `invalid value "a week" for flag -demand-window`},
		{append(ok, "--metrics-address", "somewhere"), `metrics address "somewhere": want host:port`},
		{append(ok, "--compact-names", "-1"), "compact names -1: want 0 (never) or more"},
		{append(ok, "--pod-connection-limit", "0"), "pod connection limit 0"},
		{append(ok, "--pod-connection-limit", "5000000000"), "pod connection limit 5000000000: want at most 4294967295"},
		{append(ok, "--log-level", "loud"), `log level "loud"`},
		{append(ok, "--log-format", "xml"), `log format "xml"`},
		{append(ok, "--manifest-dir", ""), "want a directory"},
		{[]string{"bootstrap"}, "node id is empty"},
		{[]string{"bootstrap", "--node-name", "n1", "--descriptor-limit", "12"}, "descriptor limit 12"},
		{[]string{"bootstrap", "--node-name", "n1", "--access-log-success-percent", "x"}, "want a number from 0 to 100"},
		{[]string{"bootstrap", "--node-name", "n1", "--access-log-success-percent", "101"}, "access log success percent 101"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), c.args, &stdout, &stderr)
		if code != exitUsage || !strings.Contains(stderr.String(), c.want) || stdout.Len() > 0 {
			t.Errorf("%q: exit %d, stdout %q, stderr %q; want 2 with %q", c.args, code, &stdout, &stderr, c.want)
		}
	}
}

func TestFlagsReachTheConfig(t *testing.T) {
	o, err := parse([]string{
		"--node-name=n1", "--zone=za", "--service-egress=balance", "--egress-source=node", "--manifest-dir=/a",
		"--manifest-dir=/b", "--service-range=10.96.0.0/16, 10.112.0.0/16", "--run-dir=/r", "--state-dir=/s",
		"--demand-window=24h", "--no-service-hold=50ms", "--metrics-address=:9000", "--access-log=/l",
		"--pod-connection-limit=7", "--trust-domain=example.org", "--scrape-interval=1s", "--compact-names=9",
	}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c := o.config
	for what, good := range map[string]bool{
		"node":            c.Node == "n1" && c.Zone == "za",
		"mode":            c.Mode == "balance" && c.Envoy.EgressSource == "node",
		"manifests":       strings.Join(o.manifestDirs, " ") == "/a /b",
		"range":           len(c.ServiceRange) == 2 && c.ServiceRange[1].String() == "10.112.0.0/16",
		"directories":     c.RunDir == "/r" && c.StateDir == "/s",
		"times":           c.DemandWindow == 24*time.Hour && c.NoServiceHold == 50*time.Millisecond && c.ScrapeInterval == time.Second,
		"compaction":      c.CompactNames == 9,
		"metrics address": c.MetricsAddress == ":9000",
		"envoy":           c.Envoy.AccessLogPath == "/l" && c.Envoy.PodConnectionLimit == 7 && c.Envoy.TrustDomain == "example.org",
		"bootstrap":       o.bootstrap.NodeID == "n1" && o.bootstrap.XDSSocket == "/r/xds.sock" && o.bootstrap.AdminSocket == "/r/envoy-admin.sock",
	} {
		if !good {
			t.Errorf("%s: %+v", what, o)
		}
	}
	o, err = parse([]string{"--node-name=n1", "--manifest-dir=/a"}, io.Discard)
	if err != nil || o.config.Mode != "passthrough" || o.config.Envoy.EgressSource != "pod" ||
		o.config.DemandWindow != 168*time.Hour || o.config.NoServiceHold != 300*time.Millisecond ||
		o.config.CompactNames != 16000 || o.config.MetricsAddress != "127.0.0.1:18090" || o.config.Envoy.PodConnectionLimit != 10000 ||
		o.config.RunDir != "/run/aether" || o.config.StateDir != "/var/lib/aether" || o.config.Envoy.TrustDomain != "aether.internal" {
		t.Errorf("defaults %+v, %v", o.config, err)
	}
}

func TestHelpAndVersion(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, &stdout, &stderr); code != 0 || !strings.Contains(stderr.String(), "-service-egress") {
		t.Errorf("help: exit %d, %q", code, &stderr)
	}
	if code := run(t.Context(), []string{"version"}, &stdout, &stderr); code != 0 || stdout.String() != "dev\n" {
		t.Errorf("version: exit %d, %q", code, &stdout)
	}
}

func TestBootstrap(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), []string{"bootstrap", "--node-name", "n1", "--run-dir", "/r", "--access-log-success-percent", "100"}, &stdout, &stderr)
	var b struct {
		Node  struct{ ID string }
		Admin struct {
			Address struct{ Pipe struct{ Path string } }
		}
	}
	if err := json.Unmarshal(stdout.Bytes(), &b); err != nil || code != 0 {
		t.Fatalf("exit %d, %v: %s %s", code, err, &stdout, &stderr)
	}
	if b.Node.ID != "n1" || b.Admin.Address.Pipe.Path != "/r/envoy-admin.sock" {
		t.Errorf("bootstrap %+v", b)
	}
}

// process is an agent in a process of its own.
type process struct {
	*exec.Cmd
	stderr bytes.Buffer
	run    string
}

func start(t *testing.T, run, state, manifests string) *process {
	t.Helper()
	p := &process{run: run, Cmd: exec.Command(os.Args[0], "--node-name", "n1", "--manifest-dir", manifests,
		"--run-dir", run, "--state-dir", state, "--metrics-address", "")}
	p.Env = append(os.Environ(), asAgent+"=1")
	p.Stderr = &p.stderr
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.ProcessState == nil {
			_ = p.Process.Kill()
			_ = p.Wait()
		}
	})
	return p
}

// status asks until the agent replies that it has synced.
func (p *process) status(t *testing.T) api.Status {
	t.Helper()
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(p.run, "agent.sock"))
		},
	}}
	var s api.Status
	for deadline := time.Now().Add(20 * time.Second); !s.Synced; <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the agent does not come up: %s", &p.stderr)
		}
		resp, err := client.Get("http://agent/v1/status")
		if err != nil {
			continue
		}
		err = json.NewDecoder(resp.Body).Decode(&s)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (p *process) exit(t *testing.T) int {
	t.Helper()
	err := p.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return p.ProcessState.ExitCode()
}

// The process: a second one is refused, SIGTERM ends it well, and after SIGKILL
// the next one takes over what is left.
func TestProcess(t *testing.T) {
	run, err := os.MkdirTemp("", "aether")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(run)
	state, manifests := t.TempDir(), t.TempDir()
	first := start(t, run, state, manifests)
	if s := first.status(t); s.Node != "n1" || s.Mode != "passthrough" {
		t.Errorf("status %+v", s)
	}
	second := start(t, run, state, manifests)
	if code := second.exit(t); code != exitFailed || !strings.Contains(second.stderr.String(), "use run directory: lock "+run) {
		t.Errorf("second agent: exit %d, %s", code, &second.stderr)
	}
	first.status(t)
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	first.exit(t)
	third := start(t, run, state, manifests)
	third.status(t)
	if err := third.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := third.exit(t); code != 0 || !strings.Contains(third.stderr.String(), "signal=terminated") {
		t.Errorf("SIGTERM: exit %d, %s", code, &third.stderr)
	}
	if left, _ := filepath.Glob(filepath.Join(run, "*.sock")); len(left) > 0 {
		t.Errorf("sockets left: %v", left)
	}
	if _, err := os.Stat(filepath.Join(state, "demand.json")); err != nil {
		t.Error(err)
	}
}
