// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// dialRow is a dial from inside the pod and who answers it: "proxy" with the
// address that was dialled, "outside" over the wire, "app" in the pod.
type dialRow struct {
	name   string
	client client
	addr   string
	want   string
}

// forged is what a process with NET_RAW can do; bound to the pod's address it
// gets the source that an honest socket has.
var (
	forged      = client{mark: int(DivertMark)}
	forgedBound = client{mark: int(DivertMark), source: podIP}
)

func TestWhoAnswers(t *testing.T) {
	w := newWorld(t)
	w.pod.serve(t, "0.0.0.0:8080", "app")
	proxy := w.proxy(t)
	sets := map[string]struct {
		config Config
		rows   []dialRow
	}{
		"tuned": {tuned, []dialRow{
			{"a Service", client{}, vip + ":80", "proxy 10.96.0.1:80"},
			{"outside the cluster", client{}, "203.0.113.9:443", "proxy 203.0.113.9:443"},
			{"the neighbour's address", client{}, outsideIP + ":80", "proxy 10.244.7.1:80"},
			{"a port where the pod listens", client{}, vip + ":8080", "proxy 10.96.0.1:8080"},
			{"bound to the pod's address", client{source: podIP}, vip + ":80", "proxy 10.96.0.1:80"},
			{"DNS", client{}, vip + ":53", "outside"},
			{"metadata service", client{}, "169.254.169.254:80", "outside"},
			{"loopback", client{}, "127.0.0.1:8080", "app 127.0.0.1:8080"},
			{"loopback by another address", client{}, "127.9.9.9:8080", "app 127.9.9.9:8080"},
			{"this host", client{}, "0.0.0.0:8080", "app 127.0.0.1:8080"},
			{"the pod's own address", client{}, podIP + ":8080", "app 10.244.7.2:8080"},
			{"excluded port", client{}, vip + ":3306", "outside"},
			{"before the excluded ports", client{}, vip + ":8999", "proxy 10.96.0.1:8999"},
			{"first of the excluded ports", client{}, vip + ":9000", "outside"},
			{"last of the excluded ports", client{}, vip + ":9099", "outside"},
			{"after the excluded ports", client{}, vip + ":9100", "proxy 10.96.0.1:9100"},
			{"excluded range", client{}, "172.16.5.5:80", "outside"},
			{"excluded address", client{}, "192.0.2.7:80", "outside"},
			{"beside the excluded address", client{}, "192.0.2.8:80", "proxy 192.0.2.8:80"},
			{"the proxy's mark", client{mark: int(ProxyMark)}, vip + ":80", "outside"},
			{"somebody's mark", client{mark: 0x4000}, vip + ":80", "proxy 10.96.0.1:80"},
			{"bound to a device", client{device: "eth0"}, vip + ":80", "outside"},
		}},
		"forged divert mark": {tuned, []dialRow{
			{"loopback", forged, "127.0.0.1:8080", "app 127.0.0.1:8080"},
			{"loopback, nobody there", forged, "127.0.0.1:8443", "refused"},
			{"the pod's own address", forged, podIP + ":8080", "app 10.244.7.2:8080"},
			{"metadata service", forgedBound, "169.254.169.254:80", "outside"},
			{"metadata service, unbound", forged, "169.254.169.254:80", "unreachable"},
			{"excluded port", forgedBound, vip + ":3306", "outside"},
			{"a Service", forgedBound, vip + ":80", "proxy 10.96.0.1:80"},
			{"a Service, unbound", forged, vip + ":80", "unreachable"},
		}},
		"mesh only": {meshOnly, []dialRow{
			{"a Service", client{}, vip + ":80", "outside"},
			{"mesh HTTP port", client{}, vip + ":18081", "proxy 10.96.0.1:18081"},
			{"mesh TCP port", client{}, vip + ":18082", "proxy 10.96.0.1:18082"},
			{"beside them", client{}, vip + ":18083", "outside"},
			{"mesh port on loopback", client{}, "127.0.0.1:18081", "refused"},
		}},
	}
	for name, set := range sets {
		w.install(t, set.config)
		for _, row := range set.rows {
			t.Run(name+"/"+row.name, func(t *testing.T) {
				before := proxy.accepted.Load()
				got := w.pod.dial(t, row.client, row.addr)
				// Outside, the address is that of the redirect there.
				if _, found := strings.CutPrefix(got, "outside "); found {
					got = "outside"
				}
				if got != row.want {
					t.Errorf("%s was answered %q, want %q", row.addr, got, row.want)
				}
				if took := proxy.accepted.Load() - before; took != 0 && !strings.HasPrefix(row.want, "proxy") {
					t.Errorf("the proxy took %d connections", took)
				}
			})
		}
	}
}

