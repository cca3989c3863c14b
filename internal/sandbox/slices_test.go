// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"aether.io/aether/internal/model"
)

// parse reads one object from YAML.
func parse[T any](t testing.TB, text string) *T {
	t.Helper()
	o := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	return o
}

const (
	up          = 1 << iota // ready
	terminating             // deletion has begun
	terminal
	noAddress
)

// onePod makes a pod of namespace default with port http 8080.
func onePod(t testing.TB, name, ip, place string, flags int) endpointPod {
	node, zone, _ := strings.Cut(place, "/")
	p := endpointPod{
		pod: parse[corev1.Pod](t, fmt.Sprintf(`
metadata: {name: %s, namespace: default, labels: {app: web}}
spec: {containers: [{name: c, ports: [{name: http, containerPort: 8080}]}]}`, name)),
		uid: "uid-" + name, node: node, zone: zone, ip: netip.MustParseAddr(ip),
		ready: flags&up != 0, terminating: flags&terminating != 0, terminal: flags&terminal != 0,
	}
	if flags&noAddress != 0 {
		p.ip = netip.Addr{}
	}
	return p
}

func free(model.Name) bool { return false }

// show writes slices as short lines: name, ports, endpoints with conditions
// (ready, serving, terminating as r+s+t-) and hints.
func show(slices []*discoveryv1.EndpointSlice) string {
	var b strings.Builder
	sign := func(v *bool) string { return map[bool]string{true: "+", false: "-"}[*v] }
	for _, s := range slices {
		fmt.Fprintf(&b, "%s [", s.Name)
		for i, p := range s.Ports {
			if i > 0 {
				b.WriteString(" ")
			}
			fmt.Fprintf(&b, "%s=%d/%s", *p.Name, *p.Port, *p.Protocol)
		}
		b.WriteString("]")
		for _, e := range s.Endpoints {
			fmt.Fprintf(&b, " %s r%ss%st%s", e.Addresses[0], sign(e.Conditions.Ready), sign(e.Conditions.Serving), sign(e.Conditions.Terminating))
			if e.Hints != nil {
				for _, z := range e.Hints.ForZones {
					b.WriteString(" zone=" + z.Name)
				}
				for _, n := range e.Hints.ForNodes {
					b.WriteString(" node=" + n.Name)
				}
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestEndpointSlices(t *testing.T) {
	const base = "metadata: {name: web, namespace: default}\nspec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}]%s}"
	a := onePod(t, "a", "10.0.0.1", "n1/za", up)
	b := onePod(t, "b", "10.0.0.2", "n2/zb", 0)
	gone := onePod(t, "c", "10.0.0.3", "n1/za", up|terminating)
	noZone := onePod(t, "d", "10.0.0.4", "n3", up)
	cases := []struct {
		name, extra string
		pods        []endpointPod
		want        string
	}{
		{"ready and not ready", "", []endpointPod{a, b}, "web-sandbox-0 [http=8080/TCP] 10.0.0.1 r+s+t- 10.0.0.2 r-s-t-\n"},
		{"terminating serves but is not ready", "", []endpointPod{gone}, "web-sandbox-0 [http=8080/TCP] 10.0.0.3 r-s+t+\n"},
		{
			"publishNotReadyAddresses", ", publishNotReadyAddresses: true",
			[]endpointPod{a, b, gone},
			"web-sandbox-0 [http=8080/TCP] 10.0.0.1 r+s+t- 10.0.0.2 r+s-t- 10.0.0.3 r+s+t+\n",
		},
		{
			"terminal and addressless pods are never listed", "",
			[]endpointPod{onePod(t, "a", "10.0.0.1", "n1/za", terminal), onePod(t, "b", "10.0.0.2", "n1/za", up|noAddress)},
			"web-sandbox-0 []\n",
		},
		{"no pods: a placeholder", "", nil, "web-sandbox-0 []\n"},
		{
			"PreferClose hints ready endpoints with a zone", ", trafficDistribution: PreferClose",
			[]endpointPod{a, b, gone, noZone},
			"web-sandbox-0 [http=8080/TCP] 10.0.0.1 r+s+t- zone=za 10.0.0.2 r-s-t- 10.0.0.3 r-s+t+ 10.0.0.4 r+s+t-\n",
		},
		{
			"PreferSameZone is the same", ", trafficDistribution: PreferSameZone",
			[]endpointPod{a},
			"web-sandbox-0 [http=8080/TCP] 10.0.0.1 r+s+t- zone=za\n",
		},
		{
			"PreferSameNode hints zone and node", ", trafficDistribution: PreferSameNode",
			[]endpointPod{a, noZone},
			"web-sandbox-0 [http=8080/TCP] 10.0.0.1 r+s+t- zone=za node=n1 10.0.0.4 r+s+t- node=n3\n",
		},
		{
			"an unknown distribution gives no hints", ", trafficDistribution: Elsewhere",
			[]endpointPod{a},
			"web-sandbox-0 [http=8080/TCP] 10.0.0.1 r+s+t-\n",
		},
		{"ExternalName has no slices", ", type: ExternalName, externalName: x.example", []endpointPod{a}, ""},
		{"IPv6 alone has no IPv4 slices", ", ipFamilies: [IPv6]", []endpointPod{a}, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			svc := parse[corev1.Service](t, fmt.Sprintf(base, c.extra))
			got, notes := endpointSlices([]*corev1.Service{svc}, c.pods, free)
			if diff := cmp.Diff(c.want, show(got)); diff != "" {
				t.Error(diff)
			}
			if len(notes) > 0 {
				t.Errorf("notes: %v", notes)
			}
		})
	}
}

func TestTargetPorts(t *testing.T) {
	pod := func(name, ip, spec string) endpointPod {
		p := onePod(t, name, ip, "n1/za", up)
		p.pod.Spec = *parse[corev1.PodSpec](t, spec)
		return p
	}
	pods := []endpointPod{
		pod("a", "10.0.0.1", "containers: [{name: c, ports: [{name: http, containerPort: 8080}, {name: dns, containerPort: 53, protocol: UDP}]}]"),
		pod("b", "10.0.0.2", "containers: [{name: c, ports: [{name: http, containerPort: 9090}]}]"),
		pod("c", "10.0.0.3", "containers: [{name: c}]\ninitContainers: [{name: side, restartPolicy: Always, ports: [{name: http, containerPort: 8080}]}]"),
		pod("d", "10.0.0.4", "containers: [{name: c}]\ninitContainers: [{name: once, ports: [{name: http, containerPort: 8080}]}]"),
	}
	cases := []struct{ name, ports, want string }{
		{
			"a name resolves per pod; a pod without it keeps the other ports", "[{name: web, port: 80, targetPort: http}, {name: plain, port: 81, targetPort: 8181}]",
			"web-sandbox-0 [plain=8181/TCP] 10.0.0.4 r+s+t-\n" +
				"web-sandbox-1 [plain=8181/TCP web=8080/TCP] 10.0.0.1 r+s+t- 10.0.0.3 r+s+t-\n" +
				"web-sandbox-2 [plain=8181/TCP web=9090/TCP] 10.0.0.2 r+s+t-\n",
		},
		{
			"the target defaults to the port", "[{port: 80}]",
			"web-sandbox-0 [=80/TCP] 10.0.0.1 r+s+t- 10.0.0.2 r+s+t- 10.0.0.3 r+s+t- 10.0.0.4 r+s+t-\n",
		},
		{
			"a name of another protocol is none", "[{name: d, port: 53, targetPort: dns}, {name: u, port: 53, targetPort: dns, protocol: UDP}]",
			"web-sandbox-0 [] 10.0.0.2 r+s+t- 10.0.0.3 r+s+t- 10.0.0.4 r+s+t-\nweb-sandbox-1 [u=53/UDP] 10.0.0.1 r+s+t-\n",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			svc := parse[corev1.Service](t, "metadata: {name: web, namespace: default}\nspec: {selector: {app: web}, ports: "+c.ports+"}")
			got, _ := endpointSlices([]*corev1.Service{svc}, pods, free)
			if diff := cmp.Diff(c.want, show(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSliceObjects(t *testing.T) {
	svc := parse[corev1.Service](t, `
metadata:
  name: web
  namespace: default
  labels: {team: a, kubernetes.io/service-name: lie, service.kubernetes.io/headless: lie, service.kubernetes.io/service-proxy-name: other}
spec: {selector: {app: web}, clusterIP: None, ports: [{port: 80, appProtocol: http}]}`)
	p := onePod(t, "a", "10.0.0.1", "n1/za", up)
	p.pod.Spec.Hostname, p.pod.Spec.Subdomain = "a", "web"
	got, _ := endpointSlices([]*corev1.Service{svc}, []endpointPod{p}, free)
	want := parse[discoveryv1.EndpointSlice](t, `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-sandbox-0
  namespace: default
  labels:
    team: a
    kubernetes.io/service-name: web
    endpointslice.kubernetes.io/managed-by: sandbox.aether.io
    service.kubernetes.io/headless: ""
    service.kubernetes.io/service-proxy-name: other
addressType: IPv4
ports: [{name: "", port: 80, protocol: TCP, appProtocol: http}]
endpoints:
- addresses: [10.0.0.1]
  conditions: {ready: true, serving: true, terminating: false}
  hostname: a
  nodeName: n1
  zone: za
  targetRef: {kind: Pod, namespace: default, name: a, uid: uid-a}`)
	if diff := cmp.Diff([]*discoveryv1.EndpointSlice{want}, got); diff != "" {
		t.Error(diff)
	}
}

func TestTopologyModeIsNotedAndGivesNoHints(t *testing.T) {
	for annotation, wantNote := range map[string]bool{
		"service.kubernetes.io/topology-mode: Auto":                                                       true,
		"service.kubernetes.io/topology-aware-hints: auto":                                                true,
		"service.kubernetes.io/topology-mode: Disabled":                                                   false,
		"service.kubernetes.io/topology-mode: Auto, service.kubernetes.io/topology-aware-hints: disabled": false,
	} {
		svc := parse[corev1.Service](t, "metadata: {name: web, namespace: default, annotations: {"+annotation+"}}\n"+
			"spec: {selector: {app: web}, trafficDistribution: PreferClose, ports: [{port: 80}]}")
		got, notes := endpointSlices([]*corev1.Service{svc}, []endpointPod{onePod(t, "a", "10.0.0.1", "n1/za", up)}, free)
		hinted := got[0].Endpoints[0].Hints != nil
		if (len(notes) > 0) != wantNote || hinted == wantNote {
			t.Errorf("%s: notes %v, hinted %v", annotation, notes, hinted)
		}
	}
}

func TestPodsOfAnotherNamespaceAreNotSelected(t *testing.T) {
	svc := parse[corev1.Service](t, "metadata: {name: web, namespace: other}\nspec: {selector: {app: web}, ports: [{port: 80}]}")
	got, _ := endpointSlices([]*corev1.Service{svc}, []endpointPod{onePod(t, "a", "10.0.0.1", "n1/za", up)}, free)
	if want := "web-sandbox-0 []\n"; show(got) != want {
		t.Errorf("got %s, want %s", show(got), want)
	}
}

// TestSlicesHoldAHundred: no slice is larger, names do not collide with the
// user's, and neither the order of pods nor that of Services matters.
func TestSlicesHoldAHundred(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		count := rapid.IntRange(0, 450).Draw(rt, "pods")
		var pods []endpointPod
		for i := range count {
			pods = append(pods, onePod(t, fmt.Sprintf("p%04d", i), addrAt(netip.MustParseAddr("10.1.0.0"), uint64(i+1)).String(), "n1/za", up))
		}
		svc := parse[corev1.Service](t, "metadata: {name: web, namespace: default}\nspec: {selector: {app: web}, ports: [{port: 80}]}")
		other := parse[corev1.Service](t, "metadata: {name: other, namespace: default}\nspec: {selector: {app: web}, ports: [{port: 81}]}")
		taken := func(n model.Name) bool { return n.Name == "web-sandbox-1" }
		got, _ := endpointSlices([]*corev1.Service{svc, other}, pods, taken)
		seen := map[string]int{}
		for _, s := range got {
			if len(s.Endpoints) > 100 || taken(objectName(s)) {
				rt.Fatalf("slice %s holds %d endpoints", s.Name, len(s.Endpoints))
			}
			for _, e := range s.Endpoints {
				seen[s.Labels[discoveryv1.LabelServiceName]+e.Addresses[0]]++
			}
		}
		if len(seen) != 2*count {
			rt.Fatalf("%d endpoints are listed, want %d", len(seen), 2*count)
		}
		rand.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
		again, _ := endpointSlices([]*corev1.Service{other, svc}, pods, taken)
		if diff := cmp.Diff(got, again); diff != "" {
			rt.Fatalf("the order matters: %s", diff)
		}
	})
}
