// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"aether.io/aether/internal/convert"
)

// defaultSlice fills in what an API server would have.
func defaultSlice(s *discoveryv1.EndpointSlice) {
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Name == nil {
			p.Name = new("")
		}
		if p.Protocol == nil {
			p.Protocol = new(corev1.ProtocolTCP)
		}
	}
}

// checkSlice notes why no Service will use a slice. Nothing in a slice is a
// problem: what kube-proxy tolerates is marked or ignored by the converter.
func checkSlice(s *discoveryv1.EndpointSlice, r *report) {
	switch s.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN:
	default:
		r.note("addressType", "%q is not one of IPv4, IPv6 and FQDN: the slice is not used", s.AddressType)
	}
	if s.Labels[discoveryv1.LabelServiceName] == "" {
		r.note(fmt.Sprintf("metadata.labels[%q]", discoveryv1.LabelServiceName), "is missing or empty: no Service uses the slice")
	}
	for i, p := range s.Ports {
		if p.Port == nil || *p.Port < 1 || *p.Port > 65535 {
			r.note(fmt.Sprintf("ports[%d].port", i), "is missing or not within 1–65535: the port is ignored")
		}
	}
}

// checkServiceCIDR reports what an API server would refuse.
func checkServiceCIDR(c *networkingv1.ServiceCIDR, r *report) {
	if len(c.Spec.CIDRs) == 0 {
		r.problem("spec.cidrs", "is empty")
	}
	seen := map[bool]bool{} // by "is IPv4"
	for i, text := range c.Spec.CIDRs {
		field := fmt.Sprintf("spec.cidrs[%d]", i)
		p, ok := convert.ParsePrefix(text)
		if !ok {
			r.problem(field, "%q is not a CIDR such as 10.96.0.0/16", text)
			continue
		}
		v4 := p.Addr().Is4()
		if seen[v4] {
			r.note(field, "is a second prefix of its family, which an API server refuses; it counts all the same")
		}
		seen[v4] = true
	}
}

// defaultImport fills in the default of the custom resource definition.
func defaultImport(s *convert.ServiceImport) {
	orDefault(&s.Spec.Type, convert.ClusterSetIP)
}

// checkImport reports what the custom resource definition would refuse.
func checkImport(s *convert.ServiceImport, r *report) {
	oneOf(r, "spec.type", s.Spec.Type, convert.ClusterSetIP, convert.Headless)
	for i, ip := range s.Spec.IPs {
		checkAddr(r, fmt.Sprintf("spec.ips[%d]", i), ip)
	}
}

// defaultPod fills in what an API server would have and the sandbox needs.
func defaultPod(p *corev1.Pod) {
	sp := &p.Spec
	orDefault(&sp.ServiceAccountName, sp.DeprecatedServiceAccount)
	orDefault(&sp.ServiceAccountName, "default")
	orDefault(&sp.RestartPolicy, corev1.RestartPolicyAlways)
	for _, cs := range [][]corev1.Container{sp.InitContainers, sp.Containers} {
		for i := range cs {
			for j := range cs[i].Ports {
				orDefault(&cs[i].Ports[j].Protocol, corev1.ProtocolTCP)
			}
		}
	}
}

// checkPod reports what an API server would refuse among the fields that decide
// how a pod is reached.
func checkPod(p *corev1.Pod, r *report) {
	check := func(list string, cs []corev1.Container) {
		for i := range cs {
			for j, port := range cs[i].Ports {
				at := fmt.Sprintf("spec.%s[%d].ports[%d]", list, i, j)
				checkPort(r, at+".containerPort", port.ContainerPort)
				oneOf(r, at+".protocol", port.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
			}
		}
	}
	check("initContainers", p.Spec.InitContainers)
	check("containers", p.Spec.Containers)
	if p.Status.PodIP != "" {
		checkAddr(r, "status.podIP", p.Status.PodIP)
	}
	for i, ip := range p.Status.PodIPs {
		checkAddr(r, fmt.Sprintf("status.podIPs[%d].ip", i), ip.IP)
	}
}
