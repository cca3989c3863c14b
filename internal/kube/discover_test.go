// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"aether.io/aether/internal/model"
)

// serve answers with documents by path, and 404 for all others.
func serve(t *testing.T, documents map[string]string) *Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d, ok := documents[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if d == "" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, d)
	}))
	c, err := NewClient(&rest.Config{Host: s.URL})
	must(t, err)
	t.Cleanup(func() {
		c.http.CloseIdleConnections()
		s.Close()
	})
	return c
}

func resources(names ...string) string {
	var list []map[string]string
	for _, n := range names {
		list = append(list, map[string]string{"name": n})
	}
	b, err := json.Marshal(map[string]any{"kind": "APIResourceList", "resources": list})
	if err != nil {
		panic(err)
	}
	return string(b)
}

func TestDiscover(t *testing.T) {
	const mcs = "/apis/multicluster.x-k8s.io"
	group := func(versions ...string) string {
		var out []string
		for _, v := range versions {
			out = append(out, fmt.Sprintf(`{"version": %q}`, v))
		}
		return `{"kind": "APIGroup", "versions": [` + strings.Join(out, ",") + `]}`
	}
	for name, c := range map[string]struct {
		kind      Kind
		documents map[string]string
		want      string // version; empty for not served
		err       string
	}{
		"Kubernetes 1.33":        {ServiceCIDRs, map[string]string{"/apis/networking.k8s.io/v1": resources("ingresses", "servicecidrs")}, "v1", ""},
		"Kubernetes 1.32":        {ServiceCIDRs, map[string]string{"/apis/networking.k8s.io/v1": resources("ingresses"), "/apis/networking.k8s.io/v1beta1": resources("servicecidrs")}, "", ""},
		"status alone":           {ServiceCIDRs, map[string]string{"/apis/networking.k8s.io/v1": resources("servicecidrs/status")}, "", ""},
		"no such group":          {ServiceImports, nil, "", ""},
		"both versions":          {ServiceImports, map[string]string{mcs: group("v1alpha1", "v1beta1"), mcs + "/v1alpha1": resources("serviceimports"), mcs + "/v1beta1": resources("serviceimports")}, "v1beta1", ""},
		"the old version":        {ServiceImports, map[string]string{mcs: group("v1alpha1"), mcs + "/v1alpha1": resources("serviceexports", "serviceimports")}, "v1alpha1", ""},
		"exports in the new one": {ServiceImports, map[string]string{mcs: group("v1beta1", "v1alpha1"), mcs + "/v1beta1": resources("serviceexports"), mcs + "/v1alpha1": resources("serviceimports")}, "v1alpha1", ""},
		"a version to come":      {ServiceImports, map[string]string{mcs: group("v1"), mcs + "/v1": resources("serviceimports")}, "v1", ""},
		"half started":           {ServiceImports, map[string]string{mcs: ""}, "", "ask for /apis/multicluster.x-k8s.io: "},
		"nonsense":               {ServiceCIDRs, map[string]string{"/apis/networking.k8s.io/v1": "<html>"}, "", "read /apis/networking.k8s.io/v1: "},
	} {
		v, served, err := serve(t, c.documents).discover(t.Context(), c.kind)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %v, want %q", name, err, c.err)
			}
			continue
		}
		if err != nil || served != (c.want != "") || served && v != (schema.GroupVersion{Group: c.kind.group(), Version: c.want}) {
			t.Errorf("%s: %v %t %v, want %q", name, v, served, err, c.want)
		}
	}
}

// N-1, N-2, N-4: what of ServiceImports adds a VIP.
func TestImportsAreRead(t *testing.T) {
	v := schema.GroupVersion{Group: ServiceImports.group(), Version: "v1alpha1"}
	codec := serializer.NewCodecFactory(importScheme(v)).UniversalDeserializer()
	list, _, err := codec.Decode([]byte(`{
		"apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceImportList", "metadata": {"resourceVersion": "7"}, "items": [
		{"metadata": {"namespace": "shop", "name": "outside"}, "spec": {"type": "ClusterSetIP", "ips": ["fd00::1", "243.0.0.5"], "ports": [{"port": 80}]}},
		{"metadata": {"namespace": "shop", "name": "pending"}, "spec": {"type": "ClusterSetIP"}},
		{"metadata": {"namespace": "shop", "name": "headless"}, "spec": {"type": "Headless", "ips": ["243.0.0.6"]}}]}`), nil, nil)
	must(t, err)
	s := newStoreTest(ServiceImports)
	var objects []any
	for i := range list.(*serviceImportList).Items {
		objects = append(objects, &list.(*serviceImportList).Items[i])
	}
	must(t, s.Replace(objects, "7"))
	got := s.told()
	if len(got) != 1 {
		t.Fatalf("told %v", got)
	}
	im := got[0].(model.SetImport).Import
	if im.Name.Name != "outside" || len(im.VIPs) != 1 || im.VIPs[0].String() != "243.0.0.5" {
		t.Errorf("%+v", im)
	}
	if d := gocmp.Diff(list, list.DeepCopyObject()); d != "" {
		t.Errorf("a copy differs\n%s", d)
	}
}

func TestConnect(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for path, want := range map[string]string{
		"":                              "no API server: this is no pod of a cluster, and no --kubeconfig is given",
		filepath.Join(dir, "gone"):      "read kubeconfig " + dir,
		file("broken", "clusters: 7"):   "read kubeconfig " + dir,
		file("empty", "kind: Config\n"): "use kubeconfig " + dir,
	} {
		if _, err := Connect(path, "1"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", path, err, want)
		}
	}
	c, err := Connect(file("good", `{kind: Config, apiVersion: v1, current-context: c,
		clusters: [{name: c, cluster: {server: "https://10.0.0.1:6443"}}], contexts: [{name: c, context: {cluster: c}}]}`), "1.2")
	must(t, err)
	if c.Server() != "https://10.0.0.1:6443" || c.config.UserAgent != "aether-agent/1.2" || c.config.Timeout != 0 {
		t.Errorf("%s %q %s", c.Server(), c.config.UserAgent, c.config.Timeout)
	}
}
