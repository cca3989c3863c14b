// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"aether.io/aether/internal/check"
)

// socketDir returns a folder short enough for Unix sockets.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "aether-check-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// serveUnix serves on a socket until the test ends.
func serveUnix(t *testing.T, path string, h http.Handler) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
}

// fakeEnvoy answers as Envoy's admin interface does; an empty body is a 503.
func fakeEnvoy(info, dump string, stats func() string) http.Handler {
	mux := http.NewServeMux()
	say := func(body func() string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			text := body()
			if text == "" {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			fmt.Fprint(w, text)
		}
	}
	mux.HandleFunc("/server_info", say(func() string { return info }))
	mux.HandleFunc("/config_dump", say(func() string { return dump }))
	mux.HandleFunc("/stats", say(stats))
	return mux
}

const (
	goodInfo = `{"version": "9e55/1.40.0/Clean/RELEASE/BoringSSL", "state": "LIVE", "uptime_current_epoch": "90s"}`
	goodDump = `{"configs": [{"bootstrap": {"overload_manager": {"resource_monitors": [{"typed_config": {"max_active_downstream_connections": "900"}}]}}}]}`
)

func TestLookAtEnvoy(t *testing.T) {
	var reads atomic.Int32
	warming := func(counts ...int) func() string { // one for each reading, the last for all after
		return func() string {
			i := min(int(reads.Add(1)), len(counts)) - 1
			return fmt.Sprintf(`{"stats": [{"name": "cluster_manager.warming_clusters", "value": %d},
				{"name": "server.stats_overflow.counter", "value": 7}, {"name": "something.else", "value": "x"}]}`, counts[i])
		}
	}
	for name, c := range map[string]struct {
		info, dump string
		stats      func() string
		supervisor string
		want       func(t *testing.T, e check.Envoy)
	}{
		"all well": {goodInfo, goodDump, warming(0), `{"state": "serving", "pid": 0, "epochs": [{}, {}], "restarts": 3, "lastExit": "signal 9"}`, func(t *testing.T, e check.Envoy) {
			if d := cmp.Diff(check.Saw(check.Server{Version: "1.40.0", State: "LIVE", Uptime: 90 * time.Second}, nil), e.Server); d != "" {
				t.Error(d)
			}
			if e.MaxConnections != check.Saw(uint64(900), nil) || e.Stats.Value.StatsOverflow != 7 || e.PID.Value != os.Getpid() || e.Files.Value.Open == 0 || e.Files.Value.Limit == 0 {
				t.Errorf("%+v", e)
			}
			if want := (check.Supervisor{State: "serving", Epochs: 2, Restarts: 3, LastExit: "signal 9"}); e.Supervisor.Value != want {
				t.Errorf("supervisor %+v, want %+v", e.Supervisor, want)
			}
		}},
		"warming for a moment": {goodInfo, goodDump, warming(3, 0), "", func(t *testing.T, e check.Envoy) {
			if e.StillWarming != (check.Warming{}) || !e.Supervisor.Value.Absent {
				t.Errorf("%+v", e)
			}
		}},
		"warming for long": {goodInfo, goodDump, warming(3, 2), "", func(t *testing.T, e check.Envoy) {
			if e.StillWarming != (check.Warming{Clusters: 2}) {
				t.Errorf("%+v", e)
			}
		}},
		"no limit of connections": {goodInfo, `{"configs": [{"bootstrap": {}}]}`, warming(0), "", func(t *testing.T, e check.Envoy) {
			if e.MaxConnections != check.Saw(uint64(0), nil) {
				t.Errorf("%+v", e.MaxConnections)
			}
		}},
		"it answers nonsense": {"{", "[]", func() string { return `{"stats": [{"name": "filesystem.write_failed", "value": -1}]}` }, "x", func(t *testing.T, e check.Envoy) {
			if e.Server.Err == "" || e.MaxConnections.Err == "" || e.Stats.Err == "" || e.Supervisor.Err == "" {
				t.Errorf("%+v", e)
			}
		}},
		"it refuses": {"", "", func() string { return "" }, "", func(t *testing.T, e check.Envoy) {
			if !strings.Contains(e.Server.Err, "503") || !strings.Contains(e.Stats.Err, "503") {
				t.Errorf("%+v", e)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			reads.Store(0)
			cfg := DefaultConfig()
			cfg.RunDir = socketDir(t)
			serveUnix(t, cfg.AdminSocket(), fakeEnvoy(c.info, c.dump, c.stats))
			if c.supervisor != "" {
				serveUnix(t, cfg.run(proxySocket), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, c.supervisor) }))
			}
			var e check.Envoy
			(&looker{cfg: cfg}).lookAtEnvoy(t.Context(), &e)
			c.want(t, e)
		})
	}
	t.Run("away", func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.RunDir = socketDir(t)
		var e check.Envoy
		(&looker{cfg: cfg}).lookAtEnvoy(t.Context(), &e)
		for _, err := range []string{e.Server.Err, e.Stats.Err, e.PID.Err, e.MaxConnections.Err} {
			if !strings.Contains(err, "no such file") {
				t.Errorf("an Envoy that is away: %q", err)
			}
		}
	})
}

