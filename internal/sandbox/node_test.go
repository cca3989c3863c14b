// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"aether.io/aether/internal/sandbox/echo"
)

const twoPods = `
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers:
  - name: echo
    image: aether/echo
    args: [--http, ":8080", --tcp, ":9000", --server-first, ":9001"]
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
status: {podIP: 10.244.7.7}
spec:
  containers:
  - {name: client, image: aether/client}
`

// talk dials from a pod by the built-in client and returns its verdict.
func talk(t *testing.T, n *Node, pod string, args ...string) echo.Verdict {
	t.Helper()
	out, err := n.Output(t.Context(), pod, append([]string{"aether-client"}, args...)...)
	var v echo.Verdict
	if json.Unmarshal(out, &v) != nil {
		t.Fatalf("client in %s: %v: %s", pod, err, out)
	}
	return v
}

func identity(t *testing.T, v echo.Verdict) echo.Identity {
	t.Helper()
	var id echo.Identity
	if err := json.Unmarshal([]byte(v.Answer), &id); err != nil || v.Outcome != echo.OK {
		t.Fatalf("got %+v, want an answer that names the server", v)
	}
	return id
}

func TestPodsReachEachOther(t *testing.T) {
	n, _ := plain(t, "sbtest1", twoPods)
	web := n.PodIP("web").String()
	v := talk(t, n, "client", "--mode", "http", web+":8080")
	id := identity(t, v)
	if id.Pod != "web" || id.Node != "n1" || id.Local != web+":8080" || id.Remote != v.Local || !strings.HasPrefix(id.Remote, "10.244.7.7:") {
		t.Errorf("the server is %+v, want web on n1 at %s, seeing the client as %s", id, web, v.Local)
	}
	for _, args := range [][]string{
		{"--mode", "server-first", web + ":9001"},
		{"--mode", "half-close", "--bytes", "1000000", web + ":9000"},
		{"--mode", "transfer", "--bytes", "5000000", web + ":9000"},
		{"--mode", "talk", "web.default.pod:9000"},
	} {
		if v := talk(t, n, "client", args...); v.Outcome != echo.OK {
			t.Errorf("%v: got %+v", args, v)
		}
	}
	if v := talk(t, n, "client", web+":7"); v.Outcome != echo.Refused {
		t.Errorf("a port nobody listens on: got %+v", v)
	}
	// The node reaches a pod from its own address, as a kubelet's probe does.
	err := n.InNode(func() error {
		c, err := net.Dial("tcp4", web+":9001")
		if err != nil {
			return err
		}
		defer c.Close()
		if got := c.LocalAddr().(*net.TCPAddr).IP.String(); got != "172.18.0.2" {
			t.Errorf("the node dials from %s", got)
		}
		return nil
	})
	if err != nil {
		t.Errorf("from the node: %v", err)
	}
}

