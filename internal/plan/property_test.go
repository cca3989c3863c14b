// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

// A small world, so that random objects meet: few names, few addresses.
var (
	worldServices  = []model.Name{name("default/kubernetes"), name("default/a"), name("default/b"), name("shop/a")}
	worldSlices    = []model.Name{name("default/s1"), name("default/s2"), name("default/s3"), name("shop/s1")}
	worldVIPs      = addrs("10.96.0.1", "10.96.0.2", "10.97.0.1", "243.0.0.5", "127.0.0.9")
	worldEndpoints = addrs("10.1.0.1", "10.1.0.2", "10.1.0.3")
	worldNodes     = []string{"", "n1", "n2"}
	worldZones     = []string{"", "za", "zb"}
	worldCIDRs     = []netip.Prefix{
		netip.MustParsePrefix("10.96.0.0/24"), netip.MustParsePrefix("10.96.0.9/16"), netip.MustParsePrefix("10.97.0.0/16"),
		netip.MustParsePrefix("243.0.0.5/32"), netip.MustParsePrefix("fd00::/108"),
	}
)

func worldTargets() []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range worldVIPs {
		for _, p := range []uint16{80, 81} {
			out = append(out, netip.AddrPortFrom(a, p))
		}
	}
	return append(out, target("1.1.1.1:80"), target("[fd00::1]:80"), target("[::ffff:10.96.0.2]:80"))
}

func some[T any](values []T) *rapid.Generator[[]T] {
	return rapid.SliceOfN(rapid.SampledFrom(values), 0, 2)
}

var bools = rapid.Bool()

func drawService(t *rapid.T) model.Service {
	vips := append(slices.Clone(worldVIPs), netip.Addr{})
	return model.Service{
		Name:        rapid.SampledFrom(worldServices).Draw(t, "service"),
		UID:         rapid.SampledFrom([]string{"u1", "u2"}).Draw(t, "uid"),
		Created:     rapid.Int64Range(0, 2).Draw(t, "created"),
		Deleting:    bools.Draw(t, "deleting"),
		VIP:         rapid.SampledFrom(vips).Draw(t, "vip"),
		ExternalIPs: some(worldVIPs).Draw(t, "external"),
		Ports: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) model.ServicePort {
			return model.ServicePort(drawPort(t, []uint16{80, 81}))
		}), 0, 2).Draw(t, "ports"),
		InternalLocal:    bools.Draw(t, "local"),
		ClientIPAffinity: bools.Draw(t, "affinity"),
		Foreign:          rapid.SampledFrom([]model.Foreign{"", "", "", model.OptedOut}).Draw(t, "foreign"),
	}
}

func drawPort(t *rapid.T, numbers []uint16) model.SlicePort {
	return model.SlicePort{
		Name:     rapid.SampledFrom([]string{"", "http"}).Draw(t, "name"),
		Port:     rapid.SampledFrom(numbers).Draw(t, "number"),
		Protocol: rapid.SampledFrom([]model.Protocol{model.TCP, model.TCP, model.TCP, model.UDP}).Draw(t, "protocol"),
	}
}

func drawSlice(t *rapid.T) model.Slice {
	return model.Slice{
		Name:    rapid.SampledFrom(worldSlices).Draw(t, "slice"),
		Service: rapid.SampledFrom([]string{"a", "b", "kubernetes"}).Draw(t, "of"),
		Ports: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) model.SlicePort {
			return drawPort(t, []uint16{8080, 9090})
		}), 0, 2).Draw(t, "ports"),
		Endpoints: rapid.SliceOfN(rapid.Custom(drawEndpoint), 0, 4).Draw(t, "endpoints"),
	}
}

