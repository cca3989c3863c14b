// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"
	"time"

	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/sandbox/echo"
)

// firstRange is the Service range most nodes here begin with.
const firstRange = `
{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [10.96.0.0/16]}}
---
`

// passedThrough are addresses that a node which enforces does not answer for,
// each held by a pod of the external world. The chain is the one that the access
// log names: cap_svc where the agent was asked first.
var passedThrough = []struct {
	holder, address, class, chain string
}{
	{"apiserver", "10.96.0.1:443", "api-server", envoy.ChainPassthrough},
	{"otherproxy", "10.96.0.20:80", "foreign", envoy.ChainService},
	{"optedout", "10.96.0.21:80", "foreign", envoy.ChainService},
	{"external-ip", "10.96.0.99:80", "foreign", envoy.ChainService},
	{"imported", "10.200.0.9:80", "foreign", envoy.ChainService},
	{"website", "203.0.113.80:80", "external", envoy.ChainPassthrough},
}

// passedThroughWorld holds those addresses, and the Services that they belong
// to. All of them have a slice that leads to a pod which must not be reached.
func passedThroughWorld() string {
	yaml := firstRange + client("alice") + server("web", "app: web") + service("web", "10.96.0.10",
		"selector: {app: web}, ports: [{name: greet, port: 80, targetPort: 9001}, {name: echo, port: 7, targetPort: 9000}]") + `
{apiVersion: v1, kind: Service, metadata: {name: kubernetes}, spec: {clusterIP: 10.96.0.1, ports: [{name: https, port: 443}]}}
---
apiVersion: v1
kind: Service
metadata: {name: otherproxy, labels: {service.kubernetes.io/service-proxy-name: other}}
spec: {clusterIP: 10.96.0.20, selector: {app: web}, ports: [{port: 80, targetPort: 9001}]}
---
apiVersion: v1
kind: Service
metadata: {name: optedout, annotations: {aether.io/service-egress: passthrough}}
spec: {clusterIP: 10.96.0.21, selector: {app: web}, ports: [{port: 80, targetPort: 9001}]}
---
apiVersion: v1
kind: Service
metadata: {name: external-ip}
spec: {clusterIP: 10.96.0.22, externalIPs: [10.96.0.99], selector: {app: web}, ports: [{port: 80, targetPort: 9001}]}
---
apiVersion: multicluster.x-k8s.io/v1alpha1
kind: ServiceImport
metadata: {name: imported}
spec: {type: ClusterSetIP, ips: [10.200.0.9], ports: [{port: 80, protocol: TCP}]}
---
` + slice("kubernetes", "kubernetes", "https", 9001, "10.244.250.250")
	for _, p := range passedThrough {
		host, port := hostOf(p.address), 80
		if p.class == "api-server" {
			port = 443
		}
		yaml += outside(p.holder, host, port)
	}
	return yaml
}

// TestPassedThrough: in enforce, what belongs to someone else goes where it was
// dialled, from the pod's own address, with and without the agent.
func TestPassedThrough(t *testing.T) {
	n := upReady(t, passedThroughWorld())
	arrives := func(t *testing.T, holder, address string) echo.Verdict {
		t.Helper()
		v := n.dial(t, "alice", serverFirst(address))
		id := identity(t, v)
		if id.Pod != holder || id.Local != address {
			t.Errorf("%s: answered by %s at %s, want %s", address, id.Pod, id.Local, holder)
		}
		if got, want := hostOf(id.Remote), n.PodIP("alice").String(); got != want {
			t.Errorf("%s: the server sees %s, want the pod's %s", address, got, want)
		}
		return v
	}
	for _, p := range passedThrough {
		t.Run(p.holder, func(t *testing.T) {
			e := n.explain(t, p.address)
			if e.Class != p.class || e.Answer != "passthrough" || e.Reason != "" {
				t.Errorf("explained as %s, want class %s, passthrough", decision(e), p.class)
			}
			line := n.awaitLogged(t, arrives(t, p.holder, p.address))
			if line.Chain != p.chain || line.Outcome != "ok" || line.Endpoint != p.address || line.Reason != "" {
				t.Errorf("logged as %+v, want chain %s, outcome ok, endpoint %s", line, p.chain, p.address)
			}
		})
	}
	t.Run("its own Service is served", func(t *testing.T) {
		if got := identity(t, n.dial(t, "alice", serverFirst("10.96.0.22:80"))).Pod; got != "web" {
			t.Errorf("the ClusterIP beside the external IP is answered by %s, want web", got)
		}
	})
	t.Run("without the agent", func(t *testing.T) {
		if err := n.StopAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, p := range passedThrough {
			arrives(t, p.holder, p.address)
		}
		if err := n.StartAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, p := range passedThrough {
			arrives(t, p.holder, p.address)
		}
	})
}

