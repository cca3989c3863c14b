// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	labelProxyName   = "service.kubernetes.io/service-proxy-name"
	annotationCilium = "service.cilium.io/global"
	annotationEgress = "aether.io/service-egress"
)

var (
	portNumbers = []int32{80, 81, 443}
	portNames   = []string{"http", "web", "dns", ""}
)

// undeclaredPort is no Service's.
const undeclaredPort = 9

// drawService draws a whole Service.
func (f *family) drawService() *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: f.name()}}
	s.Spec.Type = pick(f, corev1.ServiceTypeClusterIP, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer)
	s.Spec.ClusterIP = f.drawVIP()
	f.drawPorts(s)
	f.drawSelector(s)
	for range f.IntN(2) {
		f.changeField(s)
	}
	f.note("Service %s at %s, ports %s", s.Spec.Type, s.Spec.ClusterIP, portsText(s))
	return s
}

// drawVIP asks for an address of the family's, or once in a while for any. The one
// in the second range is refused while there is none.
func (f *family) drawVIP() string {
	if f.one(10) {
		return ""
	}
	return f.vip(f.IntN(vipsPerFamily + 1)).String()
}

// drawPorts draws ports with names and numbers that differ, mostly.
func (f *family) drawPorts(s *corev1.Service) {
	n := pick(f, 1, 1, 2, 2, 3)
	names, numbers := f.Perm(len(portNames)), f.Perm(len(portNumbers))
	s.Spec.Ports = nil
	for i := range n {
		name := portNames[names[i]]
		if name == "" && n > 1 {
			name = "metrics"
		}
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
			Name: name, Port: portNumbers[numbers[i]], Protocol: f.drawProtocol(), TargetPort: f.drawTargetPort(),
		})
	}
	if f.one(30) { // refused
		s.Spec.Ports = append(s.Spec.Ports, s.Spec.Ports[0])
	}
}

func (f *family) drawProtocol() corev1.Protocol {
	if f.one(8) {
		return pick(f, corev1.ProtocolUDP, corev1.ProtocolSCTP)
	}
	return corev1.ProtocolTCP
}

func (f *family) drawTargetPort() intstr.IntOrString {
	if f.one(12) {
		return intstr.FromString("none")
	}
	return pick(f, intstr.FromInt32(livePort1), intstr.FromString("http"), intstr.FromInt32(livePort2), intstr.FromString("alt"))
}

func (f *family) drawSelector(s *corev1.Service) {
	s.Spec.Selector = nil
	if f.one(2) {
		s.Spec.Selector = map[string]string{groupLabel(pick(f, groups...)): "yes"}
	}
}

func groupLabel(group string) string { return "group-" + group }

func portsText(s *corev1.Service) string {
	var out []string
	for _, p := range s.Spec.Ports {
		out = append(out, fmt.Sprintf("%s %d/%s→%s", p.Name, p.Port, p.Protocol, p.TargetPort.String()))
	}
	return fmt.Sprint(out)
}

// changePorts adds, removes, renames, renumbers or redraws ports.
func (f *family) changePorts(s *corev1.Service) {
	ports := &s.Spec.Ports
	if len(*ports) == 0 {
		f.drawPorts(s)
	}
	i := f.IntN(len(*ports))
	switch pick(f, "all", "add", "remove", "rename", "renumber", "protocol", "target") {
	case "all":
		f.drawPorts(s)
	case "add":
		if (*ports)[0].Name == "" {
			(*ports)[0].Name = "http"
		}
		*ports = append(*ports, corev1.ServicePort{
			Name: fmt.Sprint("more-", len(*ports)), Port: pick(f, portNumbers...), Protocol: f.drawProtocol(), TargetPort: f.drawTargetPort(),
		})
	case "remove":
		if len(*ports) > 1 {
			*ports = slices.Delete(*ports, i, i+1)
		}
	case "rename":
		name := pick(f, portNames...)
		if name == "" && len(*ports) > 1 {
			name = "renamed"
		}
		(*ports)[i].Name = name
	case "renumber":
		(*ports)[i].Port = pick(f, portNumbers...)
	case "protocol":
		(*ports)[i].Protocol = f.drawProtocol()
	case "target":
		(*ports)[i].TargetPort = f.drawTargetPort()
	}
	for i := range *ports {
		(*ports)[i].NodePort = 0 // or a change of protocol would be refused
	}
	f.note("ports %s", portsText(s))
}

