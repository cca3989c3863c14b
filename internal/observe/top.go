// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"slices"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/envoy"
)

// What Top groups by.
const (
	ByPod            = "pod"
	ByService        = "service"
	ByServiceAccount = "sa"
)

// Groups returns the closed set.
func Groups() []string { return []string{ByPod, ByService, ByServiceAccount} }

// Top adds up what ended within the window before now, and what is open. The
// window is cut to what the ended connections cover when some fell out of memory
// (full). Ended must be in the order in which they were told.
func Top(now time.Time, window time.Duration, by string, ended, open []Connection, full bool) ([]api.TopRow, time.Duration) {
	from := now.Add(-window)
	if full && len(ended) > 0 && ended[0].Ended().After(from) {
		from = ended[0].Ended()
	}
	groups := map[string]*group{}
	of := func(c *Connection) *group {
		name := groupName(c, by)
		g := groups[name]
		if g == nil {
			g = &group{name: name}
			groups[name] = g
		}
		return g
	}
	for i := len(ended) - 1; i >= 0; i-- {
		c := &ended[i]
		if c.Ended().Before(from) {
			continue
		}
		of(c).add(c)
	}
	for i := range open {
		g := of(&open[i])
		g.open++
		g.rate += open[i].Rate
	}
	over := max(now.Sub(from), time.Millisecond)
	rows := make([]api.TopRow, 0, len(groups))
	for _, g := range groups {
		rows = append(rows, g.row(over))
	}
	slices.SortFunc(rows, func(a, b api.TopRow) int {
		return cmp.Or(cmp.Compare(b.Connections, a.Connections), cmp.Compare(b.BytesPerSec, a.BytesPerSec),
			cmp.Compare(b.Open, a.Open), cmp.Compare(a.Name, b.Name))
	})
	return rows, over
}

// groupName is what a connection is added up under.
func groupName(c *Connection, by string) string {
	switch by {
	case ByService:
		if c.Service == nil {
			return c.Dialled.String()
		}
		return c.Service.Namespace + "/" + c.Service.Name + ":" + c.Service.Port
	case ByServiceAccount:
		if c.Source.ServiceAccount == "" {
			return "-"
		}
		return c.Source.Pod.Namespace + "/" + c.Source.ServiceAccount
	default:
		return cmp.Or(c.Source.String(), c.Client.Addr().String())
	}
}

type group struct {
	name                   string
	ended, failed, refused int
	bytes                  float64 // of ended ones, lately
	rate                   float64 // of open ones
	open                   int
	durations, waits       []float64 // milliseconds
}

func (g *group) add(c *Connection) {
	g.ended++
	switch {
	case c.Outcome == envoy.Refused:
		g.refused++
	case c.Failed():
		g.failed++
	}
	g.bytes += c.Moved
	g.durations = append(g.durations, float64(c.Duration.Microseconds())/1000)
	if c.Wait >= 0 {
		g.waits = append(g.waits, float64(c.Wait.Microseconds())/1000)
	}
}

func (g *group) row(over time.Duration) api.TopRow {
	per := func(n float64) float64 { return n / over.Seconds() }
	return api.TopRow{
		Name:        g.name,
		Connections: per(float64(g.ended)), Failed: per(float64(g.failed)), Refused: per(float64(g.refused)),
		BytesPerSec:   per(g.bytes) + g.rate,
		Open:          g.open,
		DurationP50Ms: percentile(g.durations, 0.50), DurationP99Ms: percentile(g.durations, 0.99),
		WaitP50Ms: percentile(g.waits, 0.50), WaitP99Ms: percentile(g.waits, 0.99),
	}
}

// percentile returns the value that the share p of all is not above (nearest
// rank), or nil of none.
func percentile(values []float64, p float64) *float64 {
	if len(values) == 0 {
		return nil
	}
	slices.Sort(values)
	rank := int(p*float64(len(values)) + 0.999999)
	v := values[min(max(rank, 1), len(values))-1]
	return &v
}
