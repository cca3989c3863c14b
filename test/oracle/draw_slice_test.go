// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// uidOf draws the identity of an object; few, so that a late delete may name the
// UID of another.
func uidOf(t *rapid.T) types.UID { return types.UID(pick(t, "UID", "1", "2", "3")) }

// drawSlice draws a slice: the controller's, the mirroring controller's or one
// made by hand.
func drawSlice(t *rapid.T, w *world, service key) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta:   metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: pick(t, "slice", sliceNames...)},
	}
	drawSliceLabels(t, s, service.Name)
	s.AddressType = discoveryv1.AddressTypeIPv4
	if rarely(t, 8, "another family") {
		s.AddressType = pick(t, "addressType", discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)
	}
	drawSlicePorts(t, w, s)
	for range pick(t, "endpoints", 2, 1, 3, 4, 2, 3, 0) {
		s.Endpoints = append(s.Endpoints, drawEndpoint(t, s.AddressType))
	}
	return s
}

func drawSliceLabels(t *rapid.T, s *discoveryv1.EndpointSlice, service string) {
	s.Labels, s.OwnerReferences = map[string]string{}, nil
	switch pick(t, "service label", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2) {
	case 0:
		s.Labels[discoveryv1.LabelServiceName] = service
	case 1:
		s.Labels[discoveryv1.LabelServiceName] = ""
	}
	switch pick(t, "managed by", 0, 1, 2, 3) {
	case 1:
		s.Labels[discoveryv1.LabelManagedBy] = "endpointslice-controller.k8s.io"
		s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: "somebody-else", UID: "1"}}
	case 2:
		s.Labels[discoveryv1.LabelManagedBy] = "endpointslicemirroring-controller.k8s.io"
	case 3: // the controller copies Service labels to its slices
		s.Labels["service.kubernetes.io/service-proxy-name"] = "cilium"
	}
	if rarely(t, 12, "headless") {
		s.Labels[corev1.IsHeadlessService] = pick(t, "headless", "", "true")
	}
}

// drawSlicePorts draws ports with names that differ, as validation wants them.
// Validation looks at no number.
func drawSlicePorts(t *rapid.T, w *world, s *discoveryv1.EndpointSlice) {
	s.Ports = nil
	if service := w.services[key{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}]; service != nil && !rarely(t, 4, "other ports") {
		for _, p := range service.Spec.Ports {
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: drawPortNumber(t)})
			if p.Protocol == "" {
				s.Ports[len(s.Ports)-1].Protocol = nil
			}
		}
		return
	}
	names := rapid.Permutation(portNames).Draw(t, "slice port names")
	for _, name := range names[:rapid.IntRange(0, len(names)).Draw(t, "slice ports")] {
		p := discoveryv1.EndpointPort{Name: &name, Port: drawPortNumber(t)}
		if name == "" && rarely(t, 3, "name unset") {
			p.Name = nil
		}
		if protocol := drawProtocol(t); protocol != "" {
			p.Protocol = &protocol
		}
		p.AppProtocol = optional(t, "appProtocol", "http")
		s.Ports = append(s.Ports, p)
	}
}

func drawPortNumber(t *rapid.T) *int32 {
	if rarely(t, 8, "odd number") {
		return pick(t, "target port", nil, new(int32(0)), new(int32(-1)), new(int32(65536)))
	}
	return new(pick(t, "target port", int32(8080), 9090))
}

var (
	// Addresses that validation lets pass: now, or before it was strict about
	// leading zeros and IPv4-mapped addresses.
	addresses = []string{"10.1.1.1", "10.1.1.2", "10.1.1.3", "10.1.1.4"}
	variants  = []string{"010.1.1.1", "10.001.001.002", "::ffff:10.1.1.3", "0:0:0:0:0:ffff:10.1.1.4"}
	// Addresses that do not count, and that validation lets pass.
	allowedFaults = []string{"0.1.2.3", "255.255.255.255", "239.1.1.1"}
	// Addresses that do not count, and that validation refuses.
	refusedFaults = []string{"127.0.0.1", "169.254.1.1", "0.0.0.0", "224.0.0.1", "fd00::9", "host.example", ""}
)

func drawAddress(t *rapid.T, family discoveryv1.AddressType) string {
	switch family {
	case discoveryv1.AddressTypeIPv6:
		if rarely(t, 4, "IPv4 in an IPv6 slice") {
			return pick(t, "address", addresses...)
		}
		return "fd00::" + fmt.Sprint(rapid.IntRange(1, 3).Draw(t, "IPv6"))
	case discoveryv1.AddressTypeFQDN:
		return "host.example.com"
	}
	switch pick(t, "address kind", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3) {
	case 1:
		return pick(t, "address", variants...)
	case 2:
		return pick(t, "address", allowedFaults...)
	case 3:
		return pick(t, "address", refusedFaults...)
	default:
		return pick(t, "address", addresses...)
	}
}

func drawEndpoint(t *rapid.T, family discoveryv1.AddressType) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{
		Addresses:  []string{drawAddress(t, family)},
		Conditions: drawConditions(t),
		NodeName:   optional(t, "nodeName", nodeNames...),
		Zone:       optional(t, "zone", "za", "zb"),
		Hints:      drawHints(t),
	}
	switch pick(t, "addresses", 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 0) {
	case 0:
		e.Addresses = nil
	case 2:
		e.Addresses = append(e.Addresses, drawAddress(t, family))
	}
	if rarely(t, 4, "targetRef") {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "apps", Name: "gone"}
		e.Hostname = new("host")
	}
	return e
}

