// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"aether.io/aether/internal/sandbox/echo"
)

// reached asks a few times and lists, sorted, who answered.
func (n *node) reached(t *testing.T, pod, target string) string {
	t.Helper()
	return strings.Join(slices.Sorted(maps.Keys(n.askMany(t, pod, target, 9))), " ")
}

// TestReadiness follows one Service while its pods become not ready, terminate
// and recover. An established connection outlives all of it.
func TestReadiness(t *testing.T) {
	n := up(t, server("a", "app: web")+server("b", "app: web")+server("c", "app: web")+client("client")+
		service("web", "10.96.0.10", `selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}, {name: echo, port: 7, targetPort: 9000}]`))
	const target = "10.96.0.10:80"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	expect := func(pods ...string) {
		t.Helper()
		n.awaitPods(t, target, pods...)
		n.awaitPods(t, "10.96.0.10:7", pods...)
		if got := n.reached(t, "client", target); got != strings.Join(pods, " ") {
			t.Errorf("reached %s, want %v", got, pods)
		}
	}
	expect("a", "b", "c")

	must(n.SetReady("c", "", false))
	expect("a", "b") // not ready: not used

	must(n.SetTerminating("b", true))
	expect("a") // terminating while another is ready: not used

	established := n.conn(t, "client", "10.96.0.10:7") // to a, the only one
	must(exchange(established, "while a is ready"))

	must(n.SetReady("a", "", false))
	expect("b") // none ready: the terminating one that serves
	must(exchange(established, "while a is not ready"))

	must(n.SetReady("b", "", false))
	n.awaitRefused(t, target, "no-endpoints") // nothing serves
	if v := n.dial(t, "client", echo.Client{Mode: "silent", Target: target}); v.Outcome != echo.Reset {
		t.Errorf("with no endpoint a client sees %s, want a reset", told(v))
	}
	must(exchange(established, "while nothing is ready"))

	must(n.SetReady("a", "", true))
	must(n.SetReady("c", "", true))
	must(n.SetTerminating("b", false))
	must(n.SetReady("b", "", true))
	expect("a", "b", "c")
	must(exchange(established, "while all are ready"))
}

// TestPodsReplaced: every pod of a Service is replaced while clients dial it. Pods
// that drain, as well-behaved ones do, lose no connection.
func TestPodsReplaced(t *testing.T) {
	const target = "10.96.0.10:80"
	draining := func(name string) string {
		return strings.NewReplacer("args: [", "args: [--drain, 1s, ", "terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 5").
			Replace(server(name, "app: web"))
	}
	n := up(t, client("client")+service("web", "10.96.0.10", `selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]`))
	n.write(t, "one.yaml", draining("old-1"))
	n.write(t, "two.yaml", draining("old-2"))
	await := func(pods ...string) {
		t.Helper()
		if err := n.WaitReady(t.Context(), pods...); err != nil {
			t.Fatal(err)
		}
		n.awaitPods(t, target, pods...)
	}
	await("old-1", "old-2")
	done := make(chan []echo.Verdict, 1)
	go func() {
		done <- n.client(t, "client", "--mode", "http", "--duration", "4s", "--concurrency", "8", "--pause", "10ms", target)
	}()
	n.write(t, "three.yaml", draining("new-1"))
	await("new-1", "old-1", "old-2")
	n.remove(t, "one.yaml")
	await("new-1", "old-2")
	n.write(t, "four.yaml", draining("new-2"))
	await("new-1", "new-2", "old-2")
	n.remove(t, "two.yaml")
	await("new-1", "new-2")
	vs := <-done
	wantAllOK(t, vs)
	seen := map[string]int{}
	for _, v := range vs {
		seen[answeredBy(t, v)]++
	}
	if len(seen) != 4 {
		t.Errorf("answered by %v, want all four pods", seen)
	}
	t.Logf("answered by %v", seen)
}

