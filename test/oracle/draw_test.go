// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// The universe is small, so that things collide: few names, addresses, ports,
// nodes and zones.
var (
	serviceNames = []key{{Namespace: "apps", Name: "a"}, {Namespace: "apps", Name: "b"}, {Namespace: "apps", Name: "c"}, {Namespace: "back", Name: "a"}, apiServer}
	sliceNames   = []string{"s1", "s2", "s3", "s4"}
	nodeNames    = []string{"n1", "n2"}
	zoneNames    = []string{"za", "zb", ""}
	vipPool      = []string{"10.96.0.10", "10.96.0.11", "10.96.0.12", "10.96.0.13"}
	portNumbers  = []int32{80, 81, 443}
	portNames    = []string{"http", "web", ""}
)

const (
	apiServerVIP = "10.96.0.1"
	outsideVIP   = "172.30.0.9" // of a Service made before the ranges changed
	externalVIP  = "10.96.0.200"
	nobodysVIP   = "10.96.77.7"
)

// targets are what is dialled in every state: each address that a Service may
// have, and some that none has, on each port that may be declared, and on one that
// never is.
func targets() (out []netip.AddrPort) {
	for _, a := range append([]string{apiServerVIP, outsideVIP, externalVIP, nobodysVIP}, vipPool...) {
		for _, p := range append([]int32{9}, portNumbers...) {
			out = append(out, netip.AddrPortFrom(netip.MustParseAddr(a), uint16(p)))
		}
	}
	return out
}

func pick[T any](t *rapid.T, label string, from ...T) T {
	return rapid.SampledFrom(from).Draw(t, label)
}

// rarely is true about once in n; it shrinks to false.
func rarely(t *rapid.T, n int, label string) bool {
	return rapid.IntRange(0, n-1).Draw(t, label) == n-1
}

func optional[T any](t *rapid.T, label string, from ...T) *T {
	if i := rapid.IntRange(0, len(from)).Draw(t, label); i > 0 {
		return &from[i-1]
	}
	return nil
}

// drawStart draws what is there when both sides begin, in the order in which it is
// told: most of the Services, and some slices. It shrinks to nothing.
func drawStart(t *rapid.T, w *world, tell func(event)) {
	const aSlice = -1
	order := []int{aSlice, aSlice, aSlice, aSlice, aSlice, aSlice, aSlice, aSlice, aSlice, aSlice, aSlice, 0, 1, 2, 3, 4}
	for _, i := range rapid.Permutation(order).Draw(t, "order") {
		switch there := rapid.IntRange(0, 7).Draw(t, "there") > 0; {
		case there && i == aSlice:
			tell(event{slice: drawSlice(t, w, drawOwner(t, w))})
		case there:
			tell(event{service: drawService(t, w, serviceNames[i])})
		}
	}
}

// drawEvents draws what happens next. A later event of one draw knows the earlier.
func drawEvents(t *rapid.T, w *world) []event {
	set := func(s *corev1.Service) []event { return []event{{service: s}} }
	setSlice := func(s *discoveryv1.EndpointSlice) []event { return []event{{slice: s}} }
	switch pick(t, "event", "slice", "change slice", "slice", "service", "change slice", "change service", "change service",
		"recreate service", "move endpoints", "delete slice", "delete service", "node") {
	case "service":
		return set(drawService(t, w, pick(t, "service", serviceNames...)))
	case "change service":
		if s := drawHeld(t, "service", w.services); s != nil {
			return set(changeService(t, w, s.DeepCopy()))
		}
	case "recreate service":
		if s := drawHeld(t, "service", w.services); s != nil {
			k := keyOf(s)
			next := event{service: drawService(t, w, k)}
			if rapid.Bool().Draw(t, "deletion seen") { // else a relist shows the new one in place of the old
				return []event{{deleteService: &k}, next}
			}
			return []event{next}
		}
	case "delete service":
		if s := drawHeld(t, "service", w.services); s != nil {
			k := keyOf(s)
			return []event{{deleteService: &k}}
		}
	case "change slice":
		if s := drawHeld(t, "slice", w.slices); s != nil {
			return setSlice(changeSlice(t, w, s.DeepCopy()))
		}
	case "move endpoints":
		if from, to := drawHeld(t, "from", w.slices), drawHeld(t, "to", w.slices); from != nil {
			return moveEndpoints(t, w, from.DeepCopy(), to.DeepCopy())
		}
	case "delete slice":
		if s := drawHeld(t, "slice", w.slices); s != nil {
			k := keyOf(s)
			return []event{{deleteSlice: &k}}
		}
	case "node":
		return []event{setNode(pick(t, "node", nodeNames...), pick(t, "zone", zoneNames...))}
	}
	return setSlice(drawSlice(t, w, drawOwner(t, w)))
}

// drawOwner draws the Service that a new slice is to be of, mostly one there is.
func drawOwner(t *rapid.T, w *world) key {
	if s := drawHeld(t, "owner", w.services); s != nil && !rarely(t, 8, "nobody's") {
		return keyOf(s)
	}
	return pick(t, "owner", serviceNames...)
}

