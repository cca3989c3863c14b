// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// ImportGroup is the API group of ServiceImport (KEP-1645).
const ImportGroup = "multicluster.x-k8s.io"

var (
	scheme = newScheme()
	codecs = serializer.NewCodecFactory(scheme).WithoutConversion()
)

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(s))
	utilruntime.Must(discoveryv1.AddToScheme(s))
	utilruntime.Must(networkingv1.AddToScheme(s))
	utilruntime.Must(networkingv1beta1.AddToScheme(s))
	return s
}

// kind is a kind of object and how it is served.
type kind struct {
	group, kind, resource string
	namespaced            bool
	// versions lists what a server serves, the preferred first.
	versions func(s *Server) []string
	// fields are the labels of field selectors besides metadata.name and, for
	// namespaced kinds, metadata.namespace.
	fields func(Object) fields.Set
	// generation says that metadata.generation counts changes of content.
	generation bool
	// custom kinds have a CRD and JSON only.
	custom bool
}

func always(version string) func(*Server) []string {
	return func(*Server) []string { return []string{version} }
}

// allocation says which versions of ServiceCIDR and IPAddress there are (KEP-1880).
func allocation(s *Server) (out []string) {
	if s.options.Minor >= 33 {
		out = append(out, "v1")
	}
	if s.options.BetaNetworking && s.options.Minor >= 31 && s.options.Minor <= 36 {
		out = append(out, "v1beta1")
	}
	return out
}

func installed(s *Server) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.imports)
}

var kinds = []kind{
	{kind: "Service", resource: "services", namespaced: true, versions: always("v1"), fields: serviceFields},
	{kind: "Node", resource: "nodes", versions: always("v1"), fields: nodeFields},
	{kind: "Pod", resource: "pods", namespaced: true, versions: always("v1"), fields: podFields, generation: true},
	{group: discoveryv1.GroupName, kind: "EndpointSlice", resource: "endpointslices", namespaced: true, versions: always("v1"), generation: true},
	{group: networkingv1.GroupName, kind: "ServiceCIDR", resource: "servicecidrs", versions: allocation},
	{group: networkingv1.GroupName, kind: "IPAddress", resource: "ipaddresses", versions: allocation},
	// What has always been there beside them, so that the group's v1 is.
	{group: networkingv1.GroupName, kind: "Ingress", resource: "ingresses", namespaced: true, versions: always("v1")},
	{group: networkingv1.GroupName, kind: "NetworkPolicy", resource: "networkpolicies", namespaced: true, versions: always("v1")},
	{group: ImportGroup, kind: "ServiceImport", resource: "serviceimports", namespaced: true, versions: installed, generation: true, custom: true},
}

func serviceFields(o Object) fields.Set {
	s := o.(*corev1.Service)
	return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
}

func nodeFields(o Object) fields.Set {
	return fields.Set{"spec.unschedulable": strconv.FormatBool(o.(*corev1.Node).Spec.Unschedulable)}
}

func podFields(o Object) fields.Set {
	p := o.(*corev1.Pod)
	return fields.Set{
		"spec.nodeName": p.Spec.NodeName, "spec.restartPolicy": string(p.Spec.RestartPolicy),
		"spec.schedulerName": p.Spec.SchedulerName, "spec.serviceAccountName": p.Spec.ServiceAccountName,
		"spec.hostNetwork": strconv.FormatBool(p.Spec.HostNetwork), "status.phase": string(p.Status.Phase),
		"status.podIP": p.Status.PodIP, "status.nominatedNodeName": p.Status.NominatedNodeName,
	}
}

// fieldsOf returns what field selectors see of an object.
func (k kind) fieldsOf(o Object) fields.Set {
	out := fields.Set{"metadata.name": o.GetName()}
	if k.namespaced {
		out["metadata.namespace"] = o.GetNamespace()
	}
	if k.fields != nil {
		for name, value := range k.fields(o) {
			out[name] = value
		}
	}
	return out
}

