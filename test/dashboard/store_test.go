// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/timestamp"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// store holds series for the engine. Prometheus' own storage would do the same and
// links half a cloud.
type store struct{ byLabels map[string]*promql.Series }

func newStore() *store { return &store{map[string]*promql.Series{}} }

func (s *store) add(l labels.Labels, at time.Time, v float64) {
	key := l.String()
	if s.byLabels[key] == nil {
		s.byLabels[key] = &promql.Series{Metric: l}
	}
	x := s.byLabels[key]
	x.Floats = append(x.Floats, promql.FPoint{T: timestamp.FromTime(at), F: v})
}

// load adds series in the notation of Prometheus' rule tests, one a line, with a
// value each scrapeEvery from the beginning of time on.
func (s *store) load(t *testing.T, text string) (end time.Time) {
	t.Helper()
	end = time.Unix(0, 0)
	for line := range strings.Lines(strings.TrimSpace(text)) {
		l, values, err := parser.NewParser(parser.Options{}).ParseSeriesDesc(strings.TrimSpace(line))
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		at := time.Unix(0, 0)
		for i, v := range values {
			if i > 0 {
				at = at.Add(scrapeEvery)
			}
			if !v.Omitted {
				s.add(l, at, v.Value)
			}
		}
		if at.After(end) {
			end = at
		}
	}
	return end
}

// Querier implements storage.Queryable.
func (s *store) Querier(int64, int64) (storage.Querier, error) { return querier{s}, nil }

type querier struct{ *store }

func (querier) Close() error { return nil }

func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var found []promql.Series
	for _, x := range q.byLabels {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(x.Metric.Get(m.Name)) }) {
			found = append(found, *x)
		}
	}
	slices.SortFunc(found, func(a, b promql.Series) int { return labels.Compare(a.Metric, b.Metric) })
	return &seriesSet{found: found, at: -1}
}

var errNotNeeded = errors.New("the engine does not ask for this")

func (querier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, errNotNeeded
}

func (querier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, errNotNeeded
}

// seriesSet walks over what was found.
type seriesSet struct {
	found []promql.Series
	at    int
}

func (s *seriesSet) Next() bool                        { s.at++; return s.at < len(s.found) }
func (s *seriesSet) At() storage.Series                { return promql.NewStorageSeries(s.found[s.at]) }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

func newEngine() *promql.Engine {
	return promql.NewEngine(promql.EngineOpts{
		MaxSamples: 10_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, EnableAtModifier: true, EnableNegativeOffset: true,
		Parser: parser.NewParser(parser.Options{}),
	})
}

// TestStore: the engine finds in it what was put there.
func TestStore(t *testing.T) {
	s := newStore()
	end := s.load(t, `
		a{x="1"} 0+3.75x40
		a{x="2"} 5x40
		b{x="1"} _x39 7
	`)
	for expr, want := range map[string]string{
		`round(rate(a[5m]), 0.01)`: `{x="1"} => 0.25 @[600000] {x="2"} => 0 @[600000]`,
		`a{x=~"2|3"}`:              `{__name__="a", x="2"} => 5 @[600000]`,
		`a + on (x) b`:             `{x="1"} => 157 @[600000]`,
		`absent(c)`:                `{} => 1 @[600000]`,
		`sum by (x) (a) > 10`:      `{x="1"} => 150 @[600000]`,
	} {
		var got []string
		for _, sample := range evaluate(t, newEngine(), s, query{"test", expr}, end) {
			got = append(got, sample.String())
		}
		slices.Sort(got)
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: %s, want %s", expr, text, want)
		}
	}
}
