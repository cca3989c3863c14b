// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "aether.io/aether/"

// room says what a package of ours may import directly. The reason is printed
// when the rule is broken.
type room struct {
	// ours lists our packages it may import; a trailing "/..." allows a tree.
	ours []string
	// foreign lists prefixes of other modules' packages it may import.
	foreign []string
	reason  string
}

const (
	envoyAPI  = "github.com/envoyproxy/go-control-plane/envoy/"
	xdsAPI    = "github.com/cncf/xds/go/"
	protobuf  = "google.golang.org/protobuf/"
	promPkg   = "github.com/prometheus/client_golang/"
	k8sAPI    = "k8s.io/api/"
	k8sMeta   = "k8s.io/apimachinery/"
	netlinkPk = "github.com/vishvananda/netlink"
	netnsPkg  = "github.com/vishvananda/netns"
)

var rooms = map[string]room{
	"internal/model": {
		foreign: []string{"go4.org/netipx"},
		reason:  "the nouns know nothing but themselves",
	},
	"internal/plan": {
		ours:    []string{"internal/model"},
		foreign: []string{"go4.org/netipx"},
		reason:  "decisions are pure functions of the model",
	},
	"internal/plan/demand": {
		ours:   []string{"internal/model", "internal/plan"},
		reason: "demand is a pure state machine over answers",
	},
	"internal/envoy": {
		ours:    []string{"internal/model", "internal/plan"},
		foreign: []string{envoyAPI, xdsAPI, protobuf},
		reason:  "translation decides nothing and does no I/O",
	},
	"internal/explain": {
		ours:   []string{"internal/model", "internal/plan", "internal/agent/api"},
		reason: "what is shown to people is a view of the plan",
	},
	"internal/check": {
		ours:   []string{"internal/agent/api"},
		reason: "findings are a pure function of facts; looking is somebody else's",
	},
	"internal/agent/api": {reason: "wire contracts between our own processes are plain types"},
	"internal/convert": {
		ours:    []string{"internal/model"},
		foreign: []string{k8sAPI, k8sMeta, "k8s.io/utils/net"},
		reason:  "Kubernetes types stop here",
	},
	"internal/manifest": {
		ours:    []string{"internal/model", "internal/convert"},
		foreign: []string{k8sAPI, k8sMeta, "go.yaml.in/yaml/v2", "sigs.k8s.io/json", "github.com/fsnotify/fsnotify"},
		reason:  "a source of model changes knows no decision",
	},
	"internal/kube": {
		ours: []string{"internal/model", "internal/convert", "internal/plan", "internal/agent/api"},
		foreign: []string{
			k8sAPI, k8sMeta, promPkg, "k8s.io/utils/clock", "k8s.io/client-go/rest", "k8s.io/client-go/tools/cache",
			"k8s.io/client-go/tools/clientcmd", "k8s.io/client-go/util/flowcontrol",
		},
		reason: "a source of model changes knows of decisions only what a look is to find",
	},
	"internal/xds": {
		foreign: []string{
			"github.com/envoyproxy/go-control-plane/", protobuf, "google.golang.org/grpc",
			"google.golang.org/genproto/", "github.com/cespare/xxhash/v2", promPkg, "golang.org/x/sync/", "golang.org/x/sys/unix",
		},
		reason: "the protocol knows names, types, bytes and versions, nothing of the product",
	},
	"internal/refuse": {
		foreign: []string{promPkg, "golang.org/x/sys/unix"},
		reason:  "the refuser parses nothing and knows nobody",
	},
	"internal/capture": {
		foreign: []string{
			"github.com/google/nftables", netlinkPk, netnsPkg,
			"github.com/containernetworking/plugins/pkg/ns", "golang.org/x/sys/unix",
		},
		reason: "only capture writes a pod's rules; the CNI plugin must stay small",
	},
	"internal/observe": {
		ours:    []string{"internal/model", "internal/envoy", "internal/agent/api"},
		foreign: []string{envoyAPI, protobuf, "google.golang.org/grpc"},
		reason:  "what is seen of connections decides nothing",
	},
	"internal/daemon": {
		foreign: []string{promPkg, "github.com/google/renameio/v2", "golang.org/x/sys/unix"},
		reason:  "what every binary shares knows no other room",
	},
	"internal/agent": {
		ours: []string{
			"internal/model", "internal/plan", "internal/plan/demand", "internal/envoy", "internal/explain",
			"internal/agent/api", "internal/manifest", "internal/xds", "internal/refuse", "internal/daemon", "internal/check",
			"internal/observe",
		},
		foreign: []string{envoyAPI, protobuf, promPkg, "golang.org/x/sync/", "golang.org/x/time/", "golang.org/x/sys/unix"},
		reason:  "the one loop joins core and shell",
	},
	"internal/proxy": {
		ours:   []string{"internal/agent/api", "internal/daemon"},
		reason: "the supervisor of Envoy knows processes and files, nothing of Services or pods",
	},
	"internal/sandbox": {
		ours: []string{
			"internal/agent/api", "internal/capture", "internal/manifest", "internal/convert", "internal/model",
			"internal/daemon", "internal/sandbox/...",
		},
		foreign: []string{
			k8sAPI, k8sMeta, "sigs.k8s.io/yaml", netlinkPk, netnsPkg, "golang.org/x/sys/unix", "golang.org/x/sync/",
			"github.com/google/renameio/v2", "github.com/containernetworking/plugins/pkg/ns",
		},
		reason: "the sandbox plays the cluster; it must not know what the node decides",
	},
	"internal/sandbox/echo": {
		foreign: []string{"golang.org/x/sys/unix", "golang.org/x/sync/"},
		reason:  "the built-in programs are applications; they know nothing of the mesh",
	},
	"internal/ctl": {
		ours: []string{
			"internal/agent/api", "internal/explain", "internal/manifest", "internal/convert", "internal/model", "internal/plan",
			"internal/sandbox", "internal/daemon", "internal/check", "internal/capture",
		},
		foreign: []string{
			"github.com/spf13/cobra", "github.com/spf13/pflag", "charm.land/lipgloss/v2", "sigs.k8s.io/yaml",
			"golang.org/x/term", "golang.org/x/sys/unix",
		},
		reason: "the CLI asks and prints",
	},
	"cmd/aether-agent": {
		ours: []string{
			"internal/agent", "internal/daemon", "internal/manifest", "internal/convert", "internal/kube", "internal/envoy",
			"internal/plan", "internal/proxy", "internal/capture", "internal/check",
		},
		foreign: []string{promPkg, "k8s.io/klog/v2"},
		reason:  "flags, config, Run",
	},
	"cmd/aetherctl": {
		ours:   []string{"internal/ctl", "internal/sandbox", "internal/sandbox/..."},
		reason: "flags, config, Run",
	},
}