// changeField changes one field of a Service that has an address, other than its
// ports.
func (f *family) changeField(s *corev1.Service) {
	sp := &s.Spec
	if foreign(s) != "" && f.one(2) {
		s.Labels, s.Annotations = nil, nil
		f.note("no labels, no annotations")
		return
	}
	what := pick(f, "iTP", "iTP", "iTP", "iTP", "eTP", "eTP", "affinity", "affinity", "affinity", "affinity", "publish", "publish", "distribution", "distribution",
		"distribution", "proxy name", "headless label", "topology", "cilium", "egress", "externalIPs", "externalIPs", "selector", "selector", "type", "type")
	switch what {
	case "iTP":
		sp.InternalTrafficPolicy = maybe(f, corev1.ServiceInternalTrafficPolicyLocal, corev1.ServiceInternalTrafficPolicyLocal, corev1.ServiceInternalTrafficPolicyCluster)
	case "eTP":
		sp.ExternalTrafficPolicy = pick(f, corev1.ServiceExternalTrafficPolicyLocal, corev1.ServiceExternalTrafficPolicyCluster)
		sp.HealthCheckNodePort = 0
	case "affinity":
		sp.SessionAffinity, sp.SessionAffinityConfig = pick(f, corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP, corev1.ServiceAffinityClientIP), nil
		if seconds := maybe(f, int32(1), 600, 86400); seconds != nil && sp.SessionAffinity == corev1.ServiceAffinityClientIP {
			sp.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: seconds}}
		}
	case "publish":
		sp.PublishNotReadyAddresses = !sp.PublishNotReadyAddresses
	case "distribution":
		sp.TrafficDistribution = maybe(f, corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameNode, corev1.ServiceTrafficDistributionPreferSameZone)
	case "proxy name":
		toggle(&s.Labels, labelProxyName, pick(f, "", "other"))
	case "headless label":
		toggle(&s.Labels, corev1.IsHeadlessService, "")
	case "topology":
		toggle(&s.Annotations, corev1.AnnotationTopologyMode, "Auto")
	case "cilium":
		toggle(&s.Annotations, annotationCilium, pick(f, "true", "false"))
	case "egress":
		toggle(&s.Annotations, annotationEgress, pick(f, "passthrough", "passthrough", "balance"))
	case "externalIPs":
		sp.ExternalIPs = pick(f, nil, []string{f.external().String()}, []string{"198.51.100.7"})
	case "selector":
		f.drawSelector(s)
	case "type":
		sp.Type = pick(f, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer)
	}
	f.note("%s", what)
	f.tidy(s)
}

func toggle(m *map[string]string, k, v string) {
	if _, has := (*m)[k]; has {
		delete(*m, k)
		return
	}
	if *m = maps.Clone(*m); *m == nil {
		*m = map[string]string{}
	}
	(*m)[k] = v
}

// tidy takes out what a Service of its type cannot have; most of the time, for the
// API server's refusals are to be met as well.
func (f *family) tidy(s *corev1.Service) {
	if f.one(25) {
		return
	}
	sp := &s.Spec
	outside := sp.Type == corev1.ServiceTypeNodePort || sp.Type == corev1.ServiceTypeLoadBalancer
	if !outside {
		for i := range sp.Ports {
			sp.Ports[i].NodePort = 0
		}
	}
	if !outside && len(sp.ExternalIPs) == 0 {
		sp.ExternalTrafficPolicy = ""
	}
	if sp.Type != corev1.ServiceTypeLoadBalancer {
		sp.AllocateLoadBalancerNodePorts = nil
	}
	if sp.Type != corev1.ServiceTypeLoadBalancer || sp.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		sp.HealthCheckNodePort = 0
	}
}

// toExternalName makes an ExternalName Service out of one with an address, in place.
func (f *family) toExternalName(s *corev1.Service) {
	s.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeExternalName, ExternalName: "example.com", Ports: s.Spec.Ports, Selector: s.Spec.Selector,
	}
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = 0
	}
	f.note("to ExternalName")
}

// fromExternalName leads back: with another address, or with the same.
func (f *family) fromExternalName(s *corev1.Service) {
	s.Spec.Type, s.Spec.ExternalName = pick(f, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort), ""
	s.Spec.ClusterIP = f.drawVIP()
	if len(s.Spec.Ports) == 0 {
		f.drawPorts(s)
	}
	f.note("from ExternalName to %s at %q", s.Spec.Type, s.Spec.ClusterIP)
}

// ingressOf draws the addresses a load balancer reports.
func (f *family) ingressOf() []corev1.LoadBalancerIngress {
	return pick(f, nil,
		[]corev1.LoadBalancerIngress{{IP: "198.51.100.9"}},
		[]corev1.LoadBalancerIngress{{IP: f.external().String()}},
		[]corev1.LoadBalancerIngress{{IP: f.external().String(), IPMode: new(pick(f, corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy))}},
		[]corev1.LoadBalancerIngress{{Hostname: "lb.example.com"}})
}

// inRange are the external addresses of a Service that lie in the Service range.
func inRange(s *corev1.Service) (out []netip.Addr) {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	texts := slices.Clone(s.Spec.ExternalIPs)
	for _, in := range s.Status.LoadBalancer.Ingress {
		texts = append(texts, in.IP)
	}
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil && a.Compare(externalVIP) >= 0 && a.Less(markerVIP) && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}
