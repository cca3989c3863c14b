// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	corev1defaults "k8s.io/kubernetes/pkg/apis/core/v1"
	discoveryv1defaults "k8s.io/kubernetes/pkg/apis/discovery/v1"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/apis"
)

// What kube-proxy asks the API server to leave out of its watches
// (cmd/kube-proxy/app/server.go).
var (
	servicesByLabel = mustParse("!" + apis.LabelServiceProxyName)
	servicesByField = fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone)
	slicesByLabel   = mustParse("!" + corev1.IsHeadlessService)
)

func mustParse(text string) labels.Selector {
	s, err := labels.Parse(text)
	if err != nil {
		panic(err)
	}
	return s
}

// kubeProxy is kube-proxy's IPv4 side: what its informers hold, its trackers, and
// the maps they end up in.
type kubeProxy struct {
	node     string
	topology map[string]string // the labels of the own Node
	services map[key]*corev1.Service
	slices   map[key]*discoveryv1.EndpointSlice

	serviceChanges  *proxy.ServiceChangeTracker
	endpointChanges *proxy.EndpointsChangeTracker
	ports           proxy.ServicePortMap
	endpoints       proxy.EndpointsMap
}

func newKubeProxy(node string) *kubeProxy {
	return &kubeProxy{
		node:            node,
		services:        map[key]*corev1.Service{},
		slices:          map[key]*discoveryv1.EndpointSlice{},
		serviceChanges:  proxy.NewServiceChangeTracker(corev1.IPv4Protocol, nil, nil),
		endpointChanges: proxy.NewEndpointsChangeTracker(corev1.IPv4Protocol, node, nil, nil),
		ports:           proxy.ServicePortMap{},
		endpoints:       proxy.EndpointsMap{},
	}
}

// restarted is a kube-proxy that finds the world as it is.
func restarted(w *world) *kubeProxy {
	k := newKubeProxy(w.node)
	if n := w.nodes[w.node]; n != nil {
		k.apply(event{node: n})
	}
	for _, s := range w.services {
		k.apply(event{service: s})
	}
	for _, s := range w.slices {
		k.apply(event{slice: s})
	}
	k.sync()
	return k
}

// apply tells an event, with the API server's defaults, to the handlers that an
// informer with kube-proxy's selectors would call. An object that no longer
// matches a selector ends for its watch, with the content it had.
func (k *kubeProxy) apply(e event) {
	switch {
	case e.service != nil:
		s := e.service.DeepCopy()
		corev1defaults.SetObjectDefaults_Service(s)
		if servicesByLabel.Matches(labels.Set(s.Labels)) && servicesByField.Matches(fields.Set{"spec.clusterIP": s.Spec.ClusterIP}) {
			k.serviceChanges.Update(k.services[keyOf(s)], s)
			k.services[keyOf(s)] = s
		} else {
			k.deleteService(keyOf(s))
		}
	case e.slice != nil:
		s := e.slice.DeepCopy()
		discoveryv1defaults.SetObjectDefaults_EndpointSlice(s)
		if slicesByLabel.Matches(labels.Set(s.Labels)) {
			k.endpointChanges.EndpointSliceUpdate(s, false)
			k.slices[keyOf(s)] = s
		} else {
			k.deleteSlice(keyOf(s))
		}
	case e.node != nil && e.node.Name == k.node:
		k.topology = e.node.Labels
	case e.deleteService != nil:
		k.deleteService(*e.deleteService)
	case e.deleteSlice != nil:
		k.deleteSlice(*e.deleteSlice)
	}
}

func (k *kubeProxy) deleteService(n key) {
	if old, held := k.services[n]; held {
		k.serviceChanges.Update(old, nil)
		delete(k.services, n)
	}
}

func (k *kubeProxy) deleteSlice(n key) {
	if old, held := k.slices[n]; held {
		k.endpointChanges.EndpointSliceUpdate(old, true)
		delete(k.slices, n)
	}
}

// sync is what begins every writing of rules.
func (k *kubeProxy) sync() {
	k.ports.Update(k.serviceChanges)
	k.endpoints.Update(k.endpointChanges)
}

// dial says what becomes of a TCP connection to an address. Of two Services with
// one ClusterIP and port the one with the smaller name is told; the rules would
// hold either.
func (k *kubeProxy) dial(target netip.AddrPort) outcome {
	known := false
	var name proxy.ServicePortName
	var port proxy.ServicePort
	for n, p := range k.ports {
		if toAddr(p.ClusterIP()) != target.Addr() {
			continue
		}
		known = true
		if p.Protocol() == corev1.ProtocolTCP && p.Port() == int(target.Port()) && (port == nil || n.String() < name.String()) {
			name, port = n, p
		}
	}
	switch {
	case port != nil:
		return k.verdict(name, port)
	case known:
		return outcome{kind: undeclared}
	case !serviceRange.Contains(target.Addr()): // no rule of kube-proxy's meets it
		return outcome{kind: passed}
	default:
		return outcome{kind: unknown}
	}
}

func (k *kubeProxy) verdict(name proxy.ServicePortName, port proxy.ServicePort) outcome {
	cluster, local, _, anywhere := proxy.CategorizeEndpoints(k.endpoints[name], port, k.node, k.topology)
	chosen := cluster
	if port.InternalPolicyLocal() {
		chosen = local
	}
	out := outcome{affinity: port.SessionAffinityType() == corev1.ServiceAffinityClientIP}
	for _, e := range chosen {
		out.endpoints = append(out.endpoints, e.String())
	}
	switch {
	case len(chosen) > 0:
		out.kind = served
	case anywhere:
		out.kind = noLocal
	default:
		out.kind = noEndpoints
	}
	return out
}
