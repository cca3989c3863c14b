// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"aether.io/aether/internal/model"
)

// contents parses texts as the files a.yaml, b.yaml, … of one argument.
func contents(texts ...string) (out []fileContent) {
	for i, s := range texts {
		out = append(out, parse(string(rune('a'+i))+".yaml", []byte(s)))
	}
	return out
}

func vip(t *testing.T, s inventory, name string) string {
	t.Helper()
	it, ok := s[identity{kindService, model.Name{Namespace: "default", Name: name}}]
	if !ok {
		return "none"
	}
	return it.set.(model.SetService).Service.VIP.String()
}

func TestMergePrecedence(t *testing.T) {
	one, two, three := service("web", "10.96.0.1"), service("web", "10.96.0.2"), service("web", "10.96.0.3")
	tests := []struct {
		name      string
		arguments [][]fileContent
		want      string
		notes     []Note
	}{
		{"the later file", [][]fileContent{contents(one, two)}, "10.96.0.2", []Note{{"b.yaml", "Service default/web", "", "is also in a.yaml; this one, the later, is used"}}},
		{"the later document", [][]fileContent{contents(two + "---\n" + one)}, "10.96.0.1", []Note{{"a.yaml", "Service default/web", "", "is also in a.yaml; this one, the later, is used"}}},
		{"the later argument, silently", [][]fileContent{contents(three), contents(one)}, "10.96.0.1", nil},
		{"another namespace is another object", [][]fileContent{contents(one, "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.9, ports: [{port: 80}]}")}, "10.96.0.1", nil},
		{"notes of a replaced object are dropped", [][]fileContent{contents("apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}"), contents(one)}, "10.96.0.1", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, notes := merge(tt.arguments, Options{})
			if got := vip(t, s, "web"); got != tt.want {
				t.Errorf("VIP = %s, want %s", got, tt.want)
			}
			if d := cmp.Diff(tt.notes, notes); d != "" {
				t.Errorf("notes (-want +got)\n%s", d)
			}
		})
	}
}

