// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/lab"
)

// withSidecar has a restartable init container that answers at port 9080.
func withSidecar(name, app string) pod {
	return pod{name: name, app: app, node: "n2", spec: `
  initContainers:
  - name: side
    image: aether/echo
    restartPolicy: Always
    args: [--http, ":9080"]
    ports: [{name: side, containerPort: 9080}]`}
}

func initContainerPort(s *scene) {
	s.Apply(service("web", "web", "", "{port: 80, targetPort: 9080}"))
	s.run(withSidecar("a", "web"))
	s.upAt(s.at("web", 80), "a", 9080)
}

func initContainerNamedPort(s *scene) {
	s.Apply(service("web", "web", "", "{port: 80, targetPort: side}"))
	s.run(withSidecar("a", "web"))
	s.upAt(s.at("web", 80), "a", 9080)
}

// upAt: a pod answers, and at that port of its own.
func (s *scene) upAt(target, pod string, port uint16) {
	s.up(target, pod)
	s.each(fmt.Sprintf("%s is answered at port %d", target, port), func(client string) error {
		a, err := s.ask(client, target)
		if err != nil {
			return err
		}
		if at, err := netip.ParseAddrPort(a.By.Local); err != nil || at.Port() != port {
			return fmt.Errorf("it is answered at %s", a.By.Local)
		}
		return nil
	})
}

// namedTargetPorts: one name, and another number in each pod.
func namedTargetPorts(s *scene) {
	s.Apply(service("web", "web", "", "{name: http, port: 80, targetPort: http}"))
	s.run(pod{name: "a", app: "web", args: `--http, ":8100"`, ports: "{name: http, containerPort: 8100}"},
		pod{name: "b", app: "web", args: `--http, ":8101"`, ports: "{name: http, containerPort: 8101}"})
	s.up(s.at("web", 80), "a", "b")
}

// handmade is an EndpointSlice of Service web that nobody but us writes.
func handmade(name, port string, number int, address netip.Addr) string {
	return fmt.Sprintf(`{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
  metadata: {name: %s, labels: {kubernetes.io/service-name: web, endpointslice.kubernetes.io/managed-by: by-hand}},
  ports: [{name: %q, port: %d, protocol: TCP}], endpoints: [{addresses: [%s], conditions: {ready: true}}]}`,
		name, port, number, address)
}

