// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"
)

// netns is a network namespace made for one test.
type netns struct {
	name string
	path string
}

var netnsCount atomic.Int32

// newNetns makes a network namespace that goes with the test.
func newNetns(t testing.TB, role string) netns {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
	n := netns{name: fmt.Sprintf("captest-%d-%d-%s", os.Getpid(), netnsCount.Add(1), role)}
	n.path = "/run/netns/" + n.name
	command(t, "ip", "netns", "add", n.name)
	t.Cleanup(func() { command(t, "ip", "netns", "del", n.name) })
	return n
}

// command runs a program and returns what it printed.
func command(t testing.TB, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}

// exec runs a program inside the namespace.
func (n netns) exec(t testing.TB, args ...string) string {
	t.Helper()
	return command(t, "ip", append([]string{"netns", "exec", n.name}, args...)...)
}

// do runs f on a thread that is inside the namespace.
func (n netns) do(t testing.TB, f func() error) error {
	t.Helper()
	target, err := ns.GetNS(n.path)
	if err != nil {
		t.Fatalf("open %s: %v", n.path, err)
	}
	defer target.Close()
	return target.Do(func(ns.NetNS) error { return f() })
}

// world is a pod and what is outside of it: the outside answers whatever address
// and port the pod dials over the wire.
type world struct {
	pod, outside netns
}

const (
	podIP     = "10.244.7.2"
	outsideIP = "10.244.7.1"
	vip       = "10.96.0.1"
)

func newWorld(t testing.TB) world {
	t.Helper()
	w := world{pod: newNetns(t, "pod"), outside: newNetns(t, "out")}
	command(t, "ip", "-n", w.pod.name, "link", "add", "eth0", "type", "veth", "peer", "name", "pod0", "netns", w.outside.name)
	command(t, "ip", "-n", w.pod.name, "addr", "add", podIP+"/24", "dev", "eth0")
	command(t, "ip", "-n", w.pod.name, "link", "set", "eth0", "up")
	command(t, "ip", "-n", w.pod.name, "link", "set", "lo", "up")
	command(t, "ip", "-n", w.pod.name, "route", "add", "default", "via", outsideIP)
	command(t, "ip", "-n", w.outside.name, "addr", "add", outsideIP+"/24", "dev", "pod0")
	command(t, "ip", "-n", w.outside.name, "link", "set", "pod0", "up")
	command(t, "ip", "-n", w.outside.name, "link", "set", "lo", "up")
	w.outside.exec(t, "nft", "add table ip t; add chain ip t c { type nat hook prerouting priority dstnat; };"+
		"add rule ip t c meta l4proto tcp redirect to :7000; add rule ip t c meta l4proto udp redirect to :7000")
	w.outside.serve(t, "0.0.0.0:7000", "outside")
	return w
}

func (w world) install(t testing.TB, c Config) {
	t.Helper()
	if err := Install(w.pod.path, c); err != nil {
		t.Fatal(err)
	}
}

// proxy starts what stands for Envoy: a transparent listener that answers with
// the address that was dialled.
func (w world) proxy(t testing.TB) *server {
	t.Helper()
	return w.pod.listen(t, ListenerAddress().String(), "proxy", unix.IP_TRANSPARENT)
}

// server answers each connection with its name and the connection's local
// address, then echoes lines until the client closes.
type server struct {
	listener net.Listener
	name     string
	accepted atomic.Int64

	mu    sync.Mutex
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

func (n netns) serve(t testing.TB, addr, name string) *server {
	t.Helper()
	return n.listen(t, addr, name, 0)
}

func (n netns) listen(t testing.TB, addr, name string, ipOption int) *server {
	t.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return control(c, func(fd int) error {
			if ipOption == 0 {
				return nil
			}
			return unix.SetsockoptInt(fd, unix.SOL_IP, ipOption, 1)
		})
	}}
	lc.SetMultipathTCP(false)
	s := &server{name: name, conns: map[net.Conn]bool{}}
	err := n.do(t, func() (err error) {
		s.listener, err = lc.Listen(context.Background(), "tcp", addr)
		return err
	})
	if err != nil {
		t.Fatalf("listen on %s in %s: %v", addr, n.name, err)
	}
	s.wg.Go(s.run)
	t.Cleanup(s.stop)
	return s
}

func (s *server) run() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.accepted.Add(1)
		s.mu.Lock()
		s.conns[conn] = true
		s.mu.Unlock()
		s.wg.Go(func() { s.answer(conn) })
	}
}

func (s *server) answer(conn net.Conn) {
	defer func() {
		s.mu.Lock()
		delete(s.conns, conn)
		s.mu.Unlock()
		conn.Close()
	}()
	fmt.Fprintf(conn, "%s %s\n", s.name, conn.LocalAddr())
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		fmt.Fprintf(conn, "%s\n", lines.Text())
	}
}

// stop closes the listener and every connection. It may be called twice.
func (s *server) stop() {
	s.listener.Close()
	s.mu.Lock()
	for conn := range s.conns {
		conn.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

func control(c syscall.RawConn, f func(fd int) error) error {
	var inner error
	if err := c.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// client says how a connection is made.
type client struct {
	mark   int    // SO_MARK
	source string // local address, "" for the kernel's choice
	device string // SO_BINDTODEVICE
}

// answerTimeout is how long a dial and its answer may take; what has no answer
// by then is "silence".
const answerTimeout = 4 * time.Second

// connect dials from inside the namespace and returns the connection, its
// reader and the first line.
func (n netns) connect(t testing.TB, c client, addr string) (net.Conn, *bufio.Reader, string, error) {
	t.Helper()
	d := net.Dialer{Timeout: answerTimeout, Control: func(_, _ string, rc syscall.RawConn) error {
		return control(rc, func(fd int) error {
			if c.mark != 0 {
				if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, c.mark); err != nil {
					return err
				}
			}
			if c.device != "" {
				return unix.BindToDevice(fd, c.device)
			}
			return nil
		})
	}}
	if c.source != "" {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(c.source), 0))
	}
	var conn net.Conn
	err := n.do(t, func() (err error) {
		conn, err = d.Dial("tcp", addr)
		return err
	})
	if err != nil {
		return nil, nil, "", err
	}
	r := bufio.NewReader(conn)
	_ = conn.SetReadDeadline(time.Now().Add(answerTimeout))
	line, err := r.ReadString('\n')
	if err != nil {
		conn.Close()
		return nil, nil, "", err
	}
	_ = conn.SetReadDeadline(time.Time{})
	return conn, r, strings.TrimSpace(line), nil
}

// dial returns what answered, or "refused", "unreachable", "silence" or the error
// in words.
func (n netns) dial(t testing.TB, c client, addr string) string {
	t.Helper()
	conn, _, line, err := n.connect(t, c, addr)
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ENETUNREACH):
		return "unreachable"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "silence"
	case err != nil:
		return err.Error()
	}
	conn.Close()
	return line
}
