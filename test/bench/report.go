// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"time"

	"aether.io/aether/test/bench/figure"
)

// Report is the machine-readable copy of a run.
type Report struct {
	Began    time.Time          `json:"began"`
	Seconds  float64            `json:"seconds"`
	Machine  Machine            `json:"machine"`
	Settings Settings           `json:"settings"`
	Rows     []figure.Row       `json:"rows"`
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

// rows makes the table of a report.
func (r *Report) rows() []figure.Row {
	var out []figure.Row
	for _, f := range r.First {
		out = append(out,
			figure.Middle("first connection, p50", f.Source, figure.Millis, f.Cold),
			figure.Tail("first connection, p99", f.Source, f.Cold),
			figure.Middle("later connection, p50", f.Source, figure.Millis, f.Warm),
			figure.Tail("later connection, p99", f.Source, f.Warm),
			figure.Middle("first over later, p50", f.Source, figure.Millis, f.Over).AtMost(4),
			figure.Tail("first over later, p99", f.Source, f.Over).AtMost(10),
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
		out = append(out, figure.Row{
			Measure: fmt.Sprintf("change told → acknowledged, p50 at %s over at %s Services", figure.Thousands(last.Services), figure.Thousands(first.Services)),
			Unit:    figure.Ratio, Figure: last.Told.Median / first.Told.Median,
		})
	}
	return append(append(out, r.Memory.rows()...), r.Neighbour.rows()...)
}

func (r *Rolling) rows() []figure.Row {
	of := func(what string, u figure.Unit, v float64) figure.Row {
		return figure.Row{Measure: "while rolling: " + what, Source: r.Source, Unit: u, Figure: v}
	}
	return []figure.Row{
		figure.Middle("first over later while rolling, p50", r.Source, figure.Millis, r.Over),
		figure.Tail("first over later while rolling, p99", r.Source, r.Over).AtMost(25),
		of("slices replaced", figure.PerSecond, r.Replaced),
		of("assignments to Envoy", figure.PerSecond, r.Sent),
		of("the agent's answer, mean", figure.Millis, r.Answer),
		of("Envoy's acknowledgement of a cluster, mean", figure.Millis, r.Acknowledge),
		of("CPU of the agent", figure.CoreShare, r.AgentCPU),
		of("CPU of Envoy", figure.CoreShare, r.EnvoyCPU),
	}
}

// rows are one size's.
func (r *Scale) rows() []figure.Row {
	at := fmt.Sprintf(" at %s Services, %s endpoints", figure.Thousands(r.Services), figure.Thousands(r.Endpoints))
	of := func(what string, u figure.Unit, v float64) figure.Row {
		return figure.Row{Measure: what + at, Unit: u, Figure: v}
	}
	return []figure.Row{
		figure.Middle("change told → acknowledged, p50"+at, "", figure.Millis, r.Told),
		figure.Tail("change told → acknowledged, p99"+at, "", r.Told).AtMost(20),
		figure.Middle("file renamed → first connection to the new endpoint, p50"+at, "", figure.Millis, r.Renamed),
		figure.Tail("file renamed → first connection to the new endpoint, p99"+at, "", r.Renamed),
		of("memory of the agent", figure.Mebibytes, r.IdleMiB),
		of("memory of the agent while 50 slices a second change", figure.Mebibytes, r.BusyMiB),
		of("CPU of the agent", figure.CoreShare, r.IdleCPU),
		of("CPU of the agent while 50 slices a second change", figure.CoreShare, r.BusyCPU),
		of("start of the node", figure.Seconds, r.Start),
	}
}

// memoryBars are KiB.
var memoryBars = map[string]float64{costListener: 75, costService: 80, costEndpoint: 4}

func (m *Memory) rows() []figure.Row {
	if m == nil {
		return nil
	}
	out := []figure.Row{{Measure: "Envoy with one pod and no name, resident", Unit: figure.Mebibytes, Figure: m.BaseMiB}}
	for _, c := range m.Costs {
		row := figure.Row{Measure: "Envoy, each " + c.What, Unit: figure.Kibibytes, Figure: c.Allocated}
		if limit, ok := memoryBars[c.What]; ok {
			row = row.AtMost(limit)
		}
		out = append(out, row)
	}
	return out
}

func (n *Neighbour) rows() []figure.Row {
	if n == nil {
		return nil
	}
	var out []figure.Row
	for _, k := range n.Kinds {
		switch k.Name {
		case quietName:
			out = append(out, figure.Middle("neighbour's p99, quiet", "pod", figure.Millis, k.P99))
		case pastName:
			out = append(out, figure.Middle("neighbour's p99 over quiet: "+k.Name, "pod", figure.Ratio, k.Over))
		default:
			out = append(out, figure.Middle("neighbour's p99 over quiet: "+k.Name, "pod", figure.Ratio, k.Over).AtMost(2))
		}
	}
	return out
}

// newBar is the bar of new connections per second. A pod-sourced connection
// enters the pod's namespace and leaves by the pod's interface.
var newBar = map[string]float64{"pod": 0.85, "node": 0.95}

func (r *Load) rows() []figure.Row {
	over := r.Ratios[captureName]
	of := func(what string, d figure.Distribution) figure.Row {
		return figure.Middle("capture ÷ bare, "+what, r.Source, figure.Ratio, d)
	}
	var out []figure.Row
	what := "requests/s"
	if r.Kind == newConnections {
		what = "connections/s"
		out = []figure.Row{
			of("new connections/s", over.PerSecond).AtLeast(newBar[r.Source]),
			of("p99 of new connections", over.P99),
			of("CPU of Envoy per new connection", over.CPU),
			of("CPU of all per new connection", over.All),
		}
	} else {
		out = []figure.Row{
			of("kept-alive requests/s", over.PerSecond).AtLeast(0.97),
			of("p99 of kept-alive requests", over.P99).AtMost(1.1),
			of("CPU of Envoy per kept-alive request", over.CPU),
			of("CPU of all per kept-alive request", over.All),
		}
	}
	for _, name := range []string{barePodName, haproxyName, dnatName} {
		if v, ok := r.Versus[name]; ok {
			out = append(out, figure.Middle(fmt.Sprintf("capture ÷ %s, %s %s", name, r.Kind, what), r.Source, figure.Ratio, v.PerSecond))
		}
	}
	return out
}

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
				figure.Millis.Write(lane.P50.Median), figure.Millis.Write(lane.P99.Median),
				figure.Micros.Write(lane.CPU.Median), figure.Micros.Write(lane.All.Median), figure.Micros.Write(lane.Machine.Median),
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
	figure.Print(w, figure.Heads, figure.Cells(r.Rows))
	if lanes := r.laneCells(); len(lanes) > 0 {
		figure.Print(w, laneHeads, lanes)
	}
}

func (r *Report) write(path string) error {
	return figure.WriteJSON(path, r)
}