func TestOpenFilesLimit(t *testing.T) {
	for text, want := range map[string]uint64{
		"Max cpu time              unlimited            unlimited            seconds\nMax open files            1024                 4096                 files\n": 1024,
		"Max open files            unlimited            unlimited            files\n":                                                                              1 << 62,
	} {
		if got, err := openFilesLimit(text); err != nil || got != want {
			t.Errorf("limit %d, %v, want %d", got, err, want)
		}
	}
	for _, text := range []string{"", "Max open files", "Max open files many"} {
		if got, err := openFilesLimit(text); err == nil {
			t.Errorf("%q is read as %d", text, got)
		}
	}
}

// The refuser is well only when it resets.
func TestLookAtRefuser(t *testing.T) {
	for name, c := range map[string]struct {
		serve func(net.Conn)
		want  string // of the error; empty for well
	}{
		"resets":            {func(c net.Conn) { time.Sleep(5 * time.Millisecond); c.Close() }, ""}, // with bytes unread
		"closes":            {func(c net.Conn) { _, _ = c.Read(make([]byte, 64)); c.Close() }, "without a reset"},
		"talks":             {func(c net.Conn) { _, _ = c.Write([]byte("hello")); time.Sleep(50 * time.Millisecond); c.Close() }, "sent something"},
		"holds it for ever": {func(net.Conn) {}, "i/o timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(socketDir(t), "refuse.sock")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			served := make(chan net.Conn, 1)
			go func() {
				conn, err := l.Accept()
				if err == nil {
					c.serve(conn)
				}
				served <- conn
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			got := lookAtRefuser(ctx, path)
			if conn := <-served; conn != nil {
				conn.Close()
			}
			if (c.want == "") != (got.Err == "") || !strings.Contains(got.Err, c.want) {
				t.Errorf("%+v, want %q", got, c.want)
			}
		})
	}
	if got := lookAtRefuser(t.Context(), "/nowhere/refuse.sock"); got.Err == "" {
		t.Error("a refuser that is away is well")
	}
}

func TestClockStep(t *testing.T) {
	begun := moment{wall: time.Unix(1000, 0), boot: time.Minute}
	for name, c := range map[string]struct {
		to   moment
		want time.Duration
	}{
		"none":    {moment{wall: time.Unix(1090, 0), boot: 150 * time.Second}, 0},
		"ahead":   {moment{wall: time.Unix(1100, 0), boot: 150 * time.Second}, 10 * time.Second},
		"back":    {moment{wall: time.Unix(900, 0), boot: 61 * time.Second}, -101 * time.Second},
		"no time": {begun, 0},
	} {
		if got, err := clockStep(begun, c.to); err != nil || got != c.want {
			t.Errorf("%s: a step of %s, %v, want %s", name, got, err, c.want)
		}
	}
	if _, err := clockStep(begun, moment{err: errors.New("no clock")}); err == nil {
		t.Error("without a clock there is no step")
	}
}