func drawHeld[V any](t *rapid.T, label string, m map[key]V) (none V) {
	if len(m) == 0 {
		return none
	}
	return m[pick(t, label, sortedKeys(m)...)]
}

func drawService(t *rapid.T, w *world, k key) *corev1.Service {
	s := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: k.Namespace, Name: k.Name,
			CreationTimestamp: created(pick(t, "created", 1, 2, 3)),
		},
	}
	s.UID = uidOf(t)
	drawType(t, w, s)
	drawServicePorts(t, s)
	s.Spec.InternalTrafficPolicy = optional(t, "internalTrafficPolicy", corev1.ServiceInternalTrafficPolicyLocal, corev1.ServiceInternalTrafficPolicyCluster)
	drawAffinity(t, s)
	drawMarks(t, s)
	s.Spec.PublishNotReadyAddresses = rarely(t, 4, "publishNotReadyAddresses")
	s.Spec.TrafficDistribution = optional(t, "trafficDistribution", corev1.ServiceTrafficDistributionPreferSameNode, corev1.ServiceTrafficDistributionPreferSameZone)
	if rapid.Bool().Draw(t, "selector") {
		s.Spec.Selector = map[string]string{"app": k.Name}
	}
	drawExternals(t, s)
	return s
}

// drawType draws the type, the families and the ClusterIPs.
func drawType(t *rapid.T, w *world, s *corev1.Service) {
	const headless, noType = "headless", corev1.ServiceType("")
	sp := &s.Spec
	sp.Type = pick(t, "type", corev1.ServiceTypeClusterIP, noType, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer,
		corev1.ServiceTypeClusterIP, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeClusterIP,
		corev1.ServiceTypeExternalName, headless)
	if sp.Type == headless {
		sp.Type, sp.ClusterIP = corev1.ServiceTypeClusterIP, corev1.ClusterIPNone
		sp.ClusterIPs, sp.IPFamilies = []string{corev1.ClusterIPNone}, []corev1.IPFamily{corev1.IPv4Protocol}
		return
	}
	if sp.Type == corev1.ServiceTypeExternalName {
		sp.ExternalName = "example.com"
		if rapid.Bool().Draw(t, "no clusterIP") {
			return
		}
	}
	drawClusterIPs(t, w, s)
}

// drawClusterIPs gives the Service an address per family. An old object may lack
// the families, or have an address with leading zeros.
func drawClusterIPs(t *rapid.T, w *world, s *corev1.Service) {
	const v4, v6 = corev1.IPv4Protocol, corev1.IPv6Protocol
	four, six := drawVIP(t, w, keyOf(s)), "fd00:96::"+fmt.Sprint(rapid.IntRange(1, 3).Draw(t, "IPv6"))
	sp := &s.Spec
	sp.IPFamilies = pick(t, "families", []corev1.IPFamily{v4}, []corev1.IPFamily{v4}, []corev1.IPFamily{v4}, []corev1.IPFamily{v4}, []corev1.IPFamily{v4, v6}, []corev1.IPFamily{v6, v4}, []corev1.IPFamily{v6})
	sp.ClusterIPs = nil
	for _, f := range sp.IPFamilies {
		sp.ClusterIPs = append(sp.ClusterIPs, map[corev1.IPFamily]string{v4: four, v6: six}[f])
	}
	sp.ClusterIP = sp.ClusterIPs[0]
	if len(sp.IPFamilies) == 2 {
		sp.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
	}
	if len(sp.IPFamilies) == 1 && rarely(t, 10, "families unset") {
		sp.IPFamilies = nil
	}
}

// drawVIP draws an IPv4 ClusterIP, mostly one that nobody has.
func drawVIP(t *rapid.T, w *world, k key) string {
	if k == apiServer {
		return apiServerVIP
	}
	if rarely(t, 20, "outside") {
		return outsideVIP
	}
	i := rapid.IntRange(0, len(vipPool)-1).Draw(t, "VIP")
	if !rarely(t, 8, "taken VIP") {
		for range vipPool {
			if !slices.ContainsFunc(w.claims(netip.MustParseAddr(vipPool[i])), func(s *corev1.Service) bool { return keyOf(s) != k }) {
				break
			}
			i = (i + 1) % len(vipPool)
		}
	}
	if rarely(t, 12, "leading zeros") {
		return fmt.Sprintf("010.096.000.0%d", 10+i)
	}
	return vipPool[i]
}

// drawServicePorts draws ports as validation wants them: names differ, and so do
// pairs of number and protocol; a single port may lack a name.
func drawServicePorts(t *rapid.T, s *corev1.Service) {
	n := pick(t, "ports", 1, 2, 3)
	names := rapid.Permutation(portNames).Draw(t, "port names")
	s.Spec.Ports = nil
	for i := range n {
		name := names[i]
		if name == "" && n > 1 {
			name = "dns"
		}
		p := corev1.ServicePort{Name: name, Port: pick(t, "port", portNumbers...), Protocol: drawProtocol(t)}
		if !slices.ContainsFunc(s.Spec.Ports, func(q corev1.ServicePort) bool {
			return q.Port == p.Port && (q.Protocol == p.Protocol || q.Protocol+p.Protocol == corev1.ProtocolTCP)
		}) {
			s.Spec.Ports = append(s.Spec.Ports, p)
		}
	}
}

