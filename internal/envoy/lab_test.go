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
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"

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

	listeners, clusters, assignments *cache.LinearCache

	mu         sync.Mutex
	answers    map[string]Resources
	nacks      []string
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
	l := &lab{t: t, dir: t.TempDir(), node: fmt.Sprintf("envoytest-%d-node", os.Getpid()), pods: map[string]model.Workload{}, answers: map[string]Resources{}}
	l.settings = DefaultSettings()
	l.settings.EgressSource = source
	l.settings.RefuseSocket = filepath.Join(l.dir, "refuse.sock")
	l.settings.AccessLogPath = filepath.Join(l.dir, "access.log")
	l.listeners = cache.NewLinearCache(resource.ListenerType)
	l.clusters = cache.NewLinearCache(resource.ClusterType)
	l.assignments = cache.NewLinearCache(resource.EndpointType)
	for _, c := range BaseClusters(l.settings) {
		l.must(l.clusters.UpdateResource(c.Name, c))
	}
	addNS(t, l.node)
	for i := 1; i < 9; i++ {
		run(t, "ip", "-n", l.node, "addr", "add", serverIP(i)+"/32", "dev", "lo")
	}
	for i, p := range pods {
		l.addPod(i, p)
	}
	return l
}

func addNS(t testing.TB, name string) {
	t.Helper()
	run(t, "ip", "netns", "add", name)
	t.Cleanup(func() { run(t, "ip", "netns", "del", name) })
	run(t, "ip", "-n", name, "link", "set", "lo", "up")
}

const captureRules = `table ip aether_capture {
  chain output {
    type route hook output priority mangle; policy accept;
    meta mark 0xae7e accept
    ip daddr 127.0.0.0/8 accept
    meta l4proto tcp ct direction original meta mark set 0xae71
  }
  chain prerouting {
    type filter hook prerouting priority mangle; policy accept;
    iif lo meta mark 0xae71 meta l4proto tcp tproxy to 127.0.0.1:18001
  }
}
`

func (l *lab) addPod(i int, name string) {
	l.t.Helper()
	pod := fmt.Sprintf("envoytest-%d-%s", os.Getpid(), name)
	addNS(l.t, pod)
	veth, ip := fmt.Sprintf("et%d", i), fmt.Sprintf("10.244.%d.2", i)
	run(l.t, "ip", "-n", pod, "link", "add", "eth0", "type", "veth", "peer", "name", veth, "netns", l.node)
	run(l.t, "ip", "-n", pod, "addr", "add", ip+"/24", "dev", "eth0")
	run(l.t, "ip", "-n", pod, "link", "set", "eth0", "up")
	run(l.t, "ip", "-n", l.node, "addr", "add", fmt.Sprintf("10.244.%d.1/24", i), "dev", veth)
	run(l.t, "ip", "-n", l.node, "link", "set", veth, "up")
	run(l.t, "ip", "-n", pod, "route", "add", "default", "via", fmt.Sprintf("10.244.%d.1", i))
	run(l.t, "ip", "-n", pod, "rule", "add", "fwmark", "0xae71", "lookup", "100")
	run(l.t, "ip", "-n", pod, "route", "add", "local", "0.0.0.0/0", "dev", "lo", "table", "100")
	runInput(l.t, captureRules, "ip", "netns", "exec", pod, "nft", "-f", "-")
	l.pods[name] = model.Workload{
		Name:           model.Name{Namespace: "default", Name: name},
		ServiceAccount: name + "-sa",
		NetNS:          "/run/netns/" + pod,
	}
}

// start runs the xDS server, the refuser and Envoy, and waits until Envoy is ready.
func (l *lab) start(c plan.Capture) {
	l.t.Helper()
	l.capture(c)
	l.startXDS()
	b := BootstrapSettings{
		NodeID: "n1", XDSSocket: filepath.Join(l.dir, "xds.sock"), AdminSocket: filepath.Join(l.dir, "admin.sock"),
		DescriptorLimit: 65536, AccessLogSuccessPercent: 100,
	}
	data, err := Bootstrap(b)
	if err != nil {
		l.t.Fatal(err)
	}
	config := filepath.Join(l.dir, "bootstrap.json")
	if err := os.WriteFile(config, data, 0o600); err != nil {
		l.t.Fatal(err)
	}
	logFile, err := os.Create(filepath.Join(l.dir, "envoy.log"))
	if err != nil {
		l.t.Fatal(err)
	}
	cmd := exec.Command("ip", "netns", "exec", l.node, envoyBinary(l.t), "-c", config, "--disable-hot-restart",
		"--concurrency", "2", "--file-flush-interval-msec", "20", "--drain-time-s", "2", "-l", envOr("AETHER_TEST_ENVOY_LOG", "warning"))
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	l.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-exited:
		case <-time.After(waitLimit):
			_ = cmd.Process.Kill()
			<-exited
		}
		_ = logFile.Close()
		if out, err := os.ReadFile(logFile.Name()); l.t.Failed() && err == nil {
			l.t.Logf("envoy log:\n%s", out)
		}
	})
	l.eventually("Envoy is ready", func() error {
		body, err := l.admin("/ready")
		if err == nil && !strings.HasPrefix(body, "LIVE") {
			err = errors.New(body)
		}
		return err
	})
	l.eventually("listeners are active", func() error {
		body, err := l.admin("/listeners")
		if err == nil && strings.Count(body, "capture:") != len(l.pods) {
			err = errors.New(body)
		}
		return err
	})
}