// The capture port from everywhere. Only a process of the pod that dials
// loopback meets the listener, with the listener's address as the one dialled;
// the proxy's matcher refuses that. No dial comes back to the proxy through it.
func TestTheCapturePortItself(t *testing.T) {
	w := newWorld(t)
	w.install(t, all)
	proxy := w.proxy(t)
	rows := []struct {
		name  string
		from  netns
		c     client
		addr  string
		want  string
		takes int64
	}{
		{"from outside", w.outside, client{}, podIP + ":18001", "refused", 0},
		{"from inside, the pod's address", w.pod, client{}, podIP + ":18001", "refused", 0},
		{"from inside, the pod's address, as the proxy", w.pod, client{mark: int(ProxyMark)}, podIP + ":18001", "refused", 0},
		{"from inside, the pod's address, forged", w.pod, forged, podIP + ":18001", "refused", 0},
		{"from inside, loopback", w.pod, client{}, "127.0.0.1:18001", "proxy 127.0.0.1:18001", 1},
		{"from inside, loopback, forged", w.pod, forged, "127.0.0.1:18001", "proxy 127.0.0.1:18001", 1},
		{"from inside, another loopback address", w.pod, client{}, "127.0.0.2:18001", "refused", 0},
		{"from inside, somewhere else", w.pod, client{}, vip + ":18001", "proxy 10.96.0.1:18001", 1},
	}
	for _, row := range rows {
		before := proxy.accepted.Load()
		if got := row.from.dial(t, row.c, row.addr); got != row.want {
			t.Errorf("%s: answered %q, want %q", row.name, got, row.want)
		}
		if took := proxy.accepted.Load() - before; took != row.takes {
			t.Errorf("%s: the proxy took %d connections, want %d", row.name, took, row.takes)
		}
	}
}

// Without the proxy a captured dial is refused at once. The pod's own server on
// that port must not answer for the Service.
func TestWithoutProxy(t *testing.T) {
	w := newWorld(t)
	w.install(t, all)
	app := w.pod.serve(t, "0.0.0.0:80", "app")
	refused := func(when string) {
		t.Helper()
		start := time.Now()
		if got := w.pod.dial(t, client{}, vip+":80"); got != "refused" {
			t.Errorf("%s: %q, want refused", when, got)
		}
		if took := time.Since(start); took > answerTimeout/2 {
			t.Errorf("%s: refused only after %s", when, took)
		}
	}
	refused("before the proxy is there")
	proxy := w.proxy(t)
	if got := w.pod.dial(t, client{}, vip+":80"); got != "proxy 10.96.0.1:80" {
		t.Errorf("with the proxy: %q", got)
	}
	proxy.stop()
	refused("after the proxy has gone")
	if n := app.accepted.Load(); n != 0 {
		t.Errorf("the pod's own server took %d connections meant for others", n)
	}
}

// echo sends a line and wants it back.
func echo(t *testing.T, what string, conn net.Conn, r *bufio.Reader) {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(answerTimeout))
	if _, err := fmt.Fprintln(conn, what); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if line, err := r.ReadString('\n'); err != nil || strings.TrimSpace(line) != what {
		t.Errorf("%s: got %q, %v", what, line, err)
	}
}

// What conntrack is told not to follow is left alone, not captured half.
func TestUntrackedConnectionsPassBy(t *testing.T) {
	w := newWorld(t)
	w.install(t, all)
	w.proxy(t)
	w.pod.exec(t, "nft", "add table ip raw; add chain ip raw output { type filter hook output priority raw; };"+
		"add rule ip raw output tcp dport 81 notrack")
	for addr, want := range map[string]string{vip + ":81": "outside", vip + ":80": "proxy"} {
		if got := w.pod.dial(t, client{}, addr); !strings.HasPrefix(got, want) {
			t.Errorf("%s was answered %q, want %s", addr, got, want)
		}
	}
}

