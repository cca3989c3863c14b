// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

// everyClass is a State with a destination of each kind.
func everyClass() *model.State {
	return state(
		service("default/kubernetes", "10.96.0.1", "https:443"),
		slice("default/kubernetes", "kubernetes", "https:6443", "172.18.0.2"),
		web(), webSlice("10.1.1.1"),
		service("default/empty", "10.96.0.11", "http:80"),
		service("default/remote", "10.96.0.12", "http:80", local),
		slice("default/remote-a", "remote", "http:8080", "10.1.1.2 @n2"),
		service("default/dns", "10.96.0.13", "dns:53/UDP"),
		service("default/proxied", "10.96.0.14", "http:80", foreign(model.ServiceProxyName)),
		slice("default/proxied-a", "proxied", "http:8080", "10.1.1.3"),
		service("default/global", "10.96.0.15", "http:80", foreign(model.CiliumGlobal)),
		service("default/optout", "10.96.0.16", "http:80", foreign(model.OptedOut)),
		service("default/lb", "10.96.0.17", "http:80", externalIP("10.96.7.7"), externalIP("1.2.3.4")),
		service("default/outside", "10.50.0.1", "http:80"),
		slice("default/outside-a", "outside", "http:8080", "10.1.1.4"),
		model.SetImport{Import: model.Import{Name: name("shop/api"), VIPs: addrs("243.0.0.5", "10.96.9.9", vip)}},
	)
}

// A Service with a selector has at least one slice, an empty one if need be, as
// soon as its controller has seen it. Until then a refusal is early.
func TestEarly(t *testing.T) {
	selects := func(s *model.Service) { s.Selects = true }
	for name, c := range map[string]struct {
		changes []model.Change
		want    bool
	}{
		"no slice yet":            {[]model.Change{service("default/web", vip, "http:80", selects)}, true},
		"an empty slice":          {[]model.Change{service("default/web", vip, "http:80", selects), slice("default/web-a", "web", "")}, false},
		"a slice of another":      {[]model.Change{service("default/web", vip, "http:80", selects), slice("default/b-a", "b", "http:8080", "10.1.1.1")}, true},
		"no selector, no slice":   {[]model.Change{service("default/web", vip, "http:80")}, false},
		"its slice has gone":      {[]model.Change{service("default/web", vip, "http:80", selects), slice("default/web-a", "web", "http:8080", "10.1.1.1"), deleteSlice("default/web-a")}, true},
		"the port is another one": {[]model.Change{service("default/web", vip, "http:81", selects)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := plan.Decide(state(c.changes...), enforce(), target(vip+":80"))
			if a.Early() != c.want {
				t.Errorf("early: %t, want %t (%s %s)", a.Early(), c.want, a.Verdict, a.Reason)
			}
		})
	}
}

