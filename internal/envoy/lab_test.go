// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

// lab is a node made for one test: a network namespace that Envoy and the
// servers run in, pods' namespaces with TPROXY capture, an xDS server and a
// refuser.
type lab struct {
	t        *testing.T
	dir      string
	settings Settings
	node     string // name of the node's namespace
	pods     map[string]model.Workload

	boot BootstrapSettings

	stopRefuser func()
	bound       int // of egress counters; 0 for the product's

	listeners, clusters, assignments *cache.LinearCache

	mu      sync.Mutex
	answers map[string]Resources
	nacks   []string
}

const waitLimit = 10 * time.Second

func envoyBinary(t testing.TB) string {
	t.Helper()
	if p := os.Getenv("AETHER_ENVOY"); p != "" {
		return p
	}
	if p, err := exec.LookPath("envoy"); err == nil {
		return p
	}
	p, err := filepath.Abs("../../.build/envoy/envoy")
	if err == nil {
		if _, err = os.Stat(p); err == nil {
			return p
		}
	}
	t.Fatalf("no Envoy: %v; run `make envoy`", err)
	return ""
}

func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

func runInput(t testing.TB, input, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// serverIP is the i-th address that servers may listen on in the node's namespace.
func serverIP(i int) string { return fmt.Sprintf("10.250.0.%d", i) }

func newLab(t *testing.T, source EgressSource, pods ...string) *lab {
	t.Helper()
	needRoot(t)
	dir, err := os.MkdirTemp("", "envoytest-") // t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l := &lab{
		t: t, dir: dir, node: fmt.Sprintf("envoytest-%d-node", os.Getpid()), settings: DefaultSettings(),
		pods: map[string]model.Workload{}, answers: map[string]Resources{},
		listeners:   cache.NewLinearCache(resource.ListenerType),
		clusters:    cache.NewLinearCache(resource.ClusterType),
		assignments: cache.NewLinearCache(resource.EndpointType),
		boot: BootstrapSettings{
			NodeID: "n1", XDSSocket: filepath.Join(dir, "xds.sock"), RecordSocket: filepath.Join(dir, "als.sock"), AdminSocket: filepath.Join(dir, "admin.sock"),
			DescriptorLimit: 65536, AccessLogSuccessPercent: 100,
		},
	}
	l.settings.EgressSource = source
	l.settings.RefuseSocket = filepath.Join(dir, "refuse.sock")
	l.settings.AccessLogPath = filepath.Join(dir, "access.log")
	addNS(t, l.node)
	for i := 1; i < 9; i++ {
		run(t, "ip", "-n", l.node, "addr", "add", serverIP(i)+"/32", "dev", "lo")
	}
	for i, p := range pods {
		l.addPod(i, p)
	}
	return l
}

// start runs the xDS server and Envoy, and waits until the pods' listeners are there.
func (l *lab) start(c plan.Capture) {
	l.t.Helper()
	for _, base := range BaseClusters(l.settings) {
		l.must(l.clusters.UpdateResource(base.Name, base))
	}
	l.capture(c)
	l.startXDS()
	data, err := Bootstrap(l.boot)
	l.must(err)
	config := filepath.Join(l.dir, "bootstrap.json")
	l.must(os.WriteFile(config, data, 0o600))
	l.startEnvoy(config)
	l.eventually("Envoy is ready", func() error {
		body, err := l.admin("/ready")
		if err == nil && !strings.HasPrefix(body, "LIVE") {
			err = errors.New(body)
		}
		return err
	})
	l.eventually("listeners are active", func() error {
		body, err := l.admin("/listeners")
		if err == nil && strings.Count(body, listenerPrefix) != len(l.pods) {
			err = errors.New(body)
		}
		return err
	})
}

// startEnvoy runs Envoy in the node's namespace until the test ends. Envoy must
// not end by itself.
func (l *lab) startEnvoy(config string) {
	l.t.Helper()
	out, err := os.Create(filepath.Join(l.dir, "envoy.log"))
	l.must(err)
	cmd := exec.Command("ip", "netns", "exec", l.node, envoyBinary(l.t), "-c", config, "--disable-hot-restart",
		"--concurrency", "2", "--file-flush-interval-msec", "20", "-l", "warning", "--component-log-level", "misc:error")
	cmd.Stdout, cmd.Stderr = out, out
	l.must(cmd.Start())
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	l.t.Cleanup(func() {
		select {
		case err := <-exited:
			l.t.Errorf("Envoy ended by itself: %v", err)
			exited <- err
		default:
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
		select {
		case err := <-exited:
			if err != nil {
				l.t.Errorf("Envoy did not end well: %v", err)
			}
		case <-time.After(waitLimit):
			l.t.Errorf("Envoy did not end in %v", waitLimit)
			_ = cmd.Process.Kill()
			<-exited
		}
		_ = out.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, n := range l.nacks {
			l.t.Errorf("Envoy refused: %s", n)
		}
		if log, err := os.ReadFile(out.Name()); l.t.Failed() && err == nil {
			l.t.Logf("Envoy's log:\n%s", log)
		}
	})
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// admin gets a page of Envoy's admin interface, adminPost asks it to do something.
func (l *lab) admin(path string) (string, error)     { return l.ask(http.MethodGet, path) }
func (l *lab) adminPost(path string) (string, error) { return l.ask(http.MethodPost, path) }

func (l *lab) ask(method, path string) (string, error) {
	c := http.Client{Timeout: waitLimit, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", l.boot.AdminSocket)
	}}}
	req, err := http.NewRequest(method, "http://envoy"+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 && resp.StatusCode != http.StatusServiceUnavailable {
		err = fmt.Errorf("%s %s: %s", method, path, resp.Status)
	}
	return string(body), err
}

func (l *lab) eventually(what string, f func() error) {
	l.t.Helper()
	deadline := time.Now().Add(waitLimit)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("%s: not within %v: %v", what, waitLimit, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// logLine is a line of the access log.
type logLine map[string]any

// lines returns the access log.
func (l *lab) lines() []logLine {
	l.t.Helper()
	data, err := os.ReadFile(l.settings.AccessLogPath)
	l.must(err)
	var out []logLine
	for line := range strings.SplitSeq(strings.TrimSpace(string(data)), "\n") {
		if line == "" {
			continue
		}
		var m logLine
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			l.t.Fatalf("access log line %q: %v", line, err)
		}
		out = append(out, m)
	}
	return out
}

// waitLines waits until the access log has n lines and returns them.
func (l *lab) waitLines(n int) []logLine {
	l.t.Helper()
	l.eventually(fmt.Sprintf("%d log lines", n), func() error {
		if got := len(l.lines()); got < n {
			return fmt.Errorf("%d lines", got)
		}
		return nil
	})
	return l.lines()
}

// metric returns the value of the Prometheus metric with exactly these labels, 0
// if there is none.
func (l *lab) metric(name string, labels ...string) int {
	l.t.Helper()
	body, err := l.admin("/stats?format=prometheus")
	l.must(err)
	want := name + "{" + strings.Join(labels, ",") + "} "
	for line := range strings.SplitSeq(body, "\n") {
		if v, ok := strings.CutPrefix(line, want); ok {
			n, err := strconv.Atoi(strings.TrimSpace(v))
			l.must(err)
			return n
		}
	}
	return 0
}

// waitMetric waits until a metric has a value.
func (l *lab) waitMetric(want int, name string, labels ...string) {
	l.t.Helper()
	l.eventually(fmt.Sprintf("%s%v is %d", name, labels, want), func() error {
		if got := l.metric(name, labels...); got != want {
			return fmt.Errorf("it is %d", got)
		}
		return nil
	})
}
