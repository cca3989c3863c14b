// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"
)

// lockedChild makes the test binary hold a lock until it is killed.
const lockedChild = "AETHER_TEST_LOCK"

func TestMain(m *testing.M) {
	if path := os.Getenv(lockedChild); path != "" {
		if _, err := Acquire(path); err != nil {
			os.Exit(1)
		}
		os.Stdout.WriteString("locked\n")
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestNewLogger(t *testing.T) {
	var b bytes.Buffer
	log, err := NewLogger(&b, "warn", "json")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("no")
	log.Warn("yes")
	if got := b.String(); strings.Contains(got, "no") || !strings.Contains(got, `"msg":"yes"`) {
		t.Errorf("logged %q", got)
	}
	for _, bad := range [][2]string{{"loud", "text"}, {"", "text"}, {"info+2", "text"}, {"info", "xml"}} {
		if _, err := NewLogger(&b, bad[0], bad[1]); err == nil {
			t.Errorf("level %q format %q: no error", bad[0], bad[1])
		}
	}
}

func TestSignals(t *testing.T) {
	var b bytes.Buffer
	log, err := NewLogger(&b, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := Signals(t.Context(), log)
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	stop()
	if !strings.Contains(b.String(), "signal=terminated") {
		t.Errorf("logged %q", b.String())
	}
}

func TestHealthHandler(t *testing.T) {
	ready := errors.New("sources have not synced")
	h := HealthHandler(NewRegistry(), Health{Ready: func() error { return ready }})
	for _, c := range []struct {
		path, body string
		code       int
	}{
		{"/healthz", "ok", 200},
		{"/readyz", "sources have not synced", 503},
		{"/metrics", `aether_build_info{`, 200},
		{"/debug/pprof/", "404", 404},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, c.path, nil))
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.body) {
			t.Errorf("%s: %d %q, want %d with %q", c.path, w.Code, w.Body, c.code, c.body)
		}
	}
	ready = nil
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	if w.Code != 200 {
		t.Errorf("/readyz: %d when ready", w.Code)
	}
}

func TestMetricsLint(t *testing.T) {
	families, err := NewRegistry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestServeHTTPOnUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := ListenUnix(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	mux := http.NewServeMux()
	AddProfiles(mux)
	go func() { served <- ServeHTTP(ctx, l, mux, quiet()) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("http://agent/debug/pprof/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %s", resp.Status)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket %v %v, want mode 0600", info, err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

func TestServeHTTPTellsOfABrokenListener(t *testing.T) {
	l, err := ListenUnix(filepath.Join(t.TempDir(), "s.sock"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := ServeHTTP(t.Context(), l, http.NotFoundHandler(), quiet()); err == nil {
		t.Error("no error")
	}
}

func TestListenUnix(t *testing.T) {
	dir := t.TempDir()
	t.Run("replaces a stale socket", func(t *testing.T) {
		path := filepath.Join(dir, "stale.sock")
		old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			t.Fatal(err)
		}
		old.SetUnlinkOnClose(false)
		old.Close()
		l, err := ListenUnix(path, 0o666)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	})
	t.Run("leaves a living one alone", func(t *testing.T) {
		path := filepath.Join(dir, "live.sock")
		l, err := ListenUnix(path, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if _, err := ListenUnix(path, 0o600); err == nil || !strings.Contains(err.Error(), "another process listens") {
			t.Errorf("error %v", err)
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatalf("the first listener is gone: %v", err)
		}
		c.Close()
	})
	t.Run("leaves a file alone", func(t *testing.T) {
		path := filepath.Join(dir, "file")
		if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ListenUnix(path, 0o600); err == nil || !strings.Contains(err.Error(), "no socket") {
			t.Errorf("error %v", err)
		}
		if b, _ := os.ReadFile(path); string(b) != "precious" {
			t.Errorf("the file holds %q", b)
		}
	})
	t.Run("tells of a path that is too long", func(t *testing.T) {
		if _, err := ListenUnix(filepath.Join(dir, strings.Repeat("x", 120)), 0o600); err == nil ||
			!strings.Contains(err.Error(), "at most 107") {
			t.Errorf("error %v", err)
		}
	})
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.lock")
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), lockedChild+"="+path)
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "locked\n" {
		t.Fatalf("child said %q, %v", line, err)
	}
	if _, err := Acquire(path); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "pid ") {
		t.Errorf("error %v, want ErrLocked with the pid", err)
	}
	child.Process.Kill()
	child.Wait()
	l, err := Acquire(path)
	if err != nil {
		t.Fatalf("after the holder was killed: %v", err)
	}
	if _, err := Acquire(path); !errors.Is(err, ErrLocked) {
		t.Errorf("taken twice by one process: %v", err)
	}
	l.Release()
	l, err = Acquire(path)
	if err != nil {
		t.Fatalf("after release: %v", err)
	}
	l.Release()
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, s := range []string{"one", "two"} {
		if err := WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := ReadFile(path, 10)
	if err != nil || string(got) != "two" {
		t.Errorf("read %q, %v", got, err)
	}
	if _, err := ReadFile(path, 2); err == nil {
		t.Error("a file above the limit was read")
	}
	if got, err := ReadFile(filepath.Join(dir, "none"), 10); got != nil || err != nil {
		t.Errorf("a file that does not exist: %q, %v", got, err)
	}
	if err := WriteFile(filepath.Join(dir, "none", "f"), nil, 0o600); err == nil {
		t.Error("written into a directory that does not exist")
	}
	// A write that fails leaves the old file, and no other.
	if err := WriteFile(dir, []byte("x"), 0o600); err == nil {
		t.Error("a directory was replaced")
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "*")); len(names) != 1 {
		t.Errorf("files %v, want one", names)
	}
}

func TestSetAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "demand.json")
	for n := range maxSetAside + 2 {
		if err := os.WriteFile(path, []byte{byte(n)}, 0o600); err != nil {
			t.Fatal(err)
		}
		aside, err := SetAside(path)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(aside); err != nil || b[0] != byte(n) {
			t.Errorf("%s holds %v, %v", aside, b, err)
		}
	}
	if names, _ := filepath.Glob(path + "*"); len(names) != maxSetAside {
		t.Errorf("%d files, want %d: %v", len(names), maxSetAside, names)
	}
	if _, err := SetAside(path); err == nil {
		t.Error("a file that does not exist was set aside")
	}
}
