// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"pgregory.net/rapid"

	"aether.io/aether/internal/model"
)

func TestServiceCIDRs(t *testing.T) {
	cidr := func(text string) *networkingv1.ServiceCIDR { return parse[networkingv1.ServiceCIDR](t, text) }
	deleting := cidr("metadata: {name: d, deletionTimestamp: 2026-01-01T00:00:00Z}\nspec: {cidrs: [10.99.0.0/24]}")
	notReady := cidr("metadata: {name: n}\nspec: {cidrs: [10.98.0.0/24]}\nstatus: {conditions: [{type: Ready, status: 'False', reason: Terminating, message: '', lastTransitionTime: null}]}")
	dual := cidr("metadata: {name: b}\nspec: {cidrs: ['fd00::/112', 10.97.0.9/24]}")
	first := cidr("metadata: {name: a}\nspec: {cidrs: [10.96.0.0/20]}")
	own := cidr("metadata: {name: kubernetes}\nspec: {cidrs: [10.90.0.0/24]}")
	cases := []struct {
		name      string
		objects   []*networkingv1.ServiceCIDR
		had       bool
		want      string
		generated bool
	}{
		{"none: the default is made", nil, false, "[10.96.0.0/16]", true},
		{"sorted by name, IPv4 only, host bits dropped", []*networkingv1.ServiceCIDR{dual, first}, false, "[10.96.0.0/20 10.97.0.0/24]", false},
		{"deleting and not-Ready ones give no addresses", []*networkingv1.ServiceCIDR{deleting, notReady, first}, false, "[10.96.0.0/20]", false},
		{"only unusable ones: nothing is made", []*networkingv1.ServiceCIDR{deleting}, false, "[]", false},
		{"the default stays when another comes", []*networkingv1.ServiceCIDR{dual}, true, "[10.96.0.0/16 10.97.0.0/24]", true},
		{"unless that has its name", []*networkingv1.ServiceCIDR{own}, true, "[10.90.0.0/24]", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m := map[string]*networkingv1.ServiceCIDR{}
			for _, o := range c.objects {
				m[o.Name] = o
			}
			ranges, generated := serviceCIDRs(m, c.had)
			if fmt.Sprint(ranges) != c.want || (generated != nil) != c.generated {
				t.Errorf("got %v, generated %v; want %s, %v", ranges, generated, c.want, c.generated)
			}
		})
	}
}

func services(t testing.TB, texts ...string) map[model.Name]*corev1.Service {
	m := map[model.Name]*corev1.Service{}
	for _, s := range texts {
		o := parse[corev1.Service](t, s)
		m[objectName(o)] = o
	}
	return m
}

func TestWhoGetsAVIP(t *testing.T) {
	got, problems := allocateVIPs(services(t,
		"metadata: {name: plain, namespace: a}",
		"metadata: {name: port, namespace: a}\nspec: {type: NodePort}",
		"metadata: {name: given, namespace: a}\nspec: {clusterIP: 10.96.0.9}",
		"metadata: {name: headless, namespace: a}\nspec: {clusterIP: None}",
		"metadata: {name: external, namespace: a}\nspec: {type: ExternalName}",
		"metadata: {name: six, namespace: a}\nspec: {ipFamilies: [IPv6]}",
		"metadata: {name: dual, namespace: a}\nspec: {ipFamilies: [IPv4, IPv6]}",
	), []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, nil, nil)
	if len(problems) > 0 {
		t.Errorf("problems: %v", problems)
	}
	want := map[string]bool{"plain": true, "port": true, "dual": true}
	if len(got) != len(want) {
		t.Errorf("got %v, want addresses for %v", got, want)
	}
	for n, a := range got {
		if !want[n.Name] || !netip.MustParsePrefix("10.96.1.0/16").Contains(a) {
			t.Errorf("%s got %s", n, a)
		}
	}
}

// TestVIPsAreStable: allocation never moves an address, gives out none twice and
// none that is named elsewhere, keeps off the special ones, and depends only on
// the names when nothing is in the way.
func TestVIPsAreStable(t *testing.T) {
	r := netip.MustParsePrefix("10.96.0.0/24")
	rapid.Check(t, func(rt *rapid.T) {
		m := map[model.Name]*corev1.Service{}
		for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, 400), 0, 150, rapid.ID).Draw(rt, "services") {
			s := &corev1.Service{}
			s.Name, s.Namespace = fmt.Sprintf("s%d", i), "default"
			m[objectName(s)] = s
		}
		named := netip.MustParseAddr("10.96.0.77")
		fixed := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: named.String()}}
		fixed.Name, fixed.Namespace = "fixed", "default"
		m[objectName(fixed)] = fixed
		used := map[netip.Addr]bool{netip.MustParseAddr("10.96.0.88"): true}
		first, problems := allocateVIPs(m, []netip.Prefix{r}, used, nil)
		if len(problems) > 0 {
			rt.Fatalf("problems with %d of 250 addresses: %v", len(m), problems)
		}
		seen := map[netip.Addr]model.Name{named: {Name: "fixed"}}
		for n, a := range first {
			last := a.As4()[3]
			if other, dup := seen[a]; dup || used[a] || !r.Contains(a) || last < 2 || last == 255 {
				rt.Fatalf("%s got %s (also %s)", n, a, other)
			}
			seen[a] = n
		}
		for n := range m {
			if rapid.Bool().Draw(rt, "removed") && n.Name != "fixed" {
				delete(m, n)
			}
		}
		second, _ := allocateVIPs(m, []netip.Prefix{r}, used, first)
		for n, a := range second {
			if first[n] != a {
				rt.Fatalf("%s moved from %s to %s", n, first[n], a)
			}
		}
		again, _ := allocateVIPs(m, []netip.Prefix{r}, used, nil)
		fresh, _ := allocateVIPs(m, []netip.Prefix{r}, used, nil)
		if diff := cmp.Diff(again, fresh, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			rt.Fatalf("two fresh allocations differ: %s", diff)
		}
	})
}

