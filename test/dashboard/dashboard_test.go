// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
)

// TestNode: of a node that runs, every query of the dashboard gives samples, every
// alert can be evaluated and none about the node's health is firing, and what is
// scraped of Envoy is what is documented.
func TestNode(t *testing.T) {
	queries, alerts := dashboardQueries(t), alertRules(t)
	n := startNode(t)
	recorded, end := n.record(t)
	engine := newEngine()
	known := documented(t)
	for _, q := range queries {
		t.Run("panel "+q.where, func(t *testing.T) {
			checkNames(t, known, q)
			samples := evaluate(t, engine, recorded, q, end)
			if len(samples) == 0 {
				t.Errorf("no sample: %s", q.expr)
			}
			for _, s := range samples {
				if s.F != s.F {
					t.Errorf("%s is no number: %s", s.Metric, q.expr)
				}
			}
		})
	}
	for _, q := range alerts {
		t.Run("alert "+q.where, func(t *testing.T) {
			checkNames(t, known, q)
			samples := evaluate(t, engine, recorded, q, end)
			// The shop's pods are refused and fail on purpose.
			meant := q.where == "AetherRefusals" || q.where == "AetherConnectionsFail" || q.where == "AetherAnswersSlow"
			if len(samples) > 0 && !meant {
				t.Errorf("it fires on a healthy node: %v", samples)
			}
		})
	}
	t.Run("traffic is seen", func(t *testing.T) { seen(t, engine, recorded, end) })
	t.Run("what is scraped is documented", func(t *testing.T) { scrapedIsDocumented(t, n, known) })
	t.Run("the command prints the same", func(t *testing.T) { commandPrints(t, n) })
}

// seen compares what was dialled with what the storage has of it.
func seen(t *testing.T, engine *promql.Engine, recorded *store, end time.Time) {
	for expr, want := range map[string][]string{
		`sum by (outcome) (envoy_aether_egress_connections) > 0`: {"connect-failed", "ok", "refused"},
		`sum by (reason) (envoy_aether_proxy_svc_refused) > 0`:   {"no-endpoints", "no-service", "port-not-declared"},
		`sum by (source_service_account) (rate(envoy_aether_egress_connections[5m])) > 0`: {
			"batch", "client",
		},
		`sum by (service) (envoy_aether_egress_bytes_received{service!=""}) > 0`: {"web"},
	} {
		var got []string
		for _, s := range evaluate(t, engine, recorded, query{"traffic", expr}, end) {
			s.Metric.Range(func(l labels.Label) { got = append(got, l.Value) })
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
}

var (
	helpLine = regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`)
	series   = regexp.MustCompile(`(?m)^([a-z_]+)\{([^}]*)\} \S+$`)
	labelKey = regexp.MustCompile(`([a-z_]+)="`)
)

// scrapedIsDocumented compares Envoy's metrics, as the agent passes them on, with
// the reference: names, types and labels.
func scrapedIsDocumented(t *testing.T, n node, known map[string][]string) {
	body, _, err := n.get("/metrics/envoy?detail=services")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root(), "docs/reference/metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]string{}
	for _, m := range helpLine.FindAllStringSubmatch(string(body), -1) {
		types[m[1]] = m[2]
	}
	for _, m := range series.FindAllStringSubmatch(string(body), -1) {
		for _, key := range labelKey.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(known[m[1]], key[1]) {
				t.Errorf("%s has a label %s that is not documented", m[1], key[1])
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(types)) {
		if !strings.Contains(string(text), fmt.Sprintf("| `%s` | %s |", name, types[name])) && !inCounters(name) {
			t.Errorf("%s, a %s, is scraped and not documented so", name, types[name])
		}
	}
	for name := range known {
		if strings.HasPrefix(name, "envoy_") && types[name] == "" {
			t.Errorf("%s is documented and not scraped", name)
		}
	}
}

// inCounters reports whether a metric is in the table of connections' counters,
// which test/rules compares with the program.
func inCounters(name string) bool { return strings.HasPrefix(name, "envoy_aether_") }

// commandPrints: aetherctl metrics gives what a scrape does.
func commandPrints(t *testing.T, n node) {
	for whose, metric := range map[string]string{"agent": "aether_agent_mode", "envoy": "envoy_server_live"} {
		out, err := n.ctl("metrics", whose)
		if err != nil || !strings.Contains(string(out), metric) {
			t.Errorf("aetherctl metrics %s: %v\n%.300s", whose, err, out)
		}
	}
	if out, err := n.ctl("metrics", "nobody"); err == nil {
		t.Errorf("aetherctl metrics nobody: %s", out)
	}
	if _, _, err := n.get("/metrics/envoy?detail=everything"); err == nil || !strings.Contains(err.Error(), "400") {
		t.Errorf("detail that is none: %v", err)
	}
}
