// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/model"
)

// slice returns an IPv4 slice of Service default/web, changed by edits.
func slice(edits ...func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{"kubernetes.io/service-name": "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

func label(k, v string) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) { s.Labels[k] = v }
}

func TestSliceUsable(t *testing.T) {
	tests := []struct {
		name string
		in   *discoveryv1.EndpointSlice
		want bool
	}{
		{"plain", slice(), true},
		{"E-7 FQDN", slice(func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }), false},
		{"M-2 IPv6", slice(func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeIPv6 }), false},
		{"no address type", slice(func(s *discoveryv1.EndpointSlice) { s.AddressType = "" }), false},
		{"headless", slice(label("service.kubernetes.io/headless", "")), false},
		{"headless, value false", slice(label("service.kubernetes.io/headless", "false")), false},
		{"E-13 no service name", slice(func(s *discoveryv1.EndpointSlice) { s.Labels = nil }), false},
		{"E-13 empty service name", slice(label("kubernetes.io/service-name", "")), false},
		{"D-13 foreign owner", slice(func(s *discoveryv1.EndpointSlice) {
			s.OwnerReferences = []metav1.OwnerReference{{Kind: "Service", Name: "else"}}
		}), true},
		{"J-2 service-proxy-name on the slice", slice(label("service.kubernetes.io/service-proxy-name", "x")), true},
		{"any writer", slice(label("endpointslice.kubernetes.io/managed-by", "me")), true},
		{"imported slice", slice(func(s *discoveryv1.EndpointSlice) {
			s.Labels = map[string]string{"multicluster.kubernetes.io/service-name": "web"}
		}), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := Slice(tt.in)
			if ok != tt.want {
				t.Fatalf("ok = %v, want %v", ok, tt.want)
			}
			if ok && (got.Service != "web" || got.Name != (model.Name{Namespace: "default", Name: "web-1"})) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// E-2, E-3, E-4, E-11: absent numbers, names and protocols.
func TestSlicePorts(t *testing.T) {
	got, _ := Slice(slice(func(s *discoveryv1.EndpointSlice) {
		s.Ports = []discoveryv1.EndpointPort{
			{},                        // E-3 everything nil
			{Name: ptr("http")},       // E-4 number nil
			{Port: ptr(int32(0))},     // 0 is no number
			{Port: ptr(int32(-1))},    // kube-proxy prints it
			{Port: ptr(int32(65536))}, //
			{Port: ptr(int32(8080))},  // E-11 protocol nil, name nil
			{Port: ptr(int32(65535)), Name: ptr("http"), Protocol: ptr(corev1.ProtocolUDP)},
			{Port: ptr(int32(1)), Protocol: ptr(corev1.Protocol(""))},
		}
	}))
	want := []model.SlicePort{
		{Port: 8080, Protocol: model.TCP},
		{Name: "http", Port: 65535, Protocol: model.UDP},
		{Port: 1, Protocol: model.TCP},
	}
	if d := cmp.Diff(want, got.Ports); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// E-9: nil and empty lists are one thing, so rewriting one as the other changes nothing.
func TestSliceNilAndEmptyAreEqual_E9(t *testing.T) {
	a, _ := Slice(slice())
	b, _ := Slice(slice(func(s *discoveryv1.EndpointSlice) {
		s.Ports, s.Endpoints = []discoveryv1.EndpointPort{}, []discoveryv1.Endpoint{}
	}))
	if d := cmp.Diff(a, b); d != "" {
		t.Errorf("(-nil +empty)\n%s", d)
	}
	one := func(h *discoveryv1.EndpointHints) model.Slice {
		s, _ := Slice(slice(func(s *discoveryv1.EndpointSlice) {
			s.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.1.1.1"}, Hints: h}}
		}))
		return s
	}
	if d := cmp.Diff(one(nil), one(&discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{}, ForNodes: []discoveryv1.ForNode{}}), cmpOpts); d != "" {
		t.Errorf("hints (-nil +empty)\n%s", d)
	}
}

func TestEndpointConditions(t *testing.T) {
	yes, no := ptr(true), ptr(false)
	tests := []struct {
		name    string
		in      discoveryv1.EndpointConditions
		r, s, t bool
	}{
		{"E-5, E-6 all unset", discoveryv1.EndpointConditions{}, true, true, false},
		{"B-14 serving unset on a terminating one", discoveryv1.EndpointConditions{Ready: no, Terminating: yes}, false, true, true},
		{"B-15", discoveryv1.EndpointConditions{Ready: no, Serving: yes, Terminating: no}, false, true, false},
		{"B-1", discoveryv1.EndpointConditions{Ready: no, Serving: yes, Terminating: yes}, false, true, true},
		{"publishNotReadyAddresses", discoveryv1.EndpointConditions{Ready: yes, Serving: no, Terminating: yes}, true, false, true},
		{"mirrored: ready only", discoveryv1.EndpointConditions{Ready: no}, false, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, _ := Slice(slice(func(s *discoveryv1.EndpointSlice) {
				s.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.1.1.1"}, Conditions: tt.in}}
			}))
			e := got.Endpoints[0]
			if e.Ready != tt.r || e.Serving != tt.s || e.Terminating != tt.t {
				t.Errorf("r/s/t = %v/%v/%v, want %v/%v/%v", e.Ready, e.Serving, e.Terminating, tt.r, tt.s, tt.t)
			}
		})
	}
}