func drawEndpoint(t *rapid.T) model.Endpoint {
	a := rapid.SampledFrom(worldEndpoints).Draw(t, "address")
	ep := model.Endpoint{
		Addr: a, Text: a.String(),
		Node:        rapid.SampledFrom(worldNodes).Draw(t, "node"),
		Ready:       bools.Draw(t, "ready"),
		Serving:     bools.Draw(t, "serving"),
		Terminating: bools.Draw(t, "terminating"),
	}
	if rapid.IntRange(0, 3).Draw(t, "hinted") > 0 {
		ep.ZoneHints = some(worldZones).Draw(t, "zones")
		ep.NodeHints = some(worldNodes).Draw(t, "nodes")
	}
	if rapid.IntRange(0, 7).Draw(t, "faulty") == 0 {
		ep.Fault = "odd"
	}
	return ep
}

// drawChange draws a change; deletes are as likely as each kind of set.
func drawChange(t *rapid.T) model.Change {
	switch rapid.IntRange(0, 13).Draw(t, "kind") {
	case 0, 1, 2:
		return model.SetService{Service: drawService(t)}
	case 3:
		return model.DeleteService{
			Name: rapid.SampledFrom(worldServices).Draw(t, "gone"),
			UID:  rapid.SampledFrom([]string{"", "u1", "u2"}).Draw(t, "uid"),
		}
	case 4, 5, 6:
		return model.SetSlice{Slice: drawSlice(t)}
	case 7:
		return model.DeleteSlice{Name: rapid.SampledFrom(worldSlices).Draw(t, "gone")}
	case 8:
		return model.SetServiceCIDR{Name: rapid.SampledFrom([]string{"c1", "c2"}).Draw(t, "cidr"), Prefixes: some(worldCIDRs).Draw(t, "prefixes")}
	case 9:
		return model.DeleteServiceCIDR{Name: rapid.SampledFrom([]string{"c1", "c2"}).Draw(t, "cidr")}
	case 10:
		return model.SetImport{Import: model.Import{
			Name: name(rapid.SampledFrom([]string{"x/i", "x/j"}).Draw(t, "import")),
			VIPs: some(worldVIPs).Draw(t, "vips"),
		}}
	case 11:
		return model.DeleteImport{Name: name(rapid.SampledFrom([]string{"x/i", "x/j"}).Draw(t, "import"))}
	case 12:
		return model.SetNode{Node: model.Node{Name: rapid.SampledFrom(worldNodes).Draw(t, "node"), Zone: rapid.SampledFrom(worldZones).Draw(t, "zone")}}
	default:
		return model.DeleteNode{Name: rapid.SampledFrom(worldNodes).Draw(t, "node")}
	}
}

func drawSettings(t *rapid.T) plan.Settings {
	return plan.Settings{
		Mode: rapid.SampledFrom([]plan.Mode{plan.ModePassthrough, plan.ModeBalance, plan.ModeEnforce}).Draw(t, "mode"),
		Node: rapid.SampledFrom(worldNodes).Draw(t, "this node"),
		Zone: rapid.SampledFrom(worldZones).Draw(t, "this zone"),
	}
}

// TestKeyedRebuildEqualsFull: through any history, deciding again on nothing but
// the affected targets ends with the answers of a full rebuild, every sentence of
// them.
func TestKeyedRebuildEqualsFull(t *testing.T) {
	targets := worldTargets()
	rapid.Check(t, func(t *rapid.T) {
		s := drawSettings(t)
		st := model.New(model.Options{})
		answers := plan.Build(st, s, targets)
		capture := plan.CaptureFor(st, s)
		for range rapid.IntRange(1, 12).Draw(t, "batches") {
			batch := rapid.SliceOfN(rapid.Custom(drawChange), 1, 4).Draw(t, "batch")
			next, dirty := st.Apply(batch)
			for _, a := range plan.Affected(dirty, s, targets) {
				answers[a] = plan.Decide(next, s, a)
			}
			want := plan.Build(next, s, targets)
			for _, a := range targets {
				if !reflect.DeepEqual(answers[a], want[a]) {
					t.Fatalf("%s after %+v (dirty %+v):\n%s", a, batch, dirty, difference(want[a], answers[a]))
				}
			}
			if dirty.Range {
				capture = plan.CaptureFor(next, s)
			}
			if !reflect.DeepEqual(capture, plan.CaptureFor(next, s)) {
				t.Fatalf("capture changed and the range did not, after %+v", batch)
			}
			st = next
		}
	})
}

