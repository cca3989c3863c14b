// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/convert"
	"aether.io/aether/internal/model"
)

// labelManaged opts a pod in to capture by its value "true".
const labelManaged = "aether.io/managed"

func nameOf(o metav1.Object) model.Name {
	return model.Name{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// read converts an object to what remains of it.
func read(k Kind, o metav1.Object) *fact {
	f := &fact{name: nameOf(o)}
	if created := o.GetCreationTimestamp(); !created.IsZero() {
		f.created = created.UnixNano()
	}
	switch o := o.(type) {
	case *corev1.Service:
		var svc model.Service
		svc, f.notes = convert.Service(o)
		f.set = model.SetService{Service: svc}
	case *discoveryv1.EndpointSlice:
		f.caused = triggered(o)
		if slice, ok := convert.Slice(o); ok {
			f.set = model.SetSlice{Slice: slice}
			f.notes = sliceNotes(&slice)
		}
	case *networkingv1.ServiceCIDR:
		f.set = model.SetServiceCIDR{Name: o.Name, Prefixes: convert.ServiceCIDR(o)}
		f.notes = cidrNotes(o)
	case *serviceImport:
		if im, ok := convert.Import(o.converted()); ok {
			f.set = model.SetImport{Import: im}
		}
	case *corev1.Node:
		f.set = model.SetNode{Node: convert.Node(o)}
	case *corev1.Pod:
		if o.Labels[labelManaged] == "true" {
			f.connecting = convert.Connects(o)
		}
	}
	return f
}

// deletion returns what takes back a change that was told.
func deletion(set model.Change) model.Change {
	switch c := set.(type) {
	case model.SetService:
		return model.DeleteService{Name: c.Service.Name, UID: c.Service.UID}
	case model.SetSlice:
		return model.DeleteSlice{Name: c.Slice.Name}
	case model.SetServiceCIDR:
		return model.DeleteServiceCIDR{Name: c.Name}
	case model.SetImport:
		return model.DeleteImport{Name: c.Import.Name}
	case model.SetNode:
		return model.DeleteNode{Name: c.Node.Name}
	}
	return nil
}

// triggered returns when the pod or Service changed because of which the EndpointSlice
// controller wrote this version, as the controller notes it.
func triggered(s *discoveryv1.EndpointSlice) int64 {
	at, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime])
	if err != nil {
		return 0
	}
	return at.UnixNano()
}

// sliceNotes tells of endpoints that are left out.
func sliceNotes(s *model.Slice) (out []convert.Note) {
	for i := range s.Endpoints {
		if e := &s.Endpoints[i]; e.Fault != "" {
			out = append(out, convert.Note{
				Field: fmt.Sprintf("endpoints[%d].addresses[0]", i),
				Text:  fmt.Sprintf("%q: %s; the endpoint is left out", e.Text, e.Fault),
			})
		}
	}
	return out
}

// cidrNotes tells of prefixes that cannot be read.
func cidrNotes(c *networkingv1.ServiceCIDR) (out []convert.Note) {
	for i, text := range c.Spec.CIDRs {
		if _, ok := convert.ParsePrefix(text); !ok {
			out = append(out, convert.Note{
				Field: fmt.Sprintf("spec.cidrs[%d]", i), Text: fmt.Sprintf("%q is no CIDR; it is left out", text),
			})
		}
	}
	return out
}
