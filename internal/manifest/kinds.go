// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/convert"
	"aether.io/aether/internal/model"
)

const defaultNamespace = "default"

// object is what all Kubernetes objects have in common.
type object = metav1.Object

// kind is a kind of object that is read.
type kind struct {
	name       string
	versions   []string // apiVersion values
	namespaced bool
	nameRule   func(string) []string
	make       func() object
	// read fills in what an API server would have, reports what it would have
	// refused, and converts. set is nil when the object adds nothing to the model.
	read func(o object, r *report) (set, del model.Change)
}

// kinds are the kinds read, in the order in which changes are listed.
var kinds = []kind{
	kindCIDR: {
		name: "ServiceCIDR", versions: []string{"networking.k8s.io/v1"}, nameRule: content.IsDNS1123Subdomain,
		make: func() object { return &networkingv1.ServiceCIDR{} },
		read: func(o object, r *report) (set, del model.Change) {
			c := o.(*networkingv1.ServiceCIDR)
			checkServiceCIDR(c, r)
			return serviceCIDRChanges(c)
		},
	},
	kindNode: {
		name: "Node", versions: []string{"v1"}, nameRule: content.IsDNS1123Subdomain,
		make: func() object { return &corev1.Node{} },
		read: func(o object, _ *report) (set, del model.Change) {
			n := convert.Node(o.(*corev1.Node))
			return model.SetNode{Node: n}, model.DeleteNode{Name: n.Name}
		},
	},
	kindImport: {
		name: "ServiceImport", namespaced: true, nameRule: content.IsDNS1123Subdomain,
		versions: []string{convert.ServiceImportGroup + "/v1alpha1", convert.ServiceImportGroup + "/v1beta1"},
		make:     func() object { return &convert.ServiceImport{} },
		read: func(o object, r *report) (set, del model.Change) {
			s := o.(*convert.ServiceImport)
			defaultImport(s)
			checkImport(s, r)
			im, ok := convert.Import(s)
			if !ok {
				return nil, nil
			}
			return model.SetImport{Import: im}, model.DeleteImport{Name: im.Name}
		},
	},
	kindService: {
		// A Service name may begin with a digit (RelaxedServiceNameValidation).
		name: "Service", versions: []string{"v1"}, namespaced: true, nameRule: content.IsDNS1123Label,
		make: func() object { return &corev1.Service{} },
		read: func(o object, r *report) (set, del model.Change) {
			s := o.(*corev1.Service)
			defaultService(s)
			checkService(s, r)
			out, notes := convert.Service(s)
			for _, n := range notes {
				r.note(n.Field, "%s", n.Text)
			}
			return model.SetService{Service: out}, model.DeleteService{Name: out.Name, UID: out.UID}
		},
	},
	kindSlice: {
		name: "EndpointSlice", versions: []string{"discovery.k8s.io/v1"}, namespaced: true, nameRule: content.IsDNS1123Subdomain,
		make: func() object { return &discoveryv1.EndpointSlice{} },
		read: func(o object, r *report) (set, del model.Change) {
			s := o.(*discoveryv1.EndpointSlice)
			defaultSlice(s)
			checkSlice(s, r)
			out, ok := convert.Slice(s)
			if !ok {
				return nil, nil
			}
			return model.SetSlice{Slice: out}, model.DeleteSlice{Name: out.Name}
		},
	},
	kindPod: {
		name: "Pod", versions: []string{"v1"}, namespaced: true, nameRule: content.IsDNS1123Subdomain,
		make: func() object { return &corev1.Pod{} },
		read: func(o object, r *report) (set, del model.Change) {
			p := o.(*corev1.Pod)
			defaultPod(p)
			checkPod(p, r)
			return nil, nil
		},
	},
}

// The indexes of kinds.
const (
	kindCIDR = iota
	kindNode
	kindImport
	kindService
	kindSlice
	kindPod
)

func serviceCIDRChanges(c *networkingv1.ServiceCIDR) (set, del model.Change) {
	return model.SetServiceCIDR{Name: c.Name, Prefixes: convert.ServiceCIDR(c)}, model.DeleteServiceCIDR{Name: c.Name}
}

// label names an object for people: "Service default/web", "Node n1".
func (k *kind) label(n model.Name) string {
	if k.namespaced {
		return k.name + " " + n.String()
	}
	return k.name + " " + n.Name
}

// kindOf returns the index of the kind.
func kindOf(t typeMeta) (int, bool) {
	for i := range kinds {
		if kinds[i].name == t.kind && slices.Contains(kinds[i].versions, t.apiVersion) {
			return i, true
		}
	}
	return 0, false
}

// listOf tells a List, and what it says about its items: nothing for v1 List.
func listOf(t typeMeta) (items typeMeta, ok bool) {
	if t == (typeMeta{"v1", "List"}) {
		return typeMeta{}, true
	}
	name, ok := strings.CutSuffix(t.kind, "List")
	items = typeMeta{t.apiVersion, name}
	if ok {
		_, ok = kindOf(items)
	}
	return items, ok
}

// whySkipped says why a kind is not read.
func whySkipped(t typeMeta) string {
	for i := range kinds {
		if kinds[i].name == t.kind || kinds[i].name+"List" == t.kind {
			return fmt.Sprintf("apiVersion is %s; only %s is read", t.apiVersion, strings.Join(kinds[i].versions, " and "))
		}
	}
	return fmt.Sprintf("the kind %s of %s is not read", t.kind, t.apiVersion)
}
