// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// drawSlice draws a slice made by hand. Its name stays free for one of another
// family of addresses, which cannot take its place in an update.
func (f *family) drawSlice(name string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: f.name()}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if f.one(12) {
		s.AddressType = pick(f, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)
	}
	switch f.IntN(24) {
	case 0:
		s.Labels[discoveryv1.LabelManagedBy] = "somebody.example.com"
	case 1:
		s.Labels[labelProxyName] = "other"
	case 2:
		s.Labels[corev1.IsHeadlessService] = pick(f, "", "true")
	}
	f.drawSlicePorts(s)
	for range pick(f, 0, 1, 2, 2, 3, 3, 3) {
		s.Endpoints = append(s.Endpoints, f.drawEndpoint(s.AddressType))
	}
	f.note("slice %s, %s, %d endpoints", name, s.AddressType, len(s.Endpoints))
	return s
}

// drawSlicePorts draws the Service's ports, mostly. No number is out of range:
// kube-proxy writes such a one into its rules, and can write none at all then.
func (f *family) drawSlicePorts(s *discoveryv1.EndpointSlice) {
	s.Ports = nil
	number := func() *int32 {
		switch f.IntN(20) {
		case 0:
			return nil
		case 1:
			return new(int32(0))
		case 2, 3:
			return new(deadPort)
		}
		return new(pick(f, livePort1, livePort2))
	}
	if f.service != nil && !f.one(6) {
		for _, p := range f.service.Spec.Ports {
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: number()})
		}
		return
	}
	names := f.Perm(len(portNames))
	for _, i := range names[:f.IntN(len(names))] {
		p := discoveryv1.EndpointPort{Name: &portNames[i], Port: number(), Protocol: maybe(f, f.drawProtocol()), AppProtocol: maybe(f, "http")}
		if portNames[i] == "" && f.one(2) {
			p.Name = nil
		}
		s.Ports = append(s.Ports, p)
	}
}

// Addresses that no connection may be made to, and that the API server accepts.
var faultyAddresses = []string{"0.1.2.3", "255.255.255.255", "239.1.1.1"}

func (f *family) drawAddress(family discoveryv1.AddressType) string {
	switch {
	case family == discoveryv1.AddressTypeIPv6:
		return fmt.Sprint("fd00::", 1+f.IntN(3))
	case family == discoveryv1.AddressTypeFQDN:
		return "host.example.com"
	case f.one(25):
		return pick(f, faultyAddresses...)
	case f.one(60): // refused
		return pick(f, "127.0.0.1", "010.1.1.1", "::ffff:10.1.1.1")
	}
	return pick(f, servers...).ip.String()
}

func (f *family) drawEndpoint(family discoveryv1.AddressType) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{
		Addresses: []string{f.drawAddress(family)}, Conditions: f.drawConditions(),
		NodeName: maybe(f, "n1", "n2", "n1"), Zone: maybe(f, "zone-a", "zone-b"), Hints: f.drawHints(),
	}
	if f.one(12) && family == discoveryv1.AddressTypeIPv4 {
		e.Addresses = append(e.Addresses, "10.244.50.77")
	}
	if f.one(6) {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: "gone"}
		e.Hostname = new("host")
	}
	return e
}

func (f *family) drawConditions() discoveryv1.EndpointConditions {
	switch f.IntN(8) {
	case 0, 1:
		return discoveryv1.EndpointConditions{}
	case 2, 3, 4:
		return discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)}
	case 5:
		return discoveryv1.EndpointConditions{Ready: new(false), Serving: new(f.one(2)), Terminating: new(true)}
	default:
		return discoveryv1.EndpointConditions{Ready: maybe(f, true, false), Serving: maybe(f, true, false), Terminating: maybe(f, false, true)}
	}
}

func (f *family) drawHints() *discoveryv1.EndpointHints {
	var zones []discoveryv1.ForZone
	var nodes []discoveryv1.ForNode
	for _, z := range pick(f, []string{"zone-a"}, []string{"zone-b"}, []string{"zone-a", "zone-b"}, []string{"zone-c"}) {
		zones = append(zones, discoveryv1.ForZone{Name: z})
	}
	for _, n := range pick(f, []string{"n1"}, []string{"n2"}, []string{"n2", "n1"}, []string{"n3"}) {
		nodes = append(nodes, discoveryv1.ForNode{Name: n})
	}
	switch f.IntN(8) {
	case 0, 1, 2:
		return nil
	case 3, 4:
		return &discoveryv1.EndpointHints{ForZones: zones}
	case 5, 6:
		return &discoveryv1.EndpointHints{ForZones: zones, ForNodes: nodes}
	default:
		return &discoveryv1.EndpointHints{ForNodes: nodes}
	}
}

// changeSlice changes one thing of a slice in place.
func (f *family) changeSlice(s *discoveryv1.EndpointSlice) {
	if len(s.Endpoints) == 0 {
		s.Endpoints = append(s.Endpoints, f.drawEndpoint(s.AddressType))
	}
	i := f.IntN(len(s.Endpoints))
	one := &s.Endpoints[i]
	what := pick(f, "conditions", "conditions", "condition", "condition", "condition", "add", "remove", "ports", "ports", "rename", "node",
		"hints", "no hints", "one hint", "repeat", "empty", "reorder", "headless", "all ready")
	switch what {
	case "conditions":
		one.Conditions = f.drawConditions()
	case "condition":
		*pick(f, &one.Conditions.Ready, &one.Conditions.Serving, &one.Conditions.Terminating) = maybe(f, true, false)
	case "add":
		s.Endpoints = append(s.Endpoints, f.drawEndpoint(s.AddressType))
	case "remove":
		s.Endpoints = slices.Delete(s.Endpoints, i, i+1)
	case "ports":
		f.drawSlicePorts(s)
	case "rename":
		if len(s.Ports) > 0 {
			s.Ports[f.IntN(len(s.Ports))].Name = new(pick(f, "renamed", "http", ""))
		}
	case "node":
		one.NodeName = maybe(f, "n1", "n2")
	case "hints":
		for i := range s.Endpoints {
			s.Endpoints[i].Hints = f.drawHints()
		}
	case "one hint":
		one.Hints = f.drawHints()
	case "no hints":
		for i := range s.Endpoints {
			s.Endpoints[i].Hints = nil
		}
	case "repeat":
		again := *one.DeepCopy()
		again.Conditions = f.drawConditions()
		s.Endpoints = append(s.Endpoints, again)
	case "empty":
		s.Endpoints, s.Ports = nil, nil
	case "reorder":
		slices.Reverse(s.Endpoints)
		slices.Reverse(s.Ports)
	case "headless":
		toggle(&s.Labels, corev1.IsHeadlessService, "")
	case "all ready":
		for i := range s.Endpoints {
			s.Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: new(true)}
		}
	}
	f.note("slice %s: %s", s.Name, what)
}
