// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"fmt"
	"net/netip"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/lab"
)

// basicEndpoint: a Service follows its pods as they come and go.
func basicEndpoint(s *scene) {
	s.Apply(service("web", "web", "", web))
	vip := s.at("web", 80)
	pods, names := some("web", 2)
	s.run(pods[0])
	s.up(vip, names[0])
	s.run(pods[1])
	s.up(vip, names...)
	s.removePod(names[0])
	s.up(vip, names[1])
	s.removePod(names[1])
	s.down(vip)
}

// multiport: two ports, each of which another pod has.
func multiport(s *scene) {
	s.Apply(service("web", "web", "", "{name: one, port: 80, targetPort: first}", "{name: two, port: 81, targetPort: second}"))
	one, two := s.at("web", 80), s.at("web", 81)
	s.run(pod{name: "a", app: "web", args: `--http, ":8100"`, ports: "{name: first, containerPort: 8100}"})
	s.up(one, "a")
	s.down(two)
	s.run(pod{name: "b", app: "web", args: `--http, ":8101"`, ports: "{name: second, containerPort: 8101}"})
	s.up(one, "a")
	s.up(two, "b")
	s.removePod("a")
	s.down(one)
	s.up(two, "b")
}

// addAndDeletePorts: a port more, and then without the first.
func addAndDeletePorts(s *scene) {
	s.Apply(service("web", "web", "", web))
	s.run(pod{name: "a", app: "web", args: `--http, ":8080", --http, ":8081"`})
	one, two := s.at("web", 80), s.at("web", 81)
	s.up(one, "a")
	s.down(two)
	s.patch("web", `{"spec":{"ports":[{"name":"http","port":80,"targetPort":8080},{"name":"more","port":81,"targetPort":8081}]}}`)
	s.up(one, "a")
	s.up(two, "a")
	s.patch("web", `{"spec":{"ports":[{"name":"more","port":81,"targetPort":8081}]}}`)
	s.down(one)
	s.up(two, "a")
}

// preservesSource: the server sees the client pod's own address.
func preservesSource(s *scene) {
	s.Apply(service("web", "web", "", web))
	s.run(pod{name: "a", app: "web", node: "n2"})
	vip := s.at("web", 80)
	s.up(vip, "a")
	s.each("the server sees the pod", func(client string) error {
		a, err := s.ask(client, vip)
		if err != nil {
			return err
		}
		saw, err := netip.ParseAddrPort(a.By.Remote)
		if err != nil {
			return err
		}
		name := strings.SplitN(client, "/", 2)
		p, err := s.Client().CoreV1().Pods(name[0]).Get(s.t.Context(), name[1], metav1.GetOptions{})
		if err != nil {
			return err
		}
		if saw.Addr().String() != p.Status.PodIP {
			return fmt.Errorf("it saw %s, and the pod is %s", saw.Addr(), p.Status.PodIP)
		}
		return nil
	})
}

// hairpin: a pod reaches itself through the Service whose only endpoint it is. The
// clients are the servers, one captured and one not.
func hairpin(s *scene) {
	s.Apply(service("self-captured", "captured", "", web), service("self-plain", "plain", "", web))
	s.run(pod{name: "captured", app: "captured", node: "n1", captured: true}, pod{name: "plain", app: "plain", node: "n1"})
	vips := map[bool]string{true: s.at("self-captured", 80), false: s.at("self-plain", 80)}
	s.each("the pod reaches itself", func(client string) error {
		own := "plain"
		if s.isCaptured(client) {
			own = "captured"
		}
		return s.poll("it answers", func() error {
			return s.answeredBy(s.Namespace+"/"+own, vips[s.isCaptured(client)], []string{own})
		})
	})
}

// upAndDown: Services come and go and leave the others alone.
func upAndDown(s *scene) {
	one, ones := some("one", 2)
	two, twos := some("two", 2)
	s.Apply(service("one", "one", "", web), service("two", "two", "", web))
	s.run(append(one, two...)...)
	first, second := s.at("one", 80), s.at("two", 80)
	s.up(first, ones...)
	s.up(second, twos...)
	s.Remove(service("one", "one", "", web))
	s.down(first)
	s.up(second, twos...)
	s.Apply(service("three", "one", "", web))
	s.up(s.at("three", 80), ones...)
	s.up(second, twos...)
}