// What was decided when a connection began holds for its lifetime.
func TestConnectionsKeepWhatWasDecided(t *testing.T) {
	w := newWorld(t)
	w.pod.serve(t, "0.0.0.0:8080", "app")
	w.proxy(t)
	open := func(n netns, addr, want string) func(string) {
		t.Helper()
		conn, r, line, err := n.connect(t, client{}, addr)
		if err != nil || !strings.HasPrefix(line, want) {
			t.Fatalf("%s: %q, %v, want %s", addr, line, err, want)
		}
		t.Cleanup(func() { conn.Close() })
		return func(when string) { t.Helper(); echo(t, when+": "+addr, conn, r) }
	}
	excluded := Config{RedirectAll: true, ExcludePorts: []PortRange{{80, 80}}}

	before := open(w.pod, vip+":80", "outside")
	inbound := open(w.outside, podIP+":8080", "app")
	w.install(t, all)
	before("outbound connection older than capture")
	inbound("inbound connection older than capture")

	captured := open(w.pod, vip+":80", "proxy")
	w.install(t, excluded)
	captured("captured, then excluded")
	before("older than capture, second install")
	direct := open(w.pod, vip+":80", "outside")

	w.install(t, all)
	direct("excluded, then captured")
	captured("captured, excluded, captured again")
	inbound("inbound, third install")
	open(w.pod, vip+":80", "proxy")("new")

	if err := Remove(w.pod.path); err != nil {
		t.Fatal(err)
	}
	direct("direct, after Remove")
	inbound("inbound, after Remove")
	open(w.pod, vip+":80", "outside")("new, after Remove")
}

// A server of the pod that speaks after its connection has left conntrack is
// answering still, not dialling.
func TestInboundOutlivesConntrack(t *testing.T) {
	w := newWorld(t)
	w.install(t, all)
	w.proxy(t)
	var listener net.Listener
	if err := w.pod.do(t, func() (err error) {
		listener, err = net.Listen("tcp4", "0.0.0.0:8080")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	accepted := make(chan net.Conn, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		conn, err := listener.Accept()
		if err != nil {
			t.Error(err)
			close(accepted)
			return
		}
		fmt.Fprintln(conn, "hello")
		accepted <- conn
	})
	_, r, line, err := w.outside.connect(t, client{}, podIP+":8080")
	if err != nil || line != "hello" {
		t.Fatalf("%q, %v", line, err)
	}
	server := <-accepted
	defer server.Close()
	if err := w.pod.do(t, func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) }); err != nil {
		t.Fatalf("flush conntrack: %v", err)
	}
	for i := range 3 {
		fmt.Fprintf(server, "line %d\n", i)
		if line, err := r.ReadString('\n'); err != nil || line != fmt.Sprintf("line %d\n", i) {
			t.Fatalf("after conntrack was flushed: %q, %v", line, err)
		}
	}
}

func TestRepliesOfInboundConnections(t *testing.T) {
	w := newWorld(t)
	w.install(t, all)
	proxy := w.proxy(t)
	w.pod.serve(t, "0.0.0.0:8080", "app")
	for i := range 5 {
		conn, r, line, err := w.outside.connect(t, client{}, podIP+":8080")
		if err != nil || line != "app 10.244.7.2:8080" {
			t.Fatalf("%q, %v", line, err)
		}
		echo(t, fmt.Sprintf("line %d", i), conn, r)
		conn.Close()
	}
	if got := w.outside.dial(t, client{}, podIP+":8081"); got != "refused" {
		t.Errorf("a closed port of the pod: %q, want refused", got)
	}
	if n := proxy.accepted.Load(); n != 0 {
		t.Errorf("the proxy took %d connections", n)
	}
}

// While the rules are being replaced there is no moment without them.
func TestNeverWithoutRules(t *testing.T) {
	w := newWorld(t)
	w.install(t, all)
	w.proxy(t)
	var stop atomic.Bool
	var dials atomic.Int64
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !stop.Load() {
				if got := w.pod.dial(t, client{}, vip+":80"); got != "proxy 10.96.0.1:80" {
					t.Errorf("answered %q", got)
					return
				}
				dials.Add(1)
			}
		})
	}
	for i := range 60 {
		w.install(t, []Config{all, tuned, {RedirectAll: true, ExcludePorts: []PortRange{{uint16(1000 + i), 2000}}}}[i%3])
	}
	stop.Store(true)
	wg.Wait()
	t.Logf("%d dials during 60 installs", dials.Load())
	if dials.Load() < 60 {
		t.Errorf("only %d dials", dials.Load())
	}
}