// TestModes holds what each mode makes of each kind of destination.
func TestModes(t *testing.T) {
	const pass = "passthrough"
	st := everyClass()
	for _, c := range []struct {
		name, dial  string
		class       plan.Class
		passthrough string // what mode passthrough, balance and enforce answer
		balance     string
		enforce     string
	}{
		{"API server", "10.96.0.1:443", plan.ClassAPIServer, pass, pass, pass},
		{"API server, undeclared port", "10.96.0.1:80", plan.ClassAPIServer, pass, pass, pass},
		{"label service-proxy-name", "10.96.0.14:80", plan.ClassForeign, pass, pass, pass},
		{"label service-proxy-name, undeclared port", "10.96.0.14:81", plan.ClassForeign, pass, pass, pass},
		{"Cilium global", "10.96.0.15:80", plan.ClassForeign, pass, pass, pass},
		{"opted out", "10.96.0.16:80", plan.ClassForeign, pass, pass, pass},
		{"external IP in the range", "10.96.7.7:80", plan.ClassForeign, pass, pass, pass},
		{"external IP in the range, undeclared port", "10.96.7.7:81", plan.ClassForeign, pass, pass, pass},
		{"import outside the range", "243.0.0.5:80", plan.ClassForeign, pass, pass, pass},
		{"import inside the range, no Service's", "10.96.9.9:80", plan.ClassForeign, pass, pass, pass},
		{"import that is a Service's ClusterIP", vip + ":80", plan.ClassService, pass, "10.1.1.1:8080", "10.1.1.1:8080"},
		{"usable endpoints", vip + ":80", plan.ClassService, pass, "10.1.1.1:8080", "10.1.1.1:8080"},
		{"no endpoints", "10.96.0.11:80", plan.ClassService, pass, pass, "no-endpoints"},
		{"no local endpoints", "10.96.0.12:80", plan.ClassService, pass, pass, "no-local-endpoints"},
		{"undeclared port", vip + ":81", plan.ClassService, pass, pass, "port-not-declared"},
		{"port 0", vip + ":0", plan.ClassService, pass, pass, "port-not-declared"},
		{"UDP-only port", "10.96.0.13:53", plan.ClassService, pass, pass, "port-not-declared"},
		{"nobody's", "10.96.0.99:80", plan.ClassUnknown, pass, pass, "no-service"},
		{"external", "1.1.1.1:80", plan.ClassExternal, pass, pass, pass},
		{"external IP outside the range", "1.2.3.4:80", plan.ClassExternal, pass, pass, pass},
		{"ClusterIP outside the range", "10.50.0.1:80", plan.ClassExternal, pass, pass, pass},
		{"IPv6", "[fd00::1]:80", plan.ClassExternal, pass, pass, pass},
		{"IPv4-mapped", "[::ffff:" + vip + "]:80", plan.ClassService, pass, "10.1.1.1:8080", "10.1.1.1:8080"},
		{"loopback", "127.0.0.1:80", plan.ClassExternal, "not-proxied", "not-proxied", "not-proxied"},
		{"unspecified", "0.0.0.0:80", plan.ClassExternal, "not-proxied", "not-proxied", "not-proxied"},
		{"link-local", "169.254.169.254:80", plan.ClassExternal, "not-proxied", "not-proxied", "not-proxied"},
		{"multicast", "224.0.0.1:80", plan.ClassExternal, "not-proxied", "not-proxied", "not-proxied"},
		{"IPv4-mapped loopback", "[::ffff:127.0.0.1]:80", plan.ClassExternal, "not-proxied", "not-proxied", "not-proxied"},
	} {
		for mode, want := range map[plan.Mode]string{
			plan.ModePassthrough: c.passthrough, plan.ModeBalance: c.balance, plan.ModeEnforce: c.enforce,
			"": c.passthrough, "nonsense": c.passthrough,
		} {
			t.Run(c.name+"/"+string(mode), func(t *testing.T) {
				a := plan.Decide(st, plan.Settings{Mode: mode, Node: thisNode, Zone: thisZone}, target(c.dial))
				expect(t, a, want)
				if a.Class != c.class {
					t.Errorf("class %s, want %s", a.Class, c.class)
				}
				if (a.Reason != "") != (a.Verdict == plan.Refuse) {
					t.Errorf("verdict %s with reason %q", a.Verdict, a.Reason)
				}
				if a.Target != target(c.dial) {
					t.Errorf("target %s", a.Target)
				}
				if len(a.Why) < 2 {
					t.Errorf("says too little: %q", a.Why)
				}
			})
		}
	}
}

// TestDecideIsTotal: nothing known, nothing set, no address.
func TestDecideIsTotal(t *testing.T) {
	for _, st := range []*model.State{{}, model.New(model.Options{}), everyClass()} {
		for _, s := range []plan.Settings{{}, enforce()} {
			if a := plan.Decide(st, s, netip.AddrPort{}); a.Class != plan.ClassExternal || a.Verdict != plan.Passthrough {
				t.Errorf("no address: %s %s", a.Class, a.Verdict)
			}
		}
	}
}