func TestEndpointAddress(t *testing.T) {
	tests := []struct {
		name  string
		in    []string
		addr  string // "" for the zero Addr
		fault string
	}{
		{"good", []string{"10.1.1.1"}, "10.1.1.1", ""},
		{"D-10 first only", []string{"1.1.1.1", "1.1.1.2"}, "1.1.1.1", ""},
		{"E-12 leading zeros", []string{"010.001.001.001"}, "10.1.1.1", ""},
		{"IPv4-mapped", []string{"::ffff:10.1.1.1"}, "10.1.1.1", ""},
		{"IPv4-mapped loopback", []string{"::ffff:127.0.0.1"}, "127.0.0.1", FaultLoopback},
		{"E-8 host name", []string{"example.com"}, "", FaultNotAnAddress},
		{"empty", []string{""}, "", FaultNotAnAddress},
		{"space", []string{" 10.1.1.1"}, "", FaultNotAnAddress},
		{"short form", []string{"10.1"}, "", FaultNotAnAddress},
		{"with a port", []string{"10.1.1.1:80"}, "", FaultNotAnAddress},
		{"IPv6 zone", []string{"fe80::1%eth0"}, "", FaultNotAnAddress},
		{"a good second does not replace a bad first", []string{"nope", "10.1.1.1"}, "", FaultNotAnAddress},
		{"M-1 IPv6", []string{"fd00::9"}, "fd00::9", FaultWrongFamily},
		{"IPv6 loopback", []string{"::1"}, "::1", FaultWrongFamily},
		{"unspecified", []string{"0.0.0.0"}, "0.0.0.0", FaultUnspecified},
		{"0/8", []string{"0.1.2.3"}, "0.1.2.3", FaultUnspecified},
		{"loopback", []string{"127.0.0.1"}, "127.0.0.1", FaultLoopback},
		{"end of loopback", []string{"127.255.255.255"}, "127.255.255.255", FaultLoopback},
		{"link-local", []string{"169.254.169.254"}, "169.254.169.254", FaultLinkLocal},
		{"link-local multicast", []string{"224.0.0.1"}, "224.0.0.1", FaultMulticast},
		{"multicast", []string{"239.255.255.255"}, "239.255.255.255", FaultMulticast},
		{"240/4 is not multicast", []string{"240.0.0.1"}, "240.0.0.1", ""},
		{"broadcast", []string{"255.255.255.255"}, "255.255.255.255", FaultBroadcast},
		{"last before broadcast", []string{"255.255.255.254"}, "255.255.255.254", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, _ := Slice(slice(func(s *discoveryv1.EndpointSlice) {
				s.Endpoints = []discoveryv1.Endpoint{{Addresses: tt.in}}
			}))
			e := got.Endpoints[0]
			addr := ""
			if e.Addr.IsValid() {
				addr = e.Addr.String()
			}
			if addr != tt.addr || e.Fault != tt.fault || e.Text != tt.in[0] {
				t.Errorf("got addr %q fault %q text %q, want %q %q %q", addr, e.Fault, e.Text, tt.addr, tt.fault, tt.in[0])
			}
		})
	}
}

func TestEndpointFields(t *testing.T) {
	got, _ := Slice(slice(func(s *discoveryv1.EndpointSlice) {
		s.Endpoints = []discoveryv1.Endpoint{
			{},                      // no address: skipped
			{Addresses: []string{}}, // likewise
			{
				Addresses: []string{"10.1.1.1"}, NodeName: ptr("n1"), Zone: ptr("za"),
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "gone"}, // D-15: never looked at
				Hints: &discoveryv1.EndpointHints{
					ForZones: []discoveryv1.ForZone{{Name: "za"}, {Name: ""}},
					ForNodes: []discoveryv1.ForNode{{Name: "n1"}},
				},
			},
		}
	}))
	want := []model.Endpoint{{
		Addr: addrs("10.1.1.1")[0], Text: "10.1.1.1", Node: "n1", Zone: "za", Ready: true, Serving: true,
		ZoneHints: []string{"za", ""}, NodeHints: []string{"n1"},
	}}
	if d := cmp.Diff(want, got.Endpoints, cmpOpts); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
