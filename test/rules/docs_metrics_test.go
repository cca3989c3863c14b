// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	statslogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stats/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"
	"k8s.io/client-go/rest"

	"aether.io/aether/internal/agent"
	"aether.io/aether/internal/daemon"
	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/kube"
	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
	"aether.io/aether/internal/xds/xdstest"
	"aether.io/aether/test/markdown"
)

const metricsReference = "docs/reference/metrics.md"

// TestConnectionCounters: the counters of docs/reference/metrics.md and their
// labels are those that a listener's loggers count.
func TestConnectionCounters(t *testing.T) {
	var want [][]string
	for _, l := range envoy.Listener(model.Workload{}, plan.Capture{}, envoy.DefaultSettings()).GetAccessLog() {
		var c statslogv3.Config
		if !l.GetTypedConfig().MessageIs(&c) {
			continue
		}
		if err := l.GetTypedConfig().UnmarshalTo(&c); err != nil {
			t.Fatal(err)
		}
		for _, counter := range c.GetCounters() {
			var labels []string
			for _, tag := range counter.GetStat().GetTags() {
				labels = append(labels, "`"+tag.GetName()+"`")
			}
			want = append(want, []string{"`envoy_" + counter.GetStat().GetName() + "`", strings.Join(labels, ", ")})
		}
	}
	var got [][]string
	for _, row := range markdown.Rows(section(t, metricsReference, "Counters of connections")) {
		got = append(got, row[:2])
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("counters of connections (-program +document):\n%s", d)
	}
}

var placeholder = regexp.MustCompile(`<[a-z]+>`)

// TestEnvoyStatistics: the bootstrap leaves out no statistic that the document
// tells people to watch.
func TestEnvoyStatistics(t *testing.T) {
	raw, err := envoy.Bootstrap(envoy.BootstrapSettings{
		NodeID: "n1", XDSSocket: "/run/x.sock", RecordSocket: "/run/r.sock", AdminSocket: "/run/a.sock", DescriptorLimit: 1024,
	})
	if err != nil {
		t.Fatal(err)
	}
	var b bootstrapv3.Bootstrap
	if err := protojson.Unmarshal(raw, &b); err != nil {
		t.Fatal(err)
	}
	var left []*regexp.Regexp
	for _, p := range b.GetStatsConfig().GetStatsMatcher().GetExclusionList().GetPatterns() {
		left = append(left, regexp.MustCompile(`\A(?:`+p.GetSafeRegex().GetRegex()+`)\z`))
	}
	if len(left) == 0 {
		t.Fatal("the bootstrap leaves out no statistics: this shows nothing")
	}
	text := section(t, metricsReference, "Other statistics of Envoy worth an alert")
	names := firstColumn(t, metricsReference, "Other statistics of Envoy worth an alert")
	_, ofPorts, found := strings.Cut(text, "Of each asked Service port")
	if !found {
		t.Fatal("there is no table of a Service port's statistics")
	}
	for _, row := range markdown.Rows(ofPorts) {
		for _, name := range markdown.Code(row[0]) {
			names = append(names, "cluster.svc.shop.web.http."+name)
		}
	}
	for _, name := range names {
		name = placeholder.ReplaceAllString(name, "x")
		if slices.ContainsFunc(left, func(r *regexp.Regexp) bool { return r.MatchString(name) }) {
			t.Errorf("Envoy does not keep %s: the bootstrap leaves it out", name)
		}
	}
}

// TestAgentMetrics: the agent's metrics, as one that runs and has an Envoy gives
// them, are those of the document, are well named, and have the label values it
// lists.
func TestAgentMetrics(t *testing.T) {
	defer goleak.VerifyNone(t)
	registry := daemon.NewRegistry()
	runAgent(t, registry, func() { checkMetrics(t, registry) })
}