// closures names what a binary must not link, directly or not.
var closures = map[string][]string{
	"cmd/aetherctl": {envoyAPI, "google.golang.org/grpc", "k8s.io/client-go"},
	"cmd/aether-agent": {
		"github.com/spf13/cobra", "charm.land/lipgloss", "sigs.k8s.io/controller-runtime",
		"k8s.io/client-go/kubernetes", "k8s.io/client-go/informers", "k8s.io/client-go/listers", "k8s.io/client-go/dynamic",
		"k8s.io/client-go/discovery",
	},
	"internal/capture": {"google.golang.org/grpc", "k8s.io/", promPkg, protobuf},
}

type goPackage struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string
	Doc        string
	Dir        string
	GoFiles    []string
}

func listPackages(t *testing.T, patterns ...string) []goPackage {
	t.Helper()
	args := append([]string{"list", "-json=ImportPath,Standard,Imports,Deps,Doc,Dir,GoFiles"}, patterns...)
	cmd := exec.Command("go", args...)
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		var ee *exec.ExitError
		if errors.As(err, &ee) {
			t.Fatalf("go list: %v\n%s", err, ee.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var pkgs []goPackage
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatalf("read go list: %v", err)
		}
		pkgs = append(pkgs, p)
	}
}

func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func allowed(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		if tree, ok := strings.CutSuffix(p, "/..."); ok {
			return strings.HasPrefix(path, tree+"/")
		}
		return path == p
	})
}

// broken returns the imports of a room that its rule does not allow.
func (r room) broken(imports []string) []string {
	var bad []string
	for _, imp := range imports {
		switch ours, isOurs := strings.CutPrefix(imp, module); {
		case isOurs:
			if !allowed(r.ours, ours) {
				bad = append(bad, imp)
			}
		case isStandard(imp):
		default:
			if !slices.ContainsFunc(r.foreign, func(p string) bool { return strings.HasPrefix(imp, p) }) {
				bad = append(bad, imp)
			}
		}
	}
	return bad
}

func TestRoomsImportOnlyWhatTheyMay(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range listPackages(t, "./cmd/...", "./internal/...") {
		name := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasSuffix(name, "test") {
			continue // fakes for tests; only tests may import them, see below
		}
		r, ok := rooms[name]
		if !ok {
			t.Errorf("package %s is in no room: add it to the table with a reason", name)
			continue
		}
		seen[name] = true
		for _, bad := range r.broken(p.Imports) {
			t.Errorf("%s must not import %s: %s", name, bad, r.reason)
		}
		for _, imp := range p.Imports {
			if strings.HasPrefix(imp, module) && strings.HasSuffix(imp, "test") {
				t.Errorf("%s imports the test fake %s", name, imp)
			}
		}
	}
	for name := range rooms {
		if !seen[name] {
			t.Errorf("the table names %s, which does not exist", name)
		}
	}
}

func TestPureRoomsHaveNoClocksGoroutinesOrIO(t *testing.T) {
	forbidden := map[string]bool{
		"os": true, "net": true, "log": true, "log/slog": true, "io/fs": true, "os/exec": true, "syscall": true, "net/http": true, "context": true, "sync": true,
	}
	pure := []string{"./internal/model", "./internal/plan", "./internal/plan/demand", "./internal/envoy", "./internal/explain", "./internal/convert", "./internal/check"}
	for _, p := range listPackages(t, pure...) {
		for _, imp := range p.Imports {
			if forbidden[imp] {
				t.Errorf("%s is pure and must not import %s", p.ImportPath, imp)
			}
		}
		for _, bad := range impureStatements(t, p) {
			t.Errorf("%s", bad)
		}
	}
}

func TestBinariesLinkNothingTheyMustNot(t *testing.T) {
	for name, banned := range closures {
		for _, p := range listPackages(t, "./"+name) {
			for _, dep := range p.Deps {
				if i := slices.IndexFunc(banned, func(b string) bool { return strings.HasPrefix(dep, b) }); i >= 0 {
					t.Errorf("%s links %s", name, dep)
				}
			}
		}
	}
}

// The rule itself must be able to fail.
func TestRoomRuleNoticesABreach(t *testing.T) {
	r := rooms["internal/plan"]
	got := r.broken([]string{"fmt", module + "internal/model", module + "internal/xds", "k8s.io/api/core/v1"})
	want := []string{module + "internal/xds", "k8s.io/api/core/v1"}
	if !slices.Equal(got, want) {
		t.Errorf("broken = %v, want %v", got, want)
	}
}
