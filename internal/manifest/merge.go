// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/convert"
	"aether.io/aether/internal/model"
)

// inventory is the objects in force, by identity.
type inventory map[identity]*item

// merge puts the contents of all arguments together: within an argument, given
// as its files in the order of their names, the later of two objects wins with a
// note; a later argument wins silently.
func merge(arguments [][]fileContent, o Options) (inventory, []Note) {
	out := inventory{}
	var notes []Note
	for _, files := range arguments {
		here := inventory{}
		for _, f := range files {
			notes = append(notes, f.notes...)
			for _, it := range f.items {
				if was, ok := here[it.id]; ok {
					notes = append(notes, Note{it.file, it.label, "", "is also in " + was.file + "; this one, the later, is used"})
				}
				here[it.id] = it
			}
		}
		maps.Copy(out, here)
	}
	addDefaultCIDR(out, o.DefaultServiceCIDR)
	var noted []identity
	for id, it := range out {
		if len(it.notes) > 0 {
			noted = append(noted, id)
		}
	}
	slices.SortFunc(noted, compareIdentity)
	for _, id := range noted {
		notes = append(notes, out[id].notes...)
	}
	return out, notes
}

// addDefaultCIDR adds the range that an API server would have made its ServiceCIDR
// object "kubernetes" of, unless there is any ServiceCIDR.
func addDefaultCIDR(s inventory, p netip.Prefix) {
	if !p.IsValid() {
		return
	}
	for id := range s {
		if id.kind == kindCIDR {
			return
		}
	}
	c := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{p.String()}},
	}
	it := &item{id: identity{kindCIDR, model.Name{Name: c.Name}}, obj: c}
	it.set, it.del = serviceCIDRChanges(c)
	s[it.id] = it
}

// diff returns the changes that turn the model's image of before into that of after:
// deletes first, then sets, each in the order of kinds and names.
func diff(before, after inventory) []model.Change {
	var gone, set []identity
	for id, was := range before {
		if is, ok := after[id]; was.set != nil && (!ok || is.set == nil) {
			gone = append(gone, id)
		}
	}
	for id, is := range after {
		was := before[id]
		if is == was || is.set == nil {
			continue
		}
		if was == nil || !reflect.DeepEqual(was.set, is.set) {
			set = append(set, id)
		}
	}
	slices.SortFunc(gone, compareIdentity)
	slices.SortFunc(set, compareIdentity)
	var out []model.Change
	for _, id := range gone {
		out = append(out, before[id].del)
	}
	for _, id := range set {
		out = append(out, after[id].set)
	}
	return out
}

// sameObjects reports whether two sets hold equal objects, Pods included.
func sameObjects(a, b inventory) bool {
	if len(a) != len(b) {
		return false
	}
	for id, x := range a {
		y, ok := b[id]
		if !ok || (x != y && !reflect.DeepEqual(x.obj, y.obj)) {
			return false
		}
	}
	return true
}

// byKind lists the objects, each kind sorted by name.
func (s inventory) byKind() (out Objects) {
	for _, id := range slices.SortedFunc(maps.Keys(s), compareIdentity) {
		switch o := s[id].obj.(type) {
		case *corev1.Service:
			out.Services = append(out.Services, o)
		case *discoveryv1.EndpointSlice:
			out.EndpointSlices = append(out.EndpointSlices, o)
		case *networkingv1.ServiceCIDR:
			out.ServiceCIDRs = append(out.ServiceCIDRs, o)
		case *convert.ServiceImport:
			out.ServiceImports = append(out.ServiceImports, o)
		case *corev1.Node:
			out.Nodes = append(out.Nodes, o)
		case *corev1.Pod:
			out.Pods = append(out.Pods, o)
		}
	}
	return out
}

func compareIdentity(a, b identity) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), a.name.Compare(b.name))
}
