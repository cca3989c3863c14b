// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
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

// Row is one figure of the table. Min to Max are its spread over rounds; they are
// 0 where the figure is a percentile already.
type Row struct {
	Measure string  `json:"measure"`
	Source  string  `json:"source"`
	Unit    string  `json:"unit"` // "ms" or "ratio"
	Figure  float64 `json:"figure"`
	Min     float64 `json:"min,omitempty"`
	Q1      float64 `json:"q1,omitempty"`
	Q3      float64 `json:"q3,omitempty"`
	Max     float64 `json:"max,omitempty"`
	Bar     *Bar    `json:"bar,omitempty"`
}

// Bar is what a figure must reach.
type Bar struct {
	AtLeast float64 `json:"atLeast,omitempty"`
	AtMost  float64 `json:"atMost,omitempty"`
	Met     bool    `json:"met"`
}

func atLeast(limit, figure float64) *Bar { return &Bar{AtLeast: limit, Met: figure >= limit} }
func atMost(limit, figure float64) *Bar  { return &Bar{AtMost: limit, Met: figure <= limit} }

func (b *Bar) String() string {
	switch {
	case b == nil:
		return ""
	case b.AtLeast != 0:
		return fmt.Sprintf("≥ %g\t%s", b.AtLeast, met(b.Met))
	default:
		return fmt.Sprintf("≤ %g\t%s", b.AtMost, met(b.Met))
	}
}

func met(yes bool) string {
	if yes {
		return "met"
	}
	return "MISSED"
}

// rows makes the table of a report.
func (r *Report) rows() []Row {
	var out []Row
	for _, f := range r.First {
		out = append(out,
			Row{Measure: "first connection, p50", Source: f.Source, Unit: "ms", Figure: f.Cold.Median},
			Row{Measure: "first connection, p99", Source: f.Source, Unit: "ms", Figure: f.Cold.P99},
			Row{Measure: "later connection, p50", Source: f.Source, Unit: "ms", Figure: f.Warm.Median},
			Row{Measure: "later connection, p99", Source: f.Source, Unit: "ms", Figure: f.Warm.P99},
			Row{Measure: "first over later, p50", Source: f.Source, Unit: "ms", Figure: f.Over.Median, Bar: atMost(4, f.Over.Median)},
			Row{Measure: "first over later, p99", Source: f.Source, Unit: "ms", Figure: f.Over.P99, Bar: atMost(10, f.Over.P99)},
		)
	}
	for _, l := range r.Load {
		ratio := l.Ratios["capture"]
		rate := spread("capture ÷ bare, requests/s kept alive", l.Source, ratio.PerSecond)
		tail := spread("capture ÷ bare, p99 kept alive", l.Source, ratio.P99)
		switch {
		case l.Kind == keptAlive:
			rate.Bar, tail.Bar = atLeast(0.97, rate.Figure), atMost(1.1, tail.Figure)
		case l.Source == "node":
			rate.Bar = atLeast(0.95, rate.Figure)
		default:
			rate.Bar = atLeast(0.85, rate.Figure)
		}
		if l.Kind == newConnections {
			rate.Measure, tail.Measure = "capture ÷ bare, new connections/s", "capture ÷ bare, p99 of new connections"
		}
		cpu := spread("capture ÷ bare, CPU of Envoy, "+l.Kind, l.Source, ratio.CPU)
		out = append(out, rate, tail, cpu)
	}
	return out
}

func spread(measure, source string, d Distribution) Row {
	return Row{Measure: measure, Source: source, Unit: "ratio", Figure: d.Median, Min: d.Min, Q1: d.Q1, Q3: d.Q3, Max: d.Max}
}

// print writes the table for people.
func (r *Report) print(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nmeasure\tsource\tmedian\tmin – q1 – q3 – max\tbar\t")
	for _, row := range r.Rows {
		figure, between := fmt.Sprintf("%.3f", row.Figure), fmt.Sprintf("%.3f – %.3f – %.3f – %.3f", row.Min, row.Q1, row.Q3, row.Max)
		if row.Unit == "ms" {
			figure, between = fmt.Sprintf("%.2f ms", row.Figure), ""
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", row.Measure, row.Source, figure, between, row.Bar)
	}
	t.Flush()
	fmt.Fprintln(t, "\nlane\tsource\tload\tper second\tp50\tp99\tCPU of its Envoy per request\tmachine used by others\t")
	for _, l := range r.Load {
		for _, name := range []string{"bare", "capture"} {
			lane := l.Lanes[name]
			fmt.Fprintf(t, "%s\t%s\t%s\t%.0f\t%.2f ms\t%.2f ms\t%.1f µs\t%.0f %%\t\n",
				name, l.Source, l.Kind, lane.PerSecond.Median, lane.P50.Median, lane.P99.Median, lane.CPU.Median, 100*l.Others.Median)
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
