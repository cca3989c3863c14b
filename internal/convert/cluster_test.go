// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"math/rand/v2"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"aether.io/aether/internal/model"
)

func TestServiceCIDR(t *testing.T) {
	tests := []struct {
		name string
		in   []string
		want []string
	}{
		{"one", []string{"10.96.0.0/16"}, []string{"10.96.0.0/16"}},
		{"host bits are masked", []string{"10.96.3.4/16"}, []string{"10.96.0.0/16"}},
		{"dual stack", []string{"fd00::/108", "10.96.0.0/16"}, []string{"10.96.0.0/16"}},
		{"IPv6 only", []string{"fd00::/108"}, nil},
		{"leading zeros", []string{"010.096.000.000/16"}, []string{"10.96.0.0/16"}},
		{"IPv4-mapped", []string{"::ffff:10.96.0.0/112"}, []string{"10.96.0.0/16"}},
		{"IPv4-mapped, wider than IPv4", []string{"::ffff:10.96.0.0/64"}, nil},
		{"repeated and unsorted", []string{"10.97.0.0/16", "10.96.0.0/16", "10.97.1.0/16"}, []string{"10.96.0.0/16", "10.97.0.0/16"}},
		{"not a CIDR", []string{"10.96.0.0", "10.96.0.0/33", ""}, nil},
		{"whole space", []string{"0.0.0.0/0"}, []string{"0.0.0.0/0"}},
		{"none", nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// Conditions and deletion say nothing about the Services already there.
			c := &networkingv1.ServiceCIDR{
				ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: ptr(metav1.NewTime(time.Unix(1, 0)))},
				Spec:       networkingv1.ServiceCIDRSpec{CIDRs: tt.in},
				Status: networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{
					{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionFalse, Reason: "Terminating"},
				}},
			}
			var want []netip.Prefix
			for _, s := range tt.want {
				want = append(want, netip.MustParsePrefix(s))
			}
			if d := cmp.Diff(want, ServiceCIDR(c), cmpOpts); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func TestNode(t *testing.T) {
	got := Node(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{
		"topology.kubernetes.io/zone":            "za",
		"failure-domain.beta.kubernetes.io/zone": "old",
		"topology.kubernetes.io/region":          "r",
	}}})
	if want := (model.Node{Name: "n1", Zone: "za"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := Node(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"failure-domain.beta.kubernetes.io/zone": "old"}}}); got.Zone != "" {
		t.Errorf("zone = %q, want none", got.Zone)
	}
}

func TestImport(t *testing.T) {
	tests := []struct {
		name string
		in   ServiceImport
		want []string // nil: adds nothing
	}{
		{"N-1 no ips", ServiceImport{Spec: ServiceImportSpec{Type: ClusterSetIP}}, nil},
		{"N-2 outside every range", ServiceImport{Spec: ServiceImportSpec{Type: ClusterSetIP, IPs: []string{"243.0.0.5"}}}, []string{"243.0.0.5"}},
		{"type defaults to ClusterSetIP", ServiceImport{Spec: ServiceImportSpec{IPs: []string{"243.0.0.5"}}}, []string{"243.0.0.5"}},
		{"N-4 IPv4 entry only", ServiceImport{Spec: ServiceImportSpec{IPs: []string{"fd00::5", "243.0.0.5"}}}, []string{"243.0.0.5"}},
		{"IPv6 only", ServiceImport{Spec: ServiceImportSpec{IPs: []string{"fd00::5"}}}, nil},
		{"headless", ServiceImport{Spec: ServiceImportSpec{Type: Headless, IPs: []string{"243.0.0.5"}}}, nil},
		{"unknown type", ServiceImport{Spec: ServiceImportSpec{Type: "Other", IPs: []string{"243.0.0.5"}}}, nil},
		{"ours", ServiceImport{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"aether.io/managed-service-import": ""}},
			Spec:       ServiceImportSpec{IPs: []string{"243.0.0.5"}},
		}, nil},
		{"being deleted", ServiceImport{
			ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: ptr(metav1.NewTime(time.Unix(1, 0)))},
			Spec:       ServiceImportSpec{IPs: []string{"243.0.0.5"}},
		}, []string{"243.0.0.5"}},
		{"not an address", ServiceImport{Spec: ServiceImportSpec{IPs: []string{"x", "243.000.0.5"}}}, []string{"243.0.0.5"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.in.Namespace, tt.in.Name = "shop", "web"
			got, ok := Import(&tt.in)
			want := model.Import{}
			if tt.want != nil {
				want = model.Import{Name: model.Name{Namespace: "shop", Name: "web"}, VIPs: addrs(tt.want...)}
			}
			if d := cmp.Diff(want, got, cmpOpts); d != "" || ok != (tt.want != nil) {
				t.Errorf("ok = %v (-want +got)\n%s", ok, d)
			}
		})
	}
}

