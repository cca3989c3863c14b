// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"aether.io/aether/test/bench/figure"
)

// Report is the machine-readable copy of a run.
type Report struct {
	Began      time.Time      `json:"began"`
	Seconds    float64        `json:"seconds"`
	Machine    figure.Machine `json:"machine"`
	Kubernetes string         `json:"kubernetes"`
	Settings   Settings       `json:"settings"`
	Rows       []figure.Row   `json:"rows"`
	Changes    []Changes      `json:"changes,omitempty"`
	Cost       *Cost          `json:"cost,omitempty"`
	First      []First        `json:"firstConnections,omitempty"`
	Scopes     []Scope        `json:"scopes,omitempty"`
	// Valid is false when anything went wrong: then Error says what, and the
	// figures mean nothing.
	Valid bool   `json:"valid"`
	Error string `json:"error,omitempty"`
}

// Changes are new Services and leaving endpoints at one size of the cluster.
type Changes struct {
	Services  int    `json:"services"`
	Endpoints int    `json:"endpoints"`
	Mode      string `json:"mode"`
	Appear    Times  `json:"appear"`
	Leave     *Times `json:"leave,omitempty"`
}

// Bars, milliseconds: of a change until it is effective, of first connections over
// later ones.
const (
	barChange = 100
	barSooner = 5 // than kube-proxy's median
	barFlat   = 2 // large over small
	barQuiet  = 10
	barLoaded = 25
)

// heads are figure.Heads, with whose a figure is in place of the source mode.
var heads = []string{"measure", "of", "figure", "95 % sure", "quartiles", "bar", ""}

// rows makes the table of a report.
func (r *Report) rows() []figure.Row {
	var out []figure.Row
	for _, c := range r.Changes {
		at := fmt.Sprintf(" at %s Services", figure.Thousands(c.Services))
		if c.Mode != "enforce" {
			at += ", mode " + c.Mode
		}
		out = append(out, c.Appear.rows("new Service → first answer"+at, c.Mode == "enforce")...)
		if c.Leave != nil {
			out = append(out, c.Leave.rows("endpoint not ready → last connection"+at, true)...)
		}
	}
	out = append(out, r.flat()...)
	out = append(out, r.Cost.rows()...)
	for _, f := range r.First {
		out = append(out, f.rows()...)
	}
	return out
}

// The column of the table that says whose a figure is.
const (
	agentColumn = "agent"
	proxyColumn = "kube-proxy"
)

func (t Times) rows(what string, bars bool) []figure.Row {
	p99 := figure.Tail(what+", p99", agentColumn, t.Ours)
	sooner := figure.Row{Measure: what + ": kube-proxy's median over the agent's p99", Unit: figure.Ratio, Figure: over(t.Theirs.Median, t.Ours.P99)}
	medians := figure.Row{Measure: what + ": kube-proxy's median over the agent's", Unit: figure.Ratio, Figure: over(t.Theirs.Median, t.Ours.Median)}
	if bars {
		p99, medians = p99.AtMost(barChange), medians.AtLeast(barSooner)
	}
	return []figure.Row{
		figure.Middle(what+", p50", agentColumn, figure.Millis, t.Ours), p99,
		figure.Middle(what+", p50", proxyColumn, figure.Millis, t.Theirs), figure.Tail(what+", p99", proxyColumn, t.Theirs),
		medians, sooner,
		figure.Middle(what+": written by the API server, p50", "", figure.Millis, t.Written),
		figure.Tail(what+": written by the API server, p99", "", t.Written),
		figure.Middle(what+": after that, p50", agentColumn, figure.Millis, t.OursAfter),
		figure.Tail(what+": after that, p99", agentColumn, t.OursAfter),
		figure.Middle(what+": after that, p50", proxyColumn, figure.Millis, t.TheirsAfter),
	}
}

