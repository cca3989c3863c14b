// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"aether.io/aether/internal/model"
)

const (
	// maxEndpointsPerSlice is the EndpointSlice controller's default.
	maxEndpointsPerSlice = 100
	// managedBy is the value of endpointslice.kubernetes.io/managed-by on ours.
	managedBy = "sandbox.aether.io"

	topologyModeAnnotation  = "service.kubernetes.io/topology-mode"
	topologyHintsAnnotation = "service.kubernetes.io/topology-aware-hints"
)

// endpointPod is what the EndpointSlice controller reads of a pod.
type endpointPod struct {
	pod         *corev1.Pod
	uid         string
	ip          netip.Addr // zero: not listed yet
	node        string
	zone        string // of the node; empty when unknown
	ready       bool   // the pod's Ready condition
	terminating bool   // deletion has begun
	terminal    bool   // phase Succeeded or Failed: never listed
}

// endpointSlices plays the EndpointSlice controller for the IPv4 family: a pure
// function of Services and pods, independent of their order. taken reports
// slice names that the user's manifests hold; they are left out in numbering.
// The second result notes what a Service asks for and is not done here.
//
// Rules: KEP-752 (slices), KEP-1672 (terminating), KEP-4444 and KEP-3015
// (trafficDistribution hints), publishNotReadyAddresses as the API documents it.
func endpointSlices(services []*corev1.Service, pods []endpointPod, taken func(model.Name) bool) ([]*discoveryv1.EndpointSlice, []string) {
	pods = slices.SortedFunc(slices.Values(pods), func(a, b endpointPod) int {
		return objectName(a.pod).Compare(objectName(b.pod))
	})
	services = slices.SortedFunc(slices.Values(services), func(a, b *corev1.Service) int {
		return objectName(a).Compare(objectName(b))
	})
	var out []*discoveryv1.EndpointSlice
	var notes []string
	for _, svc := range services {
		if len(svc.Spec.Selector) == 0 || svc.Spec.Type == corev1.ServiceTypeExternalName || !servesIPv4(svc) {
			continue
		}
		if asksTopologyMode(svc) {
			notes = append(notes, fmt.Sprintf("Service %s: %s is not done here, no hints are written",
				objectName(svc), topologyModeAnnotation))
		}
		out = append(out, slicesOf(svc, pods, taken)...)
	}
	return out, notes
}

// servesIPv4 reports whether the Service has the IPv4 family; a manifest that
// names none gets it.
func servesIPv4(svc *corev1.Service) bool {
	return len(svc.Spec.IPFamilies) == 0 || slices.Contains(svc.Spec.IPFamilies, corev1.IPv4Protocol)
}

func asksTopologyMode(svc *corev1.Service) bool {
	v, ok := svc.Annotations[topologyHintsAnnotation] // the older name wins
	if !ok {
		v = svc.Annotations[topologyModeAnnotation]
	}
	return v == "Auto" || v == "auto"
}

// slicesOf builds one Service's slices: pods that resolve its ports to the same
// numbers share slices, of at most maxEndpointsPerSlice endpoints each.
func slicesOf(svc *corev1.Service, pods []endpointPod, taken func(model.Name) bool) []*discoveryv1.EndpointSlice {
	type group struct {
		ports     []discoveryv1.EndpointPort
		endpoints []discoveryv1.Endpoint
	}
	groups := map[string]*group{}
	selector := labels.SelectorFromSet(svc.Spec.Selector)
	for _, p := range pods {
		if p.pod.Namespace != svc.Namespace || p.terminal || !p.ip.IsValid() || !selector.Matches(labels.Set(p.pod.Labels)) {
			continue
		}
		ports := endpointPorts(svc, p.pod)
		key := portsKey(ports)
		if groups[key] == nil {
			groups[key] = &group{ports: ports}
		}
		groups[key].endpoints = append(groups[key].endpoints, endpointOf(svc, p))
	}
	if len(groups) == 0 { // the controller's placeholder
		groups[""] = &group{}
	}
	var out []*discoveryv1.EndpointSlice
	number := 0
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		g := groups[key]
		for {
			n := min(len(g.endpoints), maxEndpointsPerSlice)
			name := model.Name{Namespace: svc.Namespace}
			for {
				name.Name = fmt.Sprintf("%s-sandbox-%d", svc.Name, number)
				number++
				if !taken(name) {
					break
				}
			}
			out = append(out, newSlice(svc, name, g.ports, g.endpoints[:n]))
			if g.endpoints = g.endpoints[n:]; len(g.endpoints) == 0 {
				break
			}
		}
	}
	return out
}