func drawConditions(t *rapid.T) discoveryv1.EndpointConditions {
	// Mostly what a controller writes, else anything.
	switch pick(t, "condition", 0, 1, 2, 1, 3, 1, 4, 2) {
	case 0:
		return discoveryv1.EndpointConditions{}
	case 1:
		return discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)}
	case 2:
		return discoveryv1.EndpointConditions{Ready: new(false), Serving: new(rapid.Bool().Draw(t, "serving")), Terminating: new(true)}
	default:
		return discoveryv1.EndpointConditions{
			Ready:       optional(t, "ready", true, false),
			Serving:     optional(t, "serving", true, false),
			Terminating: optional(t, "terminating", false, true),
		}
	}
}

func drawHints(t *rapid.T) *discoveryv1.EndpointHints {
	zones := func() (out []discoveryv1.ForZone) {
		for _, z := range pick(t, "zone hints", []string{"za"}, []string{"zb"}, []string{"za", "zb"}, []string{""}) {
			out = append(out, discoveryv1.ForZone{Name: z})
		}
		return out
	}
	nodes := func() (out []discoveryv1.ForNode) {
		for _, n := range pick(t, "node hints", []string{"n1"}, []string{"n2"}, []string{"n2", "n1"}, []string{"n3"}) {
			out = append(out, discoveryv1.ForNode{Name: n})
		}
		return out
	}
	switch pick(t, "hints", "none", "zone", "zone", "both", "both", "node", "empty") {
	case "none":
		return nil
	case "zone":
		return &discoveryv1.EndpointHints{ForZones: zones()}
	case "node":
		return &discoveryv1.EndpointHints{ForNodes: nodes()}
	case "both":
		return &discoveryv1.EndpointHints{ForZones: zones(), ForNodes: nodes()}
	default:
		return &discoveryv1.EndpointHints{}
	}
}

// changeSlice changes one thing of a slice in place.
func changeSlice(t *rapid.T, w *world, s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	one := func() *discoveryv1.Endpoint {
		if len(s.Endpoints) == 0 {
			s.Endpoints = append(s.Endpoints, drawEndpoint(t, s.AddressType))
		}
		return &s.Endpoints[rapid.IntRange(0, len(s.Endpoints)-1).Draw(t, "endpoint")]
	}
	switch pick(t, "change", "conditions", "one condition", "one condition", "add", "remove", "ports", "node", "hints", "one hint", "no hints",
		"repeat", "repeat", "empty", "reorder", "headless", "labels", "same", "family") {
	case "conditions":
		one().Conditions = drawConditions(t)
	case "one condition":
		c := &one().Conditions
		flipped := pick(t, "condition", &c.Serving, &c.Ready, &c.Terminating)
		*flipped = optional(t, "condition", true, false)
	case "one hint":
		if e := one(); e.Hints != nil {
			again := drawHints(t)
			if again != nil && rapid.Bool().Draw(t, "zones") {
				e.Hints.ForZones = again.ForZones
			} else if again != nil {
				e.Hints.ForNodes = again.ForNodes
			}
		}
	case "add":
		s.Endpoints = append(s.Endpoints, drawEndpoint(t, s.AddressType))
	case "remove":
		if n := len(s.Endpoints); n > 0 {
			i := rapid.IntRange(0, n-1).Draw(t, "removed")
			s.Endpoints = slices.Delete(s.Endpoints, i, i+1)
		}
	case "ports":
		drawSlicePorts(t, w, s)
	case "node":
		one().NodeName = optional(t, "nodeName", nodeNames...)
	case "hints":
		for i := range s.Endpoints {
			s.Endpoints[i].Hints = drawHints(t)
		}
	case "no hints":
		for i := range s.Endpoints {
			s.Endpoints[i].Hints = nil
		}
	case "repeat":
		again := *one().DeepCopy()
		again.Conditions = discoveryv1.EndpointConditions{
			Ready: optional(t, "ready", true, false), Serving: optional(t, "serving", true, false), Terminating: optional(t, "terminating", true, false),
		}
		s.Endpoints = append(s.Endpoints, again)
	case "empty":
		s.Endpoints, s.Ports = nil, nil
	case "reorder":
		slices.Reverse(s.Endpoints)
		slices.Reverse(s.Ports)
	case "headless":
		if hidden(s) {
			delete(s.Labels, corev1.IsHeadlessService)
		} else {
			s.Labels[corev1.IsHeadlessService] = ""
		}
	case "labels":
		drawSliceLabels(t, s, pick(t, "of", "a", "b", "c"))
	case "family": // deleted and created again, and only the end of it seen
		again := drawSlice(t, w, key{Namespace: s.Namespace, Name: pick(t, "of", "a", "b", "c")})
		again.Name = s.Name
		return again
	}
	return s
}

// moveEndpoints copies an endpoint from one slice to another and then takes it out
// of the first, in this order or the other, or leaves it in both.
func moveEndpoints(t *rapid.T, w *world, from, to *discoveryv1.EndpointSlice) []event {
	if len(from.Endpoints) == 0 || from.AddressType != to.AddressType || keyOf(from) == keyOf(to) {
		return []event{{slice: changeSlice(t, w, from)}}
	}
	i := rapid.IntRange(0, len(from.Endpoints)-1).Draw(t, "moved")
	to.Endpoints = append(to.Endpoints, from.Endpoints[i])
	from.Endpoints = slices.Delete(slices.Clone(from.Endpoints), i, i+1)
	switch pick(t, "order", "in", "in, out", "out, in") {
	case "in":
		return []event{{slice: to}}
	case "in, out":
		return []event{{slice: to}, {slice: from}}
	default:
		return []event{{slice: from}, {slice: to}}
	}
}