func TestLookAtDisk(t *testing.T) {
	dir := t.TempDir()
	logFile := filepath.Join(dir, "access.log")
	cfg := DefaultConfig()
	cfg.StateDir, cfg.Envoy.AccessLogPath = dir, logFile
	k := &looker{cfg: cfg}
	var d check.Disk
	k.lookAtDisk(&d)
	if d.Writable.Err != "" || d.Space.Value.Bytes == 0 || !d.LogMissing || d.LogWritable.Err != "" || d.LogSpace.Err != "" {
		t.Errorf("%+v", d)
	}
	if err := os.WriteFile(logFile, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d = check.Disk{}
	if k.lookAtDisk(&d); d.LogWritable.Err != "" || d.LogMissing {
		t.Errorf("%+v", d)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".check-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if n, err := newest(dir); err != nil || n.Name != logFile {
		t.Errorf("newest: %+v, %v", n, err)
	}
	k.cfg.StateDir, k.cfg.Envoy.AccessLogPath = filepath.Join(dir, "gone"), "/dev/stdout"
	d = check.Disk{}
	k.lookAtDisk(&d)
	if d.Writable.Err == "" || d.Space.Err == "" || d.LogWritable.Err != "" || d.LogSpace.Err == "" {
		t.Errorf("%+v", d)
	}
}

// Pods are looked at a few at a time, and those for whom there was no time are
// said not to have been.
func TestLookAtPods(t *testing.T) {
	var pods []podFacts
	for i := range 20 {
		pods = append(pods, podFacts{Pod: check.Pod{Name: fmt.Sprintf("shop/p%d", i), NetNS: fmt.Sprintf("/run/netns/p%d", i)}})
	}
	var now, most atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	k := &looker{
		checkNetNS: func(path string) error {
			if path == "/run/netns/p3" {
				return errors.New("it is gone")
			}
			return nil
		},
		lookAtPod: func(netns string, _ map[string]string) (check.PodSight, error) {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			defer now.Add(-1)
			if netns == "/run/netns/p9" {
				cancel()
			}
			return check.PodSight{Listening: true}, nil
		},
	}
	out := k.lookAtPods(ctx, pods)
	var seen, late int
	for _, p := range out {
		switch {
		case p.Sight.Value.Listening:
			seen++
		case strings.Contains(p.Sight.Err, "time"):
			late++
		case p.NetNSErr == "":
			t.Errorf("nothing is said of %+v", p)
		}
	}
	if out[3].NetNSErr != "it is gone" || seen < 9 || late == 0 || most.Load() > checkAtOnce {
		t.Errorf("%d seen, %d late, %d at once: %+v", seen, late, most.Load(), out[3])
	}
	cancel()
	k = &looker{checkNetNS: func(string) error { return nil }}
	if got := k.lookAtPods(t.Context(), pods[:1])[0].Sight.Err; !strings.Contains(got, "cannot look") {
		t.Errorf("without a way to look: %q", got)
	}
}

// Envoy's metrics are passed on, or said to fail.
func TestEnvoyMetrics(t *testing.T) {
	dir := socketDir(t)
	socket := filepath.Join(dir, "admin.sock")
	r := prometheus.NewRegistry()
	var log strings.Builder
	e := newEnvoyMetrics(socket, func() (int, error) { return os.Getpid(), nil }, r, slog.New(slog.NewTextHandler(&log, nil)))
	ask := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		e.serve(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w
	}
	for range 2 {
		if w := ask("/metrics/envoy"); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "no such file") {
			t.Errorf("without Envoy: %d %s", w.Code, w.Body)
		}
	}
	if got := testutil.ToFloat64(e.failing); got != 1 {
		t.Errorf("failing is %v, want 1", got)
	}
	var filter string
	serveUnix(t, socket, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		filter = r.URL.Query().Get("filter")
		fmt.Fprint(w, "# TYPE envoy_server_live gauge\nenvoy_server_live{} 1\n")
	}))
	if w := ask("/metrics/envoy"); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "envoy_server_live{} 1") ||
		!strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain; version=0.0.4") || strings.Contains(filter, `svc\.`) {
		t.Errorf("%d %v %s, filter %s", w.Code, w.Header(), w.Body, filter)
	}
	if w := ask("/metrics/envoy?detail=services"); w.Code != http.StatusOK || !strings.Contains(filter, `svc\.`) {
		t.Errorf("with detail: %d, filter %s", w.Code, filter)
	}
	if w := ask("/metrics/envoy?detail=all"); w.Code != http.StatusBadRequest {
		t.Errorf("a detail that is none: %d", w.Code)
	}
	if got := testutil.ToFloat64(e.failing); got != 0 {
		t.Errorf("failing is %v, want 0", got)
	}
	if n := strings.Count(log.String(), "\n"); n != 2 {
		t.Errorf("%d lines of log, want one for each change:\n%s", n, &log)
	}
	if n, err := testutil.GatherAndCount(r, "aether_envoy_process_resident_memory_bytes"); err != nil || n != 1 {
		t.Errorf("the process's memory: %d series, %v", n, err)
	}
}

func TestReplyOfTooMany(t *testing.T) {
	socket := filepath.Join(socketDir(t), "s.sock")
	serveUnix(t, socket, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "0123456789") }))
	u := newUnixHTTP(socket, time.Second)
	if b, err := u.get(t.Context(), "/", 10); err != nil || len(b) != 10 {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := u.get(t.Context(), "/", 9); err == nil || !strings.Contains(err.Error(), "more than 9 bytes") {
		t.Errorf("a reply that is too long: %v", err)
	}
}
