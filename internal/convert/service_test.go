// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/model"
)

var cmpOpts = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func ptr[T any](v T) *T { return &v }

func TestServiceVIP(t *testing.T) {
	const v4, v6 = corev1.IPv4Protocol, corev1.IPv6Protocol
	tests := []struct {
		name string
		spec corev1.ServiceSpec
		want string // "" for none
	}{
		{"nothing at all", corev1.ServiceSpec{}, ""},
		{"headless", corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}, IPFamilies: []corev1.IPFamily{v4}}, ""},
		{"empty clusterIP beside clusterIPs", corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.10"}, IPFamilies: []corev1.IPFamily{v4}}, ""},
		{"single stack", corev1.ServiceSpec{ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"}, IPFamilies: []corev1.IPFamily{v4}}, "10.96.0.10"},
		{"no families: clusterIP", corev1.ServiceSpec{ClusterIP: "10.96.0.10"}, "10.96.0.10"},
		{"no families: IPv6 clusterIP", corev1.ServiceSpec{ClusterIP: "fd00::1", ClusterIPs: []string{"fd00::1", "10.96.0.10"}}, ""},
		{"second family is IPv4", corev1.ServiceSpec{ClusterIP: "fd00::1", ClusterIPs: []string{"fd00::1", "10.96.0.10"}, IPFamilies: []corev1.IPFamily{v6, v4}}, "10.96.0.10"},
		{"second family not allocated", corev1.ServiceSpec{ClusterIP: "fd00::1", ClusterIPs: []string{"fd00::1"}, IPFamilies: []corev1.IPFamily{v6, v4}}, ""},
		{"IPv6 only", corev1.ServiceSpec{ClusterIP: "fd00::1", ClusterIPs: []string{"fd00::1"}, IPFamilies: []corev1.IPFamily{v6}}, ""},
		{"families without clusterIPs", corev1.ServiceSpec{ClusterIP: "10.96.0.10", IPFamilies: []corev1.IPFamily{v4}}, ""},
		{"family says IPv4, address does not", corev1.ServiceSpec{ClusterIP: "fd00::1", ClusterIPs: []string{"fd00::1"}, IPFamilies: []corev1.IPFamily{v4}}, ""},
		{"leading zeros are decimal", corev1.ServiceSpec{ClusterIP: "010.096.000.010"}, "10.96.0.10"},
		{"IPv4-mapped", corev1.ServiceSpec{ClusterIP: "::ffff:10.96.0.10"}, "10.96.0.10"},
		{"ExternalName owns none", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}, ""},
		{"H-8 ExternalName with a clusterIP left over", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"}, IPFamilies: []corev1.IPFamily{v4}}, ""},
		{"NodePort", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.10"}, "10.96.0.10"},
		{"LoadBalancer", corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.10"}, "10.96.0.10"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, notes := Service(&corev1.Service{Spec: tt.spec})
			var want netip.Addr
			if tt.want != "" {
				want = netip.MustParseAddr(tt.want)
			}
			if got.VIP != want || len(notes) > 0 {
				t.Errorf("VIP = %v, notes %v; want %v and none", got.VIP, notes, want)
			}
		})
	}
}

func TestServiceVIPThatIsNoAddressIsNoted(t *testing.T) {
	got, notes := Service(&corev1.Service{Spec: corev1.ServiceSpec{
		ClusterIP: "10.96.0.300", ClusterIPs: []string{"10.96.0.300"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
	}})
	if got.VIP.IsValid() || len(notes) != 1 || notes[0].Field != "spec.clusterIPs[0]" {
		t.Errorf("VIP = %v, notes = %v; want no VIP and one note on spec.clusterIPs[0]", got.VIP, notes)
	}
}

func TestServiceFields(t *testing.T) {
	local := corev1.ServiceInternalTrafficPolicyLocal
	created := time.Unix(1_700_000_000, 0)
	in := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "1web", UID: "u1",
			CreationTimestamp: metav1.NewTime(created), DeletionTimestamp: ptr(metav1.NewTime(created)),
			Labels: map[string]string{"service.kubernetes.io/headless": ""}, // means nothing on a Service
		},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.10", Selector: map[string]string{"app": "web"}, InternalTrafficPolicy: &local, SessionAffinity: corev1.ServiceAffinityClientIP,
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80},
				{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP},
				{Name: "sctp", Port: 80, Protocol: corev1.ProtocolSCTP},
			},
			ExternalIPs: []string{"203.0.113.9", "fd00::9", "203.0.113.007", "203.0.113.9"},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
			{IP: "198.51.100.2", IPMode: ptr(corev1.LoadBalancerIPModeProxy)},
			{IP: "198.51.100.1", IPMode: ptr(corev1.LoadBalancerIPModeVIP)},
			{IP: "198.51.100.1"},
			{Hostname: "lb.example.com"},
		}}},
	}
	want := model.Service{
		Name: model.Name{Namespace: "shop", Name: "1web"}, UID: "u1", Created: 1_700_000_000, Deleting: true,
		VIP:         netip.MustParseAddr("10.96.0.10"),
		ExternalIPs: addrs("198.51.100.1", "198.51.100.2", "203.0.113.7", "203.0.113.9"),
		Ports: []model.ServicePort{
			{Name: "http", Port: 80, Protocol: model.TCP},
			{Name: "dns", Port: 53, Protocol: model.UDP},
			{Name: "sctp", Port: 80, Protocol: model.SCTP},
		},
		InternalLocal: true, ClientIPAffinity: true, Selects: true,
	}
	got, notes := Service(in)
	if d := cmp.Diff(want, got, cmpOpts); d != "" || len(notes) > 0 {
		t.Errorf("(-want +got)\n%s\nnotes %v", d, notes)
	}
}

