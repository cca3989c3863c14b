// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/capture"
	"aether.io/aether/internal/envoy"
)

// podNS is a network namespace with an address of its own, kept by a thread.
type podNS struct {
	path string
	ip   string
	do   chan func()
	done chan struct{}
}

// newPodNS makes a namespace with nothing but loopback, over which everything is
// routed: there is no way out of it.
func newPodNS(t *testing.T, ip string) *podNS {
	t.Helper()
	n := &podNS{ip: ip, do: make(chan func()), done: make(chan struct{})}
	made := make(chan error)
	go onThread(func() {
		defer close(n.done)
		err := unix.Unshare(unix.CLONE_NEWNET)
		n.path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		if err == nil {
			err = linkUp(ip)
		}
		made <- err
		for f := range n.do {
			f()
		}
	})
	t.Cleanup(func() { close(n.do); <-n.done })
	if err := <-made; err != nil {
		t.Fatalf("make a network namespace (root is needed): %v", err)
	}
	return n
}

func linkUp(ip string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(ip + "/32")
	if err != nil {
		return err
	}
	_, all, err := net.ParseCIDR("0.0.0.0/0")
	if err != nil {
		return err
	}
	return errors.Join(
		netlink.AddrAdd(lo, addr),
		netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: all, Scope: netlink.SCOPE_LINK, Src: addr.IP}),
	)
}

// in runs f in the namespace and waits for it.
func (n *podNS) in(f func() error) error {
	result := make(chan error, 1)
	n.do <- func() { result <- f() }
	return <-result
}