func difference(want, got plan.Answer) string {
	same := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
	return cmp.Diff(want, got, same)
}

// TestOrderOfArrival: a set of objects gives the same answers and the same range
// in whatever order and batches it arrives.
func TestOrderOfArrival(t *testing.T) {
	targets := worldTargets()
	rapid.Check(t, func(t *rapid.T) {
		s := drawSettings(t)
		objects := map[string]model.Change{}
		for range rapid.IntRange(0, 16).Draw(t, "objects") {
			switch c := drawChange(t).(type) {
			case model.SetService:
				objects["service "+c.Service.Name.String()] = c
			case model.SetSlice:
				objects["slice "+c.Slice.Name.String()] = c
			case model.SetServiceCIDR:
				objects["cidr "+c.Name] = c
			case model.SetImport:
				objects["import "+c.Import.Name.String()] = c
			case model.SetNode:
				objects["node "+c.Node.Name] = c
			}
		}
		keys := slices.Sorted(maps.Keys(objects))
		inOrder := func(label string) *model.State {
			st := model.New(model.Options{})
			var batch []model.Change
			for i, k := range rapid.Permutation(keys).Draw(t, label) {
				batch = append(batch, objects[k])
				if rapid.Bool().Draw(t, fmt.Sprint(label, i)) {
					st, _ = st.Apply(batch)
					batch = nil
				}
			}
			st, _ = st.Apply(batch)
			return st
		}
		a, b := inOrder("first"), inOrder("second")
		for _, x := range targets {
			if one, two := plan.Decide(a, s, x), plan.Decide(b, s, x); !reflect.DeepEqual(one, two) {
				t.Fatalf("%s: %s", x, difference(one, two))
			}
		}
		if !reflect.DeepEqual(plan.CaptureFor(a, s), plan.CaptureFor(b, s)) || a.RangeKnown() != b.RangeKnown() {
			t.Fatalf("ranges %v and %v", a.Range(), b.Range())
		}
	})
}

// reference is kube-proxy 1.37's choice for a ClusterIP, said again as a list of
// rules over endpoints whose duplicates and faulty addresses are gone.
func reference(eps []plan.Candidate, hints map[netip.AddrPort]model.Endpoint, local bool, node, zone string) []netip.AddrPort {
	keep := func(from []plan.Candidate, f func(plan.Candidate, model.Endpoint) bool) (out []plan.Candidate) {
		for _, e := range from {
			if f(e, hints[e.AddrPort]) {
				out = append(out, e)
			}
		}
		return out
	}
	isLocal := func(e plan.Candidate, _ model.Endpoint) bool { return e.Node == node && node != "" }
	ready := func(e plan.Candidate, _ model.Endpoint) bool { return e.Ready }
	draining := func(e plan.Candidate, _ model.Endpoint) bool { return e.Serving && e.Terminating }
	if local {
		eps = keep(eps, isLocal)
	}
	set := keep(eps, ready)
	if len(set) == 0 {
		set = keep(eps, draining)
	} else if !local {
		forNode := keep(set, func(_ plan.Candidate, h model.Endpoint) bool { return slices.Contains(h.NodeHints, node) })
		forZone := keep(set, func(_ plan.Candidate, h model.Endpoint) bool { return slices.Contains(h.ZoneHints, zone) })
		noNode := keep(set, func(_ plan.Candidate, h model.Endpoint) bool { return len(h.NodeHints) == 0 })
		noZone := keep(set, func(_ plan.Candidate, h model.Endpoint) bool { return len(h.ZoneHints) == 0 })
		switch {
		case len(noNode) == 0 && len(forNode) > 0:
			set = forNode
		case len(noZone) == 0 && len(forZone) > 0:
			set = forZone
		}
	}
	var out []netip.AddrPort
	for _, e := range set {
		out = append(out, e.AddrPort)
	}
	return out
}

