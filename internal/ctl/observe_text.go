// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"charm.land/lipgloss/v2"

	"aether.io/aether/internal/agent/api"
)

var connectionHead = []string{"TIME", "SOURCE", "TO", "ENDPOINT", "VERDICT", "ENDED", "SENT", "RECEIVED", "LASTED", "WAIT", "WHY"}

// connectionPrinter prints connections one by one. Its columns widen as wider
// values come.
type connectionPrinter struct {
	out    io.Writer
	wide   bool
	widths []int
	begun  bool
}

func newConnectionPrinter(c *cli, wide bool) *connectionPrinter {
	return &connectionPrinter{out: c.Out, wide: wide, widths: make([]int, len(connectionHead))}
}

func (p *connectionPrinter) print(c api.Connection) error {
	text := ""
	cells := connectionCells(c, p.wide)
	p.widen(cells)
	if !p.begun {
		p.begun = true
		p.widen(connectionHead)
		text = styleHead.Render(p.line(connectionHead)) + "\n"
	}
	_, err := lipgloss.Fprint(p.out, text+connectionStyle(c).Render(p.line(cells))+"\n")
	return printed(err)
}

func (p *connectionPrinter) widen(cells []string) {
	for i, cell := range cells {
		p.widths[i] = max(p.widths[i], utf8.RuneCountInString(cell))
	}
}

func (p *connectionPrinter) line(cells []string) string {
	var b strings.Builder
	for i, cell := range cells {
		b.WriteString(cell)
		if i < len(cells)-1 {
			b.WriteString(strings.Repeat(" ", p.widths[i]-utf8.RuneCountInString(cell)+2))
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// connectionsText is a list that is known as a whole.
func connectionsText(cs []api.Connection, wide bool) string {
	if len(cs) == 0 {
		return "no connections\n"
	}
	t := &table{head: connectionHead}
	for _, c := range cs {
		t.add(connectionStyle(c), connectionCells(c, wide)...)
	}
	return t.render("")
}

// connectionCells are the columns of one connection. Wide names the source by its
// SPIFFE ID.
func connectionCells(c api.Connection, wide bool) []string {
	source := c.Source.Namespace + "/" + c.Source.Pod
	switch {
	case c.Source.Pod == "":
		source = c.Client
	case wide:
		source += " " + orDash(c.Source.SPIFFE)
	case c.Source.ServiceAccount != "":
		source += " (" + c.Source.ServiceAccount + ")"
	}
	to := c.Dialled
	if c.Service != nil {
		to = serviceText(c.Service) + " (" + c.Dialled + ")"
	}
	ended, why := c.Outcome, c.Reason
	if c.State == "open" {
		ended = "open"
	}
	if why == "" && c.Outcome != "ok" {
		why = c.Failure
	}
	wait := "-"
	if c.WaitUs != nil {
		wait = lasted(float64(*c.WaitUs) / 1000)
	}
	cells := []string{
		clock(c.Time), source, to, orDash(c.Endpoint), c.Verdict, ended,
		bytesText(float64(c.BytesSent)), bytesText(float64(c.BytesReceived)), lasted(c.DurationMs), wait, why,
	}
	for i, cell := range cells {
		cells[i] = printable(cell)
	}
	return cells
}

// connectionStyle paints by how it went.
func connectionStyle(c api.Connection) lipgloss.Style {
	switch {
	case c.Outcome == "refused":
		return styleBad
	case c.State == "open", c.Outcome == "ok", c.Outcome == "client-reset":
		return stylePlain
	default:
		return stylePass
	}
}

// clock is the time of day here.
func clock(s string) string {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return s
	}
	return t.Local().Format("15:04:05.000")
}

// lasted writes milliseconds so that three figures are left.
func lasted(ms float64) string {
	switch {
	case ms < 1000:
		return fmt.Sprintf("%.3gms", ms)
	case ms < 60_000:
		return fmt.Sprintf("%.3gs", ms/1000)
	default:
		return (time.Duration(ms) * time.Millisecond).Round(time.Second).String()
	}
}

// bytesText writes a number of bytes.
func bytesText(n float64) string {
	for _, unit := range []string{"B", "KiB", "MiB", "GiB"} {
		if n < 1024 {
			if unit == "B" {
				return fmt.Sprintf("%.0fB", n)
			}
			return fmt.Sprintf("%.1f%s", n, unit)
		}
		n /= 1024
	}
	return fmt.Sprintf("%.1fTiB", n)
}
