// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"aether.io/aether/internal/capture"
	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/sandbox/echo"
)

// divertMark is the mark by which capture leads a packet to the proxy.
const divertMark = int(capture.DivertMark)

// TestPenetration: what a hostile pod or neighbour may try against the capture
// listener. Nothing of it loops, harms Envoy or reaches the node.
func TestPenetration(t *testing.T) {
	n := upReady(t, passedThroughWorld()+client("bob")+`
apiVersion: v1
kind: Pod
metadata: {name: plain, labels: {aether.io/managed: "false"}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: client, image: aether/client}]
---
`+service("aimed", "10.96.0.40", "ports: [{name: self, port: 80}, {name: loopback, port: 81}]"))
	n.write(t, "aimed.yaml", slice("aimed", "aimed", "self", envoy.CapturePort, n.PodIP("alice").String())+
		slice("aimed-loopback", "aimed", "loopback", envoy.CapturePort, "127.0.0.1"))
	n.awaitUsed(t, "10.96.0.40:80", 1)
	envoyPID := n.EnvoyPID()
	t.Run("the listener from outside the pod", n.listenerFromOutside)
	t.Run("the listener from inside the pod", n.listenerFromInside)
	t.Run("the listener by way of a Service", n.listenerByService)
	t.Run("forged marks", func(t *testing.T) { n.marksDoNotHelp(t, "alice", n.PodIP("alice").String()) })
	t.Run("forged frames", n.framesDoNotHelp)
	if pid := n.EnvoyPID(); pid != envoyPID {
		t.Errorf("Envoy is process %d, was %d", pid, envoyPID)
	}
	wantAllOK(t, []echo.Verdict{n.dial(t, "alice", serverFirst("10.96.0.10:80")), n.dial(t, "bob", serverFirst("10.96.0.10:80"))})
}

// accepted is how many connections Envoy's capture listeners accepted so far.
func (n *node) accepted(t *testing.T) int {
	t.Helper()
	return n.gauge(t, "listener.capture.downstream_cx_total")
}

// listenerFromOutside: on a pod's address nothing listens on the capture port.
func (n *node) listenerFromOutside(t *testing.T) {
	target := netip.AddrPortFrom(n.PodIP("alice"), envoy.CapturePort).String()
	before := n.accepted(t)
	dial := echo.Client{Mode: "silent", Target: target, Timeout: 2 * time.Second}
	for who, in := range map[string]func(func() error) error{
		"the node":           n.InNode,
		"the external world": n.InOutside,
		"an uncaptured pod":  func(f func() error) error { return n.InPod("plain", f) },
		"the pod itself":     func(f func() error) error { return n.InPod("alice", f) },
	} {
		var v echo.Verdict
		if err := in(func() error { v = dial.Do(t.Context()); return nil }); err != nil {
			t.Fatal(err)
		}
		if v.Outcome != echo.Refused || v.Phase != echo.PhaseConnect {
			t.Errorf("from %s: %s, want the connect refused", who, told(v))
		}
	}
	if got := n.accepted(t); got != before {
		t.Errorf("Envoy accepted %d connections", got-before)
	}
	// A captured pod's dial goes by way of its own listener, once, and Envoy's
	// own dial is refused.
	v := n.dial(t, "bob", dial)
	if v.Outcome != echo.Closed && v.Outcome != echo.Reset {
		t.Errorf("from a captured pod: %s, want it to fail", told(v))
	}
	if line := n.awaitLogged(t, v); line.Outcome != "connect-failed" || line.Endpoint != target {
		t.Errorf("from a captured pod: logged as %s by endpoint %s, want connect-failed", line.Outcome, line.Endpoint)
	}
	if got := n.accepted(t); got != before+1 {
		t.Errorf("Envoy accepted %d connections for one dial", got-before)
	}
}