// drawProtocol draws a protocol; unset means TCP.
func drawProtocol(t *rapid.T) corev1.Protocol {
	return pick(t, "protocol", corev1.ProtocolTCP, "", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolTCP, corev1.ProtocolSCTP)
}

func drawAffinity(t *rapid.T, s *corev1.Service) {
	s.Spec.SessionAffinity = pick(t, "sessionAffinity", "", corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP)
	s.Spec.SessionAffinityConfig = nil
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		if seconds := optional(t, "timeout", int32(1), 10800); seconds != nil {
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: seconds}}
		}
	}
}

// drawMarks draws labels, annotations and a deletion under way.
func drawMarks(t *rapid.T, s *corev1.Service) {
	mark := func(m *map[string]string, k, v string) {
		if *m == nil {
			*m = map[string]string{}
		}
		(*m)[k] = v
	}
	switch pick(t, "mark", "", "", "", "", "", "", "", "", "", "", "proxy", "headless", "topology", "cilium", "egress") {
	case "proxy":
		mark(&s.Labels, "service.kubernetes.io/service-proxy-name", pick(t, "proxy name", "", "cilium"))
	case "headless":
		mark(&s.Labels, corev1.IsHeadlessService, "")
	case "topology":
		mark(&s.Annotations, corev1.AnnotationTopologyMode, "Auto")
	case "cilium":
		mark(&s.Annotations, "service.cilium.io/global", pick(t, "global", "true", "false"))
	case "egress":
		mark(&s.Annotations, "aether.io/service-egress", pick(t, "egress", "passthrough", "balance"))
	}
	if rarely(t, 12, "deleting") {
		s.DeletionTimestamp, s.Finalizers = new(created(9)), []string{"example.com/wait"}
	}
}

// drawExternals draws how the Service is reached from outside, and by which policy.
func drawExternals(t *rapid.T, s *corev1.Service) {
	sp := &s.Spec
	reachable := sp.Type == corev1.ServiceTypeNodePort || sp.Type == corev1.ServiceTypeLoadBalancer
	if reachable {
		for i := range sp.Ports {
			sp.Ports[i].NodePort = int32(30000 + i)
		}
	}
	if sp.Type == corev1.ServiceTypeLoadBalancer {
		s.Status.LoadBalancer.Ingress = pick(t, "ingress", nil,
			[]corev1.LoadBalancerIngress{{IP: "192.0.2.7"}},
			[]corev1.LoadBalancerIngress{{IP: externalVIP, IPMode: optional(t, "ipMode", corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy)}},
			[]corev1.LoadBalancerIngress{{Hostname: "lb.example.com"}, {IP: "2001:db8::7"}})
	}
	if sp.Type != corev1.ServiceTypeExternalName && rarely(t, 8, "externalIPs") {
		sp.ExternalIPs = pick(t, "externalIP", []string{"192.0.2.8"}, []string{externalVIP}, []string{vipPool[0]}, []string{"2001:db8::8"})
		reachable = reachable || sp.ClusterIP != corev1.ClusterIPNone
	}
	if reachable {
		sp.ExternalTrafficPolicy = pick(t, "externalTrafficPolicy", "", corev1.ServiceExternalTrafficPolicyLocal, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if sp.Type == corev1.ServiceTypeLoadBalancer && sp.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		sp.HealthCheckNodePort = 31000
	}
}

// changeService changes one thing of a Service in place.
func changeService(t *rapid.T, w *world, s *corev1.Service) *corev1.Service {
	switch pick(t, "change", "ports", "internalTrafficPolicy", "affinity", "marks", "type", "externals", "VIP", "port name", "port number", "families") {
	case "ports":
		drawServicePorts(t, s)
	case "internalTrafficPolicy":
		s.Spec.InternalTrafficPolicy = optional(t, "internalTrafficPolicy", corev1.ServiceInternalTrafficPolicyLocal, corev1.ServiceInternalTrafficPolicyCluster)
	case "affinity":
		drawAffinity(t, s)
	case "marks":
		s.Labels, s.Annotations = nil, nil
		drawMarks(t, s)
	case "type": // to ExternalName and back, to headless, to NodePort: a new address each time
		again := drawService(t, w, keyOf(s))
		again.UID, again.CreationTimestamp, again.Labels, again.Annotations = s.UID, s.CreationTimestamp, s.Labels, s.Annotations
		return again
	case "externals":
		s.Spec.ExternalIPs, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort, s.Status = nil, "", 0, corev1.ServiceStatus{}
		drawExternals(t, s)
	case "VIP", "families":
		if vipOf(s).IsValid() {
			drawClusterIPs(t, w, s)
		}
	case "port name":
		if len(s.Spec.Ports) == 1 {
			s.Spec.Ports[0].Name = pick(t, "name", portNames...)
		}
	case "port number":
		if len(s.Spec.Ports) == 1 {
			s.Spec.Ports[0].Port = pick(t, "port", portNumbers...)
		}
	}
	return s
}
