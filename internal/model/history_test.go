// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// world is the plain truth: what exists, by name.
type world struct {
	services  map[Name]Service
	slices    map[Name]Slice
	cidrs     map[string][]netip.Prefix
	imports   map[Name]Import
	nodes     map[string]Node
	workloads map[Name]Workload
}

func newWorld() world {
	return world{map[Name]Service{}, map[Name]Slice{}, map[string][]netip.Prefix{}, map[Name]Import{}, map[string]Node{}, map[Name]Workload{}}
}

func (w world) apply(c Change) {
	switch c := c.(type) {
	case SetService:
		w.services[c.Service.Name] = c.Service
	case DeleteService:
		if c.UID == "" || c.UID == w.services[c.Name].UID {
			delete(w.services, c.Name)
		}
	case SetSlice:
		w.slices[c.Slice.Name] = c.Slice
	case DeleteSlice:
		delete(w.slices, c.Name)
	case SetServiceCIDR:
		w.cidrs[c.Name] = c.Prefixes
	case DeleteServiceCIDR:
		delete(w.cidrs, c.Name)
	case SetImport:
		w.imports[c.Import.Name] = c.Import
	case DeleteImport:
		delete(w.imports, c.Name)
	case SetNode:
		w.nodes[c.Node.Name] = c.Node
	case DeleteNode:
		delete(w.nodes, c.Name)
	case SetWorkload:
		w.workloads[c.Workload.Name] = c.Workload
	case DeleteWorkload:
		delete(w.workloads, c.Name)
	}
}

// objects lists what exists as changes that make it.
func (w world) objects() (out []Change) {
	for _, v := range w.services {
		out = append(out, SetService{v})
	}
	for _, v := range w.slices {
		out = append(out, SetSlice{v})
	}
	for n, v := range w.cidrs {
		out = append(out, SetServiceCIDR{n, v})
	}
	for _, v := range w.imports {
		out = append(out, SetImport{v})
	}
	for _, v := range w.nodes {
		out = append(out, SetNode{v})
	}
	for _, v := range w.workloads {
		out = append(out, SetWorkload{v})
	}
	return out
}

// contents is everything a State holds, indexes too, to compare or to remember.
func contents(s *State) map[string]any {
	values := func(list []*Service) (out []Service) {
		for _, v := range list {
			out = append(out, *v)
		}
		return out
	}
	vips, externals := map[netip.Addr][]Service{}, map[netip.Addr][]Service{}
	for a, list := range s.vips.all() {
		vips[a] = values(list)
	}
	for a, list := range s.externals.all() {
		externals[a] = values(list)
	}
	services, sls, byService := map[Name]Service{}, map[Name]Slice{}, map[Name][]Slice{}
	for n, v := range s.services.all() {
		services[n] = *v
	}
	for n, v := range s.slices.all() {
		sls[n] = *v
	}
	for n, list := range s.byService.all() {
		for _, v := range list {
			byService[n] = append(byService[n], *v)
		}
	}
	imports, importVIPs := map[Name]Import{}, map[netip.Addr][]Import{}
	for n, v := range s.imports.all() {
		imports[n] = *v
	}
	for a, list := range s.importVIPs.all() {
		for _, v := range list {
			importVIPs[a] = append(importVIPs[a], *v)
		}
	}
	api, _ := s.APIServer()
	return map[string]any{
		"services": services, "vips": vips, "externals": externals, "slices": sls, "by service": byService,
		"imports": imports, "import VIPs": importVIPs, "nodes": maps.Collect(s.nodes.all()),
		"workloads": maps.Collect(s.workloads.all()), "cidrs": len(s.cidrs),
		"range": slices.Clone(s.Range()), "known": s.RangeKnown(), "outside": slices.Clone(s.rng.outside), "api": api,
	}
}

func drawChange(t *rapid.T) Change {
	names := rapid.SampledFrom([]Name{named("a"), named("b"), {Namespace: "default", Name: "kubernetes"}, {Namespace: "shop", Name: "a"}})
	vips := rapid.SampledFrom(addrs("10.96.0.1", "10.96.0.2", "243.0.0.5"))
	some := rapid.SliceOfN(vips, 1, 3)
	uids := rapid.SampledFrom([]string{"u1", "u2"})
	cidrs := rapid.SampledFrom(prefixes("10.96.0.0/31", "10.96.0.2/31", "243.0.0.0/8", "fd00::/108"))
	n := names.Draw(t, "name")
	switch rapid.IntRange(0, 13).Draw(t, "kind") {
	case 0, 1:
		return SetService{Service{
			Name: n, UID: uids.Draw(t, "uid"), Created: rapid.Int64Range(0, 1).Draw(t, "created"),
			Deleting: rapid.Bool().Draw(t, "deleting"), VIP: vips.Draw(t, "vip"), ExternalIPs: some.Draw(t, "external"),
		}}
	case 2:
		return SetService{Service{Name: n, UID: uids.Draw(t, "uid")}} // owns no VIP
	case 3:
		return DeleteService{n, rapid.SampledFrom([]string{"", "u1", "u2"}).Draw(t, "uid")}
	case 4, 5:
		return SetSlice{Slice{
			Name: n, Service: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "of"),
			Endpoints: []Endpoint{{Addr: vips.Draw(t, "endpoint"), Ready: rapid.Bool().Draw(t, "ready")}},
		}}
	case 6:
		return DeleteSlice{n}
	case 7:
		return SetServiceCIDR{n.Name, []netip.Prefix{cidrs.Draw(t, "cidr")}}
	case 8:
		return DeleteServiceCIDR{n.Name}
	case 9:
		return SetImport{Import{Name: n, VIPs: some.Draw(t, "vips")}}
	case 10:
		return DeleteImport{n}
	case 11:
		return SetNode{Node{Name: n.Name, Zone: n.Namespace}}
	case 12:
		return SetWorkload{Workload{Name: n, UID: uids.Draw(t, "uid")}}
	default:
		return rapid.SampledFrom([]Change{DeleteNode{n.Name}, DeleteWorkload{n}}).Draw(t, "delete")
	}
}

// TestHistoryLeavesOnlyWhatExists: after any history the State is the one that
// the objects which exist now would have made, in every index; saying them again
// touches nothing; and no earlier State was written to.
func TestHistoryLeavesOnlyWhatExists(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		st, w := New(Options{}), newWorld()
		type generation struct {
			state *State
			held  map[string]any
		}
		var past []generation
		for range rapid.IntRange(1, 10).Draw(t, "batches") {
			batch := rapid.SliceOfN(rapid.Custom(drawChange), 1, 5).Draw(t, "batch")
			past = append(past, generation{st, contents(st)})
			st, _ = st.Apply(batch)
			for _, c := range batch {
				w.apply(c)
			}
		}
		fresh, _ := New(Options{}).Apply(w.objects())
		got, want := contents(st), contents(fresh)
		for part := range want {
			if !reflect.DeepEqual(got[part], want[part]) {
				t.Fatalf("%s: %+v, want %+v", part, got[part], want[part])
			}
		}
		if again, d := st.Apply(w.objects()); !d.Empty() || again != st {
			t.Fatalf("the same objects again touched %+v", d)
		}
		for i, g := range past {
			if !reflect.DeepEqual(contents(g.state), g.held) {
				t.Fatalf("State %d was written to", i)
			}
		}
	})
}