// TestChoiceMatchesReference draws the slices of one Service, in several slices
// and without duplicates, and compares the chosen set with the rules; then the
// verdict when the set is empty.
func TestChoiceMatchesReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := plan.Settings{
			Mode: plan.ModeEnforce,
			Node: rapid.SampledFrom(worldNodes).Draw(t, "this node"), Zone: rapid.SampledFrom(worldZones).Draw(t, "this zone"),
		}
		isLocal := rapid.Bool().Draw(t, "local")
		changes := []model.Change{web(func(svc *model.Service) { svc.InternalLocal = isLocal })}
		byAddr := map[netip.AddrPort]model.Endpoint{}
		var all []plan.Candidate
		for i := range rapid.IntRange(0, 5).Draw(t, "endpoints") {
			ep := drawEndpoint(t)
			ep.Addr = netip.AddrFrom4([4]byte{10, 1, 1, byte(i)})
			number := rapid.SampledFrom([]uint16{8080, 9090}).Draw(t, "number")
			changes = append(changes, model.SetSlice{Slice: model.Slice{
				Name: name(fmt.Sprintf("default/web-%d", i)), Service: "web",
				Ports:     []model.SlicePort{{Name: "http", Port: number, Protocol: model.TCP}, {Name: "http", Port: 1, Protocol: model.UDP}},
				Endpoints: []model.Endpoint{ep},
			}})
			if ep.Fault == "" {
				ap := netip.AddrPortFrom(ep.Addr, number)
				byAddr[ap] = ep
				all = append(all, plan.Candidate{AddrPort: ap, Node: ep.Node, Ready: ep.Ready, Serving: ep.Serving, Terminating: ep.Terminating})
			}
		}
		a := plan.Decide(state(changes...), s, target(vip+":80"))
		var got []netip.AddrPort
		for _, c := range a.Candidates {
			if c.Chosen {
				got = append(got, c.AddrPort)
			}
			if c.Why == "" {
				t.Fatalf("%s has no reason", c.Address)
			}
		}
		want := reference(all, byAddr, isLocal, s.Node, s.Zone)
		if !slices.Equal(got, want) {
			t.Fatalf("chosen %v, want %v\n%s", got, want, story(a))
		}
		usable := slices.ContainsFunc(all, func(c plan.Candidate) bool { return c.Ready || (c.Serving && c.Terminating) })
		wantReason := plan.NoReason
		switch {
		case len(want) > 0:
		case usable:
			wantReason = plan.NoLocalEndpoints
		default:
			wantReason = plan.NoEndpoints
		}
		if a.Reason != wantReason {
			t.Fatalf("reason %q, want %q\n%s", a.Reason, wantReason, story(a))
		}
	})
}

// TestEveryEntryIsListed: whatever the slices hold, each entry behind the port is
// one candidate, sorted, chosen ones first, and no ip:port is chosen twice.
func TestEveryEntryIsListed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		changes := []model.Change{web()}
		want := 0
		seen := map[model.Name]int{}
		for range rapid.IntRange(0, 5).Draw(t, "slices") {
			sl := drawSlice(t)
			sl.Service, sl.Name.Namespace = "web", "default"
			n := 0
			for _, p := range sl.Ports {
				if p.Name == "http" && p.Protocol == model.TCP {
					n += len(sl.Endpoints)
				}
			}
			want += n - seen[sl.Name]
			seen[sl.Name] = n
			changes = append(changes, model.SetSlice{Slice: sl})
		}
		a := plan.Decide(state(changes...), drawSettings(t), target(vip+":80"))
		if len(a.Candidates) != want {
			t.Fatalf("%d candidates, want %d\n%s", len(a.Candidates), want, story(a))
		}
		chosen := map[netip.AddrPort]bool{}
		for i, c := range a.Candidates {
			if c.Chosen && chosen[c.AddrPort] {
				t.Fatalf("%s is chosen twice", c.Address)
			}
			chosen[c.AddrPort] = chosen[c.AddrPort] || c.Chosen
			if i == 0 {
				continue
			}
			before := a.Candidates[i-1]
			if c.Chosen && !before.Chosen || c.Chosen == before.Chosen && c.AddrPort.Compare(before.AddrPort) < 0 {
				t.Fatalf("not sorted:\n%s", story(a))
			}
		}
	})
}