// recreated: deleted and made again, with another address and with its old one.
func recreated(s *scene) {
	s.Apply(service("web", "web", "", web))
	s.run(pod{name: "a", app: "web"})
	vip := s.VIP("web")
	s.up(lab.Target(vip, 80), "a")
	again := func(spec string) {
		s.Remove(service("web", "web", "", web))
		s.Eventually("the Service is gone", func() error {
			_, err := s.Client().CoreV1().Services(s.Namespace).Get(s.t.Context(), "web", metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("it is there, %w", err)
		})
		s.Apply(service("web", "web", spec, web))
		s.up(s.at("web", 80), "a")
	}
	again("")
	again(fmt.Sprintf("clusterIP: %s", s.VIP("web")))
}

// nodePort: one with a node port has a ClusterIP like any other.
func nodePort(s *scene) {
	pods, names := some("web", 2)
	s.Apply(service("web", "web", "type: NodePort", web))
	s.run(pods...)
	s.up(s.at("web", 80), names...)
	s.onNode("web", names...)
}

// onNode dials a Service's node port, which is kube-proxy's.
func (s *scene) onNode(name string, pods ...string) {
	s.t.Helper()
	svc, err := s.Client().CoreV1().Services(s.Namespace).Get(s.t.Context(), name, metav1.GetOptions{})
	s.Must(err)
	n, err := s.Client().CoreV1().Nodes().Get(s.t.Context(), nodes[0].Name, metav1.GetOptions{})
	s.Must(err)
	s.up(fmt.Sprintf("%s:%d", n.Status.Addresses[0].Address, svc.Spec.Ports[0].NodePort), pods...)
}

func toNodePortWithUDP(s *scene) {
	s.Apply(service("web", "web", "", web))
	s.run(pod{name: "a", app: "web"})
	s.up(s.at("web", 80), "a")
	s.patch("web", `{"spec":{"type":"NodePort","ports":[{"name":"http","port":80,"targetPort":8080,"protocol":"TCP"},
		{"name":"udp","port":80,"targetPort":8080,"protocol":"UDP"}]}}`)
	s.up(s.at("web", 80), "a")
	s.onNode("web", "a")
}

const externalName = "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {type: ExternalName, externalName: example.com}}"

func externalNameTo(s *scene, kind string) []string {
	pods, names := some("web", 2)
	s.Apply(externalName)
	s.run(pods...)
	s.patch("web", `{"spec":{"type":"`+kind+`","externalName":null,"selector":{"app":"web"},"ports":[{"name":"http","port":80,"targetPort":8080}]}}`)
	s.up(s.at("web", 80), names...)
	return names
}

// externalNameToClusterIP: the address appears in place.
func externalNameToClusterIP(s *scene) { externalNameTo(s, "ClusterIP") }

func externalNameToNodePort(s *scene) { s.onNode("web", externalNameTo(s, "NodePort")...) }

// protocols: TCP and UDP on one port number, together and one without the other.
func protocols(s *scene) {
	const (
		tcp = `{"name":"tcp","port":80,"targetPort":8080,"protocol":"TCP"}`
		udp = `{"name":"udp","port":80,"targetPort":8080,"protocol":"UDP"}`
	)
	s.Apply(service("web", "web", "", tcp, udp))
	s.run(pod{name: "a", app: "web"})
	vip := s.at("web", 80)
	s.up(vip, "a")
	s.patch("web", `{"spec":{"ports":[`+tcp+`]}}`)
	s.up(vip, "a")
	s.patch("web", `{"spec":{"ports":[`+udp+`]}}`)
	s.down(vip)
	s.patch("web", `{"spec":{"ports":[`+tcp+`,`+udp+`]}}`)
	s.up(vip, "a")
}

func loadBalancer(s *scene) {
	s.Apply(service("web", "web", "type: LoadBalancer",
		"{name: tcp, port: 80, targetPort: 8080}", "{name: udp, port: 80, targetPort: 8080, protocol: UDP}"))
	s.run(pod{name: "a", app: "web"})
	s.up(s.at("web", 80), "a")
}

// proxyName: a Service labelled as another proxy's is served by nobody here.
func proxyName(s *scene) {
	pods, names := some("web", 2)
	s.Apply(service("ours", "web", "", web), service("toggled", "web", "", web),
		strings.Replace(service("others", "web", "", web), "{name: others}",
			"{name: others, labels: {service.kubernetes.io/service-proxy-name: foo-bar}}", 1))
	s.run(pods...)
	toggled := s.at("toggled", 80)
	s.up(s.at("ours", 80), names...)
	s.up(toggled, names...)
	s.down(s.at("others", 80))
	s.patch("toggled", `{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":"foo-bar"}}}`)
	s.down(toggled)
	s.patch("toggled", `{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":null}}}`)
	s.up(toggled, names...)
	s.down(s.at("others", 80))
	s.up(s.at("ours", 80), names...)
}

// refusal: the connection is refused when it is made.
func (s *scene) refusal(target string) {
	s.each("connect is refused", func(client string) error {
		var final error
		err := s.poll("nobody answers", func() error {
			a, err := s.dial(client, target, usual)
			if err != nil {
				return err
			}
			switch a.Outcome {
			case echo.Refused:
				return nil
			case echo.Reset:
				final = errResetAfterConnect
				l, err := s.Logged(s.t.Context(), a.Verdict)
				if err == nil && l.Reason != "no-endpoints" {
					err = fmt.Errorf("%s, and logged as %s %s", a, l.Outcome, l.Reason)
				}
				return err
			}
			return fmt.Errorf("%s", a)
		})
		if err != nil {
			return err
		}
		return final
	})
}

func rejectedWithoutEndpoints(s *scene) {
	s.Apply(service("web", "web", "", web))
	s.refusal(s.at("web", 80))
}

// rejectedForEvicted: the kubelet has ended the Service's only pod for good.
func rejectedForEvicted(s *scene) {
	s.Apply(service("web", "web", "", web))
	s.run(pod{name: "a", app: "web", node: "n2"})
	vip := s.at("web", 80)
	s.up(vip, "a")
	s.status("a", `{"status":{"phase":"Failed","reason":"Evicted","message":"The node was low on resource: memory.",
		"conditions":[{"type":"Ready","status":"False","reason":"PodFailed"},{"type":"ContainersReady","status":"False","reason":"PodFailed"}]}}`)
	s.Eventually("the evicted pod is no endpoint", func() error {
		all, err := s.endpoints("web")
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("endpoints are %v", all)
		}
		return err
	})
	s.refusal(vip)
}
