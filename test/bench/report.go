// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
	First    []FirstConnections `json:"firstConnections,omitempty"`
	Rolling  []Rolling          `json:"rolling,omitempty"`
	Load     []Load             `json:"load,omitempty"`
	Scale    []Scale            `json:"scale,omitempty"`
	Memory   *Memory            `json:"memory,omitempty"`
	// Neighbour is how a pod fares beside one that misbehaves.
	Neighbour *Neighbour `json:"neighbour,omitempty"`
	// Valid is false when anything went wrong: then Error says what, and the
	// figures mean nothing.
	Valid bool   `json:"valid"`
	Error string `json:"error,omitempty"`
}

// Row is one figure of the table, with its spread where it is a median of many.
type Row struct {
	Measure string        `json:"measure"`
	Source  string        `json:"source"`
	Unit    Unit          `json:"unit"`
	Figure  float64       `json:"figure"`
	Spread  *Distribution `json:"spread,omitempty"`
	Bar     *Bar          `json:"bar,omitempty"`
}

// Unit is what a figure is in.
type Unit string

// The units.
const (
	millis    Unit = "ms"
	micros    Unit = "µs"
	ratio     Unit = "ratio"
	kibibytes Unit = "KiB"
	mebibytes Unit = "MiB"
	seconds   Unit = "s"
	coreShare Unit = "% of a core"
	rate      Unit = "/s"
)

