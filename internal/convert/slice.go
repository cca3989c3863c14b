// SPDX-License-Identifier: Apache-2.0

package convert

import (
	discoveryv1 "k8s.io/api/discovery/v1"

	"aether.io/aether/internal/model"
)

// labelHeadless on an EndpointSlice hides it from proxies, whatever its value.
const labelHeadless = "service.kubernetes.io/headless"

// Slice converts an EndpointSlice. ok is false when no Service of ours may use it
// (another address family, the headless label, no Service): whoever holds an
// earlier version of it must then drop that. Owner references, the managed-by
// label and the slice's own name are never consulted.
func Slice(s *discoveryv1.EndpointSlice) (out model.Slice, ok bool) {
	service := s.Labels[discoveryv1.LabelServiceName]
	if _, headless := s.Labels[labelHeadless]; headless || service == "" || s.AddressType != discoveryv1.AddressTypeIPv4 {
		return model.Slice{}, false
	}
	out = model.Slice{
		Name:    model.Name{Namespace: s.Namespace, Name: s.Name},
		Service: service,
		Ports:   slicePorts(s.Ports),
	}
	if len(s.Endpoints) > 0 { // sized, for these lists are most of what a node remembers
		out.Endpoints = make([]model.Endpoint, 0, len(s.Endpoints))
	}
	for i := range s.Endpoints {
		if e, ok := endpoint(&s.Endpoints[i]); ok {
			out.Endpoints = append(out.Endpoints, e)
		}
	}
	return out, true
}

// slicePorts returns the usable ports: an absent or impossible number means
// "ignore this port". An absent name is the empty name.
func slicePorts(ports []discoveryv1.EndpointPort) (out []model.SlicePort) {
	for _, p := range ports {
		n, ok := portNumber(p.Port)
		if !ok {
			continue
		}
		out = append(out, model.SlicePort{Name: orZero(p.Name), Port: n, Protocol: protocol(p.Protocol)})
	}
	return out
}

// endpoint converts one endpoint; ok is false when it has no address. Only the
// first address counts: a good second one does not replace a bad first.
func endpoint(e *discoveryv1.Endpoint) (out model.Endpoint, ok bool) {
	if len(e.Addresses) == 0 {
		return model.Endpoint{}, false
	}
	text := e.Addresses[0]
	addr, _ := ParseAddr(text)
	out = model.Endpoint{
		Addr:        addr,
		Text:        text,
		Fault:       endpointFault(addr),
		Node:        orZero(e.NodeName),
		Zone:        orZero(e.Zone),
		Ready:       e.Conditions.Ready == nil || *e.Conditions.Ready,
		Serving:     e.Conditions.Serving == nil || *e.Conditions.Serving, // kube-proxy: not "same as ready"
		Terminating: orZero(e.Conditions.Terminating),
	}
	if e.Hints != nil {
		for _, z := range e.Hints.ForZones {
			out.ZoneHints = append(out.ZoneHints, z.Name)
		}
		for _, n := range e.Hints.ForNodes {
			out.NodeHints = append(out.NodeHints, n.Name)
		}
	}
	return out, true
}

// orZero returns what p points to, or the zero value.
func orZero[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