func over(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

// flat compares the sizes.
func (r *Report) flat() []figure.Row {
	var sizes []Changes
	for _, c := range r.Changes {
		if c.Mode == "enforce" {
			sizes = append(sizes, c)
		}
	}
	if len(sizes) != 2 {
		return nil
	}
	a, b := sizes[0], sizes[1]
	row := func(what string, large, small float64) figure.Row {
		return figure.Row{
			Measure: fmt.Sprintf("%s, p50 at %s over at %s Services", what, figure.Thousands(b.Services), figure.Thousands(a.Services)),
			Source:  agentColumn, Unit: figure.Ratio, Figure: over(large, small),
		}.AtMost(barFlat)
	}
	out := []figure.Row{row("new Service → first answer", b.Appear.Ours.Median, a.Appear.Ours.Median)}
	after := row("new Service → first answer: after it was written", b.Appear.OursAfter.Median, a.Appear.OursAfter.Median)
	after.Bar = nil // the bar is of the whole
	out = append(out, after)
	if a.Leave != nil && b.Leave != nil {
		out = append(out, row("endpoint not ready → last connection", b.Leave.Ours.Median, a.Leave.Ours.Median))
	}
	return out
}

func (r *Cost) rows() []figure.Row {
	if r == nil {
		return nil
	}
	at := fmt.Sprintf(" with %s Services, %s endpoints", figure.Thousands(r.Services), figure.Thousands(r.Endpoints))
	busy := fmt.Sprintf(" while %.0f slices a second change", r.Changes)
	var out []figure.Row
	for _, p := range r.Programs {
		row := func(what string, u figure.Unit, v float64) {
			out = append(out, figure.Row{Measure: what + at, Source: p.Program, Unit: u, Figure: v})
		}
		row("memory, most since the start", figure.Mebibytes, p.StartMiB)
		row("memory, idle", figure.Mebibytes, p.IdleMiB)
		row("memory"+busy, figure.Mebibytes, p.BusyMiB)
		row("CPU, idle", figure.CoreShare, p.IdleCPU)
		row("CPU"+busy, figure.CoreShare, p.BusyCPU)
	}
	a, k := r.of(agentName), r.of(kubeProxyName)
	below := func(what string, ours, theirs float64) {
		out = append(out, figure.Row{Measure: what + at + ": agent over kube-proxy", Unit: figure.Ratio, Figure: over(ours, theirs)}.AtMost(1))
	}
	below("memory, idle", a.IdleMiB, k.IdleMiB)
	below("memory"+busy, a.BusyMiB, k.BusyMiB)
	below("CPU, idle", a.IdleCPU, k.IdleCPU)
	below("CPU"+busy, a.BusyCPU, k.BusyCPU)
	return out
}

func (f First) rows() []figure.Row {
	what, limit := "first over later connection", float64(barQuiet)
	if l := f.Load; l != nil {
		what, limit = what+", under load", barLoaded
		if !l.KubeProxy {
			what += " without kube-proxy"
		}
	}
	out := []figure.Row{
		figure.Middle(what+", p50", agentColumn, figure.Millis, f.Over),
		figure.Tail(what+", p99", agentColumn, f.Over).AtMost(limit),
		figure.Middle(what+": the later one, p50", agentColumn, figure.Millis, f.Warm),
	}
	if l := f.Load; l != nil {
		of := func(name string, u figure.Unit, v float64) {
			out = append(out, figure.Row{Measure: what + ": " + name, Unit: u, Figure: v})
		}
		of("slices replaced", figure.PerSecond, l.Rolled)
		of("CPU of the agent", figure.CoreShare, l.AgentCPU)
		of("CPU of Envoy", figure.CoreShare, l.EnvoyCPU)
		of("CPU of kube-proxy", figure.CoreShare, l.ProxyCPU)
		of("CPU of kube-apiserver", figure.CoreShare, l.ServerCPU)
	}
	return out
}

func (c *cluster) sayTimes(what string, t Times) {
	c.say("  %s: agent p50 %.1f ms, p99 %.1f ms; kube-proxy p50 %.1f ms, p99 %.1f ms; written in %.1f ms; failed before %v, %v; others used %.0f %%",
		what, t.Ours.Median, t.Ours.P99, t.Theirs.Median, t.Theirs.P99, t.Written.Median, t.OursFailed, t.TheirsFailed, 100*t.Others)
}

func (c *cluster) sayCost(r *Cost) {
	for _, p := range r.Programs {
		c.say("  %-14s most %.0f MiB; idle %.0f MiB, %.2f %% of a core; busy %.0f MiB, %.1f %%", p.Program, p.StartMiB, p.IdleMiB, 100*p.IdleCPU, p.BusyMiB, 100*p.BusyCPU)
	}
	c.say("  %.0f changes a second; others used %.0f %% and %.0f %%", r.Changes, 100*r.Windows[0].Others, 100*r.Windows[1].Others)
}

func (c *cluster) sayFirst(f First) {
	c.say("  first p50 %.2f ms, p99 %.2f ms; later p50 %.2f ms; over p50 %.2f ms, p99 %.2f ms; others used %.0f %%",
		f.Cold.Median, f.Cold.P99, f.Warm.Median, f.Over.Median, f.Over.P99, 100*f.Others)
	if l := f.Load; l != nil {
		c.say("  meanwhile %.0f slices a second; agent %.0f %%, Envoy %.0f %%, kube-proxy %.0f %%, API server %.0f %% of a core",
			l.Rolled, 100*l.AgentCPU, 100*l.EnvoyCPU, 100*l.ProxyCPU, 100*l.ServerCPU)
	}
}