// TestNothingLeavesTheNode: what belongs to nobody is dropped in the node's
// namespace, which has no interface but the pods' links, and the machine's own
// namespace has none more than before.
func TestNothingLeavesTheNode(t *testing.T) {
	before := interfaceNames(t)
	n, _ := plain(t, "sbtest2", twoPods)
	if after := interfaceNames(t); after != before {
		t.Errorf("the machine's interfaces were %s and are %s", before, after)
	}
	for _, target := range []string{"192.0.2.2:22", "8.8.8.8:53", "10.96.0.10:80", "10.244.0.250:80"} {
		v := talk(t, n, "client", "--timeout", "300ms", target)
		if v.Outcome != echo.Timeout || v.Phase != echo.PhaseConnect {
			t.Errorf("%s: got %+v, want a silent drop", target, v)
		}
		err := n.InNode(func() error {
			c, err := net.DialTimeout("tcp4", target, time.Second)
			if err == nil {
				c.Close()
			}
			return err
		})
		if !errors.Is(err, syscall.EINVAL) { // what connect says of a blackhole
			t.Errorf("from the node to %s: got %v, want the blackhole", target, err)
		}
	}
	err := n.InNode(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			if l.Type() != "veth" && l.Attrs().Name != "lo" {
				t.Errorf("the node has an interface %s of type %s", l.Attrs().Name, l.Type())
			}
		}
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return err
		}
		for _, r := range routes {
			ones, _ := r.Dst.Mask.Size()
			if ones != 32 && (ones != 0 || r.Type != unix.RTN_BLACKHOLE) {
				t.Errorf("the node has a route %v", r)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func interfaceNames(t *testing.T) string {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	return strings.Join(names, " ")
}

func TestOutsideHoldsItsAddresses(t *testing.T) {
	n, dir := plain(t, "sbtest3", twoPods+`
---
apiVersion: v1
kind: Pod
metadata: {name: world, annotations: {sandbox.aether.io/outside: "203.0.113.7, 10.96.0.1"}}
spec: {containers: [{name: echo, image: aether/echo, args: [--http, ":80", --name, world]}]}
`)
	if err := n.WaitReady(t.Context(), "world"); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"203.0.113.7:80", "10.96.0.1:80"} {
		id := identity(t, talk(t, n, "client", "--mode", "http", target))
		if id.Pod != "world" || id.Local != target || !strings.HasPrefix(id.Remote, "10.244.7.7:") {
			t.Errorf("%s: the server is %+v", target, id)
		}
	}
	// The world can dial in, from its own address.
	err := n.InOutside(func() error {
		c, err := net.DialTimeout("tcp4", n.PodIP("web").String()+":8080", 2*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		if got := c.LocalAddr().(*net.TCPAddr).IP.String(); got != "203.0.113.7" && got != "10.96.0.1" {
			t.Errorf("the world dials from %s", got)
		}
		return nil
	})
	if err != nil {
		t.Errorf("from outside: %v", err)
	}
	writeManifests(t, dir, twoPods)
	eventually(t, "the addresses of a pod that is gone are nobody's", func() bool {
		return talk(t, n, "client", "--timeout", "300ms", "203.0.113.7:80").Outcome == echo.Timeout
	})
}

// TestTwoSandboxes: the same manifests, addresses included, side by side.
func TestTwoSandboxes(t *testing.T) {
	a, _ := plain(t, "sbtest4a", twoPods)
	b, _ := plain(t, "sbtest4b", strings.ReplaceAll(twoPods, `--http, ":8080"`, `--http, ":8080", --name, other`))
	for n, want := range map[*Node]string{a: "web", b: "other"} {
		if id := identity(t, talk(t, n, "client", "--mode", "http", n.PodIP("web").String()+":8080")); id.Pod != want {
			t.Errorf("sandbox %s: the server is %s, want %s", n.cfg.Name, id.Pod, want)
		}
	}
	if _, err := Up(t.Context(), a.cfg); !errors.Is(err, ErrRunning) {
		t.Errorf("a second sandbox of that name: %v, want ErrRunning", err)
	}
	if _, err := Clean(t.Context(), a.cfg.StateDir, a.cfg.Name); !errors.Is(err, ErrRunning) {
		t.Errorf("cleaning a running sandbox: %v, want ErrRunning", err)
	}
}

// TestDownLeavesNothing: not even what containers started on the side.
func TestDownLeavesNothing(t *testing.T) {
	n, _ := plain(t, "sbtest5", twoPods+`
---
apiVersion: v1
kind: Pod
metadata: {name: messy}
spec:
  containers:
  - {name: c, command: [sh, -c, "setsid sleep 1000 & trap '' TERM; while :; do sleep 0.1; done"]}
`)
	if err := n.WaitReady(t.Context(), "messy"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Output(t.Context(), "client", "sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &"); err != nil {
		t.Fatal(err)
	}
	namespaces, err := sandboxNetNS("sbtest5")
	if err != nil || len(namespaces) != 5 {
		t.Fatalf("got namespaces %v (%v), want five", namespaces, err)
	}
	running, err := processesIn(namespaces)
	if err != nil || len(running) < 5 {
		t.Fatalf("got processes %v (%v), want at least five", running, err)
	}
	begin := time.Now()
	if err := n.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("down in %v", time.Since(begin))
	if left, err := sandboxNetNS("sbtest5"); err != nil || len(left) > 0 {
		t.Errorf("namespaces left: %v (%v)", left, err)
	}
	for _, pid := range running {
		if pid != os.Getpid() && alive(pid) {
			t.Errorf("process %d is left", pid)
		}
	}
	if _, err := os.Stat(n.paths.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("files are left: %v", err)
	}
	if err := n.Down(context.Background()); err != nil {
		t.Errorf("down once more: %v", err)
	}
}

func TestUpThatFailsLeavesNothing(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	writeManifests(t, dir, twoPods)
	ctx, cancel := context.WithCancel(t.Context())
	c := Config{Name: "sbtest6", Dirs: []string{dir}, StateDir: t.TempDir(), NoProxy: true, Progress: func(string) { cancel() }}
	if n, err := Up(ctx, c); err == nil {
		t.Error("up although its context ended")
		_ = n.Down(context.Background())
	}
	if left, err := sandboxNetNS("sbtest6"); err != nil || len(left) > 0 {
		t.Errorf("namespaces left: %v (%v)", left, err)
	}
	if _, err := os.Stat(c.paths().dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("files are left: %v", err)
	}
}

func TestSettingsAreChecked(t *testing.T) {
	dir := t.TempDir()
	long := "/" + strings.Repeat("x", 100)
	for _, c := range []struct {
		change func(*Config)
		says   string
	}{
		{func(c *Config) { c.Name = "a-b" }, "sandbox name"},
		{func(c *Config) { c.Dirs = nil }, "manifest directory"},
		{func(c *Config) { c.Dirs = []string{dir + "/nowhere"} }, "nowhere"},
		{func(c *Config) { c.Mode = "off" }, "passthrough, balance, enforce"},
		{func(c *Config) { c.EgressSource = "host" }, "pod, node"},
		{func(c *Config) { c.StateDir = long }, "too long"},
		{func(c *Config) { c.AgentPath = dir }, "not an executable"},
		{func(c *Config) { c.EnvoyPath = dir + "/envoy"; c.AgentPath = os.Args[0] }, "Envoy"},
	} {
		cfg := Config{Name: "sbtest7", Dirs: []string{dir}, StateDir: t.TempDir()}
		c.change(&cfg)
		n, err := Up(t.Context(), cfg)
		if err == nil {
			_ = n.Down(context.Background())
		}
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("got %v, want an error that says %q", err, c.says)
		}
	}
}

// TestNobodyElsesFilesAreRemoved: a directory of the sandbox's name that is not
// a sandbox's stays.
func TestNobodyElsesFilesAreRemoved(t *testing.T) {
	needRoot(t)
	c := Config{Name: "sbtest8", Dirs: []string{t.TempDir()}, StateDir: t.TempDir(), NoProxy: true}
	precious := filepath.Join(c.StateDir, c.Name, "precious")
	if err := errors.Join(os.Mkdir(filepath.Dir(precious), 0o755), os.WriteFile(precious, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if n, err := Up(t.Context(), c); err == nil || !strings.Contains(err.Error(), "not made by a sandbox") {
		t.Errorf("got %v, want a refusal", err)
		_ = n.Down(context.Background())
	}
	if _, err := Clean(t.Context(), c.StateDir, c.Name); err == nil {
		t.Error("clean did not refuse")
	}
	if _, err := os.Stat(precious); err != nil {
		t.Errorf("a file that is nobody's business: %v", err)
	}
}