// listenerFromInside: on loopback it is there, refuses and says why, once.
func (n *node) listenerFromInside(t *testing.T) {
	target := fmt.Sprintf("127.0.0.1:%d", envoy.CapturePort)
	accepted, counted := n.accepted(t), n.counters(t)
	for _, mode := range []string{"silent", "talk"} {
		v := n.dial(t, "alice", echo.Client{Mode: mode, Target: target})
		if v.Outcome != echo.Reset {
			t.Errorf("%s client: %s, want a reset", mode, told(v))
		}
		line := n.awaitLogged(t, v)
		if line.Chain != envoy.ChainClosed || line.Outcome != "refused" || line.Reason != "not-proxied" || line.PodName != "alice" {
			t.Errorf("%s client: logged as %+v, want refused as not-proxied", mode, line)
		}
	}
	if got := n.accepted(t) - accepted; got != 2 {
		t.Errorf("Envoy accepted %d connections for two dials: it dialled itself", got)
	}
	refused := n.counters(t).since(counted)
	if got := refused.sum(envoy.CounterRefused, labels{"reason": "not-proxied", "source_service_account": "alice"}); got != 2 {
		t.Errorf("counted as refused: %d, want 2", got)
	}
	if e := n.explain(t, target); e.Answer != "refuse" || e.Reason != "not-proxied" {
		t.Logf("explain says %s", decision(e))
	}
}

// listenerByService: a slice that leads to the capture port leads nowhere.
func (n *node) listenerByService(t *testing.T) {
	accepted := n.accepted(t)
	v := n.dial(t, "alice", echo.Client{Mode: "silent", Target: "10.96.0.40:80"})
	if v.Outcome != echo.Closed && v.Outcome != echo.Reset {
		t.Errorf("to the pod's own address: %s, want it to fail", told(v))
	}
	if line := n.awaitLogged(t, v); line.Outcome != "connect-failed" {
		t.Errorf("to the pod's own address: logged as %s, want connect-failed", line.Outcome)
	}
	v = n.dial(t, "alice", echo.Client{Mode: "silent", Target: "10.96.0.40:81"})
	if line := n.awaitLogged(t, v); v.Outcome != echo.Reset || line.Reason != "no-endpoints" {
		t.Errorf("to loopback: %s, logged as %s %s, want refused as no-endpoints", told(v), line.Outcome, line.Reason)
	}
	if got := n.accepted(t) - accepted; got != 2 {
		t.Errorf("Envoy accepted %d connections for two dials: it dialled itself", got)
	}
}