func TestServiceOddities(t *testing.T) {
	got, notes := Service(&corev1.Service{
		Spec: corev1.ServiceSpec{
			ClusterIP:   "10.96.0.10",
			Ports:       []corev1.ServicePort{{Port: 0}, {Port: 65536}, {Port: -1}, {Port: 65535}},
			ExternalIPs: []string{"example.com"},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "1.2.3"}}}},
	})
	if want := []model.ServicePort{{Port: 65535, Protocol: model.TCP}}; !cmp.Equal(want, got.Ports) {
		t.Errorf("ports = %v, want %v", got.Ports, want)
	}
	if got.ExternalIPs != nil || got.Created != 0 {
		t.Errorf("externalIPs = %v, created = %d; want none, 0", got.ExternalIPs, got.Created)
	}
	var fields []string
	for _, n := range notes {
		fields = append(fields, n.Field)
	}
	want := []string{"spec.externalIPs[0]", "status.loadBalancer.ingress[0].ip", "spec.ports[0].port", "spec.ports[1].port", "spec.ports[2].port"}
	if d := cmp.Diff(want, fields); d != "" {
		t.Errorf("fields of the notes (-want +got)\n%s", d)
	}
}

// I-10: ClientIP without a config object is ClientIP, not a crash.
func TestServiceAffinityWithoutConfig_I10(t *testing.T) {
	got, _ := Service(&corev1.Service{Spec: corev1.ServiceSpec{SessionAffinity: corev1.ServiceAffinityClientIP}})
	if !got.ClientIPAffinity {
		t.Error("affinity was lost")
	}
}

func TestExternalNameHasNoExternalIPs(t *testing.T) {
	got, _ := Service(&corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalIPs: []string{"10.96.0.9"}}})
	if got.ExternalIPs != nil {
		t.Errorf("externalIPs = %v, want none", got.ExternalIPs)
	}
}

// J-1, J-2, J-3: the label service-proxy-name counts by its presence, on Services.
func TestServiceForeign(t *testing.T) {
	const spn, cil, own = "service.kubernetes.io/service-proxy-name", "service.cilium.io/global", "aether.io/service-egress"
	type m = map[string]string
	tests := []struct {
		name        string
		labels      m
		annotations m
		want        model.Foreign
		note        bool
	}{
		{name: "plain", want: model.NotForeign},
		{name: "J-1 service-proxy-name", labels: m{spn: "x"}, want: model.ServiceProxyName},
		{name: "J-1 service-proxy-name, empty value", labels: m{spn: ""}, want: model.ServiceProxyName},
		{name: "service-proxy-name as annotation", annotations: m{spn: "x"}, want: model.NotForeign},
		{name: "N-3 cilium global", annotations: m{cil: "true"}, want: model.CiliumGlobal},
		{name: "cilium global False", annotations: m{cil: "false"}, want: model.NotForeign},
		{name: "cilium global True", annotations: m{cil: "True"}, want: model.NotForeign},
		{name: "cilium global as label", labels: m{cil: "true"}, want: model.NotForeign},
		{name: "cilium shared only", annotations: m{"service.cilium.io/shared": "true"}, want: model.NotForeign},
		{name: "opted out", annotations: m{own: "passthrough"}, want: model.OptedOut},
		{name: "opt-out misspelt", annotations: m{own: "passthru"}, want: model.NotForeign, note: true},
		{name: "opt-out empty", annotations: m{own: ""}, want: model.NotForeign, note: true},
		{name: "proxy name before cilium", labels: m{spn: "x"}, annotations: m{cil: "true", own: "passthrough"}, want: model.ServiceProxyName},
		{name: "cilium before opt-out", annotations: m{cil: "true", own: "passthrough"}, want: model.CiliumGlobal},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, notes := Service(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Labels: tt.labels, Annotations: tt.annotations}})
			if got.Foreign != tt.want || (len(notes) == 1) != tt.note {
				t.Errorf("foreign = %q, notes %v; want %q, note %v", got.Foreign, notes, tt.want, tt.note)
			}
			if tt.note && notes[0].Field != `metadata.annotations["aether.io/service-egress"]` {
				t.Errorf("field of the note = %s", notes[0].Field)
			}
		})
	}
}
