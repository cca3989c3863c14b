// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"net/netip"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"aether.io/aether/internal/model"
)

// What makes a Service somebody else's to balance.
const (
	labelServiceProxyName = "service.kubernetes.io/service-proxy-name"
	annotationCilium      = "service.cilium.io/global"
	annotationEgress      = "aether.io/service-egress"
	egressPassthrough     = "passthrough"
)

// Service converts a Service. A Service that owns no VIP (headless, ExternalName,
// IPv6 only, not yet allocated) is converted like any other, with a zero VIP.
// The label service.kubernetes.io/headless means nothing on a Service.
func Service(s *corev1.Service) (model.Service, []Note) {
	var notes []Note
	out := model.Service{
		Name:             model.Name{Namespace: s.Namespace, Name: s.Name},
		UID:              string(s.UID),
		Deleting:         s.DeletionTimestamp != nil,
		Selects:          len(s.Spec.Selector) > 0 && s.Spec.Type != corev1.ServiceTypeExternalName,
		InternalLocal:    s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
		ClientIPAffinity: s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP,
	}
	if !s.CreationTimestamp.IsZero() {
		out.Created = s.CreationTimestamp.Unix()
	}
	var n []Note
	out.VIP, n = clusterVIP(&s.Spec)
	notes = append(notes, n...)
	out.ExternalIPs, n = externalIPs(s)
	notes = append(notes, n...)
	out.Ports, n = servicePorts(s.Spec.Ports)
	notes = append(notes, n...)
	out.Foreign, n = foreign(s)
	notes = append(notes, n...)
	return out, notes
}

// clusterVIP returns the IPv4 ClusterIP by kube-proxy's rule: the entry of
// clusterIPs at IPv4's place in ipFamilies; with ipFamilies empty, clusterIP if
// it is an IPv4 address. An ExternalName Service owns none, whatever it carries.
func clusterVIP(spec *corev1.ServiceSpec) (netip.Addr, []Note) {
	if spec.Type == corev1.ServiceTypeExternalName || spec.ClusterIP == "" || spec.ClusterIP == corev1.ClusterIPNone {
		return netip.Addr{}, nil
	}
	field, text := "spec.clusterIP", spec.ClusterIP
	if len(spec.IPFamilies) > 0 {
		i := ipv4Position(spec)
		if i < 0 {
			return netip.Addr{}, nil
		}
		field, text = fmt.Sprintf("spec.clusterIPs[%d]", i), spec.ClusterIPs[i]
	}
	a, ok := ParseAddr(text)
	if !ok {
		return netip.Addr{}, []Note{{field, strconv.Quote(text) + " is not an IP address; the Service has no VIP"}}
	}
	if !a.Is4() {
		return netip.Addr{}, nil
	}
	return a, nil
}

// ipv4Position returns the index of IPv4 in ipFamilies, -1 when there is no such
// entry or no ClusterIP for it.
func ipv4Position(spec *corev1.ServiceSpec) int {
	for i, f := range spec.IPFamilies {
		if f == corev1.IPv4Protocol && i < len(spec.ClusterIPs) {
			return i
		}
	}
	return -1
}

// externalIPs returns the IPv4 externalIPs and load-balancer addresses, whatever
// their ipMode. An ExternalName Service has none, as for kube-proxy.
func externalIPs(s *corev1.Service) (out []netip.Addr, notes []Note) {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil, nil
	}
	add := func(field, text string) {
		a, ok := ParseAddr(text)
		switch {
		case !ok:
			notes = append(notes, Note{field, strconv.Quote(text) + " is not an IP address; it is ignored"})
		case a.Is4():
			out = append(out, a)
		}
	}
	for i, text := range s.Spec.ExternalIPs {
		add(fmt.Sprintf("spec.externalIPs[%d]", i), text)
	}
	for i, in := range s.Status.LoadBalancer.Ingress {
		if in.IP != "" { // else it has a host name
			add(fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), in.IP)
		}
	}
	return addrSet(out), notes
}

// servicePorts returns the ports. The protocol defaults to TCP.
func servicePorts(ports []corev1.ServicePort) (out []model.ServicePort, notes []Note) {
	for i, p := range ports {
		n, ok := portNumber(&p.Port)
		if !ok {
			notes = append(notes, Note{fmt.Sprintf("spec.ports[%d].port", i), fmt.Sprintf("%d is not within 1–65535; the port is ignored", p.Port)})
			continue
		}
		out = append(out, model.ServicePort{Name: p.Name, Port: n, Protocol: protocol(&p.Protocol)})
	}
	return out, notes
}

// foreign says whether the Service is somebody else's to balance. The order is
// the precedence: what another proxy claims comes before what the owner asks for.
func foreign(s *corev1.Service) (model.Foreign, []Note) {
	if _, ok := s.Labels[labelServiceProxyName]; ok {
		return model.ServiceProxyName, nil
	}
	if s.Annotations[annotationCilium] == "true" {
		return model.CiliumGlobal, nil
	}
	v, ok := s.Annotations[annotationEgress]
	switch {
	case !ok:
		return model.NotForeign, nil
	case v == egressPassthrough:
		return model.OptedOut, nil
	}
	return model.NotForeign, []Note{{
		Field: fmt.Sprintf("metadata.annotations[%q]", annotationEgress),
		Text:  fmt.Sprintf("%q is not known; the only value is %q, and the annotation is ignored", v, egressPassthrough),
	}}
}

// portNumber reads an optional port number; ok is false when it is absent, 0 or
// outside 1–65535.
func portNumber(p *int32) (n uint16, ok bool) {
	if p == nil || *p < 1 || *p > 65535 {
		return 0, false
	}
	return uint16(*p), true
}

// protocol reads an optional protocol; it defaults to TCP, as in the API.
func protocol(p *corev1.Protocol) model.Protocol {
	if p == nil || *p == "" {
		return model.TCP
	}
	return model.Protocol(*p)
}