// marksDoNotHelp: a socket that carries the divert mark is treated as any other.
// The node listens where the proxy might be aimed at; what it sees there comes
// from source alone: never from the node's loopback, and at the node's own
// address only as any dial of it.
func (n *node) marksDoNotHelp(t *testing.T, pod, source string) {
	const port = 7777
	n.inNode(t, "", "ip", "address", "replace", "169.254.20.10/32", "dev", "lo")
	loopback := n.trap(t, fmt.Sprintf("127.0.0.1:%d", port))
	link := n.trap(t, fmt.Sprintf("169.254.20.10:%d", port))
	own := n.trap(t, fmt.Sprintf("%s:%d", n.Status().NodeIP, port))
	podIP := n.PodIP(pod).String()
	for _, mark := range []int{0, divertMark, envoy.UpstreamMark, divertMark | envoy.UpstreamMark} {
		for _, bind := range []string{"", podIP} {
			for _, host := range []string{"127.0.0.1", "169.254.20.10", "0.0.0.0"} {
				if host != "169.254.20.10" && bind != "" {
					continue // the kernel drops such a packet as martian
				}
				v := n.dial(t, pod, echo.Client{Mode: "silent", Target: fmt.Sprintf("%s:%d", host, port), Mark: mark, Bind: bind, Timeout: 300 * time.Millisecond})
				if v.Outcome == echo.OK || host != "169.254.20.10" && v.Outcome == echo.Open {
					t.Errorf("mark %#x, bound to %q: %s", mark, bind, told(v))
				}
			}
			n.dial(t, pod, echo.Client{Mode: "silent", Target: fmt.Sprintf("%s:%d", n.Status().NodeIP, port), Mark: mark, Bind: bind, Timeout: 300 * time.Millisecond})
		}
	}
	if got := loopback.from(); len(got) > 0 {
		t.Errorf("the node's loopback was reached from %v", got)
	}
	if got := link.from(); len(got) > 0 && !slices.Equal(got, []string{podIP}) {
		t.Errorf("the node's link-local address was reached from %v, want at most the pod's own %s", got, podIP)
	}
	// Marked as Envoy's a dial passes by, from the pod.
	want := []string{podIP, source}
	slices.Sort(want)
	if got := own.from(); !slices.Equal(got, slices.Compact(want)) {
		t.Errorf("the node's address was reached from %v, want %v", got, want)
	}
	// The traps can be sprung.
	if err := n.InNode(func() error {
		for _, host := range []string{"127.0.0.1", "169.254.20.10"} {
			c, err := net.Dial("tcp4", net.JoinHostPort(host, strconv.Itoa(port)))
			if err != nil {
				return err
			}
			c.Close()
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for where, tr := range map[string]*trap{"loopback": loopback, "link-local": link} {
		eventually(t, settled, "a dial from the node itself is seen on "+where, func() error {
			if len(tr.from()) == 0 {
				return errors.New("it is not")
			}
			return nil
		})
	}
}

// framesDoNotHelp: frames that a process with NET_RAW writes to the pod's
// loopback device, with the mark that leads to the proxy, are not accepted.
func (n *node) framesDoNotHelp(t *testing.T) {
	before := n.accepted(t)
	var fd int
	if err := n.InPod("alice", func() error {
		link, err := net.InterfaceByName("lo")
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IP), Ifindex: link.Index})
	}); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	self := n.PodIP("alice")
	for i, target := range []string{"10.96.0.10:80", "169.254.169.254:80", "127.0.0.1:18001", n.Status().NodeIP + ":7777", "203.0.113.80:80"} {
		for _, source := range []netip.Addr{self, netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("127.0.0.1")} {
			for _, mark := range []int{0, divertMark} {
				if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark); err != nil {
					t.Fatal(err)
				}
				from := netip.AddrPortFrom(source, uint16(40000+i))
				if _, err := unix.Write(fd, firstSegment(from, netip.MustParseAddrPort(target))); err != nil {
					t.Errorf("write a frame: %v", err)
				}
			}
		}
	}
	// A connection made after them is accepted after them.
	wantAllOK(t, []echo.Verdict{n.dial(t, "alice", serverFirst("10.96.0.10:80"))})
	if got := n.accepted(t) - before; got != 1 {
		t.Errorf("Envoy accepted %d connections, want the one that was dialled", got)
	}
}

func htons(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// firstSegment is a SYN in an Ethernet frame for a loopback device.
func firstSegment(from, to netip.AddrPort) []byte {
	src, dst := from.Addr().As4(), to.Addr().As4()
	ip := []byte{0x45, 0, 0, 40, 0, 1, 0, 0, 64, unix.IPPROTO_TCP, 0, 0}
	ip = slices.Concat(ip, src[:], dst[:])
	binary.BigEndian.PutUint16(ip[10:], onesComplement(ip))
	tcp := binary.BigEndian.AppendUint16(nil, from.Port())
	tcp = binary.BigEndian.AppendUint16(tcp, to.Port())
	tcp = append(tcp, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, 0x02, 0xff, 0xff, 0, 0, 0, 0)
	pseudo := slices.Concat(src[:], dst[:], []byte{0, unix.IPPROTO_TCP, 0, byte(len(tcp))}, tcp)
	binary.BigEndian.PutUint16(tcp[16:], onesComplement(pseudo))
	return slices.Concat(make([]byte, 12), []byte{0x08, 0x00}, ip, tcp)
}

// onesComplement is the Internet checksum (RFC 1071) of an even number of bytes.
func onesComplement(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