// selectable reports whether a field selector may name the label.
func (k kind) selectable(label string) bool {
	if label == "metadata.name" || label == "metadata.namespace" && k.namespaced {
		return true
	}
	if k.fields == nil {
		return false
	}
	_, ok := k.fields(k.empty("v1"))[label]
	return ok
}

func (k kind) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: k.group, Resource: k.resource}
}

// empty makes an object of the kind that has nothing but its type.
func (k kind) empty(version string) Object {
	gvk := schema.GroupVersionKind{Group: k.group, Version: version, Kind: k.kind}
	if k.custom {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		u.SetGroupVersionKind(gvk)
		return u
	}
	o, err := scheme.New(gvk)
	utilruntime.Must(err)
	return o.(Object)
}

// list makes a list of objects, which have to be of the version.
func (k kind) list(version string, meta metav1.ListMeta, objects []runtime.Object) (runtime.Object, error) {
	gvk := schema.GroupVersionKind{Group: k.group, Version: version, Kind: k.kind + "List"}
	if k.custom {
		u := &unstructured.UnstructuredList{Object: map[string]any{}}
		u.SetGroupVersionKind(gvk)
		u.SetResourceVersion(meta.ResourceVersion)
		u.SetContinue(meta.Continue)
		u.SetRemainingItemCount(meta.RemainingItemCount)
		for _, o := range objects {
			u.Items = append(u.Items, *o.(*unstructured.Unstructured))
		}
		return u, nil
	}
	return typedList(gvk, meta, objects)
}

// as returns o as an object of the version, which may be stamped with a type and a
// version of its own. Kinds with two versions have the same shape in both.
func (k kind) as(version string, o Object) (Object, error) {
	if k.custom {
		u := o.(*unstructured.Unstructured).DeepCopy()
		u.SetGroupVersionKind(schema.GroupVersionKind{Group: k.group, Version: version, Kind: k.kind})
		return u, nil
	}
	if version == "v1" {
		own := reflect.New(reflect.TypeOf(o).Elem())
		own.Elem().Set(reflect.ValueOf(o).Elem())
		return own.Interface().(Object), nil
	}
	raw, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("convert %s %s: %w", k.kind, o.GetName(), err)
	}
	out := k.empty(version)
	if err := json.Unmarshal(raw, out); err != nil {
		return nil, fmt.Errorf("convert %s %s: %w", k.kind, o.GetName(), err)
	}
	return out, nil
}

// kindOf returns the kind of an object; version v1 is what is stored.
func kindOf(o Object) (kind, error) {
	var name string
	switch o := o.(type) {
	case *corev1.Service:
		name = "Service"
	case *corev1.Node:
		name = "Node"
	case *corev1.Pod:
		name = "Pod"
	case *discoveryv1.EndpointSlice:
		name = "EndpointSlice"
	case *networkingv1.ServiceCIDR:
		name = "ServiceCIDR"
	case *networkingv1.IPAddress:
		name = "IPAddress"
	case *unstructured.Unstructured:
		if o.GroupVersionKind().Group == ImportGroup {
			name = o.GetKind()
		}
	}
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.kind == name })
	if i < 0 {
		return kind{}, fmt.Errorf("an object of type %T is not served here", o)
	}
	return kinds[i], nil
}

// forget drops what an API server of the minor version does not know.
func forget(o Object, minor int) {
	switch o := o.(type) {
	case *discoveryv1.EndpointSlice:
		for i := range o.Endpoints {
			forgetHints(&o.Endpoints[i], minor)
		}
	case *corev1.Service:
		if minor < 30 { // KEP-4444
			o.Spec.TrafficDistribution = nil
		}
	}
}

func forgetHints(e *discoveryv1.Endpoint, minor int) {
	if e.Hints == nil {
		return
	}
	if minor < 34 { // KEP-3015, on by default since
		e.Hints.ForNodes = nil
	}
	if minor < 23 { // KEP-2433, on by default since
		e.Hints.ForZones = nil
	}
	if len(e.Hints.ForNodes)+len(e.Hints.ForZones) == 0 {
		e.Hints = nil
	}
}