// headlessSlice: a slice with the label is not used.
func headlessSlice(s *scene) {
	s.Apply(service("web", "", "", "{name: port80, port: 80}"))
	s.run(pod{name: "a", app: "none"})
	s.Apply(handmade("custom", "port80", 8080, s.addressOf("a")))
	vip := s.at("web", 80)
	s.up(vip, "a")
	_, err := s.Client().DiscoveryV1().EndpointSlices(s.Namespace).Patch(s.t.Context(), "custom", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"service.kubernetes.io/headless":""}}}`), metav1.PatchOptions{})
	s.Must(err)
	s.down(vip)
}

// portsInSlices: each of a Service's ports in a slice of its own.
func portsInSlices(s *scene) {
	s.Apply(service("web", "", "", "{name: one, port: 80}", "{name: two, port: 81}"))
	s.run(pod{name: "a", app: "none", args: `--http, ":8080", --http, ":8081"`})
	a := s.addressOf("a")
	s.Apply(handmade("first", "one", 8080, a), handmade("second", "two", 8081, a))
	s.upAt(s.at("web", 80), "a", 8080)
	s.upAt(s.at("web", 81), "a", 8081)
}

// addressesInSlices: each of a Service's endpoints in a slice of its own.
func addressesInSlices(s *scene) {
	s.Apply(service("web", "", "", "{name: one, port: 80}"))
	s.run(pod{name: "a", app: "none"}, pod{name: "b", app: "none"})
	s.Apply(handmade("first", "one", 8080, s.addressOf("a")), handmade("second", "one", 8080, s.addressOf("b")))
	s.up(s.at("web", 80), "a", "b")
}

// mirrored: an Endpoints object by hand, one address in two subsets.
func mirrored(s *scene) {
	s.Apply(service("web", "", "", "{name: one, port: 80}", "{name: two, port: 81}"))
	s.run(pod{name: "a", app: "none", args: `--http, ":8080", --http, ":8081"`})
	a := s.addressOf("a")
	s.Apply(fmt.Sprintf(`{apiVersion: v1, kind: Endpoints, metadata: {name: web}, subsets: [
  {addresses: [{ip: %[1]s}], ports: [{name: one, port: 8080}]}, {addresses: [{ip: %[1]s}], ports: [{name: two, port: 8081}]}]}`, a))
	s.upAt(s.at("web", 80), "a", 8080)
	s.upAt(s.at("web", 81), "a", 8081)
}

// sameZone: a pod in each zone, and the client meets the one of its own.
func sameZone(policy string) func(*scene) {
	return func(s *scene) {
		s.Apply(service("web", "web", "trafficDistribution: "+policy, web))
		s.run(pod{name: "a", app: "web", node: "n4"}, pod{name: "b", app: "web", node: "n2"}, pod{name: "c", app: "web", node: "n3"})
		s.up(s.at("web", 80), "a")
	}
}

// multipleNodes: all pods of the own zone, and all there are where it has none.
func multipleNodes(policy string) func(*scene) {
	return func(s *scene) {
		s.Apply(service("near", "near", "trafficDistribution: "+policy, web), service("far", "far", "trafficDistribution: "+policy, web))
		s.run(pod{name: "a1", app: "near", node: "n1"}, pod{name: "a4", app: "near", node: "n4"}, pod{name: "b", app: "near", node: "n2"},
			pod{name: "b5", app: "far", node: "n5"}, pod{name: "c", app: "far", node: "n3"})
		s.up(s.at("near", 80), "a1", "a4")
		s.up(s.at("far", 80), "b5", "c")
	}
}

const preferNode = "trafficDistribution: PreferSameNode"

// sameNode: the node's own pods, else the zone's, else all.
func sameNode(s *scene) {
	s.Apply(service("node", "node", preferNode, web), service("zone", "zone", preferNode, web), service("far", "far", preferNode, web))
	s.run(pod{name: "a1", app: "node", node: "n1"}, pod{name: "a4", app: "node", node: "n4"}, pod{name: "b", app: "node", node: "n2"},
		pod{name: "z4", app: "zone", node: "n4"}, pod{name: "z5", app: "zone", node: "n5"},
		pod{name: "f2", app: "far", node: "n2"}, pod{name: "f3", app: "far", node: "n3"})
	s.up(s.at("node", 80), "a1")
	s.up(s.at("zone", 80), "z4")
	s.up(s.at("far", 80), "f2", "f3")
}

// sameNodeGoes: the node's own pod goes, and a new one comes.
func sameNodeGoes(s *scene) {
	s.Apply(service("web", "web", preferNode, web))
	s.run(pod{name: "a", app: "web", node: "n1"}, pod{name: "b", app: "web", node: "n2"})
	vip := s.at("web", 80)
	s.up(vip, "a")
	s.removePod("a")
	s.up(vip, "b")
	s.run(pod{name: "new", app: "web", node: "n1"})
	s.up(vip, "new")
}

// distributedEvenly: hints of the controller, two pods for each zone.
func distributedEvenly(s *scene) {
	s.Apply(strings.Replace(service("web", "web", "", web), "{name: web}", "{name: web, annotations: {service.kubernetes.io/topology-mode: Auto}}", 1))
	var pods []pod
	for _, n := range nodes {
		pods = append(pods, pod{name: "on-" + n.Name, app: "web", node: n.Name})
	}
	s.run(pods...)
	var ours []string
	s.Eventually("two endpoints are hinted for each zone", func() error {
		list, err := s.Client().DiscoveryV1().EndpointSlices(s.Namespace).List(s.t.Context(),
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
		if err != nil {
			return err
		}
		by := map[string][]string{}
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				if e.Hints != nil && len(e.Hints.ForZones) == 1 {
					zone := e.Hints.ForZones[0].Name
					by[zone] = append(by[zone], e.TargetRef.Name)
				}
			}
		}
		ours = by["zone-a"]
		for _, n := range nodes {
			if len(by[n.Zone]) != 2 {
				return fmt.Errorf("hints are %v", by)
			}
		}
		return nil
	})
	s.up(s.at("web", 80), ours...)
}

// otherCIDR: a range more, and a Service with an address of it.
func otherCIDR(s *scene) {
	s.run(pod{name: "a", app: "web"})
	s.Apply("{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: upstream}, spec: {cidrs: [203.0.113.0/24]}}")
	s.t.Cleanup(func() {
		// It goes when the last Service with an address of it has gone.
		if err := s.Client().NetworkingV1().ServiceCIDRs().Delete(context.Background(), "upstream", metav1.DeleteOptions{}); err != nil {
			s.t.Errorf("delete the range: %v", err)
		}
	})
	s.Eventually("the range can be used", func() error {
		c, err := s.Client().NetworkingV1().ServiceCIDRs().Get(s.t.Context(), "upstream", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, cond := range c.Status.Conditions {
			if cond.Type == networkingv1.ServiceCIDRConditionReady && cond.Status == metav1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", c.Status.Conditions)
	})
	s.Apply(service("new", "web", "clusterIP: 203.0.113.10", web), service("old", "web", "", web))
	s.up(s.at("new", 80), "a")
	s.up(s.at("old", 80), "a")
}

// podToService: every endpoint is met.
func podToService(s *scene) {
	pods, names := some("web", 4)
	s.Apply(service("web", "web", "", web))
	s.run(pods...)
	s.up(s.at("web", 80), names...)
}

// endpointToService: the client is one of the endpoints, and meets all.
func endpointToService(s *scene) {
	pods, names := some("web", 2)
	pods = append(pods, pod{name: "captured", app: "web", node: "n1", captured: true}, pod{name: "plain", app: "web", node: "n1"})
	names = append(names, "captured", "plain")
	s.Apply(service("web", "web", "", web))
	s.run(pods...)
	vip := s.at("web", 80)
	s.each("the endpoint meets all", func(client string) error {
		own := "plain"
		if s.isCaptured(client) {
			own = "captured"
		}
		return s.poll("all answer", func() error { return s.answeredBy(s.Namespace+"/"+own, vip, names) })
	})
}

// sameSelector: two Services have the same pods, and one of them goes.
func sameSelector(s *scene) {
	pods, names := some("web", 2)
	s.Apply(service("one", "web", "", web), service("two", "web", "", web))
	s.run(pods...)
	one, two := s.at("one", 80), s.at("two", 80)
	s.up(one, names...)
	s.up(two, names...)
	s.Remove(service("two", "web", "", web))
	s.down(two)
	s.up(one, names...)
}

// updateEndpoints: one of the pods goes.
func updateEndpoints(s *scene) {
	pods, names := some("web", 3)
	s.Apply(service("web", "web", "", web))
	s.run(pods...)
	vip := s.at("web", 80)
	s.up(vip, names...)
	s.removePod(names[0])
	s.up(vip, names[1:]...)
}

// largeRequests: a request of two thousand bytes, and megabytes to and fro.
func largeRequests(s *scene) {
	s.Apply(service("web", "web", "", web, "{name: talk, port: 81, targetPort: 9000}"))
	s.run(pod{name: "a", app: "web", args: `--http, ":8080", --tcp, ":9000"`})
	vip, talk := s.at("web", 80), s.at("web", 81)
	s.up(vip, "a")
	s.each("large requests are answered whole", func(client string) error {
		path := "/" + strings.Repeat("42", 1000)
		a, err := s.Cluster.Dial(s.t.Context(), client, echo.Client{Mode: "http", Target: vip, Path: path})
		if err == nil && (a.Outcome != echo.OK || a.By.Path != path) {
			err = errors.New(a.String())
		}
		if err != nil {
			return err
		}
		a, err = s.Cluster.Dial(s.t.Context(), client, echo.Client{Mode: "transfer", Target: talk, Bytes: 8 << 20, Timeout: 30 * time.Second})
		if err == nil && a.Outcome != echo.OK {
			err = errors.New(a.String())
		}
		return err
	})
}

// hostNetworkEndpoints: endpoints in the node's network.
func hostNetworkEndpoints(s *scene) {
	s.Apply(service("web", "web", "", "{name: http, port: 80, targetPort: http}"))
	s.run(onHost("a", "web", 10181), onHost("b", "web", 10182))
	s.up(s.at("web", 80), "a", "b")
}

// kubeProxyRestarts: Services are served before and after. What a captured pod
// dials is served meanwhile, too, also if it is new.
func kubeProxyRestarts(s *scene) {
	pods, names := some("web", 2)
	s.Apply(service("one", "web", "", web))
	s.run(pods...)
	one := s.at("one", 80)
	s.up(one, names...)
	s.KubeProxy.Stop()
	s.t.Cleanup(func() { s.startAgain(s.KubeProxy) })
	s.Apply(service("two", "web", "", web))
	two := s.at("two", 80)
	s.each("served without kube-proxy", func(client string) error {
		if !s.isCaptured(client) {
			return nil
		}
		return s.poll("the new Service is served", func() error { return s.answeredBy(client, two, names) })
	})
	s.startAgain(s.KubeProxy)
	s.up(one, names...)
	s.up(two, names...)
}

// apiServerRestarts: Services are served after, old ones and new ones.
func apiServerRestarts(s *scene) {
	pods, names := some("web", 2)
	s.Apply(service("one", "web", "", web))
	s.run(pods...)
	one := s.at("one", 80)
	s.up(one, names...)
	s.APIServer.Stop()
	s.t.Cleanup(s.StartAPIServer)
	s.up(one, names...)
	s.StartAPIServer()
	s.up(one, names...)
	s.Eventually("the API server takes a Service", func() error {
		return s.Cluster.Apply(s.t.Context(), s.Namespace, service("two", "web", "", web))
	})
	two := s.at("two", 80)
	if two == one {
		s.t.Errorf("two Services have the address %s", one)
	}
	s.up(two, names...)
}

// startAgain starts a program that may run.
func (s *scene) startAgain(p *lab.Process) {
	if err := p.Start(context.Background()); err != nil {
		s.t.Error(err)
	}
}