func TestVIPMovesWhenItMust(t *testing.T) {
	m := services(t, "metadata: {name: web, namespace: default}")
	web := model.Name{Namespace: "default", Name: "web"}
	a, _ := allocateVIPs(m, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")}, nil, nil)
	b, _ := allocateVIPs(m, []netip.Prefix{netip.MustParsePrefix("10.97.0.0/24")}, nil, a)
	if !netip.MustParsePrefix("10.97.0.0/24").Contains(b[web]) {
		t.Errorf("range changed, and the address is %s", b[web])
	}
	m[model.Name{Namespace: "default", Name: "fixed"}] = parse[corev1.Service](t,
		"metadata: {name: fixed, namespace: default}\nspec: {clusterIP: "+b[web].String()+"}")
	c, _ := allocateVIPs(m, []netip.Prefix{netip.MustParsePrefix("10.97.0.0/24")}, nil, b)
	if c[web] == b[web] || !c[web].IsValid() {
		t.Errorf("a manifest names %s, and the Service that had it has %s", b[web], c[web])
	}
}

func TestRangeExhausted(t *testing.T) {
	var texts []string
	for i := range 8 {
		texts = append(texts, fmt.Sprintf("metadata: {name: s%d, namespace: default}", i))
	}
	small := netip.MustParsePrefix("10.96.0.0/29") // 5 usable: .2 to .6
	got, problems := allocateVIPs(services(t, texts...), []netip.Prefix{small}, nil, nil)
	if len(got) != 5 || len(problems) != 3 {
		t.Errorf("got %d addresses and %d problems, want 5 and 3", len(got), len(problems))
	}
	got, problems = allocateVIPs(services(t, texts...), []netip.Prefix{small, netip.MustParsePrefix("10.97.0.0/24")}, nil, nil)
	if len(got) != 8 || len(problems) != 0 {
		t.Errorf("with a second range: got %d addresses and %v", len(got), problems)
	}
}

func TestServiceDefaults(t *testing.T) {
	in := parse[corev1.Service](t, `
metadata: {name: web, namespace: default}
spec: {selector: {app: web}, ports: [{name: a, port: 80}, {name: b, port: 81, targetPort: http, protocol: UDP}]}`)
	before := in.DeepCopy()
	got := withVIP(in, netip.MustParseAddr("10.96.1.2"))
	want := parse[corev1.Service](t, `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: ClusterIP
  clusterIP: 10.96.1.2
  clusterIPs: [10.96.1.2]
  ipFamilies: [IPv4]
  ipFamilyPolicy: SingleStack
  internalTrafficPolicy: Cluster
  sessionAffinity: None
  selector: {app: web}
  ports: [{name: a, port: 80, targetPort: 80, protocol: TCP}, {name: b, port: 81, targetPort: http, protocol: UDP}]`)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(before, in); diff != "" {
		t.Errorf("the manifest's object was changed: %s", diff)
	}
}

func TestPodAddresses(t *testing.T) {
	p := newPodAddrs(netip.MustParsePrefix("10.0.0.0/29")) // .2 to .6
	none := func(netip.Addr) bool { return false }
	if !p.reserve(netip.MustParseAddr("10.0.0.3")) || p.reserve(netip.MustParseAddr("10.0.0.3")) {
		t.Fatal("an address is reserved once")
	}
	for _, want := range []string{"10.0.0.2", "10.0.0.5", "10.0.0.6"} {
		a, err := p.allocate(func(a netip.Addr) bool { return a.String() == "10.0.0.4" })
		if err != nil || a.String() != want {
			t.Fatalf("got %s (%v), want %s", a, err, want)
		}
	}
	p.release(netip.MustParseAddr("10.0.0.2"))
	if a, _ := p.allocate(none); a.String() != "10.0.0.2" {
		t.Errorf("got %s after the end, want the one given back", a)
	}
	if a, _ := p.allocate(none); a.String() != "10.0.0.4" {
		t.Errorf("got %s, want the one avoided before", a)
	}
	if a, err := p.allocate(none); err == nil {
		t.Errorf("got %s from a full range", a)
	}
}