// TestAPIServerNeedsNoAgent: the API server's address, and what lies outside the
// range, were never dialled before the agent went.
func TestAPIServerNeedsNoAgent(t *testing.T) {
	n := upReady(t, passedThroughWorld())
	if err := n.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	for holder, address := range map[string]string{"apiserver": "10.96.0.1:443", "website": "203.0.113.80:80"} {
		v := n.dial(t, "alice", serverFirst(address))
		if got := answeredBy(t, v); got != holder || v.ConnectMS+v.LatencyMS > 1000 {
			t.Errorf("%s: answered by %s after %.0f ms, want %s at once", address, got, v.ConnectMS+v.LatencyMS, holder)
		}
	}
	if err := n.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestSecondRange: a ServiceCIDR that comes and goes changes the listeners'
// matchers in place, and nobody's connection.
func TestSecondRange(t *testing.T) {
	const second = "198.51.100.10:80" // a Service's, once the range is there
	n := upReady(t, passedThroughWorld()+outside("before", "198.51.100.10", 80)+
		service("late", "198.51.100.10", "selector: {app: web}, ports: [{name: greet, port: 80, targetPort: 9001}]"))
	pods := len(n.listeners(t))
	lives := []live{
		n.live(t, "alice", "10.96.0.10:7", "to a Service"),
		n.live(t, "alice", fmt.Sprintf("%s:%d", n.PodIP("web"), portEcho), "to a pod"),
	}
	greeted := n.greeted(t, "alice", second, "before")
	lives = append(lives, greeted)
	checkAll := func(when string) {
		t.Helper()
		for _, l := range lives {
			l.check(t, when)
		}
	}
	if e := n.explain(t, second); e.Class != "external" {
		t.Errorf("before its range is there it is %s, want external", decision(e))
	}
	inPlace := n.gauge(t, "listener_manager.listener_in_place_updated")

	load := n.meanwhile(t, "alice", "--mode", "server-first", "--duration", "2s", "--pause", "5ms", "10.96.0.10:80", "203.0.113.80:80")
	n.write(t, "second.yaml", `{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: second}, spec: {cidrs: [198.51.100.0/24]}}`)
	began := time.Now()
	eventually(t, settled, "the second range is served", func() error {
		v := n.dial(t, "alice", serverFirst(second))
		if v.Outcome != echo.OK {
			t.Fatalf("while the range came: %s", told(v))
		}
		if got := answeredBy(t, v); got != "web" {
			return fmt.Errorf("answered by %s", got)
		}
		return nil
	})
	t.Logf("served %d ms after the ServiceCIDR was written", time.Since(began).Milliseconds())
	checkAll("after the second range came")
	if e := n.explain(t, second); e.Class != "service" || e.Answer != "balance" {
		t.Errorf("within its range it is %s, want a served Service", decision(e))
	}

	n.remove(t, "second.yaml")
	eventually(t, settled, "its addresses are external again", func() error {
		v := n.dial(t, "alice", serverFirst(second))
		if v.Outcome != echo.OK {
			t.Fatalf("while the range went: %s", told(v))
		}
		if got := answeredBy(t, v); got != "before" {
			return fmt.Errorf("answered by %s", got)
		}
		return nil
	})
	checkAll("after the second range went")
	wantAllOK(t, load())
	if e := n.explain(t, second); e.Class != "external" || e.Answer != "passthrough" {
		t.Errorf("without its range it is %s, want external", decision(e))
	}
	if got, want := n.gauge(t, "listener_manager.listener_in_place_updated")-inPlace, 2*pods; got != want {
		t.Errorf("listeners updated in place: %d, want %d (each of %d pods twice)", got, want, pods)
	}
	n.noListenerDrained(t)
}

// greeted is live for a server that greets first.
func (n *node) greeted(t *testing.T, pod, target, holder string) live {
	t.Helper()
	c := n.conn(t, pod, target)
	if got := greeting(t, c).Pod; got != holder {
		t.Errorf("%s: greeted by %s, want %s", target, got, holder)
	}
	l := live{"to " + holder, c}
	l.check(t, "at the start")
	return l
}

// noListenerDrained checks that every change of a listener so far was in place.
func (n *node) noListenerDrained(t *testing.T) {
	t.Helper()
	for _, stat := range []string{"listener_removed", "total_listeners_draining", "total_filter_chains_draining"} {
		if got := n.gauge(t, "listener_manager."+stat); got != 0 {
			t.Errorf("listener_manager.%s is %d, want 0", stat, got)
		}
	}
}
