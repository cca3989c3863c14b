// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func addrs(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, addr(a))
	}
	return out
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func named(n string) Name { return Name{Namespace: "default", Name: n} }

// web is a Service with everything set.
func web() Service {
	return Service{
		Name: named("web"), UID: "u1", Created: 5, VIP: addr("10.96.0.10"),
		ExternalIPs: addrs("1.2.3.4"), Ports: []ServicePort{{Name: "http", Port: 80, Protocol: TCP}},
	}
}

func webSlice() Slice {
	return Slice{
		Name: named("web-a"), Service: "web", Ports: []SlicePort{{Name: "http", Port: 8080, Protocol: TCP}},
		Endpoints: []Endpoint{{
			Addr: addr("10.1.1.1"), Text: "10.1.1.1", Node: "n1", Ready: true, Serving: true,
			ZoneHints: []string{"za"}, NodeHints: []string{"n1"},
		}},
	}
}

func sees(list ...string) map[netip.Addr]struct{} {
	out := map[netip.Addr]struct{}{}
	for _, a := range addrs(list...) {
		out[a] = struct{}{}
	}
	return out
}

func checkDirty(t *testing.T, d Dirty, wantRange bool, want ...string) {
	t.Helper()
	if d.Range != wantRange {
		t.Errorf("range touched: %t, want %t", d.Range, wantRange)
	}
	if !maps.Equal(d.Addrs, sees(want...)) {
		t.Errorf("addresses touched: %v, want %v", slices.Collect(maps.Keys(d.Addrs)), want)
	}
}

