// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	grafana "github.com/grafana/grafana-foundation-sdk/go/dashboard"
	grafanaprom "github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
)

// query is one expression of a document.
type query struct {
	where string // panel or alert
	expr  string
}

// variables are what Grafana puts in place of its own.
var variables = strings.NewReplacer("$__rate_interval", "5m", "$__range", "5m", "$instance", "n1")

// dashboardQueries reads the dashboard strictly and returns the queries of its
// panels.
func dashboardQueries(t *testing.T) []query {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root(), "dashboards/aether-node.json"))
	if err != nil {
		t.Fatal(err)
	}
	plugins.RegisterDefaultPlugins()
	var d grafana.Dashboard //nolint:staticcheck // the form that every Grafana imports; the newer one needs a server that has it
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatalf("the dashboard is none that Grafana knows: %v", err)
	}
	// What Grafana's types do not know is lost on the way through them. (Their own
	// strict decoder, at this version, takes no panel at all.)
	again, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lost(t, raw, again) {
		t.Errorf("the dashboard has %s, which Grafana does not know", path)
	}
	if err := d.Validate(); err != nil {
		t.Fatalf("the dashboard is not valid: %v", err)
	}
	var out []query
	seen := map[uint32]bool{}
	for _, item := range d.Panels {
		if item.RowPanel != nil {
			seen[item.RowPanel.Id] = true
			continue
		}
		p := item.Panel
		if p.Id == nil || seen[*p.Id] || p.Title == nil || p.Description == nil {
			t.Fatalf("a panel without an id of its own, a title or a description: %+v", p)
		}
		seen[*p.Id] = true
		if len(p.Targets) == 0 {
			t.Errorf("panel %q has no query", *p.Title)
		}
		for _, target := range p.Targets {
			q, ok := target.(*grafanaprom.Dataquery)
			if !ok {
				t.Fatalf("panel %q has a query that is none of Prometheus: %T", *p.Title, target)
			}
			out = append(out, query{*p.Title, variables.Replace(q.Expr)})
		}
	}
	if len(out) < 20 {
		t.Fatalf("the dashboard has %d queries: that is too few to be true", len(out))
	}
	return out
}

// alertRules reads the example's alerts as Prometheus does.
func alertRules(t *testing.T) []query {
	t.Helper()
	groups, errs := rulefmt.ParseFile(filepath.Join(root(), "examples/prometheus/alerts.yml"), false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatalf("the alerts are not valid: %v", errs)
	}
	var out []query
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			if r.Annotations["summary"] == "" || r.Labels["severity"] == "" {
				t.Errorf("alert %s has no summary or no severity", r.Alert)
			}
			out = append(out, query{r.Alert, r.Expr})
		}
	}
	return out
}

// evaluate runs a query at a time and returns its samples.
func evaluate(t *testing.T, engine *promql.Engine, from storage.Queryable, q query, at time.Time) promql.Vector {
	t.Helper()
	prepared, err := engine.NewInstantQuery(t.Context(), from, nil, q.expr, at)
	if err != nil {
		t.Fatalf("%s: %s: %v", q.where, q.expr, err)
	}
	defer prepared.Close()
	result := prepared.Exec(t.Context())
	if result.Err != nil {
		t.Fatalf("%s: %s: %v", q.where, q.expr, result.Err)
	}
	v, err := result.Vector()
	if err != nil {
		t.Fatalf("%s: %s: %v", q.where, q.expr, err)
	}
	return v
}

// named is what an expression names: metrics, and labels of each.
func named(t *testing.T, q query) map[string][]string {
	t.Helper()
	e, err := parser.NewParser(parser.Options{}).ParseExpr(q.expr)
	if err != nil {
		t.Fatalf("%s: %s: %v", q.where, q.expr, err)
	}
	out := map[string][]string{}
	parser.Inspect(e, func(n parser.Node, path []parser.Node) error {
		s, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		out[s.Name] = append(out[s.Name], "")
		for _, m := range s.LabelMatchers {
			if m.Name != "__name__" {
				out[s.Name] = append(out[s.Name], m.Name)
			}
		}
		for _, above := range path {
			if a, ok := above.(*parser.AggregateExpr); ok {
				out[s.Name] = append(out[s.Name], a.Grouping...)
			}
		}
		return nil
	})
	return out
}

// ofTargets are the labels that a scrape adds.
var ofTargets = []string{"", "job", "instance"}

var (
	tableRow = regexp.MustCompile("(?m)^\\| `([a-z_]+)`[^|]*\\|([^|]*)\\|([^|]*)\\|")
	code     = regexp.MustCompile("`([a-z_]+)`")
)

// documented reads the metrics of the reference and their labels.
func documented(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(), "docs/reference/metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{"up": nil}
	for _, m := range tableRow.FindAllStringSubmatch(string(text), -1) {
		name, kind, keys := m[1], strings.TrimSpace(m[2]), code.FindAllStringSubmatch(m[3], -1)
		if strings.HasPrefix(name, "envoy_aether_") {
			keys = code.FindAllStringSubmatch(m[2], -1) // it has no column for the type
		} else if !slices.Contains([]string{"counter", "gauge", "histogram"}, kind) {
			continue
		}
		var ls []string
		for _, l := range keys {
			ls = append(ls, l[1])
		}
		out[name] = ls
		if kind == "histogram" {
			out[name+"_bucket"] = append(slices.Clone(ls), "le")
			out[name+"_sum"], out[name+"_count"] = ls, ls
		}
	}
	if len(out) < 30 {
		t.Fatalf("%d metrics are documented: that is too few to be true", len(out))
	}
	return out
}

// checkNames checks that what an expression names is documented.
func checkNames(t *testing.T, known map[string][]string, q query) {
	t.Helper()
	for metric, keys := range named(t, q) {
		has, ok := known[metric]
		if !ok {
			t.Errorf("%s: docs/reference/metrics.md has no metric %s", q.where, metric)
			continue
		}
		for _, l := range keys {
			if !slices.Contains(has, l) && !slices.Contains(ofTargets, l) {
				t.Errorf("%s: docs/reference/metrics.md gives %s no label %s", q.where, metric, l)
			}
		}
	}
}

// lost lists what of one JSON document the other has not.
func lost(t *testing.T, from, to []byte) []string {
	t.Helper()
	var a, b any
	if err := errors.Join(json.Unmarshal(from, &a), json.Unmarshal(to, &b)); err != nil {
		t.Fatal(err)
	}
	var out []string
	var compare func(path string, a, b any)
	compare = func(path string, a, b any) {
		switch a := a.(type) {
		case map[string]any:
			m, _ := b.(map[string]any)
			for key, value := range a {
				compare(path+"."+key, value, m[key])
			}
		case []any:
			l, _ := b.([]any)
			for i, value := range a {
				if i >= len(l) {
					out = append(out, fmt.Sprintf("%s[%d]", path, i))
					continue
				}
				compare(fmt.Sprintf("%s[%d]", path, i), value, l[i])
			}
		default:
			if a != b {
				out = append(out, fmt.Sprintf("%s: %v", path, a))
			}
		}
	}
	compare("", a, b)
	slices.Sort(out)
	return out
}

// TestLost: what is lost is noticed.
func TestLost(t *testing.T) {
	got := lost(t, []byte(`{"a": 1, "b": {"c": [1, 2]}, "d": null}`), []byte(`{"a": 1, "b": {"c": [1, 3]}, "e": 5}`))
	if want := []string{".b.c[1]: 2"}; !slices.Equal(got, want) {
		t.Errorf("lost %q, want %q", got, want)
	}
}