func newSlice(svc *corev1.Service, name model.Name, ports []discoveryv1.EndpointPort, endpoints []discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	l := map[string]string{}
	for k, v := range svc.Labels {
		switch k {
		case discoveryv1.LabelServiceName, discoveryv1.LabelManagedBy, corev1.IsHeadlessService:
		default:
			l[k] = v
		}
	}
	l[discoveryv1.LabelServiceName] = svc.Name
	l[discoveryv1.LabelManagedBy] = managedBy
	if svc.Spec.ClusterIP == corev1.ClusterIPNone {
		l[corev1.IsHeadlessService] = ""
	}
	return &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, Labels: l},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       ports,
		Endpoints:   slices.Clone(endpoints),
	}
}

// endpointPorts resolves the Service's ports for one pod. A port whose target
// name the pod does not have is left out.
func endpointPorts(svc *corev1.Service, pod *corev1.Pod) []discoveryv1.EndpointPort {
	ports := []discoveryv1.EndpointPort{}
	for i := range svc.Spec.Ports {
		sp := &svc.Spec.Ports[i]
		number, ok := targetPort(sp, pod)
		if !ok {
			continue
		}
		protocol := protocolOf(sp.Protocol)
		name := sp.Name
		ports = append(ports, discoveryv1.EndpointPort{
			Name: &name, Port: &number, Protocol: &protocol, AppProtocol: sp.AppProtocol,
		})
	}
	slices.SortFunc(ports, func(a, b discoveryv1.EndpointPort) int {
		return cmp.Or(strings.Compare(*a.Name, *b.Name), cmp.Compare(*a.Port, *b.Port), cmp.Compare(*a.Protocol, *b.Protocol))
	})
	return ports
}

// targetPort resolves one Service port for one pod: a number as it is (absent:
// the Service port's), a name by container port name and protocol, looked up in
// containers first and then in restartable init containers (KEP-753).
func targetPort(sp *corev1.ServicePort, pod *corev1.Pod) (int32, bool) {
	t := sp.TargetPort
	if t.Type == intstr.Int {
		if t.IntVal == 0 {
			return sp.Port, true
		}
		return t.IntVal, true
	}
	find := func(c *corev1.Container) (int32, bool) {
		for _, p := range c.Ports {
			if p.Name == t.StrVal && protocolOf(p.Protocol) == protocolOf(sp.Protocol) {
				return p.ContainerPort, true
			}
		}
		return 0, false
	}
	for i := range pod.Spec.Containers {
		if n, ok := find(&pod.Spec.Containers[i]); ok {
			return n, true
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; isSidecar(c) {
			if n, ok := find(c); ok {
				return n, true
			}
		}
	}
	return 0, false
}

func isSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func protocolOf(p corev1.Protocol) corev1.Protocol {
	return cmp.Or(p, corev1.ProtocolTCP)
}

func portsKey(ports []discoveryv1.EndpointPort) string {
	var b strings.Builder
	for _, p := range ports {
		app := ""
		if p.AppProtocol != nil {
			app = *p.AppProtocol
		}
		fmt.Fprintf(&b, "%s/%05d/%s/%s;", *p.Name, *p.Port, *p.Protocol, app)
	}
	return b.String()
}

// endpointOf builds one endpoint. ready stays true for a pod of a Service that
// publishes not-ready addresses, whatever else holds of it.
func endpointOf(svc *corev1.Service, p endpointPod) discoveryv1.Endpoint {
	serving, terminating := p.ready, p.terminating
	ready := svc.Spec.PublishNotReadyAddresses || serving && !terminating
	e := discoveryv1.Endpoint{
		Addresses:  []string{p.ip.String()},
		Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
		TargetRef: &corev1.ObjectReference{
			Kind: "Pod", Namespace: p.pod.Namespace, Name: p.pod.Name, UID: types.UID(p.uid),
		},
	}
	if p.node != "" {
		e.NodeName = &p.node
	}
	if p.zone != "" {
		e.Zone = &p.zone
	}
	if h := p.pod.Spec.Hostname; h != "" && p.pod.Spec.Subdomain == svc.Name {
		e.Hostname = &h
	}
	if ready {
		e.Hints = hintsOf(svc, p)
	}
	return e
}

// hintsOf writes the endpoint's own zone for PreferClose and PreferSameZone, and
// its own node besides for PreferSameNode. Without a zone there is no zone hint.
func hintsOf(svc *corev1.Service, p endpointPod) *discoveryv1.EndpointHints {
	if svc.Spec.TrafficDistribution == nil || asksTopologyMode(svc) {
		return nil
	}
	var h discoveryv1.EndpointHints
	switch *svc.Spec.TrafficDistribution {
	case corev1.ServiceTrafficDistributionPreferSameNode:
		if p.node != "" {
			h.ForNodes = []discoveryv1.ForNode{{Name: p.node}}
		}
	case corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone:
	default:
		return nil
	}
	if p.zone != "" {
		h.ForZones = []discoveryv1.ForZone{{Name: p.zone}}
	}
	if h.ForZones == nil && h.ForNodes == nil {
		return nil
	}
	return &h
}

func objectName(o metav1.Object) model.Name {
	return model.Name{Namespace: o.GetNamespace(), Name: o.GetName()}
}
