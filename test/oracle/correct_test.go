// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	discoveryv1defaults "k8s.io/kubernetes/pkg/apis/discovery/v1"
	"k8s.io/kubernetes/pkg/proxy"
	netutils "k8s.io/utils/net"
)

// entry is one endpoint behind one port of one slice: the least that kube-proxy
// reads. Slices of one entry each say the same as the slices they came from.
type entry struct {
	name     proxy.ServicePortName
	slice    *discoveryv1.EndpointSlice
	port     discoveryv1.EndpointPort
	endpoint discoveryv1.Endpoint
	ip       string // the first address as kube-proxy prints it
}

// endpointID is what kube-proxy takes for one endpoint of one Service port.
type endpointID struct {
	name proxy.ServicePortName
	ip   string
	port int32
}

// view is the input taken apart, for the list of differences to correct.
type view struct {
	world    *world
	services map[key]*corev1.Service
	entries  []*entry // by slice name, then in their order within the slice
}

// corrected is the world in which kube-proxy does what Aether does in w.
func corrected(w *world) *world {
	v := &view{world: w, services: maps.Clone(w.services), entries: entriesOf(w)}
	for _, d := range differences {
		if d.correct != nil {
			d.correct(v)
		}
	}
	out := newWorld(w.node)
	out.services, out.nodes = v.services, w.nodes
	for i, e := range v.entries {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: e.slice.Namespace, Name: fmt.Sprintf("%s-%d", e.slice.Name, i),
				Labels: map[string]string{discoveryv1.LabelServiceName: e.name.Name},
			},
			AddressType: e.slice.AddressType,
			Ports:       []discoveryv1.EndpointPort{e.port},
			Endpoints:   []discoveryv1.Endpoint{e.endpoint},
		}
		out.slices[keyOf(s)] = s
	}
	return out
}

// entriesOf takes apart the slices that an IPv4 kube-proxy reads.
func entriesOf(w *world) (out []*entry) {
	for _, s := range w.sortedSlices() {
		service, used := owner(s)
		if !used {
			continue
		}
		full := s.DeepCopy()
		discoveryv1defaults.SetObjectDefaults_EndpointSlice(full)
		for _, p := range full.Ports {
			if p.Port == nil || *p.Port == 0 {
				continue
			}
			for _, e := range full.Endpoints {
				if len(e.Addresses) > 0 {
					name := proxy.ServicePortName{NamespacedName: service, Port: *p.Name, Protocol: *p.Protocol}
					out = append(out, &entry{name: name, slice: s, port: p, endpoint: e, ip: netutils.ParseIPSloppy(e.Addresses[0]).String()})
				}
			}
		}
	}
	return out
}

// behind returns the entries behind the Service port that owns the target.
func behind(w *world, target netip.AddrPort) (out []*entry) {
	claims := w.claims(target.Addr())
	if len(claims) == 0 {
		return nil
	}
	for _, p := range claims[0].Spec.Ports {
		if p.Port != int32(target.Port()) || (p.Protocol != corev1.ProtocolTCP && p.Protocol != "") {
			continue
		}
		want := proxy.ServicePortName{NamespacedName: keyOf(claims[0]), Port: p.Name, Protocol: corev1.ProtocolTCP}
		for _, e := range entriesOf(w) {
			if e.name == want {
				out = append(out, e)
			}
		}
	}
	return out
}

func (v *view) drop(is func(*entry) bool) { v.entries = slices.DeleteFunc(v.entries, is) }

// keepOwners leaves each ClusterIP to the Service that Aether takes for its owner.
func (v *view) keepOwners() {
	for k, s := range v.services {
		if vip := vipOf(s); vip.IsValid() && v.world.claims(vip)[0] != s {
			delete(v.services, k)
		}
	}
}

// keepBest leaves one entry per Service port and ip:port.
func (v *view) keepBest() {
	keep := map[*entry]bool{}
	for _, run := range runs(v.entries) {
		keep[best(run)] = true
	}
	v.drop(func(e *entry) bool { return !keep[e] })
}

// runs groups entries by what kube-proxy takes for one endpoint, in their order.
func runs(entries []*entry) map[endpointID][]*entry {
	out := map[endpointID][]*entry{}
	for _, e := range entries {
		id := endpointID{e.name, e.ip, *e.port.Port}
		out[id] = append(out[id], e)
	}
	return out
}

// best is the entry that Aether uses, by the rule told to users.
func best(run []*entry) *entry {
	for _, is := range []func(*entry) bool{
		func(e *entry) bool { return !e.terminating() },
		func(e *entry) bool { return orTrue(e.endpoint.Conditions.Ready) },
		func(e *entry) bool { return orTrue(e.endpoint.Conditions.Serving) },
	} {
		var better []*entry
		for _, e := range run {
			if is(e) {
				better = append(better, e)
			}
		}
		if len(better) > 0 {
			run = better
		}
	}
	return run[0]
}

func (e *entry) terminating() bool {
	return e.endpoint.Conditions.Terminating != nil && *e.endpoint.Conditions.Terminating
}

// effect is all of an entry that a choice on this node can depend on.
func (e *entry) effect(node string) string {
	c := e.endpoint.Conditions
	local := node != "" && e.endpoint.NodeName != nil && *e.endpoint.NodeName == node
	zones, nodes := sets.New[string](), sets.New[string]()
	if h := e.endpoint.Hints; h != nil {
		for _, z := range h.ForZones {
			zones.Insert(z.Name)
		}
		for _, n := range h.ForNodes {
			nodes.Insert(n.Name)
		}
	}
	return fmt.Sprint(orTrue(c.Ready), orTrue(c.Serving), e.terminating(), local, sets.List(zones), len(zones), sets.List(nodes))
}

func orTrue(b *bool) bool { return b == nil || *b }
