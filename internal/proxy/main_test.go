// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"aether.io/aether/internal/agent/api"
)

// asSupervisor makes the test binary be a supervisor: its value is the run
// directory, in which everything else is.
const asSupervisor = "AETHER_TEST_SUPERVISOR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(asSupervisor); dir != "" {
		c := testConfig(dir)
		s, err := New(c, slog.New(slog.NewTextHandler(os.Stderr, nil)), os.Stderr)
		if err == nil {
			err = s.Run(context.Background())
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// findEnvoy returns the real Envoy.
func findEnvoy(t *testing.T) string {
	t.Helper()
	if p := os.Getenv("AETHER_ENVOY"); p != "" {
		return p
	}
	if p, err := exec.LookPath("envoy"); err == nil {
		return p
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for dir != "/" {
		p := filepath.Join(dir, ".build/envoy/envoy")
		if _, err := os.Stat(p); err == nil {
			return p
		}
		dir = filepath.Dir(dir)
	}
	t.Fatal("there is no Envoy: run `make envoy`")
	return ""
}

func testConfig(dir string) Config {
	return Config{
		RunDir: dir, Envoy: filepath.Join(dir, "envoy"), Bootstrap: filepath.Join(dir, "boot.json"),
		DrainTime: time.Second, ShutdownTime: 3 * time.Second, StartTimeout: 5 * time.Second, Concurrency: 1, LogLevel: "warning",
	}
}

// bed is a supervisor under test with an Envoy that answers on one port.
type bed struct {
	t      *testing.T
	cfg    Config
	port   int
	log    buffer
	client *http.Client
	stop   func()
}

// buffer is a bytes.Buffer for several goroutines.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// layBed makes a run directory with a link to Envoy and a bootstrap.
func layBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{t: t, cfg: testConfig(t.TempDir())}
	b.link(findEnvoy(t))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.port = l.Addr().(*net.TCPAddr).Port
	l.Close()
	b.boot(b.bootstrap("first"))
	b.client = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", b.cfg.run(apiSocket))
		},
	}}
	return b
}

// link makes the configured binary another one.
func (b *bed) link(target string) {
	b.t.Helper()
	early := b.cfg.Envoy + ".new"
	if err := os.Symlink(target, early); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Rename(early, b.cfg.Envoy); err != nil {
		b.t.Fatal(err)
	}
}

// script makes the configured binary a shell script, in which ENVOY is the real one.
func (b *bed) script(text string) {
	b.t.Helper()
	path := filepath.Join(b.t.TempDir(), "script")
	text = "#!/bin/sh\n" + strings.ReplaceAll(text, "ENVOY", findEnvoy(b.t)) + "\n"
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		b.t.Fatal(err)
	}
	b.link(path)
}

func (b *bed) boot(text string) {
	b.t.Helper()
	if err := os.WriteFile(b.cfg.Bootstrap, []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// bootstrap has Envoy answer who with its listener, and echo what is sent after it.
func (b *bed) bootstrap(who string) string {
	return fmt.Sprintf(`{"node": {"id": %q, "cluster": "c"},
"admin": {"address": {"pipe": {"path": %q, "mode": 384}}},
"static_resources": {"listeners": [{"name": "l", "address": {"socket_address": {"address": "127.0.0.1", "port_value": %d}},
 "filter_chains": [{"filters": [{"name": "echo", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo"}}]}]}]}}`,
		who, b.cfg.run(adminSocket), b.port)
}

// run runs the supervisor until the test ends, or stop is called.
func (b *bed) run() {
	b.t.Helper()
	s, err := New(b.cfg, slog.New(slog.NewTextHandler(&b.log, nil)), &b.log)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("run: %v", err)
		}
		if b.t.Failed() {
			b.t.Logf("log:\n%s", b.log.String())
		}
	})
	b.t.Cleanup(b.stop)
	b.await("Envoy serves", func(s api.ProxyStatus) bool { return s.State == "serving" })
}

// ask asks the API.
func (b *bed) ask(method, path string, in, out any) int {
	b.t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		b.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(b.t.Context(), method, "http://proxy"+path, bytes.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := b.client.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		b.t.Errorf("%s %s: %q: %v", method, path, text, err)
	}
	return resp.StatusCode
}

func (b *bed) status() (s api.ProxyStatus) {
	b.t.Helper()
	b.ask(http.MethodGet, "/v1/status", nil, &s)
	return s
}

// restart asks for one and wants that code, and a text in the error.
func (b *bed) restart(q api.ProxyRestartRequest, code int, want string) api.ProxyRestart {
	b.t.Helper()
	var got struct {
		api.ProxyRestart
		Error string `json:"error"`
	}
	q.Reason = "test"
	if c := b.ask(http.MethodPost, "/v1/restart", q, &got); c != code || !strings.Contains(got.Error, want) {
		b.t.Errorf("restart %+v: %d %+v, want %d with %q", q, c, got, code, want)
	}
	return got.ProxyRestart
}

// await polls the status.
func (b *bed) await(what string, ok func(api.ProxyStatus) bool) (s api.ProxyStatus) {
	b.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		if s = b.status(); ok(s) {
			return s
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("not within 20 s: %s: %+v\n%s", what, s, b.log.String())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// alone waits until one Envoy is left.
func (b *bed) alone() api.ProxyStatus {
	b.t.Helper()
	return b.await("one Envoy is left", func(s api.ProxyStatus) bool { return len(s.Epochs) == 1 && s.State == "serving" })
}

// conn is a connection through Envoy.
func (b *bed) conn() net.Conn {
	b.t.Helper()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", b.port))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	if err := echoes(c); err != nil {
		b.t.Errorf("a new connection: %v", err)
	}
	return c
}

func echoes(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("ping")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 4))
	return err
}

// wantEcho wants that a connection works.
func (b *bed) wantEcho(c net.Conn, when string) {
	b.t.Helper()
	if err := echoes(c); err != nil {
		b.t.Errorf("%s: %v", when, err)
	}
}

// alive reports whether a process is there and no zombie of ours.
func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }
