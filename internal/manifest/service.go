// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/intstr"

	"aether.io/aether/internal/convert"
)

const (
	minAffinitySeconds = 1
	maxAffinitySeconds = 86400
)

// defaultService fills in what an API server would have. It allocates no
// addresses: an absent ClusterIP stays absent.
func defaultService(s *corev1.Service) {
	sp := &s.Spec
	orDefault(&sp.Type, corev1.ServiceTypeClusterIP)
	orDefault(&sp.SessionAffinity, corev1.ServiceAffinityNone)
	if sp.SessionAffinity == corev1.ServiceAffinityClientIP {
		if sp.SessionAffinityConfig == nil {
			sp.SessionAffinityConfig = &corev1.SessionAffinityConfig{}
		}
		if sp.SessionAffinityConfig.ClientIP == nil {
			sp.SessionAffinityConfig.ClientIP = &corev1.ClientIPConfig{}
		}
		if c := sp.SessionAffinityConfig.ClientIP; c.TimeoutSeconds == nil {
			c.TimeoutSeconds = new(corev1.DefaultClientIPServiceAffinitySeconds)
		}
	}
	if sp.InternalTrafficPolicy == nil && sp.Type != corev1.ServiceTypeExternalName {
		sp.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
	}
	for i := range sp.Ports {
		p := &sp.Ports[i]
		orDefault(&p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	defaultClusterIPs(sp)
}

// defaultClusterIPs makes clusterIP and clusterIPs agree and derives ipFamilies
// from them, where they tell.
func defaultClusterIPs(sp *corev1.ServiceSpec) {
	switch {
	case len(sp.ClusterIPs) == 0 && sp.ClusterIP != "":
		sp.ClusterIPs = []string{sp.ClusterIP}
	case sp.ClusterIP == "" && len(sp.ClusterIPs) > 0:
		sp.ClusterIP = sp.ClusterIPs[0]
	}
	if len(sp.IPFamilies) > 0 {
		return
	}
	for _, ip := range sp.ClusterIPs {
		f, ok := family(ip)
		if !ok {
			sp.IPFamilies = nil // "None", or no address: nothing can be told
			return
		}
		sp.IPFamilies = append(sp.IPFamilies, f)
	}
}

// checkService reports what an API server would refuse.
func checkService(s *corev1.Service, r *report) {
	sp := &s.Spec
	oneOf(r, "spec.type", sp.Type, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName)
	oneOf(r, "spec.sessionAffinity", sp.SessionAffinity, corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP)
	if p := sp.InternalTrafficPolicy; p != nil {
		oneOf(r, "spec.internalTrafficPolicy", *p, corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)
	}
	if c := sp.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		if n := *c.ClientIP.TimeoutSeconds; n < minAffinitySeconds || n > maxAffinitySeconds {
			r.problem("spec.sessionAffinityConfig.clientIP.timeoutSeconds", "%d is not within %d–%d", n, minAffinitySeconds, maxAffinitySeconds)
		}
	}
	checkClusterIPs(sp, r)
	for i, ip := range sp.ExternalIPs {
		checkAddr(r, fmt.Sprintf("spec.externalIPs[%d]", i), ip)
	}
	for i, in := range s.Status.LoadBalancer.Ingress {
		if in.IP != "" {
			checkAddr(r, fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), in.IP)
		}
	}
	checkServicePorts(sp, r)
}