// serve answers every connection to port 8080 with the caller's address and what
// it sends.
func (n *podNS) serve(t *testing.T) {
	t.Helper()
	var l net.Listener
	err := n.in(func() (err error) {
		l, err = net.Listen("tcp", n.ip+":8080")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintln(c, c.RemoteAddr().(*net.TCPAddr).IP)
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

// dial connects from the namespace and reads the server's first line.
func (n *podNS) dial(target string) (c net.Conn, line string, err error) {
	err = n.in(func() (err error) {
		c, err = (&net.Dialer{Timeout: patience}).Dial("tcp", target)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	var b [64]byte
	k, err := c.Read(b[:])
	if err != nil {
		c.Close()
		return nil, "", err
	}
	return c, strings.TrimSpace(string(b[:k])), nil
}

// findEnvoy finds Envoy the product's way.
func findEnvoy(t *testing.T) string {
	t.Helper()
	if p := os.Getenv("AETHER_ENVOY"); p != "" {
		return p
	}
	if p, err := exec.LookPath("envoy"); err == nil {
		return p
	}
	p, err := filepath.Abs("../../.build/envoy/envoy")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("no Envoy: run `make envoy` (%v)", err)
	}
	return p
}

// startEnvoy starts Envoy as the node's.
func (s *scenario) startEnvoy(t *testing.T) {
	t.Helper()
	c := s.agent.cfg
	b, err := envoy.Bootstrap(envoy.BootstrapSettings{
		NodeID: c.Node, XDSSocket: c.XDSSocket(), RecordSocket: c.RecordSocket(), AdminSocket: c.AdminSocket(), DescriptorLimit: 4096,
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.work, "envoy.json")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(findEnvoy(t), "-c", path, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("envoy: %s\nagent: %s", &log, s.log)
		}
	})
}

// addPod reports a pod until its listener is ready.
func (s *scenario) addPod(t *testing.T, uid string, n *podNS) {
	t.Helper()
	err := soon(func() error {
		var st api.PodStatus
		code, err := s.agent.call(cniSocket, http.MethodPost, "/v1/pods", api.Pod{
			Namespace: "default", Name: "client", UID: uid, ServiceAccount: "shopper", IP: n.ip, NetNS: n.path,
		}, &st)
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d %s", code, st.Listener)
		}
		return err
	})
	if err != nil {
		t.Fatalf("add pod: %v", err)
	}
}

const realManifests = `
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/16]}
`

func service(name, vip, endpoint string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: default}
spec:
  clusterIP: %[2]s
  ports: [{name: http, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-1, namespace: default, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [%[3]s]}]
`, name, vip, endpoint)
}

func (s *scenario) write(t *testing.T, name, text string) {
	t.Helper()
	err := s.edit(func() error {
		early := filepath.Join(s.work, ".early")
		if err := os.WriteFile(early, []byte(text), 0o600); err != nil {
			return err
		}
		return os.Rename(early, filepath.Join(s.manifests, name))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestWithEnvoy runs the agent with Envoy 1.40 and with pods' namespaces in which
// the capture rules are installed: what the scenarios take Envoy to do, it does.
func TestWithEnvoy(t *testing.T) {
	s := newTestScenario(t)
	s.real = true
	pod := newPodNS(t, "10.244.0.2")
	pod.serve(t)
	if err := capture.Install(pod.path, capture.Config{RedirectAll: true}); err != nil {
		t.Fatal(err)
	}
	s.write(t, "range.yaml", realManifests)
	s.write(t, "web.yaml", service("web", "10.96.0.12", pod.ip))
	if err := s.startAgent([]string{"budget=2", "hold=100ms"}, (*scenario).awaitReady); err != nil {
		t.Fatal(err)
	}
	s.startEnvoy(t)
	s.addPod(t, "1", pod)

	c, line, err := pod.dial("10.96.0.12:80")
	if err != nil || line != pod.ip {
		t.Fatalf("first dial: %q %v, want the pod's own address", line, err)
	}
	defer c.Close()
	t.Run("a refusal is a reset", func(t *testing.T) {
		for _, target := range []string{"10.96.0.12:81", "10.96.9.9:80"} {
			if _, _, err := pod.dial(target); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("%s: %v, want a reset", target, err)
			}
		}
	})
	t.Run("past the budget it fails at once, and a Service takes over", func(t *testing.T) { turnedAwayForReal(t, s, pod) })
	t.Run("connections are counted", func(t *testing.T) { countedForReal(t, s) })
	t.Run("a new agent changes nothing", func(t *testing.T) { newAgentForReal(t, s, pod, c) })
	t.Run("a new pod of the same name", func(t *testing.T) { newPodForReal(t, s, pod) })
	t.Run("a new agent with other rates", func(t *testing.T) { otherRatesForReal(t, s) })
}

func turnedAwayForReal(t *testing.T, s *scenario, pod *podNS) {
	begun := time.Now()
	if _, _, err := pod.dial("10.96.0.13:80"); err == nil {
		t.Error("a name past the budget is served")
	}
	if took := time.Since(begun); took > time.Second {
		t.Errorf("it failed after %v, want at once", took)
	}
	st, err := s.agent.getStatus()
	if err != nil || st.Names.OverLimit != 1 {
		t.Errorf("over limit %+v, %v; want 1", st.Names, err)
	}
	s.write(t, "late.yaml", service("late", "10.96.0.13", pod.ip))
	err = soon(func() error {
		c, _, err := pod.dial("10.96.0.13:80")
		if err == nil {
			c.Close()
		}
		return err
	})
	if err != nil {
		t.Errorf("after its Service came: %v", err)
	}
}

func countedForReal(t *testing.T, s *scenario) {
	err := soon(func() error {
		var b bytes.Buffer
		if err := s.counts(&b); err != nil {
			return err
		}
		if want := "10.96.0.12:80 1 1\n"; !strings.Contains(b.String(), want) {
			return fmt.Errorf("counts %q, want %q", b.String(), want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// newAgentForReal restarts the agent below a connection.
func newAgentForReal(t *testing.T, s *scenario, pod *podNS, c net.Conn) {
	updates := []string{"listener_manager.listener_modified", "cluster_manager.cluster_modified", "cluster_manager.cluster_removed"}
	before := s.envoyStat(t, updates...)
	s.agent.cancel()
	if err := <-s.agent.done; err != nil {
		t.Fatal(err)
	}
	s.agent.done <- nil
	if x, _, err := pod.dial("10.96.0.12:80"); err != nil {
		t.Errorf("while the agent is away: %v", err)
	} else {
		x.Close()
	}
	if err := s.startAgent([]string{"budget=2", "hold=100ms"}, (*scenario).awaitReady); err != nil {
		t.Fatal(err)
	}
	s.addPod(t, "1", pod)
	if _, err := io.WriteString(c, "still here"); err != nil {
		t.Fatal(err)
	}
	var b [10]byte
	if _, err := io.ReadFull(c, b[:]); err != nil || string(b[:]) != "still here" {
		t.Errorf("the old connection says %q, %v", b, err)
	}
	for _, target := range []string{"10.96.0.12:80", "10.96.0.13:80"} {
		x, _, err := pod.dial(target)
		if err != nil {
			t.Errorf("%s: %v", target, err)
			continue
		}
		x.Close()
	}
	for _, target := range []string{"10.96.0.12:81", "10.96.9.9:80"} {
		if _, _, err := pod.dial(target); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v, want a reset", target, err)
		}
	}
	after := s.envoyStat(t, updates...)
	if before != after {
		t.Errorf("Envoy changed something:\n%s\nbefore:\n%s", after, before)
	}
}

// newPodForReal replaces the pod by one of the same name, as a StatefulSet does.
func newPodForReal(t *testing.T, s *scenario, old *podNS) {
	pod := newPodNS(t, "10.244.0.3")
	pod.serve(t)
	if err := capture.Install(pod.path, capture.Config{RedirectAll: true}); err != nil {
		t.Fatal(err)
	}
	s.addPod(t, "2", pod)
	s.write(t, "web.yaml", service("web", "10.96.0.12", pod.ip))
	err := soon(func() error {
		c, line, err := pod.dial("10.96.0.12:80")
		if err != nil {
			return err
		}
		c.Close()
		if line != pod.ip {
			return fmt.Errorf("served to %s, want %s", line, pod.ip)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if c, _, err := old.dial("10.96.0.12:80"); err == nil {
		c.Close()
		t.Error("the old pod's listener is still there")
	}
}

// otherRatesForReal restarts the agent with other rates of logs and records below
// an Envoy whose listener came when its rates were there: Envoy lives on, and the
// listener takes the new ones.
func otherRatesForReal(t *testing.T, s *scenario) {
	pod := newPodNS(t, "10.244.0.4")
	if err := capture.Install(pod.path, capture.Config{RedirectAll: true}); err != nil {
		t.Fatal(err)
	}
	pod.serve(t)
	s.addPod(t, "3", pod)
	s.write(t, "web.yaml", service("web", "10.96.0.12", pod.ip))
	var c net.Conn
	err := soon(func() (err error) {
		c, _, err = pod.dial("10.96.0.12:80")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() // so that the old listener, with the old rates, stays
	uptime := func() string { return s.envoyStat(t, "server.hot_restart_epoch", "server.live") }
	before, dump := uptime(), func() string { return s.envoyText(t, "/config_dump?resource=dynamic_listeners") }
	if got := dump(); !strings.Contains(got, "aether_records_1000") {
		t.Fatal("the listener has no rate of 1000")
	}
	s.agent.cancel()
	if err := <-s.agent.done; err != nil {
		t.Fatal(err)
	}
	s.agent.done <- nil
	if err := s.startAgent([]string{"budget=2", "hold=100ms", "rates=77"}, (*scenario).awaitReady); err != nil {
		t.Fatal(err)
	}
	err = soon(func() error {
		if got := dump(); !strings.Contains(got, "aether_records_77") || strings.Contains(got, "warming_state") {
			return errors.New("the listener has no new rate yet")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if after := uptime(); after != before {
		t.Errorf("Envoy tells %q, told %q", after, before)
	}
}

// counts prints the connections of every name, in all and open.
func (s *scenario) counts(w io.Writer) error {
	var rows []api.ServiceRow
	if _, err := s.agent.call(agentSocket, http.MethodGet, "/v1/services", nil, &rows); err != nil {
		return err
	}
	for _, r := range rows {
		fmt.Fprintf(w, "%s %d %d\n", r.Address, r.Live.Connections, r.Live.Active)
	}
	return nil
}

// envoyStat returns some of Envoy's statistics as text.
func (s *scenario) envoyStat(t *testing.T, names ...string) string {
	t.Helper()
	text := s.envoyText(t, "/stats?filter=^("+strings.Join(names, "|")+")$")
	if strings.Count(text, "\n") != len(names) {
		t.Fatalf("Envoy tells %q of %v", text, names)
	}
	return text
}

// envoyText returns a page of Envoy's admin interface.
func (s *scenario) envoyText(t *testing.T, page string) string {
	t.Helper()
	resp, err := unixClient(s.agent.cfg.AdminSocket()).Get("http://envoy" + page)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