// write is a figure in words.
func (u Unit) write(v float64) string {
	switch u {
	case ratio:
		return fmt.Sprintf("%.3f", v)
	case millis, seconds:
		return fmt.Sprintf("%.2f %s", v, u)
	case coreShare:
		return fmt.Sprintf("%.1f %s", 100*v, u)
	case rate:
		return fmt.Sprintf("%.0f/s", v)
	default:
		return fmt.Sprintf("%.1f %s", v, u)
	}
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

// limit and verdict are the bar's in words.
func (b *Bar) limit() string {
	switch {
	case b == nil:
		return ""
	case b.AtLeast != 0:
		return fmt.Sprintf("≥ %g", b.AtLeast)
	}
	return fmt.Sprintf("≤ %g", b.AtMost)
}

func (b *Bar) verdict() string {
	switch {
	case b == nil:
		return ""
	case b.Met && b.Unsure:
		return "✔ not for sure"
	case b.Met:
		return "✔"
	case b.Unsure:
		return "✖ not for sure"
	}
	return "✖"
}

// rows makes the table of a report.
func (r *Report) rows() []Row {
	var out []Row
	for _, f := range r.First {
		out = append(out,
			middle("first connection, p50", f.Source, millis, f.Cold),
			tail("first connection, p99", f.Source, f.Cold),
			middle("later connection, p50", f.Source, millis, f.Warm),
			tail("later connection, p99", f.Source, f.Warm),
			middle("first over later, p50", f.Source, millis, f.Over).atMost(4),
			tail("first over later, p99", f.Source, f.Over).atMost(10),
		)
	}
	for _, l := range r.Rolling {
		out = append(out, l.rows()...)
	}
	for _, l := range r.Load {
		out = append(out, l.rows()...)
	}
	for _, l := range r.Scale {
		out = append(out, l.rows()...)
	}
	if n := len(r.Scale); n > 1 && r.Scale[0].Told.Median > 0 {
		first, last := r.Scale[0], r.Scale[n-1]
		out = append(out, Row{
			Measure: fmt.Sprintf("change told → acknowledged, p50 at %s over at %s Services", thousands(last.Services), thousands(first.Services)),
			Unit:    ratio, Figure: last.Told.Median / first.Told.Median,
		})
	}
	return append(append(out, r.Memory.rows()...), r.Neighbour.rows()...)
}

func (r *Rolling) rows() []Row {
	of := func(what string, u Unit, v float64) Row {
		return Row{Measure: "while rolling: " + what, Source: r.Source, Unit: u, Figure: v}
	}
	return []Row{
		middle("first over later while rolling, p50", r.Source, millis, r.Over),
		tail("first over later while rolling, p99", r.Source, r.Over).atMost(25),
		of("slices replaced", rate, r.Replaced),
		of("assignments to Envoy", rate, r.Sent),
		of("the agent's answer, mean", millis, r.Answer),
		of("Envoy's acknowledgement of a cluster, mean", millis, r.Acknowledge),
		of("CPU of the agent", coreShare, r.AgentCPU),
		of("CPU of Envoy", coreShare, r.EnvoyCPU),
	}
}

// rows are one size's.
func (r *Scale) rows() []Row {
	at := fmt.Sprintf(" at %s Services, %s endpoints", thousands(r.Services), thousands(r.Endpoints))
	of := func(what string, u Unit, v float64) Row { return Row{Measure: what + at, Unit: u, Figure: v} }
	return []Row{
		middle("change told → acknowledged, p50"+at, "", millis, r.Told),
		tail("change told → acknowledged, p99"+at, "", r.Told).atMost(20),
		middle("file renamed → first connection to the new endpoint, p50"+at, "", millis, r.Renamed),
		tail("file renamed → first connection to the new endpoint, p99"+at, "", r.Renamed),
		of("memory of the agent", mebibytes, r.IdleMiB),
		of("memory of the agent while 50 slices a second change", mebibytes, r.BusyMiB),
		of("CPU of the agent", coreShare, r.IdleCPU),
		of("CPU of the agent while 50 slices a second change", coreShare, r.BusyCPU),
		of("start of the node", seconds, r.Start),
	}
}

// memoryBars are KiB.
var memoryBars = map[string]float64{costListener: 75, costService: 80, costEndpoint: 4}

func (m *Memory) rows() []Row {
	if m == nil {
		return nil
	}
	out := []Row{{Measure: "Envoy with one pod and no name, resident", Unit: mebibytes, Figure: m.BaseMiB}}
	for _, c := range m.Costs {
		row := Row{Measure: "Envoy, each " + c.What, Unit: kibibytes, Figure: c.Allocated}
		if limit, ok := memoryBars[c.What]; ok {
			row = row.atMost(limit)
		}
		out = append(out, row)
	}
	return out
}

func (n *Neighbour) rows() []Row {
	if n == nil {
		return nil
	}
	var out []Row
	for _, k := range n.Kinds {
		switch k.Name {
		case quietName:
			out = append(out, middle("neighbour's p99, quiet", "pod", millis, k.P99))
		case pastName:
			out = append(out, middle("neighbour's p99 over quiet: "+k.Name, "pod", ratio, k.Over))
		default:
			out = append(out, middle("neighbour's p99 over quiet: "+k.Name, "pod", ratio, k.Over).atMost(2))
		}
	}
	return out
}

// thousands writes a number with commas.
func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// newBar is the bar of new connections per second. A pod-sourced connection
// enters the pod's namespace and leaves by the pod's interface.
var newBar = map[string]float64{"pod": 0.85, "node": 0.95}

func (r *Load) rows() []Row {
	over := r.Ratios[captureName]
	of := func(what string, d Distribution) Row { return middle("capture ÷ bare, "+what, r.Source, ratio, d) }
	var out []Row
	what := "requests/s"
	if r.Kind == newConnections {
		what = "connections/s"
		out = []Row{
			of("new connections/s", over.PerSecond).atLeast(newBar[r.Source]),
			of("p99 of new connections", over.P99),
			of("CPU of Envoy per new connection", over.CPU),
			of("CPU of all per new connection", over.All),
		}
	} else {
		out = []Row{
			of("kept-alive requests/s", over.PerSecond).atLeast(0.97),
			of("p99 of kept-alive requests", over.P99).atMost(1.1),
			of("CPU of Envoy per kept-alive request", over.CPU),
			of("CPU of all per kept-alive request", over.All),
		}
	}
	for _, name := range []string{barePodName, haproxyName, dnatName} {
		if v, ok := r.Versus[name]; ok {
			out = append(out, middle(fmt.Sprintf("capture ÷ %s, %s %s", name, r.Kind, what), r.Source, ratio, v.PerSecond))
		}
	}
	return out
}

// middle is a row of a median, tail one of a 99th percentile.
func middle(measure, source string, unit Unit, d Distribution) Row {
	return Row{Measure: measure, Source: source, Unit: unit, Figure: d.Median, Spread: &d}
}

func tail(measure, source string, d Distribution) Row {
	return Row{Measure: measure, Source: source, Unit: millis, Figure: d.P99}
}

// cells are a row's in words.
func (r Row) cells() []string {
	sure, between := "", ""
	if d := r.Spread; d != nil {
		sure = r.Unit.write(d.Low) + " – " + r.Unit.write(d.High)
		between = r.Unit.write(d.Q1) + " – " + r.Unit.write(d.Q3)
	}
	return []string{r.Measure, r.Source, r.Unit.write(r.Figure), sure, between, r.Bar.limit(), r.Bar.verdict()}
}

var rowHeads = []string{"measure", "source", "figure", "95 % sure", "quartiles", "bar", ""}

// laneCells are the lanes' in words.
func (r *Report) laneCells() [][]string {
	var out [][]string
	for _, l := range r.Load {
		for _, name := range laneOrder {
			lane, ok := l.Lanes[name]
			if !ok {
				continue
			}
			out = append(out, []string{
				name, l.Source, l.Kind, fmt.Sprintf("%.0f", lane.PerSecond.Median),
				millis.write(lane.P50.Median), millis.write(lane.P99.Median),
				micros.write(lane.CPU.Median), micros.write(lane.All.Median), micros.write(lane.Machine.Median),
				fmt.Sprintf("%.0f %%", 100*l.Others.Median),
			})
		}
	}
	return out
}

var (
	laneOrder = []string{bareName, barePodName, captureName, haproxyName, dnatName}
	laneHeads = []string{"lane", "source", "load", "per second", "p50", "p99", "CPU of its proxy", "of all", "of the machine", "used by others"}
)

// print writes the tables for people.
func (r *Report) print(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(cells []string) { fmt.Fprintln(t, strings.Join(cells, "\t")) }
	fmt.Fprintln(t)
	line(rowHeads)
	for _, row := range r.Rows {
		line(row.cells())
	}
	t.Flush()
	if lanes := r.laneCells(); len(lanes) > 0 {
		fmt.Fprintln(t)
		line(laneHeads)
		for _, cells := range lanes {
			line(cells)
		}
		t.Flush()
	}
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
