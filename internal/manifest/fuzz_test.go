// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aether.io/aether/internal/model"
)

// FuzzParse: no content panics; content without a problem holds only what the
// model allows; and what was read, written out again, reads the same.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		service("web", "10.96.0.1"),
		"---\n# c\n---\n" + service("a", "None") + "---\n" + svc("ports: [{port: http}, {port: 1, targetPort: x}]\nclusterIPs: [fd00::1, 010.96.0.1]"),
		"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{}, {port: 80}]\nendpoints:\n- {addresses: [\"::ffff:10.1.1.1\", x], conditions: {ready: false}, hints: {forZones: [{name: za}]}}\n- {addresses: [127.0.0.1]}",
		"apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: k}\nspec: {cidrs: [10.96.3.4/16, \"::ffff:10.0.0.0/100\"]}",
		"apiVersion: multicluster.x-k8s.io/v1beta1\nkind: ServiceImport\nmetadata: {name: i}\nspec: {ips: [243.0.0.5, fd00::1]}",
		"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/zone: za}}}\n- {apiVersion: v1, kind: Pod, metadata: {name: p, creationTimestamp: \"2024-01-01T00:00:00Z\"}, spec: {containers: [{name: c, resources: {limits: {cpu: 100m}}}]}}",
		`{"apiVersion": "v1", "kind": "ServiceList", "items": [{"metadata": {"name": "a"}, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80, "port": 81}]}}]}`,
		"a: &x [1, *x]", "{a: 1}: b", "? [", "%YAML 1.1\n---\n{}", "\xef\xbb\xbf{", "[[[[[[", "a: !!binary x", "<<: {a: 1}",
	} {
		f.Add("a.yaml", []byte(s))
		f.Add("a.json", []byte(s))
	}
	f.Fuzz(func(t *testing.T, file string, data []byte) {
		c := parse(file, data)
		for _, p := range c.problems {
			if p.File != file || p.Object == "" || p.Err == "" {
				t.Fatalf("problem %+v names no place or no error", p)
			}
		}
		s, _ := merge([][]fileContent{{c}}, Options{})
		checkModel(t, diff(nil, s))
		checkAgain(t, s)
	})
}

// checkModel checks what package model asks of its values.
func checkModel(t *testing.T, cs []model.Change) {
	for _, c := range cs {
		switch c := c.(type) {
		case model.SetService:
			s := c.Service
			if s.Name.Namespace == "" || s.Name.Name == "" || (s.VIP.IsValid() && !s.VIP.Is4()) {
				t.Fatalf("service %+v", s)
			}
			for _, p := range s.Ports {
				if p.Port == 0 || (p.Protocol != model.TCP && p.Protocol != model.UDP && p.Protocol != model.SCTP) {
					t.Fatalf("port %+v", p)
				}
			}
		case model.SetSlice:
			for _, p := range c.Slice.Ports {
				if p.Port == 0 || p.Protocol == "" {
					t.Fatalf("slice port %+v", p)
				}
			}
			for _, e := range c.Slice.Endpoints {
				if e.Fault == "" && !e.Addr.Is4() {
					t.Fatalf("endpoint %+v", e)
				}
			}
		case model.SetServiceCIDR:
			for _, p := range c.Prefixes {
				if !p.Addr().Is4() || p != p.Masked() {
					t.Fatalf("prefix %v", p)
				}
			}
		case model.SetImport:
			if len(c.Import.VIPs) == 0 {
				t.Fatalf("import %+v", c.Import)
			}
		}
	}
}

// checkAgain writes every object out with its defaults and reads it once more.
func checkAgain(t *testing.T, s inventory) {
	for id, it := range s {
		raw, err := json.Marshal(it.obj)
		if err != nil {
			t.Fatalf("%s: %v", it.label, err)
		}
		var fields map[string]any
		if err := json.Unmarshal(raw, &fields); err != nil {
			t.Fatalf("%s: %v", it.label, err)
		}
		fields["apiVersion"], fields["kind"] = kinds[id.kind].versions[0], kinds[id.kind].name
		if raw, err = json.Marshal(fields); err != nil {
			t.Fatalf("%s: %v", it.label, err)
		}
		c := parse("again.json", raw)
		if len(c.problems) > 0 || len(c.items) != 1 {
			t.Fatalf("%s, read again: %d items, %v\n%s", it.label, len(c.items), c.problems, raw)
		}
		if d := cmp.Diff(it.set, c.items[0].set, cmpOpts); d != "" || c.items[0].id != id {
			t.Fatalf("%s, read again (-first +second)\n%s", it.label, d)
		}
	}
}