// TestUnknownRange: with no range everything but the API server, ClusterSetIPs
// and the never-proxied is external, and a Service is still named.
func TestUnknownRange(t *testing.T) {
	st, _ := everyClass().Apply([]model.Change{model.DeleteServiceCIDR{Name: "kubernetes"}})
	for dial, want := range map[string]plan.Class{
		"10.96.0.1:443": plan.ClassAPIServer,
		"10.96.0.11:80": plan.ClassExternal,
		"10.96.0.14:80": plan.ClassExternal,
		"10.96.7.7:80":  plan.ClassExternal,
		"10.96.0.99:80": plan.ClassExternal,
		"243.0.0.5:80":  plan.ClassForeign,
		"10.96.9.9:80":  plan.ClassForeign,
		vip + ":80":     plan.ClassService, // a ClusterSetIP too, so it is in the branch
	} {
		if a := plan.Decide(st, enforce(), target(dial)); a.Class != want {
			t.Errorf("%s: class %s, want %s", dial, a.Class, want)
		}
	}
	a := plan.Decide(st, enforce(), target("10.96.0.11:80"))
	if a.Service == nil || a.Service.Service != name("default/empty") {
		t.Errorf("service %v, want default/empty", a.Service)
	}
}

// TestFacts: Service, Policy and Candidates are filled in wherever a Service and
// a declared TCP port are found, whatever the class.
func TestFacts(t *testing.T) {
	st := everyClass()
	for _, c := range []struct {
		name, dial string
		service    string // "namespace/name:port", empty for none
		policy     bool
		chosen     string // candidates marked as chosen
	}{
		{"balanced", vip + ":80", "default/web:http", true, "10.1.1.1:8080"},
		{"undeclared port", vip + ":81", "default/web:81", false, ""},
		{"UDP-only port", "10.96.0.13:53", "default/dns:53", false, ""},
		{"no endpoints", "10.96.0.11:80", "default/empty:http", true, ""},
		{"no local endpoints", "10.96.0.12:80", "default/remote:http", true, ""},
		{"API server", "10.96.0.1:443", "default/kubernetes:https", true, "172.18.0.2:6443"},
		{"foreign", "10.96.0.14:80", "default/proxied:http", true, "10.1.1.3:8080"},
		{"foreign, undeclared port", "10.96.0.14:81", "default/proxied:81", false, ""},
		{"external IP in the range", "10.96.7.7:80", "default/lb:http", true, ""},
		{"ClusterIP outside the range", "10.50.0.1:80", "default/outside:http", true, "10.1.1.4:8080"},
		{"external IP outside the range", "1.2.3.4:80", "", false, ""},
		{"import", "243.0.0.5:80", "", false, ""},
		{"nobody's", "10.96.0.99:80", "", false, ""},
		{"external", "1.1.1.1:80", "", false, ""},
		{"never proxied", "127.0.0.1:80", "", false, ""},
	} {
		for _, mode := range []plan.Mode{plan.ModePassthrough, plan.ModeBalance, plan.ModeEnforce} {
			t.Run(c.name+"/"+string(mode), func(t *testing.T) {
				s := enforce()
				s.Mode = mode
				a := plan.Decide(st, s, target(c.dial))
				var ref string
				if a.Service != nil {
					ref = a.Service.Service.String() + ":" + a.Service.Port
				}
				if ref != c.service {
					t.Errorf("service %q, want %q", ref, c.service)
				}
				if (a.Policy != nil) != c.policy {
					t.Errorf("policy %v, want one: %t", a.Policy, c.policy)
				}
				var chosen []string
				for _, candidate := range a.Candidates {
					if candidate.Chosen {
						chosen = append(chosen, candidate.Address)
					}
				}
				if got := strings.Join(chosen, " "); got != c.chosen {
					t.Errorf("chosen %q, want %q", got, c.chosen)
				}
				if want := a.Class == plan.ClassService && c.policy; a.Lasting() != want {
					t.Errorf("lasting %t, want %t", a.Lasting(), want)
				}
			})
		}
	}
}