// TestParseAddrReadsLeadingZerosAsDecimal: padding the bytes of any IPv4 address
// with zeros never changes it.
func TestParseAddrReadsLeadingZerosAsDecimal(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b [4]byte
		text := ""
		for i := range b {
			b[i] = rapid.Byte().Draw(t, "byte")
			if i > 0 {
				text += "."
			}
			for range rapid.IntRange(0, 3).Draw(t, "zeros") {
				text += "0"
			}
			text += strconv.Itoa(int(b[i]))
		}
		got, ok := ParseAddr(text)
		if want := netip.AddrFrom4(b); !ok || got != want {
			t.Fatalf("ParseAddr(%q) = %v, %v; want %v", text, got, ok, want)
		}
	})
}

// TestEndpointsNeverLeaveIPv4: whatever is written as an address, an endpoint
// without a fault is a usable IPv4 address, and one that did not parse has one.
func TestEndpointsNeverLeaveIPv4(t *testing.T) {
	texts := rapid.OneOf(
		rapid.String(),
		rapid.StringMatching(`[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}`),
		rapid.StringMatching(`::ffff:[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}`),
		rapid.StringMatching(`[0-9a-f:]{2,12}`),
	)
	rapid.Check(t, func(t *rapid.T) {
		text := texts.Draw(t, "address")
		got, _ := Slice(slice(func(s *discoveryv1.EndpointSlice) {
			s.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{text}}}
		}))
		e := got.Endpoints[0]
		bad := !e.Addr.Is4() || e.Addr.IsLoopback() || e.Addr.IsMulticast() || e.Addr.IsUnspecified() || e.Addr.IsLinkLocalUnicast()
		if (e.Fault == "") && bad {
			t.Fatalf("%q became %v without a fault", text, e.Addr)
		}
		if e.Fault == FaultNotAnAddress && e.Addr.IsValid() {
			t.Fatalf("%q: %v is said to be no address", text, e.Addr)
		}
	})
}

// TestOrderOfAddressesMeansNothing: entries whose order has no meaning give one result.
func TestOrderOfAddressesMeansNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ips := rapid.SliceOf(rapid.StringMatching(`10\.0\.[0-3]\.[0-9]`)).Draw(t, "ips")
		shuffled := append([]string(nil), ips...)
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		read := func(ips []string) []any {
			var cidrs []string
			for _, ip := range ips {
				cidrs = append(cidrs, ip+"/30")
			}
			s, _ := Service(&corev1.Service{Spec: corev1.ServiceSpec{ExternalIPs: ips}})
			im, ok := Import(&ServiceImport{Spec: ServiceImportSpec{IPs: ips}})
			return []any{s, im, ok, ServiceCIDR(&networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}})}
		}
		if d := cmp.Diff(read(ips), read(shuffled), cmpOpts); d != "" {
			t.Fatalf("(-sorted +shuffled)\n%s", d)
		}
	})
}
