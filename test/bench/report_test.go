// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aether.io/aether/test/bench/figure"
)

// one is a distribution of one value.
func one(v float64) figure.Distribution { return figure.Of([]float64{v}) }

func load(source, kind string, perSecond, p99 float64) Load {
	return Load{
		Source: source, Kind: kind, Others: one(0.25),
		Lanes: map[string]Lane{
			"bare":    {PerSecond: one(1000), P50: one(1), P99: one(2), CPU: one(10), All: one(50)},
			"capture": {PerSecond: one(1000 * perSecond), P50: one(1), P99: one(2 * p99), CPU: one(11), All: one(55)},
		},
		Ratios: map[string]Ratio{"capture": {PerSecond: one(perSecond), P99: one(p99), CPU: one(1.1), All: one(1.05)}},
	}
}

func TestBars(t *testing.T) {
	first := func(p50, p99 float64) FirstConnections {
		return FirstConnections{Source: "pod", First: figure.First{Over: figure.Distribution{Median: p50, P99: p99}}}
	}
	cases := []struct {
		name   string
		report Report
		want   []string // the bars in order
	}{
		{"first connection", Report{First: []FirstConnections{first(4, 10)}}, []string{"≤ 4 ✔", "≤ 10 ✔"}},
		{"first connection slow", Report{First: []FirstConnections{first(4.1, 10.1)}}, []string{"≤ 4 ✖", "≤ 10 ✖"}},
		{"kept alive", Report{Load: []Load{load("pod", keptAlive, 0.97, 1.1)}}, []string{"≥ 0.97 ✔", "≤ 1.1 ✔"}},
		{"kept alive slow", Report{Load: []Load{load("node", keptAlive, 0.96, 1.11)}}, []string{"≥ 0.97 ✖", "≤ 1.1 ✖"}},
		{"new, pod", Report{Load: []Load{load("pod", newConnections, 0.85, 9)}}, []string{"≥ 0.85 ✔"}},
		{"new, pod, slow", Report{Load: []Load{load("pod", newConnections, 0.84, 9)}}, []string{"≥ 0.85 ✖"}},
		{"new, node", Report{Load: []Load{load("node", newConnections, 0.95, 9)}}, []string{"≥ 0.95 ✔"}},
		{"new, node, slow", Report{Load: []Load{load("node", newConnections, 0.94, 9)}}, []string{"≥ 0.95 ✖"}},
		{
			"a bar that the samples leave open",
			Report{First: []FirstConnections{{First: figure.First{Over: figure.Distribution{Median: 3.9, Low: 3, High: 4.5, P99: 5}}}}},
			[]string{"≤ 4 ✔ not for sure", "≤ 10 ✔"},
		},
		{
			"a miss that is sure",
			Report{First: []FirstConnections{{First: figure.First{Over: figure.Distribution{Median: 4.4, Low: 4.1, High: 4.5, P99: 5}}}}},
			[]string{"≤ 4 ✖", "≤ 10 ✔"},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, row := range c.report.rows() {
				if row.Bar != nil {
					got = append(got, row.Bar.Limit()+" "+row.Bar.Verdict())
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("bars (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTableForPeople(t *testing.T) {
	r := Report{Load: []Load{load("pod", newConnections, 0.9, 1.2)}}
	r.Rows = r.rows()
	var out bytes.Buffer
	r.print(&out)
	for _, want := range []string{
		"new connections/s", "0.900", "≥ 0.85  ✔", "bare", "capture", "900", "11.0 µs           55.0 µs", "25 %",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}

func TestFlags(t *testing.T) {
	with := func(s Settings, change func(*Settings)) Settings {
		change(&s)
		return s
	}
	cases := []struct {
		args string
		want Settings
		err  string
	}{
		{"", defaults, ""},
		{"-quick", quick, ""},
		{"-quick -pairs 5", with(quick, func(s *Settings) { s.Pairs = 5 }), ""},
		{"-names 400 -seconds 3", with(defaults, func(s *Settings) { s.Names, s.Seconds = 400, 3 }), ""},
		{"-source node -only new,first", with(defaults, func(s *Settings) {
			s.Sources, s.Rows = []string{"node"}, []string{newConnections, rowFirst}
		}), ""},
		{"-calm 0.1", with(defaults, func(s *Settings) { s.Calm = 0.1 }), ""},
		{"-calm 0", Settings{}, "calm 0"},
		{"-calm 1.1", Settings{}, "calm 1.1"},
		{"-source host", Settings{}, `source "host": want one of pod, node`},
		{"-only warm", Settings{}, `row "warm"`},
		{"-pairs 0", Settings{}, "0 pairs"},
		{"-seconds 0.5", Settings{}, "whole seconds"},
		{"-names 0", Settings{}, "0 names"},
		{"-names 50001", Settings{}, "50001 names"},
		{"new", Settings{}, "unexpected argument new"},
		{"-nonsense", Settings{}, "not defined"},
	}
	for _, c := range cases {
		t.Run(c.args, func(t *testing.T) {
			_, got, _, err := parse(strings.Fields(c.args), io.Discard)
			wantError(t, err, c.err)
			if err != nil {
				return
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
		})
	}
	if !slices.Equal(defaults.Rows, allRows) || !slices.Equal(defaults.Sources, allSources) {
		t.Error("the default is not everything")
	}
}