// Capture does not hang on what the host's defaults for a namespace are.
func TestSysctls(t *testing.T) {
	w := newWorld(t)
	w.install(t, tuned)
	w.proxy(t)
	w.pod.serve(t, "0.0.0.0:8080", "app")
	for _, setting := range []string{
		"net.ipv4.conf.all.rp_filter=1", "net.ipv4.conf.all.rp_filter=2", "net.ipv4.conf.lo.rp_filter=1", "net.ipv4.conf.eth0.rp_filter=1",
		"net.ipv4.conf.all.accept_local=1", "net.ipv4.conf.all.route_localnet=1", "net.ipv4.conf.all.src_valid_mark=1",
		"net.ipv4.fwmark_reflect=1", "net.ipv4.tcp_fwmark_accept=1", "net.ipv4.ip_early_demux=0", "net.ipv4.tcp_early_demux=0",
		"net.ipv4.ip_nonlocal_bind=1", "net.netfilter.nf_conntrack_tcp_loose=0", "net.netfilter.nf_conntrack_tcp_be_liberal=1", "net.ipv4.tcp_tw_reuse=1",
	} {
		w.pod.exec(t, "sysctl", "-qw", setting)
		for _, row := range []struct {
			from       netns
			addr, want string
		}{
			{w.pod, vip + ":80", "proxy 10.96.0.1:80"},
			{w.pod, vip + ":3306", "outside"},
			{w.pod, "127.0.0.1:8080", "app"},
			{w.pod, podIP + ":8080", "app"},
			{w.outside, podIP + ":8080", "app"},
		} {
			if got := row.from.dial(t, client{}, row.addr); !strings.HasPrefix(got, row.want) {
				t.Errorf("%s: %s was answered %q, want %s", setting, row.addr, got, row.want)
			}
		}
	}
}

// A pod that begins more connections than its rate waits and loses none; what is
// not captured does not count.
func TestConnectionRateSlows(t *testing.T) {
	w := newWorld(t)
	proxy := w.proxy(t)
	w.install(t, Config{RedirectAll: true, ConnectionRate: 2})
	for range 4 {
		if got := w.pod.dial(t, client{}, vip+":53"); !strings.HasPrefix(got, "outside") {
			t.Fatalf("a dial that is not captured was answered %q", got)
		}
	}
	began := time.Now()
	const dials = 6
	for i := range dials {
		if got := w.pod.dial(t, client{}, vip+":80"); got != "proxy 10.96.0.1:80" {
			t.Errorf("dial %d was answered %q", i+1, got)
		}
	}
	// Two at once, then two a second; who comes too early waits a second.
	if took := time.Since(began); took < time.Second {
		t.Errorf("%d dials took %s: they were not slowed", dials, took)
	}
	if got := proxy.accepted.Load(); got != dials {
		t.Errorf("the proxy took %d connections, want %d", got, dials)
	}
	s, err := See(w.pod.path)
	if err != nil || s.Slowed == 0 {
		t.Errorf("seen as %+v, %v: want first segments counted that were dropped", s, err)
	}
	if err := Check(w.pod.path, Config{RedirectAll: true, ConnectionRate: 2}); err != nil {
		t.Errorf("rules that have counted: %v", err)
	}
}

func TestUDPAndIPv6AreLeftAlone(t *testing.T) {
	w := newWorld(t)
	w.install(t, all)
	proxy := w.proxy(t)
	var server, from net.PacketConn
	listen := func(n netns, addr string) (c net.PacketConn) {
		if err := n.do(t, func() (err error) {
			c, err = net.ListenPacket("udp4", addr)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(answerTimeout))
		return c
	}
	server, from = listen(w.outside, "0.0.0.0:7000"), listen(w.pod, "0.0.0.0:0")
	if _, err := from.WriteTo([]byte("x"), &net.UDPAddr{IP: net.ParseIP(vip), Port: 18082}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := server.ReadFrom(make([]byte, 1)); err != nil {
		t.Errorf("UDP did not get outside: %v", err)
	}

	command(t, "ip", "-n", w.pod.name, "-6", "addr", "add", "fd00:7::2/64", "dev", "eth0", "nodad")
	command(t, "ip", "-n", w.outside.name, "-6", "addr", "add", "fd00:7::1/64", "dev", "pod0", "nodad")
	w.outside.serve(t, "[fd00:7::1]:80", "outside")
	if got := w.pod.dial(t, client{}, "[fd00:7::1]:80"); got != "outside [fd00:7::1]:80" {
		t.Errorf("IPv6 was answered %q", got)
	}
	if n := proxy.accepted.Load(); n != 0 {
		t.Errorf("the proxy took %d connections", n)
	}
}