func TestDefaultServiceCIDR(t *testing.T) {
	const own = "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: mine}\nspec: {cidrs: [10.97.0.0/16]}"
	o := Options{DefaultServiceCIDR: netip.MustParsePrefix("10.96.0.0/16")}
	set := func(name, p string) model.Change {
		return model.SetServiceCIDR{Name: name, Prefixes: []netip.Prefix{netip.MustParsePrefix(p)}}
	}
	without, _ := merge([][]fileContent{contents(service("web", "10.96.0.1"))}, o)
	with, _ := merge([][]fileContent{nil, contents(own)}, o)
	none, _ := merge(nil, Options{})
	if got := without.byKind().ServiceCIDRs; len(got) != 1 || got[0].Name != "kubernetes" {
		t.Errorf("objects %v, want kubernetes", got)
	}
	tests := []struct {
		name          string
		before, after inventory
		want          []model.Change
	}{
		{"at the start", nil, without, []model.Change{set("kubernetes", "10.96.0.0/16"), without[identity{kindService, model.Name{Namespace: "default", Name: "web"}}].set}},
		{"replaced by any", without, with, []model.Change{model.DeleteServiceCIDR{Name: "kubernetes"}, model.DeleteService{Name: model.Name{Namespace: "default", Name: "web"}}, set("mine", "10.97.0.0/16")}},
		{"back again", with, without, []model.Change{model.DeleteServiceCIDR{Name: "mine"}, set("kubernetes", "10.96.0.0/16"), without[identity{kindService, model.Name{Namespace: "default", Name: "web"}}].set}},
		{"no default asked for", nil, none, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, diff(tt.before, tt.after), cmpOpts); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func TestDiff(t *testing.T) {
	const slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\n"
	const hidden = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s, labels: {kubernetes.io/service-name: web, service.kubernetes.io/headless: \"\"}}\naddressType: IPv4\n"
	const imported = "apiVersion: multicluster.x-k8s.io/v1alpha1\nkind: ServiceImport\nmetadata: {name: i}\nspec: {ips: [243.0.0.5]}\n"
	const node = "apiVersion: v1\nkind: Node\nmetadata: {name: n1, labels: {topology.kubernetes.io/zone: za}}\n"
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"
	name := func(n string) model.Name { return model.Name{Namespace: "default", Name: n} }
	tests := []struct {
		name, before, after string
		want                []string
		same                bool // the objects
	}{
		{"equal text", node, node, nil, true},
		{"equal but for a comment", node, "# hello\n" + node, nil, true},
		{"what the model does not hold", service("web", "10.96.0.1"), service("web", "10.96.0.1") + "status: {conditions: []}\n", nil, false},
		{"E-9 nil and empty ports", slice, slice + "ports: []\n", nil, false},
		{"slice becomes unusable", slice, hidden, []string{fmt.Sprintf("%T %v", model.DeleteSlice{}, name("s"))}, false},
		{"slice becomes usable", hidden, slice, []string{"model.SetSlice"}, false},
		{"unusable slice goes", hidden, "", nil, false},
		{"import goes", imported, "", []string{"model.DeleteImport default/i"}, false},
		{"a Pod is no change", "", pod, nil, false},
		{"deletes first", node + "---\n" + slice, imported + "---\n" + service("web", "10.96.0.1"), []string{"model.DeleteNode n1", "model.DeleteSlice default/s", "model.SetImport", "model.SetService"}, false},
		{"zone", node, "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n", []string{"model.SetNode"}, false},
		{"H-8 VIP in place", service("web", "10.96.0.1"), service("web", "10.96.0.2"), []string{"model.SetService"}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before, _ := merge([][]fileContent{contents(tt.before)}, Options{})
			after, _ := merge([][]fileContent{contents(tt.after)}, Options{})
			var got []string
			for _, c := range diff(before, after) {
				text := fmt.Sprintf("%T", c)
				switch c := c.(type) {
				case model.DeleteSlice:
					text += " " + c.Name.String()
				case model.DeleteImport:
					text += " " + c.Name.String()
				case model.DeleteNode:
					text += " " + c.Name
				}
				got = append(got, text)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
			if got := sameObjects(before, after); got != tt.same {
				t.Errorf("same objects = %v, want %v", got, tt.same)
			}
		})
	}
}

func TestServiceDeletedByItsUID(t *testing.T) {
	before, _ := merge([][]fileContent{contents("apiVersion: v1\nkind: Service\nmetadata: {name: web, uid: u1}\nspec: {clusterIP: None}")}, Options{})
	want := []model.Change{model.DeleteService{Name: model.Name{Namespace: "default", Name: "web"}, UID: "u1"}}
	if d := cmp.Diff(want, diff(before, nil)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// genObject draws a manifest from a small world, so that histories meet.
func genObject() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		n := rapid.IntRange(0, 3).Draw(t, "n")
		switch rapid.IntRange(0, 6).Draw(t, "kind") {
		case 0:
			return service(fmt.Sprintf("s%d", n), fmt.Sprintf("10.96.0.%d", rapid.IntRange(1, 3).Draw(t, "vip")))
		case 1:
			return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: s%d, uid: u%d}\nspec: {clusterIP: None}\n", n, n)
		case 2:
			return fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: n%d, labels: {topology.kubernetes.io/zone: z%d}}\n", n, rapid.IntRange(0, 1).Draw(t, "zone"))
		case 3:
			return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: p%d}\n", n)
		case 4:
			return fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: c%d}\nspec: {cidrs: [10.%d.0.0/16]}\n", n, 96+n)
		case 5:
			return fmt.Sprintf("apiVersion: multicluster.x-k8s.io/v1beta1\nkind: ServiceImport\nmetadata: {name: i%d}\nspec: {type: %s, ips: [243.0.0.%d]}\n", n,
				rapid.SampledFrom([]string{"ClusterSetIP", "Headless"}).Draw(t, "type"), n)
		default:
			headless := rapid.SampledFrom([]string{"", ", service.kubernetes.io/headless: \"\""}).Draw(t, "headless")
			return fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: e%d, labels: {kubernetes.io/service-name: s%d%s}}\naddressType: IPv4\nports: [{port: 80}]\nendpoints: [{addresses: [10.1.1.%d]}]\n",
				n, n, headless, rapid.IntRange(1, 2).Draw(t, "address"))
		}
	})
}

// genFile draws a file: some objects.
func genFile() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		out := ""
		for _, o := range rapid.SliceOfN(genObject(), 0, 4).Draw(t, "objects") {
			out += "---\n" + o
		}
		return out
	})
}

// TestDiffsAddUp: along any history of contents, the changes lead from each image
// to the next, nothing is said twice, and they end where a fresh start would.
func TestDiffsAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{}
		if rapid.Bool().Draw(t, "default range") {
			o.DefaultServiceCIDR = netip.MustParsePrefix("10.96.0.0/16")
		}
		var last inventory
		seen := image{}
		for range rapid.IntRange(1, 5).Draw(t, "steps") {
			now, _ := merge([][]fileContent{
				contents(rapid.SliceOfN(genFile(), 0, 3).Draw(t, "first")...),
				contents(rapid.SliceOfN(genFile(), 0, 2).Draw(t, "second")...),
			}, o)
			mustApply(t, seen, diff(last, now))
			last = now
			fresh := image{}
			mustApply(t, fresh, diff(nil, now))
			if d := cmp.Diff(fresh, seen, cmpOpts); d != "" {
				t.Fatalf("(-fresh +followed)\n%s", d)
			}
		}
	})
}
