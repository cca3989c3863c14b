// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	servicePort = 80
	serverPort  = 9000 // of the servers, which greet
	portName    = "tcp"
	// perBlock is how many ClusterIPs of a block of 256 are used.
	perBlock = 250
	// firstBlock is the third byte of the first Service's address, freshBlock that of
	// Services that come and go.
	firstBlock, freshBlock = 16, 230
	// perSlice is how many endpoints a controller puts into a slice.
	perSlice = 100
	// spaces is how many Kubernetes namespaces the Services are spread over.
	spaces = 20
)

// service is one Service of the cluster, with all its endpoints in one slice unless
// it is larger.
type service struct {
	namespace, name string
	vip             netip.Addr
	port            int32 // of the endpoints
	endpoints       []endpoint
	uid             types.UID
}

type endpoint struct {
	ip       netip.Addr
	pod      string
	notReady bool
}

func (s *service) target() string { return netip.AddrPortFrom(s.vip, servicePort).String() }

// vipOf is the ClusterIP of Service i of those that begin at a block.
func vipOf(block, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 96, byte(block + i/perBlock), byte(2 + i%perBlock)})
}

// far are endpoints that nobody dials, numbered through.
func far(from, n int) []endpoint {
	var out []endpoint
	for i := from; i < from+n; i++ {
		ip := netip.AddrFrom4([4]byte{10, byte(130 + i>>16&63), byte(i >> 8), byte(i)})
		out = append(out, endpoint{ip: ip, pod: fmt.Sprintf("far-%d", i)})
	}
	return out
}

func (s *service) object() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: s.name, Labels: map[string]string{"app": s.name}},
		Spec: corev1.ServiceSpec{
			ClusterIP: s.vip.String(),
			Ports:     []corev1.ServicePort{{Name: portName, Port: servicePort, Protocol: corev1.ProtocolTCP}},
		},
	}
}

// slice is part i of the Service's endpoints, as the controller of a cluster writes
// it, but for the name of the manager.
func (s *service) slice(i int) *discoveryv1.EndpointSlice {
	yes := true
	name, proto, port := portName, corev1.ProtocolTCP, s.port
	out := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.namespace, Name: fmt.Sprintf("%s-%d", s.name, i),
			Labels: map[string]string{
				discoveryv1.LabelServiceName: s.name, discoveryv1.LabelManagedBy: "measure.aether.io", "app": s.name,
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &proto, Port: &port}},
	}
	if s.uid != "" {
		out.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "Service", Name: s.name, UID: s.uid, Controller: &yes, BlockOwnerDeletion: &yes,
		}}
	}
	node, zone := "n2", "zone-b"
	for _, e := range s.endpoints[i*perSlice : min(len(s.endpoints), (i+1)*perSlice)] {
		ready, terminating := !e.notReady, false
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{e.ip.String()}, NodeName: &node, Zone: &zone,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready, Terminating: &terminating},
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: s.namespace, Name: e.pod, UID: types.UID("8f0b4a52-6f0e-4d0b-9a63-" + fmt.Sprintf("%012x", e.ip.As4())),
			},
		})
	}
	return out
}

func (s *service) slices() int { return (len(s.endpoints) + perSlice - 1) / perSlice }

// population is who lives in the cluster. All have a ClusterIP that was not dialled
// before.
type population struct {
	leaving []*service // two servers each, of which one leaves and comes back
	cold    []*service // three servers each; dialled once quiet
	loaded  []*service // the same, for under load
	asked   []*service // the same; asked for before the load
	rolling *service   // large
	others  []*service // far endpoints; they change
}

// populate lays out n Services with about so many endpoints in all, of which the
// settings say what there must be at least. Services of a smaller layout with the
// same settings come first in a larger one.
func populate(n, endpoints int, small bool, s Settings, servers []endpoint) population {
	var p population
	next := 0
	add := func(kind string, at int, e []endpoint, port int32) *service {
		return &service{
			namespace: fmt.Sprintf("space-%d", at%spaces), name: fmt.Sprintf("%s-%d", kind, at), vip: vipOf(firstBlock, at),
			port: port, endpoints: slices.Clone(e),
		}
	}
	take := func(into *[]*service, kind string, count int, e []endpoint) {
		for range count {
			*into = append(*into, add(kind, next, e, serverPort))
			endpoints -= len(e)
			next++
		}
	}
	take(&p.leaving, "leaving", s.Leaving, servers[:2])
	begin := s.Small - s.Leaving // the others of the smaller cluster
	if !small {
		next += begin
		take(&p.cold, "cold", s.Cold, servers)
		take(&p.loaded, "loaded", s.Cold, servers)
		take(&p.asked, "asked", s.Asked, servers)
		p.rolling = add("rolling", next, far(1<<20, s.Rolling), servicePort)
		endpoints -= s.Rolling
		next++
	}
	count := n - next
	if !small {
		count += begin
	}
	used := 0
	for i := range count {
		at := s.Leaving + i
		if i >= begin {
			at = next + i - begin
		}
		size := perService
		if i >= begin { // what is left, spread evenly
			size = (endpoints - used) / (count - i)
		}
		p.others = append(p.others, add("other", at, far(used, size), servicePort))
		used += size
	}
	return p
}

// perService is how many endpoints the others of the smaller cluster have.
const perService = 10

// all are the Services, in no order that matters.
func (p population) all() []*service {
	var out []*service
	for _, list := range [][]*service{p.leaving, p.others, p.cold, p.loaded, p.asked} {
		out = append(out, list...)
	}
	if p.rolling != nil {
		out = append(out, p.rolling)
	}
	return out
}

func (p population) endpoints() int {
	sum := 0
	for _, s := range p.all() {
		sum += len(s.endpoints)
	}
	return sum
}
