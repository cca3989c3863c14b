// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

var defaultTests = []struct{ name, in, want string }{
	{"Service", `
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: 10.96.0.10
  ports: [{port: 80}, {name: dns, port: 53, protocol: UDP, targetPort: dns}]
`, `
metadata: {name: web, namespace: default}
spec:
  type: ClusterIP
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  ipFamilies: [IPv4]
  sessionAffinity: None
  internalTrafficPolicy: Cluster
  ports: [{port: 80, protocol: TCP, targetPort: 80}, {name: dns, port: 53, protocol: UDP, targetPort: dns}]
status: {loadBalancer: {}}
`},
	{"Service with ClientIP and two addresses", `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIPs: [fd00::1, 10.96.0.10]
  sessionAffinity: ClientIP
  ports: [{port: 80, targetPort: 0}]
`, `
metadata: {name: web, namespace: shop}
spec:
  type: ClusterIP
  clusterIP: fd00::1
  clusterIPs: [fd00::1, 10.96.0.10]
  ipFamilies: [IPv6, IPv4]
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 10800}}
  internalTrafficPolicy: Cluster
  ports: [{port: 80, protocol: TCP, targetPort: 80}]
status: {loadBalancer: {}}
`},
	{"headless Service", `
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, sessionAffinity: ClientIP, sessionAffinityConfig: {}}
`, `
metadata: {name: db, namespace: default}
spec:
  type: ClusterIP
  clusterIP: None
  clusterIPs: [None]
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 10800}}
  internalTrafficPolicy: Cluster
status: {loadBalancer: {}}
`},
	{"ExternalName Service", `
apiVersion: v1
kind: Service
metadata: {name: ext}
spec: {type: ExternalName, externalName: example.com}
`, `
metadata: {name: ext, namespace: default}
spec: {type: ExternalName, externalName: example.com, sessionAffinity: None}
status: {loadBalancer: {}}
`},
	{"EndpointSlice", `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}, {name: x, port: 1, protocol: UDP}]
endpoints: [{addresses: [10.1.1.1]}]
`, `
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080, protocol: TCP}, {name: x, port: 1, protocol: UDP}]
endpoints: [{addresses: [10.1.1.1], conditions: {}}]
`},
	{"ServiceImport", `
apiVersion: multicluster.x-k8s.io/v1alpha1
kind: ServiceImport
metadata: {name: web}
spec: {ips: [243.0.0.5]}
`, `
metadata: {name: web, namespace: default}
spec: {type: ClusterSetIP, ips: [243.0.0.5]}
status: {}
`},
	{"Pod", `
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: c, ports: [{containerPort: 80}]}]}
`, `
metadata: {name: p, namespace: default}
spec: {serviceAccountName: default, restartPolicy: Always, containers: [{name: c, ports: [{containerPort: 80, protocol: TCP}], resources: {}}]}
status: {}
`},
	{"Pod with the old field", `
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {serviceAccount: old, restartPolicy: Never, containers: [{name: c}]}
`, `
metadata: {name: p, namespace: default}
spec: {serviceAccount: old, serviceAccountName: old, restartPolicy: Never, containers: [{name: c, resources: {}}]}
status: {}
`},
	{"Node, whose namespace means nothing", `
apiVersion: v1
kind: Node
metadata: {name: n1, namespace: x}
`, `
metadata: {name: n1}
spec: {}
status: {daemonEndpoints: {kubeletEndpoint: {Port: 0}}, nodeInfo: {architecture: "", bootID: "", containerRuntimeVersion: "", kernelVersion: "", kubeProxyVersion: "", kubeletVersion: "", machineID: "", operatingSystem: "", osImage: "", systemUUID: ""}}
`},
}