func checkMetrics(t *testing.T, registry *prometheus.Registry) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("metrics are not named as they should be: %v %v", problems, err)
	}
	ofGo := func(name string) bool { // and of Envoy's process, which this agent has not
		return strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "aether_envoy_process_")
	}
	var rows [][]string
	var gathered []string
	values := map[string]map[string]bool{}
	for _, f := range families {
		if ofGo(f.GetName()) {
			continue
		}
		gathered = append(gathered, f.GetName())
		var labels []string
		for _, m := range f.GetMetric() {
			labels = nil
			for _, l := range m.GetLabel() {
				labels = append(labels, "`"+l.GetName()+"`")
				if values[l.GetName()] == nil {
					values[l.GetName()] = map[string]bool{}
				}
				values[l.GetName()][l.GetValue()] = true
			}
		}
		rows = append(rows, []string{"`" + f.GetName() + "`", strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), f.GetHelp()})
	}
	sameSet(t, "metrics that were registered, and that a running agent has", gathered, described(registry, ofGo))
	generated(t, metricsReference, "agent-metrics", markdown.Table([]string{"metric", "type", "labels", "says"}, rows))
	checkLabelValues(t, values)
}

// checkLabelValues compares the values a running agent has with the lists.
func checkLabelValues(t *testing.T, values map[string]map[string]bool) {
	t.Helper()
	_, text, _ := strings.Cut(section(t, metricsReference, "The agent's own"), "<!-- end of agent-metrics -->")
	listed := map[string][]string{}
	for _, row := range markdown.Rows(text) {
		label := markdown.Code(row[0])[0]
		listed[label] = append(listed[label], markdown.Code(row[1])...)
	}
	for label, vs := range values {
		if label == "version" || label == "go_version" {
			continue
		}
		for v := range vs {
			if !slices.Contains(listed[label], v) {
				t.Errorf("label %s has the value %q, which %s does not list", label, v, metricsReference)
			}
		}
	}
	for label := range listed {
		if values[label] == nil {
			t.Errorf("%s lists values of a label %s that no metric has", metricsReference, label)
		}
	}
}

var fqName = regexp.MustCompile(`fqName: "([^"]+)"`)

// described returns the names of all metrics that are registered.
func described(r *prometheus.Registry, without func(string) bool) []string {
	ch := make(chan *prometheus.Desc)
	go func() {
		r.Describe(ch)
		close(ch)
	}()
	names := map[string]bool{}
	for d := range ch {
		if m := fqName.FindStringSubmatch(d.String()); m != nil && !without(m[1]) {
			names[m[1]] = true
		}
	}
	var out []string
	for n := range names {
		out = append(out, n)
	}
	return out
}

// runAgent runs an agent, and calls look when a pretended Envoy has had an answer.
func runAgent(t *testing.T, registry *prometheus.Registry, look func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "aether-docs-") // short: Unix sockets are made in it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cfg := agent.DefaultConfig()
	cfg.Node, cfg.Mode, cfg.RunDir, cfg.StateDir, cfg.MetricsAddress = "n1", plan.ModeEnforce, dir+"/run", dir+"/state", ""
	client, err := kube.NewClient(&rest.Config{Host: "https://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kube.New(client, kube.Options{Node: "n1", Registry: registry}); err != nil { // it dials nobody until it runs
		t.Fatal(err)
	}
	a, err := agent.New(cfg, agent.Deps{
		Registry: registry,
		Log:      slog.New(slog.DiscardHandler),
		Source: func(ctx context.Context, sink func(agent.Batch)) error {
			sink(agent.Batch{Synced: true, Changes: []model.Change{
				model.SetServiceCIDR{Name: "x", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}},
				model.SetService{Service: model.Service{
					Name: model.Name{Namespace: "shop", Name: "web"}, VIP: netip.MustParseAddr("10.96.0.10"),
					Ports: []model.ServicePort{{Name: "http", Port: 80, Protocol: model.TCP}},
				}},
			}})
			<-ctx.Done()
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	pretended, err := xdstest.New(xdstest.DialUnix(cfg.XDSSocket()), xdstest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for pretended.Connect() != nil && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond) // the socket comes with the first publication
	}
	const name = "svc:10.96.0.10:80"
	pretended.Ask(name)
	err = pretended.Wait(ctx, func() bool {
		return pretended.Resources(resource.ClusterType)[name] != nil && pretended.Resources(resource.EndpointType)[name] != nil
	})
	if err != nil {
		t.Fatalf("wait for the answer: %v", err)
	}
	for !hasMetric(t, registry, "aether_xds_acknowledge_seconds") && ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond) // what Envoy acknowledged is counted then
	}
	look()
	pretended.Close()
	stop()
	if err := <-ended; err != nil {
		t.Errorf("the agent ended with %v", err)
	}
}

func hasMetric(t *testing.T, registry *prometheus.Registry, name string) bool {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return true
		}
	}
	return false
}
