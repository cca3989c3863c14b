// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"fmt"
	"strconv"
)

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
	Millis    Unit = "ms"
	Micros    Unit = "µs"
	Ratio     Unit = "ratio"
	Kibibytes Unit = "KiB"
	Mebibytes Unit = "MiB"
	Seconds   Unit = "s"
	CoreShare Unit = "% of a core"
	PerSecond Unit = "/s"
	Count     Unit = "count"
)

// Write is a figure in words.
func (u Unit) Write(v float64) string {
	switch u {
	case Ratio:
		return fmt.Sprintf("%.3f", v)
	case Millis, Seconds:
		return fmt.Sprintf("%.2f %s", v, u)
	case CoreShare:
		return fmt.Sprintf("%.1f %s", 100*v, u)
	case Count:
		return fmt.Sprintf("%.0f", v)
	case PerSecond:
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

// AtLeast sets the bar of a row.
func (r Row) AtLeast(limit float64) Row {
	r.Bar = &Bar{AtLeast: limit, Met: r.Figure >= limit, Unsure: r.leavesOpen(limit)}
	return r
}

// AtMost sets the bar of a row.
func (r Row) AtMost(limit float64) Row {
	r.Bar = &Bar{AtMost: limit, Met: r.Figure <= limit, Unsure: r.leavesOpen(limit)}
	return r
}

func (r Row) leavesOpen(limit float64) bool {
	return r.Spread != nil && r.Spread.Low < limit && limit < r.Spread.High
}

// Limit is the bar in words, empty for none.
func (b *Bar) Limit() string {
	switch {
	case b == nil:
		return ""
	case b.AtLeast != 0:
		return fmt.Sprintf("≥ %g", b.AtLeast)
	}
	return fmt.Sprintf("≤ %g", b.AtMost)
}

// Verdict says whether it is met, and whether that is sure.
func (b *Bar) Verdict() string {
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

// Middle is a row of a median.
func Middle(measure, source string, unit Unit, d Distribution) Row {
	return Row{Measure: measure, Source: source, Unit: unit, Figure: d.Median, Spread: &d}
}

// Tail is a row of a 99th percentile, in milliseconds.
func Tail(measure, source string, d Distribution) Row {
	return Row{Measure: measure, Source: source, Unit: Millis, Figure: d.P99}
}

// Cells are a row's in words.
func (r Row) Cells() []string {
	sure, between := "", ""
	if d := r.Spread; d != nil {
		sure = r.Unit.Write(d.Low) + " – " + r.Unit.Write(d.High)
		between = r.Unit.Write(d.Q1) + " – " + r.Unit.Write(d.Q3)
	}
	return []string{r.Measure, r.Source, r.Unit.Write(r.Figure), sure, between, r.Bar.Limit(), r.Bar.Verdict()}
}

// Heads are those of the table's columns.
var Heads = []string{"measure", "source", "figure", "95 % sure", "quartiles", "bar", ""}

// Thousands writes a number with commas.
func Thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", Thousands(n/1000), n%1000)
}