// TestServiceDirty: what each change of a Service touches, field by field.
func TestServiceDirty(t *testing.T) {
	for _, c := range []struct {
		name   string
		edit   func(*Service)
		addrs  []string
		ranges bool
	}{
		{"nothing", func(*Service) {}, nil, false},
		{"lists rebuilt, same entries", func(s *Service) { s.Ports, s.ExternalIPs = slices.Clone(s.Ports), slices.Clone(s.ExternalIPs) }, nil, false},
		{"uid", func(s *Service) { s.UID = "u2" }, []string{"10.96.0.10", "1.2.3.4"}, false},
		{"created", func(s *Service) { s.Created = 6 }, []string{"10.96.0.10", "1.2.3.4"}, false},
		{"deleting", func(s *Service) { s.Deleting = true }, []string{"10.96.0.10", "1.2.3.4"}, false},
		{"VIP moves", func(s *Service) { s.VIP = addr("10.96.0.11") }, []string{"10.96.0.10", "10.96.0.11", "1.2.3.4"}, false},
		{"VIP goes", func(s *Service) { s.VIP = netip.Addr{} }, []string{"10.96.0.10", "1.2.3.4"}, false},
		{"external IP added", func(s *Service) { s.ExternalIPs = addrs("1.2.3.4", "5.6.7.8") }, []string{"10.96.0.10", "1.2.3.4", "5.6.7.8"}, false},
		{"external IP removed", func(s *Service) { s.ExternalIPs = nil }, []string{"10.96.0.10", "1.2.3.4"}, false},
		{"port number", func(s *Service) { s.Ports = []ServicePort{{Name: "http", Port: 81, Protocol: TCP}} }, []string{"10.96.0.10", "1.2.3.4"}, false},
		{"port name", func(s *Service) { s.Ports = []ServicePort{{Name: "h", Port: 80, Protocol: TCP}} }, []string{"10.96.0.10", "1.2.3.4"}, false},
		{"port protocol", func(s *Service) { s.Ports = []ServicePort{{Name: "http", Port: 80, Protocol: UDP}} }, []string{"10.96.0.10", "1.2.3.4"}, false},
		{"internalTrafficPolicy", func(s *Service) { s.InternalLocal = true }, []string{"10.96.0.10", "1.2.3.4"}, false},
		{"affinity", func(s *Service) { s.ClientIPAffinity = true }, []string{"10.96.0.10", "1.2.3.4"}, false},
		{"foreign", func(s *Service) { s.Foreign = OptedOut }, []string{"10.96.0.10", "1.2.3.4"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			st, _ := New(Options{}).Apply([]Change{SetService{web()}})
			svc := web()
			c.edit(&svc)
			next, d := st.Apply([]Change{SetService{svc}})
			checkDirty(t, d, c.ranges, c.addrs...)
			if !maps.Equal(d.Claims, d.Addrs) {
				t.Errorf("more than endpoints changed of %v, want of all that was touched", d.Claims)
			}
			if (len(c.addrs) == 0) != d.Empty() {
				t.Errorf("empty: %t", d.Empty())
			}
			if d.Empty() && next != st {
				t.Error("a no-op made a new State")
			}
			got, ok := next.Service(svc.Name)
			if !ok || !got.equal(&svc) {
				t.Errorf("holds %+v, want %+v", got, svc)
			}
			if old, _ := st.Service(svc.Name); !old.equal(ptr(web())) {
				t.Error("the State before was written to")
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

// TestSliceDirty is kube-proxy 1.37's TestEsDataChanged, and what of a slice
// makes a difference.
func TestSliceDirty(t *testing.T) {
	two := webSlice()
	two.Ports = append(two.Ports, SlicePort{Name: "https", Port: 8443, Protocol: TCP})
	two.Endpoints = append(two.Endpoints, Endpoint{Addr: addr("10.1.1.2"), Text: "10.1.1.2"})
	first := func(f func(*Endpoint)) func(*Slice) { return func(s *Slice) { f(&s.Endpoints[0]) } }
	for _, c := range []struct {
		name    string
		edit    func(*Slice)
		changed bool
	}{
		{"equal slice", func(*Slice) {}, false},
		{"ports reordered", func(s *Slice) { slices.Reverse(s.Ports) }, true},
		{"port added", func(s *Slice) { s.Ports = append(s.Ports, SlicePort{Name: "x", Port: 1, Protocol: TCP}) }, true},
		{"port removed", func(s *Slice) { s.Ports = s.Ports[:1] }, true},
		{"port renumbered", func(s *Slice) { s.Ports[0].Port = 9090 }, true},
		{"endpoints reordered", func(s *Slice) { slices.Reverse(s.Endpoints) }, true},
		{"endpoint added", func(s *Slice) { s.Endpoints = append(s.Endpoints, Endpoint{Addr: addr("10.1.1.3")}) }, true},
		{"endpoint removed", func(s *Slice) { s.Endpoints = s.Endpoints[:1] }, true},
		{"address", first(func(e *Endpoint) { e.Addr = addr("10.1.1.9") }), true},
		{"text", first(func(e *Endpoint) { e.Text = "010.1.1.1" }), true},
		{"fault", first(func(e *Endpoint) { e.Fault = "odd" }), true},
		{"node", first(func(e *Endpoint) { e.Node = "n2" }), true},
		{"zone", first(func(e *Endpoint) { e.Zone = "zb" }), true},
		{"ready", first(func(e *Endpoint) { e.Ready = false }), true},
		{"serving", first(func(e *Endpoint) { e.Serving = false }), true},
		{"terminating", first(func(e *Endpoint) { e.Terminating = true }), true},
		{"zone hints", first(func(e *Endpoint) { e.ZoneHints = []string{"zb"} }), true},
		{"node hints", first(func(e *Endpoint) { e.NodeHints = nil }), true},
		{"E-9 hints nil, then empty", func(s *Slice) { s.Endpoints[1].ZoneHints, s.Endpoints[1].NodeHints = []string{}, []string{} }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			st, _ := New(Options{}).Apply([]Change{SetService{web()}, SetSlice{two}})
			sl := two
			sl.Ports, sl.Endpoints = slices.Clone(two.Ports), slices.Clone(two.Endpoints)
			c.edit(&sl)
			next, d := st.Apply([]Change{SetSlice{sl}})
			want := []string{}
			if c.changed {
				want = []string{"10.96.0.10", "1.2.3.4"}
			}
			checkDirty(t, d, false, want...)
			if len(d.Claims) != 0 {
				t.Errorf("more than endpoints changed of %v, want of none", d.Claims)
			}
			if c.changed == (next == st) {
				t.Errorf("new State: %t, want %t", next != st, c.changed)
			}
		})
	}
	t.Run("E-9 ports nil, then empty", func(t *testing.T) {
		st, _ := New(Options{}).Apply([]Change{SetService{web()}, SetSlice{Slice{Name: named("web-a"), Service: "web"}}})
		_, d := st.Apply([]Change{SetSlice{Slice{Name: named("web-a"), Service: "web", Ports: []SlicePort{}, Endpoints: []Endpoint{}}}})
		if !d.Empty() {
			t.Errorf("touched %+v", d)
		}
	})
	t.Run("moved to another Service", func(t *testing.T) {
		other := Service{Name: named("other"), VIP: addr("10.96.0.11")}
		st, _ := New(Options{}).Apply([]Change{SetService{web()}, SetService{other}, SetSlice{webSlice()}})
		sl := webSlice()
		sl.Service = "other"
		next, d := st.Apply([]Change{SetSlice{sl}})
		checkDirty(t, d, false, "10.96.0.10", "1.2.3.4", "10.96.0.11")
		if len(next.Slices(named("web"))) != 0 || len(next.Slices(named("other"))) != 1 {
			t.Error("the slice did not move")
		}
	})
	t.Run("of no known Service", func(t *testing.T) {
		next, d := New(Options{}).Apply([]Change{SetSlice{webSlice()}})
		checkDirty(t, d, false)
		if len(next.Slices(named("web"))) != 1 {
			t.Error("the slice is lost; the Service may come later")
		}
	})
}

func TestDeleteService(t *testing.T) {
	for _, c := range []struct {
		name, held, uid string
		gone            bool
	}{
		{"no UID given", "u1", "", true},
		{"the object held", "u1", "u1", true},
		{"another object", "u2", "u1", false},
		{"nothing known of the object held", "", "u1", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc := web()
			svc.UID = c.held
			st, _ := New(Options{}).Apply([]Change{SetService{svc}})
			next, d := st.Apply([]Change{DeleteService{Name: svc.Name, UID: c.uid}})
			if _, held := next.Service(svc.Name); held == c.gone {
				t.Errorf("gone: %t, want %t", !held, c.gone)
			}
			if d.Empty() == c.gone {
				t.Errorf("touched %+v", d)
			}
			if _, held := next.ServiceByVIP(svc.VIP); held == c.gone {
				t.Errorf("VIP gone: %t, want %t", !held, c.gone)
			}
		})
	}
}

// TestClaims: of several Services that claim an address, live beats deleting,
// then the older, then the smaller name; for external IPs alike.
func TestClaims(t *testing.T) {
	for _, c := range []struct {
		name string
		a, b Service // a wins
	}{
		{"live before deleting, though younger", Service{Name: named("z"), Created: 9}, Service{Name: named("a"), Created: 1, Deleting: true}},
		{"older", Service{Name: named("z"), Created: 1}, Service{Name: named("a"), Created: 2}},
		{"older of two that are deleted", Service{Name: named("z"), Created: 1, Deleting: true}, Service{Name: named("a"), Created: 2, Deleting: true}},
		{"smaller name", Service{Name: named("a"), Created: 1}, Service{Name: named("z"), Created: 1}},
		{"smaller namespace", Service{Name: Name{"a", "z"}}, Service{Name: Name{"b", "a"}}},
		{"unknown age is oldest", Service{Name: named("z")}, Service{Name: named("a"), Created: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.a.VIP, c.b.VIP = addr("10.96.0.1"), addr("10.96.0.1")
			c.a.ExternalIPs, c.b.ExternalIPs = addrs("10.96.0.2", "10.96.0.2"), addrs("10.96.0.2")
			for _, order := range [][]Change{{SetService{c.a}, SetService{c.b}}, {SetService{c.b}, SetService{c.a}}} {
				st, _ := New(Options{}).Apply(order)
				if got, _ := st.ServiceByVIP(addr("10.96.0.1")); got.Name != c.a.Name {
					t.Errorf("VIP: %s wins, want %s", got.Name, c.a.Name)
				}
				if got, _ := st.ServiceByExternalIP(addr("10.96.0.2")); got.Name != c.a.Name {
					t.Errorf("external IP: %s wins, want %s", got.Name, c.a.Name)
				}
				if got := st.ClaimsOnVIP(addr("10.96.0.1")); len(got) != 2 || got[1].Name != c.b.Name {
					t.Errorf("claims %v", got)
				}
				st, _ = st.Apply([]Change{DeleteService{Name: c.a.Name}})
				if got, _ := st.ServiceByVIP(addr("10.96.0.1")); got.Name != c.b.Name {
					t.Errorf("then VIP: %s, want %s", got.Name, c.b.Name)
				}
			}
		})
	}
}

func TestAPIServer(t *testing.T) {
	api := Service{Name: Name{"default", "kubernetes"}, VIP: addr("10.96.0.1")}
	st := New(Options{})
	for _, c := range []struct {
		name   string
		change Change
		want   string
		dirty  bool
	}{
		{"set", SetService{api}, "10.96.0.1", true},
		{"a namesake elsewhere", SetService{Service{Name: Name{"shop", "kubernetes"}, VIP: addr("10.96.0.9")}}, "10.96.0.1", false},
		{"a port changes", SetService{Service{Name: api.Name, VIP: api.VIP, Ports: []ServicePort{{Name: "https", Port: 443, Protocol: TCP}}}}, "10.96.0.1", false},
		{"it moves", SetService{Service{Name: api.Name, VIP: addr("10.97.0.1")}}, "10.97.0.1", true},
		{"it loses its VIP", SetService{Service{Name: api.Name}}, "", true},
		{"it is back", SetService{api}, "10.96.0.1", true},
		{"it is gone", DeleteService{Name: api.Name}, "", true},
	} {
		next, d := st.Apply([]Change{c.change})
		got, ok := next.APIServer()
		if ok != (c.want != "") || (ok && got != addr(c.want)) {
			t.Errorf("%s: %v %t, want %q", c.name, got, ok, c.want)
		}
		if d.Range != c.dirty {
			t.Errorf("%s: range touched: %t, want %t", c.name, d.Range, c.dirty)
		}
		st = next
	}
}

func TestSlicesAreSorted(t *testing.T) {
	b, a, c := webSlice(), webSlice(), webSlice()
	b.Name, a.Name, c.Name = named("web-b"), named("web-a"), named("web-c")
	st, _ := New(Options{}).Apply([]Change{SetSlice{c}, SetSlice{a}, SetSlice{b}, SetSlice{a}})
	var got []string
	for _, sl := range st.Slices(named("web")) {
		got = append(got, sl.Name.Name)
	}
	if diff := cmp.Diff([]string{"web-a", "web-b", "web-c"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestNodesAndWorkloads(t *testing.T) {
	n := Node{Name: "n1", Zone: "za"}
	w := Workload{Name: named("pod"), UID: "u", IP: addr("10.1.1.1"), NetNS: "/run/netns/a"}
	st, d := New(Options{}).Apply([]Change{SetNode{n}, SetWorkload{w}})
	if _, ok := d.Nodes["n1"]; !ok || len(d.Nodes) != 1 || len(d.Workloads) != 1 {
		t.Errorf("touched %+v", d)
	}
	if same, d := st.Apply([]Change{SetNode{n}, SetWorkload{w}, DeleteNode{"n2"}, DeleteWorkload{named("other")}}); !d.Empty() || same != st {
		t.Errorf("no-op touched %+v", d)
	}
	if got, ok := st.Node("n1"); !ok || got != n {
		t.Errorf("node %+v", got)
	}
	if got, ok := st.Workload(w.Name); !ok || got != w {
		t.Errorf("workload %+v", got)
	}
	if got := slices.Collect(st.Workloads()); len(got) != 1 || got[0] != w {
		t.Errorf("workloads %+v", got)
	}
	st, d = st.Apply([]Change{DeleteNode{"n1"}, DeleteWorkload{w.Name}})
	if len(d.Nodes) != 1 || len(d.Workloads) != 1 {
		t.Errorf("delete touched %+v", d)
	}
	if _, ok := st.Node("n1"); ok {
		t.Error("node still there")
	}
	if _, ok := st.Workload(w.Name); ok {
		t.Error("workload still there")
	}
}

// TestNoResidue: what was set and deleted leaves nothing in any index, for one or
// several Services, slices and namespaces (kube-proxy 1.37's TestServiceCacheLeaks,
// TestEndpointSliceCacheClearedCorrectly, TestSameServiceEndpointSliceCacheClearedCorrectly).
func TestNoResidue(t *testing.T) {
	var set, gone []Change
	for _, ns := range []string{"default", "shop"} {
		for _, n := range []string{"web", "api"} {
			svc := web()
			svc.Name = Name{ns, n}
			set = append(set, SetService{svc})
			gone = append(gone, DeleteService{Name: svc.Name, UID: svc.UID})
			for _, suffix := range []string{"-a", "-b"} {
				sl := webSlice()
				sl.Name, sl.Service = Name{ns, n + suffix}, n
				set = append(set, SetSlice{sl})
				gone = append(gone, DeleteSlice{sl.Name})
			}
		}
		im := Import{Name: Name{ns, "i"}, VIPs: addrs("243.0.0.5", "243.0.0.5")}
		set = append(set, SetImport{im}, SetServiceCIDR{ns, prefixes("10.96.0.0/16")})
		gone = append(gone, DeleteImport{im.Name}, DeleteServiceCIDR{ns})
	}
	for name, order := range map[string][]Change{"as set": gone, "backwards": reversed(gone)} {
		t.Run(name, func(t *testing.T) {
			st, _ := New(Options{}).Apply(set)
			for _, c := range order {
				st, _ = st.Apply([]Change{c})
			}
			left := st.services.size() + st.vips.size() + st.externals.size() + st.slices.size() +
				st.byService.size() + st.imports.size() + st.importVIPs.size() + len(st.cidrs) + len(st.Range())
			if left != 0 || st.RangeKnown() {
				t.Errorf("%d entries left: %+v", left, st)
			}
		})
	}
}

func reversed(cs []Change) []Change {
	cs = slices.Clone(cs)
	slices.Reverse(cs)
	return cs
}
