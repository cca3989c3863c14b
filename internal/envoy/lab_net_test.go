// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"aether.io/aether/internal/model"
)

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

// within runs f in a namespace.
func within(path string, f func() error) error {
	return ns.WithNetNSPath(path, func(ns.NetNS) error { return f() })
}

// serve runs a TCP server in the node's namespace.
func (l *lab) serve(addr string, handle func(*net.TCPConn)) {
	l.t.Helper()
	var ln net.Listener
	l.must(within("/run/netns/"+l.node, func() (err error) {
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
	c, err := l.tryDial(pod, addr)
	l.must(err)
	return c
}

// tryDial is dial where the connection may be ended at once: a reset that is
// there before this process runs again is connect's own error.
func (l *lab) tryDial(pod, addr string) (*net.TCPConn, error) {
	l.t.Helper()
	var c net.Conn
	if err := within(l.pods[pod].NetNS, func() (err error) {
		c, err = net.DialTimeout("tcp4", addr, waitLimit)
		return err
	}); err != nil {
		return nil, err
	}
	l.must(c.SetDeadline(time.Now().Add(2 * waitLimit)))
	l.t.Cleanup(func() { _ = c.Close() })
	return c.(*net.TCPConn), nil
}