// checkClusterIPs checks clusterIP, clusterIPs and ipFamilies against each other.
func checkClusterIPs(sp *corev1.ServiceSpec, r *report) {
	for i, f := range sp.IPFamilies {
		oneOf(r, fmt.Sprintf("spec.ipFamilies[%d]", i), f, corev1.IPv4Protocol, corev1.IPv6Protocol)
		if slices.Contains(sp.IPFamilies[:i], f) {
			r.problem(fmt.Sprintf("spec.ipFamilies[%d]", i), "%s is there twice", f)
		}
	}
	if sp.Type == corev1.ServiceTypeExternalName {
		return // an API server drops the addresses of these
	}
	if sp.ClusterIP == "" {
		r.note("spec.clusterIP", "is missing, and nothing here allocates one: the Service has no VIP")
		return
	}
	if sp.ClusterIP != sp.ClusterIPs[0] {
		r.problem("spec.clusterIP", "%q is not the first of spec.clusterIPs, %q", sp.ClusterIP, sp.ClusterIPs[0])
	}
	if sp.ClusterIP == corev1.ClusterIPNone {
		if len(sp.ClusterIPs) > 1 {
			r.problem("spec.clusterIPs", "holds addresses beside None")
		}
		return
	}
	for i, ip := range sp.ClusterIPs {
		field := fmt.Sprintf("spec.clusterIPs[%d]", i)
		if i == 0 {
			field = "spec.clusterIP"
		}
		f, ok := family(ip)
		switch {
		case !ok:
			checkAddr(r, field, ip)
		case i < len(sp.IPFamilies) && sp.IPFamilies[i] != f:
			r.problem(field, "%s is not an %s address, which spec.ipFamilies[%d] asks for", ip, sp.IPFamilies[i], i)
		}
	}
	if len(sp.IPFamilies) < len(sp.ClusterIPs) && len(sp.IPFamilies) > 0 {
		r.note("spec.ipFamilies", "has fewer entries than spec.clusterIPs; the others are ignored")
	}
}

// checkServicePorts checks numbers, protocols and names. What is only ambiguous
// to an API server but can be served is a note.
func checkServicePorts(sp *corev1.ServiceSpec, r *report) {
	type portKey struct {
		port     int32
		protocol corev1.Protocol
	}
	numbers, names := map[portKey]bool{}, map[string]bool{}
	if len(sp.Ports) == 0 && sp.Type != corev1.ServiceTypeExternalName && sp.ClusterIP != corev1.ClusterIPNone {
		r.note("spec.ports", "is empty: nothing can be dialled")
	}
	for i, p := range sp.Ports {
		at := fmt.Sprintf("spec.ports[%d]", i)
		checkPort(r, at+".port", p.Port)
		if p.TargetPort.Type == intstr.Int && p.TargetPort.IntVal != p.Port {
			checkPort(r, at+".targetPort", p.TargetPort.IntVal)
		}
		oneOf(r, at+".protocol", p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
		if p.Name != "" {
			if msgs := content.IsDNS1123Label(p.Name); len(msgs) > 0 {
				r.problem(at+".name", "%q is not a valid name: %s", p.Name, msgs[0])
			}
		} else if len(sp.Ports) > 1 {
			r.note(at+".name", "is missing; an API server asks for names when there are several ports")
		}
		k := portKey{p.Port, p.Protocol}
		if numbers[k] {
			r.problem(at+".port", "%s port %d is there twice", p.Protocol, p.Port)
		}
		if names[p.Name] && p.Name != "" {
			r.note(at+".name", "%q is there twice; both ports lead to the same endpoints", p.Name)
		}
		numbers[k], names[p.Name] = true, true
	}
}

// family returns the address family of ip; ok is false when it is no address.
func family(ip string) (f corev1.IPFamily, ok bool) {
	a, ok := convert.ParseAddr(ip)
	switch {
	case !ok:
		return "", false
	case a.Is4():
		return corev1.IPv4Protocol, true
	}
	return corev1.IPv6Protocol, true
}

// orDefault sets an empty value.
func orDefault[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}

// oneOf reports a value that is not in a closed set.
func oneOf[T ~string](r *report, field string, got T, want ...T) {
	if !slices.Contains(want, got) {
		r.problem(field, "%q is not one of %q", got, want)
	}
}

// checkPort reports a number that is no port.
func checkPort(r *report, field string, n int32) {
	if n < 1 || n > 65535 {
		r.problem(field, "%d is not within 1–65535", n)
	}
}

// checkAddr reports text that is no IP address of either family.
func checkAddr(r *report, field, ip string) {
	if _, ok := convert.ParseAddr(ip); !ok {
		r.problem(field, "%q is not an IP address", ip)
	}
}
