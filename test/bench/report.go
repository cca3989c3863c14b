// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"
)

// Report is the machine-readable copy of a run.
type Report struct {
	Began    time.Time          `json:"began"`
	Seconds  float64            `json:"seconds"`
	Machine  Machine            `json:"machine"`
	Settings Settings           `json:"settings"`
	Rows     []Row              `json:"rows"`
	First    []FirstConnections `json:"firstConnections"`
	Load     []Load             `json:"load"`
	// Valid is false when anything went wrong: then Error says what, and the
	// figures mean nothing.
	Valid bool   `json:"valid"`
	Error string `json:"error,omitempty"`
}

// Row is one figure of the table, with its spread where it is a median of many.
type Row struct {
	Measure string        `json:"measure"`
	Source  string        `json:"source"`
	Unit    string        `json:"unit"` // "ms" or "ratio"
	Figure  float64       `json:"figure"`
	Spread  *Distribution `json:"spread,omitempty"`
	Bar     *Bar          `json:"bar,omitempty"`
}

// Bar is what a figure must reach.
type Bar struct {
	AtLeast float64 `json:"atLeast,omitempty"`
	AtMost  float64 `json:"atMost,omitempty"`
	Met     bool    `json:"met"`
	// Unsure is true when the bar lies within what the samples leave open.
	Unsure bool `json:"unsure,omitempty"`
}

// atLeast and atMost set the bar of a row.
func (r Row) atLeast(limit float64) Row {
	r.Bar = &Bar{AtLeast: limit, Met: r.Figure >= limit, Unsure: r.leavesOpen(limit)}
	return r
}

func (r Row) atMost(limit float64) Row {
	r.Bar = &Bar{AtMost: limit, Met: r.Figure <= limit, Unsure: r.leavesOpen(limit)}
	return r
}

func (r Row) leavesOpen(limit float64) bool {
	return r.Spread != nil && r.Spread.Low < limit && limit < r.Spread.High
}

func (b *Bar) String() string {
	if b == nil {
		return "\t"
	}
	limit := fmt.Sprintf("≤ %g", b.AtMost)
	if b.AtLeast != 0 {
		limit = fmt.Sprintf("≥ %g", b.AtLeast)
	}
	verdict := "MISSED"
	if b.Met {
		verdict = "met"
	}
	if b.Unsure {
		verdict += ", not for sure"
	}
	return limit + "\t" + verdict
}

// rows makes the table of a report.
func (r *Report) rows() []Row {
	var out []Row
	for _, f := range r.First {
		out = append(out,
			middle("first connection, p50", f.Source, "ms", f.Cold),
			tail("first connection, p99", f.Source, f.Cold),
			middle("later connection, p50", f.Source, "ms", f.Warm),
			tail("later connection, p99", f.Source, f.Warm),
			middle("first over later, p50", f.Source, "ms", f.Over).atMost(4),
			tail("first over later, p99", f.Source, f.Over).atMost(10),
		)
	}
	for _, l := range r.Load {
		out = append(out, l.rows()...)
	}
	return out
}

// newBar is the bar of new connections per second. A pod-sourced connection
// enters the pod's namespace and leaves by the pod's interface.
var newBar = map[string]float64{"pod": 0.85, "node": 0.95}

func (r *Load) rows() []Row {
	ratio := r.Ratios["capture"]
	of := func(what string, d Distribution) Row { return middle("capture ÷ bare, "+what, r.Source, "ratio", d) }
	if r.Kind == newConnections {
		return []Row{
			of("new connections/s", ratio.PerSecond).atLeast(newBar[r.Source]),
			of("p99 of new connections", ratio.P99),
			of("CPU of Envoy per new connection", ratio.CPU),
			of("CPU of all per new connection", ratio.All),
		}
	}
	return []Row{
		of("kept-alive requests/s", ratio.PerSecond).atLeast(0.97),
		of("p99 of kept-alive requests", ratio.P99).atMost(1.1),
		of("CPU of Envoy per kept-alive request", ratio.CPU),
		of("CPU of all per kept-alive request", ratio.All),
	}
}

// middle is a row of a median, tail one of a 99th percentile.
func middle(measure, source, unit string, d Distribution) Row {
	return Row{Measure: measure, Source: source, Unit: unit, Figure: d.Median, Spread: &d}
}

func tail(measure, source string, d Distribution) Row {
	return Row{Measure: measure, Source: source, Unit: "ms", Figure: d.P99}
}

// print writes the tables for people.
func (r *Report) print(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nmeasure\tsource\tfigure\t95 % sure\tmin – q1 – q3 – max\tbar\t")
	for _, row := range r.Rows {
		format, unit := "%.3f", ""
		if row.Unit == "ms" {
			format, unit = "%.2f", " ms"
		}
		figure, sure, between := fmt.Sprintf(format, row.Figure)+unit, "", ""
		if d := row.Spread; d != nil {
			sure = fmt.Sprintf(format+" – "+format, d.Low, d.High)
			between = fmt.Sprintf(format+" – "+format+" – "+format+" – "+format, d.Min, d.Q1, d.Q3, d.Max)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", row.Measure, row.Source, figure, sure, between, row.Bar)
	}
	t.Flush()
	fmt.Fprintln(t, "\nlane\tsource\tload\tper second\tp50\tp99\tCPU of its Envoy\tof all\tmachine used by others\t")
	for _, l := range r.Load {
		for _, name := range slices.Sorted(maps.Keys(l.Lanes)) {
			lane := l.Lanes[name]
			fmt.Fprintf(t, "%s\t%s\t%s\t%.0f\t%.2f ms\t%.2f ms\t%.1f µs\t%.1f µs\t%.0f %%\t\n",
				name, l.Source, l.Kind, lane.PerSecond.Median, lane.P50.Median, lane.P99.Median,
				lane.CPU.Median, lane.All.Median, 100*l.Others.Median)
		}
	}
	t.Flush()
}

func (r *Report) write(path string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
