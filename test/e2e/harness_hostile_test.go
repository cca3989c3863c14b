// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/sandbox"
	"aether.io/aether/internal/sandbox/echo"
)

// serverFirst is a client that waits for the server to say who it is.
func serverFirst(target string) echo.Client {
	return echo.Client{Mode: "server-first", Target: target}
}

// hostOf returns the address in "address:port".
func hostOf(addrPort string) string {
	host, _, _ := strings.Cut(addrPort, ":")
	return host
}

// inNode runs a command in the node's network namespace.
func (n *node) inNode(t *testing.T, input string, argv ...string) string {
	t.Helper()
	var out []byte
	err := n.InNode(func() (err error) {
		// The process begins in the namespace of the thread that makes it.
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), argv[0], argv[1:]...)
		cmd.Stdin = strings.NewReader(input)
		out, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%s in the node's namespace: %v: %s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}

// hostInterface returns the node's end of a pod's link.
func (n *node) hostInterface(t *testing.T, pod string) string {
	t.Helper()
	for _, p := range n.Status().Pods {
		if p.Namespace == "default" && p.Name == pod {
			return p.Interface
		}
	}
	t.Fatalf("no pod %s", pod)
	return ""
}

// drop drops, on a pod's interface and as a NetworkPolicy does, what comes from
// the pod and matches (in nft's words), until the returned function is called.
func (n *node) drop(t *testing.T, pod, match string) (undo func()) {
	t.Helper()
	rule := fmt.Sprintf("iifname %q %s drop", n.hostInterface(t, pod), match)
	n.inNode(t, fmt.Sprintf(`table ip e2e_policy {
	chain input { type filter hook input priority filter; policy accept; %[1]s; }
	chain forward { type filter hook forward priority filter; policy accept; %[1]s; }
}`, rule), "nft", "-f", "-")
	return sync.OnceFunc(func() { n.inNode(t, "", "nft", "delete", "table", "ip", "e2e_policy") })
}

// trap is a listener in the node's namespace that remembers who connected.
type trap struct {
	mu   sync.Mutex
	seen []netip.AddrPort
}

// trap listens on an address of the node until the test ends.
func (n *node) trap(t *testing.T, address string) *trap {
	t.Helper()
	var l net.Listener
	if err := n.InNode(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp4", address)
		return err
	}); err != nil {
		t.Fatalf("listen in the node's namespace: %v", err)
	}
	tr := &trap{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			tr.mu.Lock()
			tr.seen = append(tr.seen, c.RemoteAddr().(*net.TCPAddr).AddrPort())
			tr.mu.Unlock()
			c.Close()
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return tr
}

// from lists the addresses that connected since the last call, each once.
func (tr *trap) from() []string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	var out []string
	for _, a := range tr.seen {
		out = append(out, a.Addr().String())
	}
	tr.seen = nil
	slices.Sort(out)
	return slices.Compact(out)
}

// meanwhile runs the client in a pod beside the test; wait returns its verdicts
// once it has ended, which its flags must see to.
func (n *node) meanwhile(t *testing.T, pod string, args ...string) (wait func() []echo.Verdict) {
	t.Helper()
	var vs []echo.Verdict
	var wg sync.WaitGroup
	wg.Go(func() { vs = n.client(t, pod, args...) })
	t.Cleanup(wg.Wait)
	return func() []echo.Verdict {
		wg.Wait()
		return vs
	}
}

// live is an established connection to an echoing server.
type live struct {
	what string
	c    *net.TCPConn
}

// live opens one and proves that it works.
func (n *node) live(t *testing.T, pod, target, what string) live {
	t.Helper()
	l := live{what, n.conn(t, pod, target)}
	l.check(t, "at the start")
	return l
}

// check exchanges a line.
func (l live) check(t *testing.T, when string) {
	t.Helper()
	if err := l.try(); err != nil {
		t.Errorf("the connection %s does not work any more %s: %v", l.what, when, err)
	}
}

func (l live) try() error {
	if err := l.c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	return exchange(l.c, "still there "+l.what)
}

// envoySocket is a TCP connection of Envoy's and the options of its socket.
type envoySocket struct {
	local, remote netip.AddrPort
	keepalive     bool
	idle, every   int // seconds
	probes        int
	userTimeout   int // milliseconds
	mark          int
}

// envoySockets lists Envoy's IPv4 TCP connections, in whatever namespace. It
// looks at duplicates of Envoy's descriptors, so it sees what the kernel holds.
func (n *node) envoySockets(t *testing.T) []envoySocket {
	t.Helper()
	pid := n.EnvoyPID()
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("open Envoy's process %d: %v", pid, err)
	}
	defer unix.Close(pidfd)
	var out []envoySocket
	for _, number := range descriptors(t, pid) {
		fd, err := unix.PidfdGetfd(pidfd, number, 0)
		if errors.Is(err, unix.EBADF) {
			continue // closed meanwhile
		}
		if err != nil {
			t.Fatalf("duplicate Envoy's descriptor %d: %v", number, err)
		}
		if s, ok := readSocket(fd); ok {
			out = append(out, s)
		}
		unix.Close(fd)
	}
	return out
}

