// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

// indexReady is the slice that most of the rows have.
var indexReady = webSlice("10.1.1.1")

// indexCases are the rows about what an address leads to in one state.
var indexCases = []struct {
	name    string
	changes []model.Change
	dial    string
	class   plan.Class
	want    string
}{
	// cilium#22446: the second port of A-3.
	{
		"A-3 the second port of one pod in two slices",
		[]model.Change{
			service("default/web", vip, "port80:80 port81:81"),
			slice("default/web-a", "web", "port80:8090", "10.1.1.1"), webSliceB("port81:9090", "10.1.1.1"),
		},
		vip + ":81", plan.ClassService, "10.1.1.1:9090",
	},
	// kubernetes#109414
	{
		"A-7 the other namespace's Service",
		[]model.Change{
			web(), indexReady, service("shop/api", "10.96.0.11", "http:80"), slice("shop/api-a", "api", "http:8080", "10.1.1.1"),
		},
		"10.96.0.11:80", plan.ClassService, "10.1.1.1:8080",
	},
	// cilium#45214
	{
		"C-9 the other port keeps its endpoint",
		[]model.Change{
			service("default/web", vip, "port80:80 port81:81"),
			slice("default/web-a", "web", "port80:8080", "10.1.1.1 n:n2"), webSliceB("port81:8081", "10.1.1.2 n:n1"),
		},
		vip + ":81", plan.ClassService, "10.1.1.2:8081",
	},
	// kube-router#1917
	{
		"D-14 the Service without a slice",
		[]model.Change{web(), indexReady, service("default/other", "10.96.0.11", "http:80")},
		"10.96.0.11:80", plan.ClassService, "no-endpoints",
	},
	// skipper#1074
	{
		"F-10 the other port",
		[]model.Change{
			service("default/web", vip, "http:80 grpc:81"), slice("default/web-a", "web", "http:8080 grpc:9090", "10.1.1.1"),
		},
		vip + ":81", plan.ClassService, "10.1.1.1:9090",
	},
	// kubernetes#85020
	{
		"F-12 follow the stored object",
		[]model.Change{service("default/web", vip, "http:8888"), indexReady},
		vip + ":8888", plan.ClassService, "10.1.1.1:8080",
	},
	// cilium#40438, kubernetes#131765
	{
		"G-7 the load-balancer address is not the ClusterIP",
		[]model.Change{web(local, externalIP("1.2.3.4")), webSlice("10.1.1.1 @n2")},
		"1.2.3.4:80", plan.ClassExternal, "passthrough",
	},
	{
		"H-9 a load-balancer address is passed through",
		[]model.Change{web(externalIP("1.2.3.4")), indexReady},
		"1.2.3.4:80", plan.ClassExternal, "passthrough",
	},
	// kubernetes#22952, #122692
	{"H-1 an undeclared port", []model.Change{web(), indexReady}, vip + ":81", plan.ClassService, "port-not-declared"},
	// kubernetes#72236
	{"H-2 a node's port on a ClusterIP", []model.Change{web(), webSlice("10.1.1.1 @n1")}, vip + ":22", plan.ClassService, "port-not-declared"},
	// calico#13279
	{"H-6 a neighbour's address", []model.Change{
		web(), indexReady, service("default/other", "10.96.0.11", "http:80"),
		slice("default/other-a", "other", "http:8080", "10.1.1.2"),
	}, "10.96.0.11:80", plan.ClassService, "10.1.1.2:8080"},
	// cilium#13019
	{"J-1 another proxy's Service", []model.Change{web(foreign(model.ServiceProxyName)), indexReady}, vip + ":80", plan.ClassForeign, "passthrough"},
	{
		"J-1 another proxy's Service, undeclared port",
		[]model.Change{web(foreign(model.ServiceProxyName)), indexReady},
		vip + ":81", plan.ClassForeign, "passthrough",
	},
	// lighthouse#1349
	{
		"N-1 an import without an address",
		[]model.Change{model.SetImport{Import: model.Import{Name: name("shop/api")}}},
		"10.96.0.99:80", plan.ClassUnknown, "no-service",
	},
	// lighthouse#1639
	{"N-2 an import outside every range", []model.Change{model.SetImport{Import: model.Import{
		Name: name("shop/api"), VIPs: addrs("243.0.0.5"),
	}}}, "243.0.0.5:80", plan.ClassForeign, "passthrough"},
	// cilium#35339
	{
		"N-3 the derived Service of an import, its backends not in slices",
		[]model.Change{
			model.SetImport{Import: model.Import{Name: name("default/api"), VIPs: addrs(vip)}}, web(foreign(model.CiliumGlobal)), indexReady,
		},
		vip + ":80", plan.ClassForeign, "passthrough",
	},
}

