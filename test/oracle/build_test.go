// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The Service of most hand-written cases, and where it is dialled.
const (
	web    = "default/web"
	webVIP = "10.96.0.10"
)

var dialWeb = netip.MustParseAddrPort(webVIP + ":80")

func parseKey(text string) key {
	ns, n, _ := strings.Cut(text, "/")
	return key{Namespace: ns, Name: n}
}

// serviceObject makes a Service; ports are "name:number" or "name:number/UDP".
func serviceObject(name, clusterIP, ports string, options ...func(*corev1.Service)) *corev1.Service {
	k := parseKey(name)
	s := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name, UID: types.UID("uid-" + k.Name), CreationTimestamp: created(1)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: clusterIP, ClusterIPs: []string{clusterIP},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		},
	}
	for _, p := range parsePorts(ports) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: *p.Name, Port: *p.Port, Protocol: *p.Protocol})
	}
	for _, o := range options {
		o(s)
	}
	return s
}

// created is a time of creation, days after the first.
func created(day int) metav1.Time {
	return metav1.NewTime(time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC))
}

func setService(name, clusterIP, ports string, options ...func(*corev1.Service)) event {
	return event{service: serviceObject(name, clusterIP, ports, options...)}
}

// setWeb sets the Service of most cases.
func setWeb(options ...func(*corev1.Service)) event {
	return setService(web, webVIP, "http:80", options...)
}

func localPolicy(s *corev1.Service) {
	s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
}

func external(policy corev1.ServiceExternalTrafficPolicy) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, policy
		for i := range s.Spec.Ports {
			s.Spec.Ports[i].NodePort = int32(30000 + i)
		}
	}
}

func label(k, v string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Labels = map[string]string{k: v} }
}

func annotation(k, v string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Annotations = map[string]string{k: v} }
}

func deleteService(name string) event {
	k := parseKey(name)
	return event{deleteService: &k}
}

// sliceObject makes an IPv4 slice of a Service of its namespace. Endpoints are
// "ADDRESS[,ADDRESS…] [r±][s±][t±] [@node] [z:hint,…] [n:hint,…]"; a condition
// that is left out is unset.
func sliceObject(name, service, ports string, endpoints ...string) *discoveryv1.EndpointSlice {
	k := parseKey(name)
	s := &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       parsePorts(ports),
	}
	for _, e := range endpoints {
		s.Endpoints = append(s.Endpoints, parseEndpoint(e))
	}
	return s
}

func setSlice(name, service, ports string, endpoints ...string) event {
	return event{slice: sliceObject(name, service, ports, endpoints...)}
}

// setWebSlice sets the first slice of the Service of most cases.
func setWebSlice(endpoints ...string) event {
	return setSlice(web+"-a", "web", "http:8080", endpoints...)
}

func deleteSlice(name string) event {
	k := parseKey(name)
	return event{deleteSlice: &k}
}

func setNode(name, zone string) event {
	n := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	if zone != "" {
		n.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	return event{node: n}
}

func parsePorts(text string) []discoveryv1.EndpointPort {
	var out []discoveryv1.EndpointPort
	for _, f := range strings.Fields(text) {
		name, rest, _ := strings.Cut(f, ":")
		number, protocol, named := strings.Cut(rest, "/")
		p := discoveryv1.EndpointPort{Name: new(name), Protocol: new(corev1.ProtocolTCP)}
		if number != "" {
			n, err := strconv.ParseInt(number, 10, 32)
			if err != nil {
				panic(fmt.Sprintf("port %q: %v", f, err))
			}
			p.Port = new(int32(n))
		}
		if named {
			p.Protocol = new(corev1.Protocol(protocol))
		}
		out = append(out, p)
	}
	return out
}

func parseEndpoint(text string) discoveryv1.Endpoint {
	fields := strings.Fields(text)
	e := discoveryv1.Endpoint{Addresses: strings.Split(fields[0], ",")}
	for _, f := range fields[1:] {
		switch {
		case f[0] == '@':
			e.NodeName = new(f[1:])
		case strings.HasPrefix(f, "z:"):
			for h := range strings.SplitSeq(f[2:], ",") {
				hintsOf(&e).ForZones = append(hintsOf(&e).ForZones, discoveryv1.ForZone{Name: h})
			}
		case strings.HasPrefix(f, "n:"):
			for h := range strings.SplitSeq(f[2:], ",") {
				hintsOf(&e).ForNodes = append(hintsOf(&e).ForNodes, discoveryv1.ForNode{Name: h})
			}
		default:
			parseConditions(&e.Conditions, f)
		}
	}
	return e
}

func hintsOf(e *discoveryv1.Endpoint) *discoveryv1.EndpointHints {
	if e.Hints == nil {
		e.Hints = &discoveryv1.EndpointHints{}
	}
	return e.Hints
}

func parseConditions(c *discoveryv1.EndpointConditions, text string) {
	for i := 0; i+1 < len(text); i += 2 {
		on := new(text[i+1] == '+')
		switch text[i] {
		case 'r':
			c.Ready = on
		case 's':
			c.Serving = on
		case 't':
			c.Terminating = on
		default:
			panic("conditions " + text)
		}
	}
}
