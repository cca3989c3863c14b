// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	statslogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stats/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"google.golang.org/protobuf/encoding/protojson"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

// TestEnvoyValidates gives Envoy every kind of message as static configuration.
func TestEnvoyValidates(t *testing.T) {
	for _, s := range []Settings{DefaultSettings(), nodeSettings()} {
		t.Run(string(s.EgressSource), func(t *testing.T) {
			dir := t.TempDir()
			s.AccessLogPath = filepath.Join(dir, "access.log")
			b := bootstrap(testBootstrap())
			b.Admin.GetAddress().GetPipe().Path = filepath.Join(dir, "admin.sock")
			w := testWorkload()
			w.NetNS = "/proc/self/ns/net"
			b.StaticResources.Listeners = []*listenerv3.Listener{unshared(t, Listener(w, testCapture(), s))}
			clusters := append(BaseClusters(s), EmptyCluster(netip.MustParseAddrPort("10.96.9.1:80")))
			for _, a := range []plan.Answer{
				served("10.96.0.12:80", "web", "http", "10.244.1.1:8080"),
				clientIP(served("10.96.0.13:80", "sticky", "http", "10.244.1.1:8080")),
				passedThrough(served("10.96.0.14:80", "foreign", "http")),
				noService("10.96.9.9:80"),
				portNotDeclared("10.96.0.12:81", "web", "81"),
			} {
				clusters = append(clusters, Translate(a, s).Cluster)
			}
			b.StaticResources.Clusters = append(b.StaticResources.Clusters, clusters...)
			raw, err := protojson.Marshal(b)
			if err != nil {
				t.Fatal(err)
			}
			config := filepath.Join(dir, "bootstrap.json")
			if err := os.WriteFile(config, raw, 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command(envoyBinary(t), "--mode", "validate", "-c", config, "-l", "error").CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// unshared gives each counting logger of a listener a scope of its own. With a
// shared one Envoy 1.40 says that the configuration is good and then crashes at
// the end of --mode validate; a running Envoy ends well, which every test with
// one looks at.
func unshared(t *testing.T, l *listenerv3.Listener) *listenerv3.Listener {
	t.Helper()
	editScopes(t, l, func(s *typev3.Scope) { s.SharingName = "" })
	return l
}

// editScopes changes the scopes of a listener's counting loggers.
func editScopes(t *testing.T, l *listenerv3.Listener, edit func(*typev3.Scope)) {
	t.Helper()
	for _, a := range l.GetAccessLog() {
		var c statslogv3.Config
		if !a.GetTypedConfig().MessageIs(&c) {
			continue
		}
		if err := a.GetTypedConfig().UnmarshalTo(&c); err != nil {
			t.Fatal(err)
		}
		edit(c.GetStatsScope())
		a.ConfigType = &accesslogv3.AccessLog_TypedConfig{TypedConfig: pack(&c)}
	}
}

// Bounds of what one more thing costs Envoy with two workers, in KiB of allocated memory.
const (
	maxListenerKiB = 88 // of them 12 for records: 1.5 a chain, 5 at the end, 1.3 a rate
	maxServiceKiB  = 55 // three endpoints
	maxRingKiB     = 85 // three endpoints, ClientIP affinity
	maxRefusedKiB  = 31
)

// TestRealMemory measures what one more listener, Service cluster and refused
// name cost: of two hundred, after a first hundred.
func TestRealMemory(t *testing.T) {
	const warm, n = 100, 200
	l := newLab(t, PodSource)
	l.start(testCapture())
	vip := func(i int) string { return fmt.Sprintf("10.96.%d.%d:80", i/250, i%250) }
	service := func(i int) plan.Answer {
		return served(vip(i), fmt.Sprintf("service-%d", i), "http", "10.1.1.1:80", "10.1.1.2:80", "10.1.1.3:80")
	}
	next := 0
	answers := func(answer func(i int) plan.Answer) func(n int) {
		return func(n int) { l.addAnswers(next, n, answer); next += n }
	}
	const listeners, clusters = "listener_manager.total_listeners_active", "cluster_manager.active_clusters"
	for _, tc := range []struct {
		what string
		max  float64
		stat string
		add  func(n int)
	}{
		{"capture listener", maxListenerKiB, listeners, l.addListeners},
		{"Service port, 3 endpoints", maxServiceKiB, clusters, answers(service)},
		{"Service port, 3 endpoints, ClientIP", maxRingKiB, clusters, answers(func(i int) plan.Answer { return clientIP(service(i)) })},
		{"Service port without endpoints", maxServiceKiB, clusters, answers(func(i int) plan.Answer {
			return noEndpoints(vip(i), fmt.Sprintf("service-%d", i), "http")
		})},
		{"refused name", maxRefusedKiB, clusters, answers(func(i int) plan.Answer { return noService(vip(i)) })},
		{"passed through name", maxRefusedKiB, clusters, answers(func(i int) plan.Answer { return passedThrough(noService(vip(i))) })},
	} {
		grow := func(n int) {
			want := l.gauge(tc.stat) + n
			tc.add(n)
			l.eventually(tc.what, func() error {
				if got := l.gauge(tc.stat); got != want {
					return fmt.Errorf("%d of %d", got, want)
				}
				return nil
			})
		}
		grow(warm)
		before := l.allocated()
		grow(n)
		each := (l.allocated() - before) / n / 1024
		t.Logf("%s: %.1f KiB", tc.what, each)
		if each > tc.max {
			t.Errorf("%s costs %.1f KiB, want at most %.0f", tc.what, each, tc.max)
		}
	}
}

// addListeners publishes n more capture listeners of pods that are not there, on
// ports of their own in the node's namespace.
func (l *lab) addListeners(n int) {
	set := map[string]types.Resource{}
	from := len(l.listeners.GetResources())
	for i := from; i < from+n; i++ {
		w := model.Workload{
			Name:           model.Name{Namespace: "default", Name: fmt.Sprintf("web-7f6d59-%d", i)},
			ServiceAccount: fmt.Sprintf("web-%d", i),
			NetNS:          "/run/netns/" + l.node,
		}
		ln := Listener(w, testCapture(), l.settings)
		ln.GetAddress().GetSocketAddress().PortSpecifier = &corev3.SocketAddress_PortValue{PortValue: uint32(20_000 + i)}
		set[ln.Name] = ln
	}
	l.must(l.listeners.UpdateResources(set, nil))
}

// addAnswers publishes answers unasked.
func (l *lab) addAnswers(from, n int, answer func(i int) plan.Answer) {
	assignments, clusters := map[string]types.Resource{}, map[string]types.Resource{}
	for i := from; i < from+n; i++ {
		r := Translate(answer(i), l.settings)
		clusters[r.Cluster.Name] = r.Cluster
		if r.Assignment != nil {
			assignments[r.Cluster.Name] = r.Assignment
		}
	}
	l.must(l.assignments.UpdateResources(assignments, nil))
	l.must(l.clusters.UpdateResources(clusters, nil))
}

func (l *lab) gauge(name string) int {
	l.t.Helper()
	body, err := l.admin("/stats?filter=^" + name + "$")
	l.must(err)
	_, value, _ := strings.Cut(strings.TrimSpace(body), ": ")
	n, err := strconv.Atoi(value)
	l.must(err)
	return n
}

// allocated returns the bytes Envoy has allocated, once they have settled.
func (l *lab) allocated() float64 {
	l.t.Helper()
	var last float64
	steady := 0
	l.eventually("memory settles", func() error {
		body, err := l.admin("/memory")
		l.must(err)
		var m struct {
			Allocated float64 `json:"allocated,string"`
		}
		l.must(json.Unmarshal([]byte(body), &m))
		if diff := m.Allocated - last; -8192 < diff && diff < 8192 {
			steady++
		} else {
			steady = 0
		}
		last = m.Allocated
		if steady < 20 {
			time.Sleep(20 * time.Millisecond)
			return fmt.Errorf("%d steady readings", steady)
		}
		return nil
	})
	return last
}