// TestTopology is about endpoints on other nodes and in other zones: t-1 is on
// this node, t-2 in this zone, t-3 far away.
func TestTopology(t *testing.T) {
	spec := func(selector, more string) string {
		return fmt.Sprintf(`selector: {%s}, ports: [{name: http, port: 80, targetPort: 8080}]%s`, selector, more)
	}
	n := up(t, nodes+server("t-1", "app: t")+server("t-2", "app: t, far: x", "nodeName: n2")+server("t-3", "app: t, far: x", "nodeName: n3")+
		client("client")+
		service("plain", "10.96.0.10", spec("app: t", ""))+
		service("local", "10.96.0.11", spec("app: t", ", internalTrafficPolicy: Local"))+
		service("local-none", "10.96.0.12", spec("far: x", ", internalTrafficPolicy: Local"))+
		service("zone", "10.96.0.13", spec("app: t", ", trafficDistribution: PreferSameZone"))+
		service("same-node", "10.96.0.14", spec("app: t", ", trafficDistribution: PreferSameNode"))+
		service("no-node", "10.96.0.15", spec("far: x", ", trafficDistribution: PreferSameNode"))+
		service("by-hand", "10.96.0.16", `ports: [{name: http, port: 80}]`))
	for _, c := range []struct{ name, address, want string }{
		{"no topology", "10.96.0.10:80", "t-1 t-2 t-3"},
		{"internalTrafficPolicy Local", "10.96.0.11:80", "t-1"},
		{"zone hints", "10.96.0.13:80", "t-1 t-2"},
		{"node hints", "10.96.0.14:80", "t-1"},
		{"node hints for other nodes fall back to the zone", "10.96.0.15:80", "t-2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := n.reached(t, "client", c.address); got != c.want {
				t.Errorf("reached %s, want %s: %s", got, c.want, decision(n.explain(t, c.address)))
			}
		})
	}
	t.Run("internalTrafficPolicy Local without a local endpoint", func(t *testing.T) {
		v := n.dial(t, "client", echo.Client{Mode: "silent", Target: "10.96.0.12:80"})
		if l := n.awaitLogged(t, v); v.Outcome != echo.Reset || l.Reason != "no-local-endpoints" {
			t.Errorf("the client sees %s, logged as %+v", told(v), l)
		}
	})
	t.Run("one endpoint without a hint: all are used", func(t *testing.T) {
		hinted := func(third string) string {
			return fmt.Sprintf(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: by-hand-1, labels: {kubernetes.io/service-name: by-hand}}
addressType: IPv4
ports: [{name: http, port: %d}]
endpoints:
- {addresses: [%s], hints: {forZones: [{name: za}]}}
- {addresses: [%s], hints: {forZones: [{name: zb}]}}
- {addresses: [%s]%s}
`, portHTTP, n.PodIP("t-1"), n.PodIP("t-2"), n.PodIP("t-3"), third)
		}
		n.write(t, "slice.yaml", hinted(""))
		n.awaitUsed(t, "10.96.0.16:80", 3)
		if got := n.reached(t, "client", "10.96.0.16:80"); got != "t-1 t-2 t-3" {
			t.Errorf("reached %s, want all", got)
		}
		n.write(t, "slice.yaml", hinted(", hints: {forZones: [{name: zb}]}"))
		n.awaitUsed(t, "10.96.0.16:80", 1)
		if got := n.reached(t, "client", "10.96.0.16:80"); got != "t-1" {
			t.Errorf("with every endpoint hinted, reached %s, want t-1 alone", got)
		}
	})
}

// TestAffinity: sessionAffinity ClientIP keeps each pod on one endpoint and
// spreads the pods.
func TestAffinity(t *testing.T) {
	yaml := service("sticky", "10.96.0.10", `sessionAffinity: ClientIP, selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]`)
	for _, name := range []string{"a", "b", "c"} {
		yaml += server("web-"+name, "app: web")
	}
	clients := []string{"client-1", "client-2", "client-3", "client-4", "client-5", "client-6", "client-7", "client-8"}
	for _, name := range clients {
		yaml += client(name)
	}
	n := up(t, yaml)
	all := map[string]int{}
	for _, pod := range clients {
		seen := n.askMany(t, pod, "10.96.0.10:80", 6)
		if len(seen) != 1 {
			t.Errorf("%s reached %v, want one endpoint alone", pod, seen)
		}
		for who := range seen {
			all[who]++
		}
	}
	if len(all) < 2 {
		t.Errorf("%d pods share %v, want at least two endpoints in use", len(clients), all)
	}
	t.Logf("pods by endpoint: %v", all)
}