func TestPolicy(t *testing.T) {
	for _, c := range []struct {
		name    string
		changes []model.Change
		want    plan.Policy
	}{
		{"plain", []model.Change{web(), webSlice("10.1.1.1")}, plan.Policy{Topology: plan.TopologyNone}},
		{"affinity", []model.Change{web(affinity), webSlice("10.1.1.1")}, plan.Policy{ClientIPAffinity: true, Topology: plan.TopologyNone}},
		{"local", []model.Change{web(local), webSlice("10.1.1.1 @n1 z:za")}, plan.Policy{InternalLocal: true, Topology: plan.TopologyNone}},
		{"zone", []model.Change{web(), webSlice("10.1.1.1 z:za")}, plan.Policy{Topology: plan.TopologyZone}},
		{"node", []model.Change{web(), webSlice("10.1.1.1 z:zb n:n1")}, plan.Policy{Topology: plan.TopologyNode}},
		{"terminating, hinted", []model.Change{web(), webSlice("10.1.1.1 r-s+t+ z:za")}, plan.Policy{Topology: plan.TopologyNone}},
		{"no endpoints", []model.Change{web()}, plan.Policy{Topology: plan.TopologyNone}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(&c.want, dial(state(c.changes...)).Policy); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestPortName: a port without a name goes by its number.
func TestPortName(t *testing.T) {
	a := dial(state(service("default/web", vip, ":80"), slice("default/web-a", "web", ":8080", "10.1.1.1")))
	if a.Service == nil || a.Service.Port != "80" {
		t.Errorf("service %v, want port 80", a.Service)
	}
	expect(t, a, "10.1.1.1:8080")
}

// TestPrecedence: what wins when an address is several things at once.
func TestPrecedence(t *testing.T) {
	api := func(at string) model.Change { return service("default/kubernetes", at, "https:443") }
	for _, c := range []struct {
		name    string
		changes []model.Change
		dial    string
		class   plan.Class
		service string
	}{
		{"API server before external", []model.Change{api("10.50.0.1")}, "10.50.0.1:443", plan.ClassAPIServer, "default/kubernetes"},
		{"API server before foreign", []model.Change{api("10.96.0.1"), web(externalIP("10.96.0.1"))}, "10.96.0.1:443", plan.ClassAPIServer, "default/kubernetes"},
		{"API server before an older claim on its address", []model.Change{
			service("default/kubernetes", "10.96.0.1", "https:443", created(2)),
			service("default/a", "10.96.0.1", "http:80", created(1)),
		}, "10.96.0.1:443", plan.ClassAPIServer, "default/kubernetes"},
		{
			"external before foreign",
			[]model.Change{service("default/web", "10.50.0.1", "http:80", foreign(model.OptedOut))},
			"10.50.0.1:80", plan.ClassExternal, "default/web",
		},
		{
			"external IP before known Service",
			[]model.Change{web(), service("default/lb", "10.96.0.17", "http:80", externalIP(vip))},
			vip + ":80", plan.ClassForeign, "default/lb",
		},
		{"foreign Service before another's external IP", []model.Change{
			web(foreign(model.OptedOut)),
			service("default/lb", "10.96.0.17", "http:80", externalIP(vip)),
		}, vip + ":80", plan.ClassForeign, "default/web"},
		{"of two claims the winner says whether it is foreign", []model.Change{
			web(foreign(model.OptedOut), created(2)),
			service("default/a", vip, "http:80", created(1)),
		}, vip + ":80", plan.ClassService, "default/a"},
		{
			"ClusterIP before import",
			[]model.Change{web(), model.SetImport{Import: model.Import{Name: name("shop/api"), VIPs: addrs(vip)}}},
			vip + ":80", plan.ClassService, "default/web",
		},
		{
			"external IP before import",
			[]model.Change{
				web(externalIP("10.96.7.7")),
				model.SetImport{Import: model.Import{Name: name("shop/api"), VIPs: addrs("10.96.7.7")}},
			},
			"10.96.7.7:80", plan.ClassForeign, "default/web",
		},
		{"never proxied before API server", []model.Change{api("127.0.0.2")}, "127.0.0.2:443", plan.ClassExternal, "default/kubernetes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := plan.Decide(state(c.changes...), enforce(), target(c.dial))
			if a.Class != c.class {
				t.Errorf("class %s, want %s", a.Class, c.class)
			}
			if a.Service == nil || a.Service.Service.String() != c.service {
				t.Errorf("service %v, want %s", a.Service, c.service)
			}
		})
	}
}

// TestZone: the setting wins over the Node object; another node's zone is nothing
// to this one.
func TestZone(t *testing.T) {
	st := state(web(), webSlice("10.1.1.1 z:za", "10.1.1.2 z:zb"),
		model.SetNode{Node: model.Node{Name: "n1", Zone: "zb"}}, model.SetNode{Node: model.Node{Name: "n2", Zone: "za"}})
	for _, c := range []struct{ node, zone, want string }{
		{"n1", "", "10.1.1.2:8080"},
		{"n1", "za", "10.1.1.1:8080"},
		{"n2", "", "10.1.1.1:8080"},
		{"n3", "", "10.1.1.1:8080 10.1.1.2:8080"},
	} {
		a := plan.Decide(st, plan.Settings{Mode: plan.ModeEnforce, Node: c.node, Zone: c.zone}, target(vip+":80"))
		expect(t, a, c.want)
	}
}

func TestCaptureFor(t *testing.T) {
	prefixes := func(list ...string) (out []netip.Prefix) {
		for _, p := range list {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	never := prefixes("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4")
	override := func(list ...string) *model.State { return model.New(model.Options{RangeOverride: prefixes(list...)}) }
	apiServer := service("default/kubernetes", "10.96.0.1", "https:443")
	with := func(st *model.State, cs ...model.Change) *model.State { st, _ = st.Apply(cs); return st }
	for _, c := range []struct {
		name string
		st   *model.State
		mode plan.Mode
		want plan.Capture
	}{
		{"nothing known", model.New(model.Options{}), plan.ModeEnforce, plan.Capture{NeverProxied: never, OnDemand: true}},
		{"enforce", everyClass(), plan.ModeEnforce, plan.Capture{
			NeverProxied: never, APIServer: addrs("10.96.0.1"),
			Service: prefixes("10.96.0.0/16", "243.0.0.5/32"), OnDemand: true,
		}},
		{"balance", state(), plan.ModeBalance, plan.Capture{NeverProxied: never, Service: prefixes("10.96.0.0/16"), OnDemand: true}},
		{"passthrough", state(), plan.ModePassthrough, plan.Capture{NeverProxied: never, Service: prefixes("10.96.0.0/16")}},
		{"no mode", state(), "", plan.Capture{NeverProxied: never, Service: prefixes("10.96.0.0/16")}},
		{
			"the API server's address is a prefix of its own", with(override("10.96.0.1/32", "10.97.0.0/16"), apiServer), plan.ModeEnforce,
			plan.Capture{NeverProxied: never, APIServer: addrs("10.96.0.1"), Service: prefixes("10.97.0.0/16"), OnDemand: true},
		},
		{
			"a range that holds never-proxied addresses", override("126.0.0.0/7", "169.254.3.0/24"), plan.ModeEnforce,
			plan.Capture{NeverProxied: never, Service: prefixes("126.0.0.0/8"), OnDemand: true},
		},
		{
			"an API server that must not be dialled", with(override("10.96.0.0/16"), service("default/kubernetes", "127.0.0.2", "https:443")),
			plan.ModeEnforce,
			plan.Capture{NeverProxied: never, Service: prefixes("10.96.0.0/16"), OnDemand: true},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := slices.Clone(c.st.Range())
			got := plan.CaptureFor(c.st, plan.Settings{Mode: c.mode})
			if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
				cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
			if !slices.Equal(before, c.st.Range()) {
				t.Error("the State's range was written to")
			}
		})
	}
}