// TestDefaults: what an API server would have filled in is there.
func TestDefaults(t *testing.T) {
	for _, tt := range defaultTests {
		t.Run(tt.name, func(t *testing.T) {
			c := parse("a.yaml", []byte(tt.in))
			if len(c.items) != 1 || len(c.problems) > 0 {
				t.Fatalf("%d items, problems %v", len(c.items), c.problems)
			}
			var got, want map[string]any
			raw, err := json.Marshal(c.items[0].obj)
			if err == nil {
				err = json.Unmarshal(raw, &got)
			}
			if err == nil {
				err = yaml.Unmarshal([]byte(tt.want), &want)
			}
			if err != nil {
				t.Fatal(err)
			}
			delete(got, "apiVersion")
			delete(got, "kind")
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

// svc is a Service manifest whose spec holds the lines given.
func svc(spec string) string {
	return "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  " + strings.ReplaceAll(strings.TrimSpace(spec), "\n", "\n  ")
}

const web = "Service default/web"

// expected is a problem of file dir/a.yaml; err is a part of the text.
type expected struct{ object, field, err string }

var problemTests = []struct {
	name, in string
	want     []expected
}{
	{"no object", "just text", []expected{{"document 1", "", `is the text "just text", must be a Kubernetes object`}}},
	{"a list", "- a\n- b", []expected{{"document 1", "", "is a list"}}},
	{"no kind", "apiVersion: v1\nmetadata: {name: x}", []expected{{"document 1", "kind", "missing"}}},
	{"no apiVersion", "kind: Service", []expected{{"document 1", "apiVersion", "missing"}}},
	{"neither", "a: 1", []expected{{"document 1", "apiVersion", "missing"}, {"document 1", "kind", "missing"}}},
	{"kind is a number", "apiVersion: v1\nkind: 5", []expected{{"document 1", "kind", "not text"}}},
	{"no name", "apiVersion: v1\nkind: Service\nspec: {}", []expected{{"Service in document 1", "metadata.name", "is missing"}}},
	{"only generateName", "apiVersion: v1\nkind: Pod\nmetadata: {generateName: x-}", []expected{{"Pod in document 1", "metadata.name", "is missing"}}},
	{"name is a number", "apiVersion: v1\nkind: Service\nmetadata: {name: 5}", []expected{{"Service in document 1", "metadata.name", "is 5, must be text"}}},
	{"metadata is a list", "apiVersion: v1\nkind: Service\nmetadata: [a]", []expected{{"Service in document 1", "metadata", "is a list, must be a set of fields"}}},
	{"Service name is no label", "apiVersion: v1\nkind: Service\nmetadata: {name: a.b}", []expected{{"Service default/a.b", "metadata.name", `"a.b" is not a valid name`}}},
	{"namespace is no label", "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: A}", []expected{{"Service A/web", "metadata.namespace", `"A" is not a valid name`}}},
	{"Node name", "apiVersion: v1\nkind: Node\nmetadata: {name: N_1}", []expected{{"Node N_1", "metadata.name", "not a valid name"}}},
	{
		"several wrong types", svc("ports: [{port: 80}, {port: http, name: 5}]\nclusterIP: [x]\nexternalIPs: 1.2.3.4"),
		[]expected{
			{web, "spec.ports[1].name", "is 5, must be text"},
			{web, "spec.ports[1].port", `is the text "http", must be a whole number`},
			{web, "spec.clusterIP", "is a list, must be text"},
			{web, "spec.externalIPs", `is the text "1.2.3.4", must be a list`},
		},
	},
	{"number too large for its type", svc("ports: [{port: 70000000000}]"), []expected{{web, "spec.ports[0].port", "is 70000000000, must be a whole number"}}},
	{"fraction", svc("ports: [{port: 80.5}]"), []expected{{web, "spec.ports[0].port", "is 80.5, must be a whole number"}}},
	{"label is a number", "apiVersion: v1\nkind: Service\nmetadata: {name: web, labels: {a: b, v: 1}}", []expected{{web, `metadata.labels["v"]`, "is 1, must be text"}}},
	{"condition is text", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s}\nendpoints: [{conditions: {ready: \"yes\"}}]", []expected{{"EndpointSlice default/s", "endpoints[0].conditions.ready", `is the text "yes", must be true or false`}}},
	{"quantity", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, resources: {limits: {cpu: abc}}}]}", []expected{{"Pod default/p", `spec.containers[0].resources.limits["cpu"]`, "quantities must match"}}},
	{"time", "apiVersion: v1\nkind: Pod\nmetadata: {name: p, creationTimestamp: noon}", []expected{{"Pod default/p", "metadata.creationTimestamp", `is the text "noon"`}}},
	{"int or text", svc("ports: [{port: 80, targetPort: [1]}]"), []expected{{web, "spec.ports[0].targetPort", "is a list"}}},
	{"embedded struct", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {volumes: [{name: v, hostPath: {path: 5}}]}", []expected{{"Pod default/p", "spec.volumes[0].hostPath.path", "is 5, must be text"}}},
	{"repeated field in JSON", `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 1, "port": 2}]}}`, []expected{{web, "spec.ports[0].port", "is there twice"}}},
	{"port 0", svc("clusterIP: 10.96.0.1\nports: [{port: 80, name: a}, {port: 0, name: b}]"), []expected{{web, "spec.ports[1].port", "0 is not within 1–65535"}}},
	{"port 65536", svc("clusterIP: 10.96.0.1\nports: [{port: 65536}]"), []expected{{web, "spec.ports[0].port", "65536 is not within"}}},
	{"port missing", svc("clusterIP: 10.96.0.1\nports: [{name: http}]"), []expected{{web, "spec.ports[0].port", "0 is not within"}}},
	{"targetPort", svc("clusterIP: 10.96.0.1\nports: [{port: 80, targetPort: 99999}]"), []expected{{web, "spec.ports[0].targetPort", "99999 is not within"}}},
	{"protocol", svc("clusterIP: 10.96.0.1\nports: [{port: 80, protocol: tcp}]"), []expected{{web, "spec.ports[0].protocol", `"tcp" is not one of ["TCP" "UDP" "SCTP"]`}}},
	{"port name", svc("clusterIP: 10.96.0.1\nports: [{port: 80, name: Http_1}]"), []expected{{web, "spec.ports[0].name", `"Http_1" is not a valid name`}}},
	{"port twice", svc("clusterIP: 10.96.0.1\nports: [{port: 80, name: a}, {port: 80, name: b}]"), []expected{{web, "spec.ports[1].port", "TCP port 80 is there twice"}}},
	{"VIP", svc("clusterIP: 10.96.0.300\nports: [{port: 80}]"), []expected{{web, "spec.clusterIP", `"10.96.0.300" is not an IP address`}}},
	{"second VIP", svc("clusterIPs: [10.96.0.1, x]\nports: [{port: 80}]"), []expected{{web, "spec.clusterIPs[1]", `"x" is not an IP address`}}},
	{"clusterIP and clusterIPs differ", svc("clusterIP: 10.96.0.1\nclusterIPs: [10.96.0.2]\nports: [{port: 80}]"), []expected{{web, "spec.clusterIP", "not the first"}}},
	{"None beside an address", svc("clusterIPs: [None, 10.96.0.2]\nports: [{port: 80}]"), []expected{{web, "spec.clusterIPs", "beside None"}}},
	{"family", svc("clusterIP: 10.96.0.1\nipFamilies: [IPv6]\nports: [{port: 80}]"), []expected{{web, "spec.clusterIP", "not an IPv6 address"}}},
	{"families", svc("clusterIP: 10.96.0.1\nipFamilies: [IPv4, IPv4, ipv6]\nports: [{port: 80}]"), []expected{{web, "spec.ipFamilies[1]", "twice"}, {web, "spec.ipFamilies[2]", `"ipv6" is not one of`}}},
	{"type", svc("type: Cluster\nclusterIP: 10.96.0.1\nports: [{port: 80}]"), []expected{{web, "spec.type", `"Cluster" is not one of`}}},
	{"affinity", svc("sessionAffinity: clientip\nclusterIP: 10.96.0.1\nports: [{port: 80}]"), []expected{{web, "spec.sessionAffinity", "not one of"}}},
	{"affinity timeout", svc("sessionAffinity: ClientIP\nsessionAffinityConfig: {clientIP: {timeoutSeconds: 0}}\nclusterIP: 10.96.0.1\nports: [{port: 80}]"), []expected{{web, "spec.sessionAffinityConfig.clientIP.timeoutSeconds", "0 is not within 1–86400"}}},
	{"traffic policy", svc("internalTrafficPolicy: local\nclusterIP: 10.96.0.1\nports: [{port: 80}]"), []expected{{web, "spec.internalTrafficPolicy", "not one of"}}},
	{"external addresses", svc("externalIPs: [example.com]\nclusterIP: 10.96.0.1\nports: [{port: 80}]") + "\nstatus: {loadBalancer: {ingress: [{hostname: h}, {ip: x}]}}", []expected{{web, "spec.externalIPs[0]", "not an IP address"}, {web, "status.loadBalancer.ingress[1].ip", "not an IP address"}}},
	{"ServiceCIDR without a prefix", "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: k}\nspec: {cidrs: []}", []expected{{"ServiceCIDR k", "spec.cidrs", "is empty"}}},
	{"ServiceCIDR", "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: k}\nspec: {cidrs: [10.96.0.0/16, 10.96.0.0]}", []expected{{"ServiceCIDR k", "spec.cidrs[1]", `"10.96.0.0" is not a CIDR`}}},
	{"ServiceImport", "apiVersion: multicluster.x-k8s.io/v1beta1\nkind: ServiceImport\nmetadata: {name: i}\nspec: {type: Other, ips: [x]}", []expected{{"ServiceImport default/i", "spec.type", "not one of"}, {"ServiceImport default/i", "spec.ips[0]", "not an IP address"}}},
	{
		"Pod", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, ports: [{containerPort: 0}, {containerPort: 1, protocol: X}]}]}\nstatus: {podIP: x, podIPs: [{ip: x}]}",
		[]expected{
			{"Pod default/p", "spec.containers[0].ports[0].containerPort", "0 is not within"},
			{"Pod default/p", "spec.containers[0].ports[1].protocol", "not one of"},
			{"Pod default/p", "status.podIP", "not an IP address"},
			{"Pod default/p", "status.podIPs[0].ip", "not an IP address"},
		},
	},
	{"the second document", service("ok", "10.96.0.1") + "---\n" + svc("ports: [{port: x}]"), []expected{{web, "spec.ports[0].port", "whole number"}}},
	{"item of a List", "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Service}, 5]", []expected{{"Service in document 1, item 1", "metadata.name", "is missing"}, {"document 1, item 2", "", "is 5, must be"}}},
	{"items", "apiVersion: v1\nkind: List\nitems: {a: b}", []expected{{"document 1", "items", "is a set of fields, must be a list"}}},
	{"List in a List", "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: ServiceList}]", []expected{{"document 1, item 1", "kind", "inside a list"}}},
}

// TestProblems: each names object and field, and says what is wrong.
func TestProblems(t *testing.T) {
	for _, tt := range problemTests {
		t.Run(tt.name, func(t *testing.T) {
			got := parse("dir/a.yaml", []byte(tt.in)).problems
			if len(got) != len(tt.want) {
				t.Fatalf("problems %v, want %d", got, len(tt.want))
			}
			for i, w := range tt.want {
				p := got[i]
				if p.File != "dir/a.yaml" || p.Object != w.object || p.Field != w.field || !strings.Contains(p.Err, w.err) {
					t.Errorf("problem %d = %q\nwant %+v", i, p, w)
				}
			}
		})
	}
}

// TestNotes: what can be served all the same is a note, and the object counts.
func TestNotes(t *testing.T) {
	const slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\n"
	tests := []struct {
		name, in string
		items    int
		want     []string // Source: a part of the text
	}{
		{"plain", service("web", "10.96.0.1"), 1, nil},
		{"name with a digit first", service("1web", "10.96.0.1"), 1, nil},
		{"leading zeros", service("web", "010.096.000.001"), 1, nil},
		{"unknown fields", svc("clusterIP: 10.96.0.1\nport: 80\nports: [{port: 80, portName: x}]"), 1, []string{web + ": spec.port: no field of a Service", web + ": spec.ports[0].portName: no field"}},
		{"field in another case", svc("clusterIp: 10.96.0.1\nclusterIP: 10.96.0.1\nports: [{port: 80}]"), 1, []string{web + ": spec.clusterIp: no field"}},
		{"opt-out misspelt", "apiVersion: v1\nkind: Service\nmetadata: {name: web, annotations: {aether.io/service-egress: pass}}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}", 1, []string{web + `: metadata.annotations["aether.io/service-egress"]: "pass" is not known`}},
		{"no VIP yet", svc("ports: [{port: 80}]"), 1, []string{web + ": spec.clusterIP: nothing here allocates one"}},
		{"no ports", svc("clusterIP: 10.96.0.1"), 1, []string{web + ": spec.ports: is empty"}},
		{"headless without ports", svc("clusterIP: None"), 1, nil},
		{"F-8 unnamed among several", svc("clusterIP: 10.96.0.1\nports: [{port: 80}, {port: 81, name: b}]"), 1, []string{web + ": spec.ports[0].name: is missing"}},
		{"port names twice", svc("clusterIP: 10.96.0.1\nports: [{port: 80, name: a}, {port: 81, name: a}]"), 1, []string{web + `: spec.ports[1].name: "a" is there twice`}},
		{"one number, two protocols", svc("clusterIP: 10.96.0.1\nports: [{port: 53, name: t}, {port: 53, name: u, protocol: UDP}]"), 1, nil},
		{"fewer families than addresses", svc("clusterIPs: [10.96.0.1, fd00::1]\nipFamilies: [IPv4]\nports: [{port: 80}]"), 1, []string{web + ": spec.ipFamilies: has fewer entries"}},
		{"H-8 ExternalName with what is left of a ClusterIP", svc("type: ExternalName\nexternalName: example.com\nclusterIP: 10.96.0.1"), 1, nil},
		{"foreign kind", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d, namespace: ns}", 0, []string{"Deployment ns/d: the kind Deployment of apps/v1 is not read"}},
		{"foreign list", "apiVersion: apps/v1\nkind: DeploymentList\nitems: [{}]", 0, []string{"DeploymentList: the kind DeploymentList of apps/v1 is not read"}},
		{"foreign kind of a known name", "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: s}", 0, []string{"Service s: only v1 is read"}},
		{"old version", "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSliceList", 0, []string{"EndpointSliceList: only discovery.k8s.io/v1 is read"}},
		{"slice without a Service", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s}\naddressType: IPv4", 1, []string{`EndpointSlice default/s: metadata.labels["kubernetes.io/service-name"]: no Service uses`}},
		{"slice without a family", strings.Replace(slice, "addressType: IPv4", "addressType: ipv4", 1), 1, []string{`EndpointSlice default/s: addressType: "ipv4" is not one of`}},
		{"E-7 FQDN slice", strings.Replace(slice, "IPv4", "FQDN", 1) + "endpoints: [{addresses: [example.com]}]", 1, nil},
		{"E-3, E-4 slice ports", slice + "ports: [{}, {name: http}, {port: 0}, {port: 65536}, {port: 80}]", 1, []string{
			"EndpointSlice default/s: ports[0].port: ignored", "EndpointSlice default/s: ports[1].port: ignored",
			"EndpointSlice default/s: ports[2].port: ignored", "EndpointSlice default/s: ports[3].port: ignored",
		}},
		{"E-8, M-1 slice addresses", slice + "endpoints: [{addresses: [example.com]}, {addresses: [fd00::9]}, {addresses: [127.0.0.1]}, {addresses: []}, {}]", 1, nil},
		{"ServiceCIDR with two of a family", "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: k}\nspec: {cidrs: [10.96.0.0/16, fd00::/108, 10.97.0.1/16]}", 1, []string{"ServiceCIDR k: spec.cidrs[2]: second prefix"}},
		{"typed list whose items leave out their kind", "apiVersion: v1\nkind: ServiceList\nitems: [{metadata: {name: a}, spec: {clusterIP: None}}, {metadata: {name: b}, spec: {clusterIP: None}}]", 2, nil},
		{"List of several kinds", "apiVersion: v1\nkind: List\nmetadata: {resourceVersion: \"\"}\nitems: [{apiVersion: v1, kind: Node, metadata: {name: n1}}, {apiVersion: v1, kind: Pod, metadata: {name: p}}]", 2, nil},
		{"empty List", "apiVersion: v1\nkind: List", 0, nil},
		{"what kubectl prints", `{"apiVersion": "v1", "kind": "Service", "metadata": {"creationTimestamp": "2024-01-01T00:00:00Z", "managedFields": [{"fieldsV1": {"f:spec": {"f:ports": {".": {}}}}, "manager": "m"}], "name": "web", "resourceVersion": "5", "uid": "u"}, "spec": {"clusterIP": "10.96.0.1", "internalTrafficPolicy": "Cluster", "ipFamilyPolicy": "SingleStack", "ports": [{"port": 80, "protocol": "TCP", "targetPort": 8080}], "selector": {"app": "web"}}, "status": {"loadBalancer": {}}}`, 1, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := parse("a.yaml", []byte(tt.in))
			if len(c.problems) > 0 || len(c.items) != tt.items {
				t.Fatalf("%d items, problems %v; want %d and none", len(c.items), c.problems, tt.items)
			}
			_, notes := merge([][]fileContent{{c}}, Options{})
			if len(notes) != len(tt.want) {
				t.Fatalf("notes %v, want %d", notes, len(tt.want))
			}
			for i, w := range tt.want {
				at := strings.LastIndex(w, ": ")
				source, part := "a.yaml: "+w[:at], w[at+2:]
				if notes[i].Source() != source || !strings.Contains(notes[i].Text, part) {
					t.Errorf("note %d = %q\nwant %s: …%s…", i, notes[i], source, part)
				}
			}
		})
	}
}
