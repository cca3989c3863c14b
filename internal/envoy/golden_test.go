// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// goldens are the messages that testdata holds, by file name without extension.
func goldens(t *testing.T) map[string]proto.Message {
	pod, node := DefaultSettings(), nodeSettings()
	web := served("10.96.0.12:80", "web", "http", "10.244.1.2:8080", "10.244.1.1:8080")
	serving, refused := Translate(web, pod), Translate(noEndpoints("10.96.0.12:80", "web", "http"), pod)
	measuring := testCapture()
	measuring.OnDemand = false
	base := BaseClusters(pod)
	if !slices.Equal(mustMarshal(t, serving.Cluster), mustMarshal(t, refused.Cluster)) {
		t.Error("a served and a refused port have different clusters")
	}
	return map[string]proto.Message{
		"cluster-service":             serving.Cluster,
		"cluster-service-client-ip":   Translate(clientIP(web), pod).Cluster,
		"cluster-service-node-source": Translate(web, node).Cluster,
		"cluster-service-passthrough": Translate(passedThrough(web), pod).Cluster,
		"cluster-no-service":          Translate(noService("10.96.9.9:80"), pod).Cluster,
		"cluster-port-not-declared":   Translate(portNotDeclared("10.96.0.12:81", "web", "81"), pod).Cluster,
		"cluster-empty":               EmptyCluster(web.Target),
		"cluster-passthrough":         base[0],
		"cluster-passthrough-range":   base[1],
		"cluster-not-proxied":         base[2],
		"assignment-serving":          serving.Assignment,
		"assignment-refusing":         refused.Assignment,
		"listener":                    Listener(testWorkload(), testCapture(), pod),
		"listener-node-source":        Listener(testWorkload(), testCapture(), node),
		"matcher-passthrough":         Listener(testWorkload(), measuring, pod).GetFilterChainMatcher(),
		"bootstrap":                   bootstrap(testBootstrap()),
	}
}

func asYAML(t *testing.T, m proto.Message) []byte {
	t.Helper()
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out, err := yaml.JSONToYAML(raw)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestGolden(t *testing.T) {
	for name, m := range goldens(t) {
		t.Run(name, func(t *testing.T) {
			checkValid(t, m)
			got, path := asYAML(t, m), filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatalf("%v; run with -update", err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", path, diff)
			}
		})
	}
}

// TestGoldenFilesAreUsed holds that testdata has no file that no test reads.
func TestGoldenFilesAreUsed(t *testing.T) {
	files, err := filepath.Glob("testdata/*")
	if err != nil {
		t.Fatal(err)
	}
	used := goldens(t)
	for _, f := range files {
		if f == filepath.Join("testdata", "fuzz") {
			continue
		}
		name := filepath.Base(f)
		if _, ok := used[name[:len(name)-len(filepath.Ext(name))]]; !ok || filepath.Ext(name) != ".yaml" {
			t.Errorf("%s is used by no test", f)
		}
	}
}
