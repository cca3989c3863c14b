// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
	netutils "k8s.io/utils/net"
)

// key names a Service or a slice.
type key = types.NamespacedName

// The Service range of every world.
var serviceRange = netip.MustParsePrefix("10.96.0.0/16")

// apiServer is the Service that every API server keeps for itself.
var apiServer = key{Namespace: "default", Name: "kubernetes"}

// event is one change of the cluster, as an informer tells it: exactly one field
// is set. Objects are as somebody wrote them, before the API server's defaults, and
// are not modified once they are in an event.
type event struct {
	service       *corev1.Service
	slice         *discoveryv1.EndpointSlice
	node          *corev1.Node
	deleteService *key
	deleteSlice   *key
}

func (e event) String() string {
	switch {
	case e.service != nil:
		return "set Service " + keyOf(e.service).String()
	case e.slice != nil:
		return "set EndpointSlice " + keyOf(e.slice).String()
	case e.node != nil:
		return fmt.Sprintf("set Node %s, zone %q", e.node.Name, e.node.Labels[corev1.LabelTopologyZone])
	case e.deleteService != nil:
		return "delete Service " + e.deleteService.String()
	default:
		return "delete EndpointSlice " + e.deleteSlice.String()
	}
}

func keyOf(o metav1.Object) key { return key{Namespace: o.GetNamespace(), Name: o.GetName()} }

// world is what the API server holds, and what of its history still matters to a
// kube-proxy that has seen it.
type world struct {
	node     string // this node's name
	services map[key]*corev1.Service
	slices   map[key]*discoveryv1.EndpointSlice
	nodes    map[string]*corev1.Node
	// left has, for a Service, the slices that once were its own and that
	// kube-proxy was never told the end of.
	left    map[key]map[string]bool
	history []string
}

func newWorld(node string) *world {
	return &world{
		node:     node,
		services: map[key]*corev1.Service{},
		slices:   map[key]*discoveryv1.EndpointSlice{},
		nodes:    map[string]*corev1.Node{},
		left:     map[key]map[string]bool{},
	}
}

func (w *world) apply(e event) {
	w.history = append(w.history, e.String())
	switch {
	case e.service != nil:
		w.services[keyOf(e.service)] = e.service
	case e.slice != nil:
		w.setSlice(e.slice)
	case e.node != nil:
		w.nodes[e.node.Name] = e.node
	case e.deleteService != nil:
		delete(w.services, *e.deleteService)
	default:
		w.deleteSlice(*e.deleteSlice)
	}
}

func (w *world) setSlice(s *discoveryv1.EndpointSlice) {
	k := keyOf(s)
	old, held := w.slices[k]
	w.slices[k] = s
	was, wasUsed := owner(old)
	is, isUsed := owner(s)
	switch {
	case isUsed:
		delete(w.left[is], k.Name)
		if held && wasUsed && was != is {
			w.leave(was, k.Name)
		}
	case held && wasUsed && !hidden(s):
		// An update that kube-proxy does not take for its own is ignored, what
		// it knew stays. (A hidden slice's end is told: the watch filters it.)
		w.leave(was, k.Name)
	}
}

func (w *world) deleteSlice(k key) {
	if was, used := owner(w.slices[k]); used {
		delete(w.left[was], k.Name)
	}
	delete(w.slices, k)
}

func (w *world) leave(service key, slice string) {
	if w.left[service] == nil {
		w.left[service] = map[string]bool{}
	}
	w.left[service][slice] = true
}

// hidden reports whether the watch of every kube-proxy leaves the slice out.
func hidden(s *discoveryv1.EndpointSlice) bool {
	_, is := s.Labels[corev1.IsHeadlessService]
	return is
}

// owner returns the Service that an IPv4 kube-proxy reads the slice for, if any.
func owner(s *discoveryv1.EndpointSlice) (k key, used bool) {
	if s == nil || hidden(s) || s.AddressType != discoveryv1.AddressTypeIPv4 || s.Labels[discoveryv1.LabelServiceName] == "" {
		return key{}, false
	}
	return key{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}, true
}

// vipOf returns the IPv4 address a Service object claims, by kube-proxy's own
// reading, or the zero Addr.
func vipOf(s *corev1.Service) netip.Addr {
	if proxyutil.ShouldSkipService(s) {
		return netip.Addr{}
	}
	return toAddr(netutils.ParseIPSloppy(proxyutil.GetClusterIPByFamily(corev1.IPv4Protocol, s)))
}

func toAddr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

// claims returns the Services that claim a ClusterIP, the one that Aether takes
// for its owner first: one that lives before one that is being deleted, then the
// older, then the smaller name.
func (w *world) claims(a netip.Addr) []*corev1.Service {
	var out []*corev1.Service
	for _, s := range w.sortedServices() {
		if vipOf(s) == a {
			out = append(out, s)
		}
	}
	slices.SortStableFunc(out, func(a, b *corev1.Service) int {
		return cmp.Or(cmp.Compare(deleting(a), deleting(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time))
	})
	return out
}

func deleting(s *corev1.Service) int {
	if s.DeletionTimestamp != nil {
		return 1
	}
	return 0
}

func (w *world) sortedServices() []*corev1.Service { return sortedValues(w.services) }

func (w *world) sortedSlices() []*discoveryv1.EndpointSlice { return sortedValues(w.slices) }

func sortedValues[V any](m map[key]V) []V {
	out := make([]V, 0, len(m))
	for _, k := range sortedKeys(m) {
		out = append(out, m[k])
	}
	return out
}

func sortedKeys[V any](m map[key]V) []key {
	return slices.SortedFunc(maps.Keys(m), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// rangeObject is the ServiceCIDR that every world has.
func rangeObject() *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{serviceRange.String()}},
	}
}