func envOr(key, otherwise string) string {
	if v := os.Getenv(key); v != "" {
		return v
	}
	return otherwise
}

func (l *lab) startXDS() {
	mux := &cache.MuxCache{
		ClassifyDelta: func(r *cache.DeltaRequest) string { return r.GetTypeUrl() },
		Caches: map[string]cache.Cache{
			resource.ListenerType: l.listeners, resource.ClusterType: l.clusters, resource.EndpointType: l.assignments,
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	srv := server.NewServer(ctx, mux, server.CallbackFuncs{StreamDeltaRequestFunc: l.onRequest})
	g := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, srv)
	ln, err := net.Listen("unix", filepath.Join(l.dir, "xds.sock"))
	l.must(err)
	go func() { _ = g.Serve(ln) }()
	l.t.Cleanup(func() { cancel(); g.Stop() })
}

// onRequest publishes the answers to the names that Envoy asks for.
func (l *lab) onRequest(_ int64, r *discoveryv3.DeltaDiscoveryRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := r.GetErrorDetail(); e != nil {
		l.nacks = append(l.nacks, e.GetMessage())
	}
	if r.GetTypeUrl() != resource.ClusterType {
		return nil
	}
	for _, name := range r.GetResourceNamesSubscribe() {
		if a, ok := l.answers[name]; ok {
			l.publish(a)
		}
	}
	return nil
}

func (l *lab) publish(r Resources) {
	if r.Assignment != nil {
		l.must(l.assignments.UpdateResource(r.Assignment.ClusterName, r.Assignment))
	}
	l.must(l.clusters.UpdateResource(r.Cluster.Name, r.Cluster))
}

// answer sets what a name is answered with; at once if it was asked for already.
func (l *lab) answer(a plan.Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := ClusterName(a.Target)
	_, known := l.clusters.GetResources()[name]
	l.answers[name] = Translate(a, l.settings)
	if known {
		l.publish(l.answers[name])
	}
}

// capture publishes the listeners of all pods.
func (l *lab) capture(c plan.Capture) {
	set := map[string]types.Resource{}
	for _, w := range l.pods {
		ln := Listener(w, c, l.settings)
		set[ln.Name] = ln
	}
	l.must(l.listeners.UpdateResources(set, nil))
}

func (l *lab) must(err error) {
	if err != nil {
		l.t.Error(err)
		panic(err)
	}
}

func (l *lab) admin(path string) (string, error) {
	c := http.Client{Timeout: waitLimit, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(l.dir, "admin.sock"))
	}}}
	resp, err := c.Get("http://envoy" + path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
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

// within runs f in a namespace.
func within(t testing.TB, path string, f func() error) error {
	t.Helper()
	return ns.WithNetNSPath(path, func(ns.NetNS) error { return f() })
}

// serve runs a TCP server in the node's namespace.
func (l *lab) serve(addr string, handle func(*net.TCPConn)) {
	l.t.Helper()
	var ln net.Listener
	l.must(within(l.t, "/run/netns/"+l.node, func() (err error) {
		ln, err = net.Listen("tcp4", addr)
		return err
	}))
	l.t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				handle(c.(*net.TCPConn))
			}()
		}
	}()
}

// dial connects from a pod.
func (l *lab) dial(pod, addr string) *net.TCPConn {
	l.t.Helper()
	var c net.Conn
	l.must(within(l.t, l.pods[pod].NetNS, func() (err error) {
		c, err = net.DialTimeout("tcp4", addr, waitLimit)
		return err
	}))
	l.must(c.SetDeadline(time.Now().Add(2 * waitLimit)))
	l.t.Cleanup(func() { _ = c.Close() })
	return c.(*net.TCPConn)
}

// refuse runs the refuser: it closes each connection unread shortly after the
// first bytes are there, which the kernel turns into a reset.
func (l *lab) refuse() (stop func()) {
	ln, err := net.Listen("unix", l.settings.RefuseSocket)
	l.must(err)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				raw, err := c.(*net.UnixConn).SyscallConn()
				if err != nil {
					return
				}
				_ = raw.Read(func(fd uintptr) bool {
					n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
					return n > 0 || !errors.Is(err, syscall.EAGAIN)
				})
				time.Sleep(5 * time.Millisecond)
			}()
		}
	}()
	var once sync.Once
	stop = func() { once.Do(func() { _ = ln.Close() }) }
	l.t.Cleanup(stop)
	return stop
}

// lines returns the access log.
func (l *lab) lines() []map[string]any {
	data, err := os.ReadFile(l.settings.AccessLogPath)
	if err != nil && !os.IsNotExist(err) {
		l.t.Fatal(err)
	}
	var out []map[string]any
	for line := range strings.SplitSeq(strings.TrimSpace(string(data)), "\n") {
		if line == "" {
			continue
		}
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			l.t.Fatalf("access log line %q: %v", line, err)
		}
		out = append(out, m)
	}
	return out
}