// TestCasesIndex has the rows about which Service an address and port belong to.
func TestCasesIndex(t *testing.T) {
	for _, c := range indexCases {
		t.Run(c.name, func(t *testing.T) {
			a := plan.Decide(state(c.changes...), enforce(), target(c.dial))
			expect(t, a, c.want)
			if a.Class != c.class {
				t.Errorf("class %s, want %s", a.Class, c.class)
			}
		})
	}
}

// TestCasesHistory has the rows about what an address leads to after a history.
func TestCasesHistory(t *testing.T) {
	ready := webSlice("10.1.1.1")
	newer := service("default/new", vip, "http:80", created(9))
	newSlice := slice("default/new-a", "new", "http:8080", "10.1.1.2")
	t.Run("H-3 an address given out again before the old object is gone", func(t *testing.T) {
		// kubernetes#87603, #102955
		history(t,
			do("10.1.1.1:8080", web(created(1)), ready),
			do("10.1.1.1:8080", web(created(1), deleting)),
			do("10.1.1.2:8080", newer, newSlice),
			do("10.1.1.2:8080", model.DeleteService{Name: name("default/web"), UID: "uid-default/web"}),
			do("no-service", model.DeleteService{Name: name("default/new"), UID: "uid-default/new"}))
	})
	t.Run("H-3 a late delete of the object before", func(t *testing.T) {
		again := web(func(s *model.Service) { s.UID = "uid-2" })
		history(t,
			do("10.1.1.1:8080", web(), ready),
			do("10.1.1.1:8080", again),
			do("10.1.1.1:8080", model.DeleteService{Name: name("default/web"), UID: "uid-default/web"}),
			do("no-service", model.DeleteService{Name: name("default/web"), UID: "uid-2"}))
	})
	t.Run("H-7 the same objects after a restart", func(t *testing.T) {
		// kubernetes#9395
		a := dial(state(web(), ready, newer, newSlice))
		b := dial(state(newSlice, newer, ready, web()))
		expect(t, a, used(b))
	})
	t.Run("H-8 the ClusterIP changes in place", func(t *testing.T) {
		st := state(web(), ready)
		check := func(old, moved string) {
			t.Helper()
			expect(t, dial(st), old)
			expect(t, plan.Decide(st, enforce(), target("10.96.0.20:80")), moved)
		}
		check("10.1.1.1:8080", "no-service")
		st, _ = st.Apply([]model.Change{service("default/web", "", "http:80")}) // ExternalName
		check("no-service", "no-service")
		st, _ = st.Apply([]model.Change{service("default/web", "10.96.0.20", "http:80")})
		check("no-service", "10.1.1.1:8080")
		st, _ = st.Apply([]model.Change{web()}) // and at once back
		check("10.1.1.1:8080", "no-service")
	})
	t.Run("H-10 an endpoint is replaced", func(t *testing.T) {
		// kubernetes#82727
		history(t, do("10.1.1.1:8080", web(), ready), do("10.1.1.2:8080", webSlice("10.1.1.2")))
	})
	t.Run("J-2 the label goes from the Service", func(t *testing.T) {
		// kubernetes#94443
		history(t, do("passthrough", web(foreign(model.ServiceProxyName)), ready), do("10.1.1.1:8080", web()))
	})
	t.Run("J-3 the label is added and removed", func(t *testing.T) {
		// everoute#847
		history(t, do("10.1.1.1:8080", web(), ready),
			do("passthrough", web(foreign(model.ServiceProxyName))), do("10.1.1.1:8080", web()))
	})
	t.Run("C-10 the node's zone changes at run time", func(t *testing.T) {
		// calico#7241
		s := plan.Settings{Mode: plan.ModeEnforce, Node: thisNode}
		st := state(web(), webSlice("10.1.1.1 z:za", "10.1.1.2 z:zb"))
		for _, move := range []struct{ zone, want string }{
			{"za", "10.1.1.1:8080"}, {"zb", "10.1.1.2:8080"}, {"", "10.1.1.1:8080 10.1.1.2:8080"},
		} {
			st, _ = st.Apply([]model.Change{model.SetNode{Node: model.Node{Name: thisNode, Zone: move.zone}}})
			expect(t, plan.Decide(st, s, target(vip+":80")), move.want)
		}
	})
	t.Run("A slice moves to another Service", func(t *testing.T) {
		// kube-proxy leaves the endpoints behind; the label on the slice decides here.
		history(t, do("10.1.1.1:8080", web(), ready),
			do("no-endpoints", slice("default/web-a", "other", "http:8080", "10.1.1.1")), do("10.1.1.1:8080", ready))
	})
	t.Run("two Services, the older wins, then the name", func(t *testing.T) {
		history(t,
			do("10.1.1.2:8080", newer, newSlice),
			do("10.1.1.1:8080", web(created(3)), ready),
			do("10.1.1.2:8080", web(created(9))),
			do("10.1.1.1:8080", model.DeleteService{Name: name("default/new")}))
	})
}