// readSocket reads a socket's options; false for what is no connected IPv4 TCP
// socket.
func readSocket(fd int) (envoySocket, bool) {
	var s envoySocket
	local, err := unix.Getsockname(fd)
	if err != nil {
		return s, false
	}
	remote, err := unix.Getpeername(fd)
	if err != nil {
		return s, false
	}
	from, ok1 := local.(*unix.SockaddrInet4)
	to, ok2 := remote.(*unix.SockaddrInet4)
	if !ok1 || !ok2 {
		return s, false
	}
	s.local = netip.AddrPortFrom(netip.AddrFrom4(from.Addr), uint16(from.Port))
	s.remote = netip.AddrPortFrom(netip.AddrFrom4(to.Addr), uint16(to.Port))
	ok := true
	option := func(level, name int) int {
		v, err := unix.GetsockoptInt(fd, level, name)
		ok = ok && err == nil
		return v
	}
	s.keepalive = option(unix.SOL_SOCKET, unix.SO_KEEPALIVE) != 0
	s.mark = option(unix.SOL_SOCKET, unix.SO_MARK)
	s.idle = option(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
	s.every = option(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL)
	s.probes = option(unix.IPPROTO_TCP, unix.TCP_KEEPCNT)
	s.userTimeout = option(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
	return s, ok
}

// descriptors lists the open descriptors of a process; none when it has ended.
func descriptors(t *testing.T, pid int) []int {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("list descriptors of process %d: %v", pid, err)
	}
	var out []int
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, fd)
		}
	}
	return out
}

// clusters lists the clusters Envoy has, sorted.
func (n *node) clusters(t *testing.T) []string {
	t.Helper()
	out, err := n.tryClusters(t)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (n *node) tryClusters(t *testing.T) ([]string, error) {
	b, err := n.AdminGet(t.Context(), "/clusters?format=json")
	if err != nil {
		return nil, err
	}
	var body struct {
		Clusters []struct {
			Name string `json:"name"`
		} `json:"cluster_statuses"`
	}
	if err := json.Unmarshal(b, &body); err != nil {
		return nil, err
	}
	var out []string
	for _, c := range body.Clusters {
		out = append(out, c.Name)
	}
	slices.Sort(out)
	return out, nil
}

// listeners lists the listeners Envoy has, sorted.
func (n *node) listeners(t *testing.T) []string {
	t.Helper()
	b, err := n.AdminGet(t.Context(), "/listeners?format=json")
	if err != nil {
		t.Fatal(err)
	}
	var body struct {
		Listeners []struct {
			Name string `json:"name"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal(b, &body); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, l := range body.Listeners {
		out = append(out, l.Name)
	}
	slices.Sort(out)
	return out
}

// percentile returns the nearest-rank percentile of how long the connections
// took from connect to the first answer, in milliseconds.
func percentile(vs []echo.Verdict, p float64) float64 {
	var ms []float64
	for _, v := range vs {
		ms = append(ms, v.ConnectMS+v.LatencyMS)
	}
	if len(ms) == 0 {
		return 0
	}
	slices.Sort(ms)
	return ms[min(len(ms)-1, int(float64(len(ms))*p/100))]
}

// tryStatus is agentStatus for those who poll.
func (n *node) tryStatus(ctx context.Context) (s api.Status, err error) {
	err = n.callAgent(ctx, http.MethodGet, "/v1/status", nil, &s)
	return s, err
}

// ip runs iproute2's ip.
func ip(args ...string) (string, error) {
	out, err := exec.Command("ip", args...).CombinedOutput()
	return string(out), err
}

// awaitReady waits until a pod that was written is ready, and ends the test when
// it does not become so.
func (n *node) awaitReady(t *testing.T, pod string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settled)
	defer cancel()
	if err := n.WaitReady(ctx, pod); err != nil {
		t.Fatal(err)
	}
}

// upReady is up for nodes on which every pod is to be ready: on a busy machine a
// server may come so late that the sandbox does not wait for it.
func upReady(t *testing.T, yaml string, change ...func(*sandbox.Config)) *node {
	t.Helper()
	n := up(t, yaml, change...)
	late := 0
	for _, p := range n.Status().Pods {
		if !p.Ready {
			n.awaitReady(t, p.Name)
			late++
		}
	}
	if late > 0 {
		n.awaitManifests(t)
	}
	return n
}
