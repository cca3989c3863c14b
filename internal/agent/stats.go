// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"aether.io/aether/internal/plan/demand"
)

const (
	// scrapeTimeout bounds one reading of Envoy's counts.
	scrapeTimeout = 5 * time.Second
	// maxScrape bounds what is read: some 100,000 Service ports.
	maxScrape = 32 << 20
)

// count is what Envoy counted for one Service port: connections since it started
// and connections open now.
type count struct{ total, active uint64 }

// counts are what Envoy counted last, by statistics name.
type counts struct {
	now map[string]count
	// missed counts the readings that failed since the last one that did not. One is
	// nothing: in a hot restart nobody answers for a moment.
	missed int
	err    error // of the last reading, once two in a row have failed
}

// Scraper reads Envoy's counts by statistics name (svc.<namespace>.<name>.<port>).
type Scraper func(context.Context) (map[string]count, error)

const (
	statTotal  = ".upstream_cx_total"
	statActive = ".upstream_cx_active"
	statFilter = `^cluster\.svc\..*\.upstream_cx_(total|active)$`
)

// adminScraper reads from Envoy's admin socket.
func adminScraper(socket string) Scraper {
	admin := newUnixHTTP(socket, scrapeTimeout)
	path := "/stats?" + url.Values{"format": {"json"}, "usedonly": {""}, "filter": {statFilter}}.Encode()
	return func(ctx context.Context) (map[string]count, error) {
		body, err := admin.get(ctx, path, maxScrape)
		if err != nil {
			return nil, fmt.Errorf("read envoy's statistics: %w", err)
		}
		c, err := parseStats(bytes.NewReader(body))
		if err != nil {
			return nil, fmt.Errorf("read envoy's statistics: %w", err)
		}
		return c, nil
	}
}

// parseStats reads Envoy's JSON form of counters and gauges.
func parseStats(r io.Reader) (map[string]count, error) {
	var body struct {
		Stats *[]struct {
			Name  string  `json:"name"`
			Value *uint64 `json:"value"` // histograms have none
		} `json:"stats"`
	}
	if err := json.NewDecoder(r).Decode(&body); err != nil {
		return nil, err
	}
	if body.Stats == nil {
		return nil, errors.New("there is no list of stats")
	}
	out := map[string]count{}
	for _, s := range *body.Stats {
		name, ok := strings.CutPrefix(s.Name, "cluster.")
		if !ok || s.Value == nil {
			continue
		}
		if name, ok := strings.CutSuffix(name, statTotal); ok {
			c := out[name]
			c.total = *s.Value
			out[name] = c
		}
		if name, ok := strings.CutSuffix(name, statActive); ok {
			c := out[name]
			c.active = *s.Value
			out[name] = c
		}
	}
	return out, nil
}

// scrape reads the counts at intervals and tells the loop, until ctx ends.
func scrape(ctx context.Context, read Scraper, interval time.Duration, clock Clock, tell func(message)) {
	for {
		select {
		case <-clock.After(interval):
		case <-ctx.Done():
			return
		}
		c, err := read(ctx)
		if ctx.Err() != nil {
			return
		}
		tell(scraped{c, err})
	}
}

// scraped takes in what Envoy counted. A Service port with more connections than
// the last time, or with open ones, was dialled. Envoy counts from zero when it
// restarts. What was counted before this agent came says nothing about when.
func (l *loop) scraped(t *turn, m scraped) {
	if m.err != nil {
		if len(l.envoys) == 0 {
			l.counts.now = map[string]count{} // the next Envoy counts anew
			return
		}
		if l.counts.missed++; l.counts.missed == 2 {
			l.log.Warn("connection counts are not read", "err", m.err)
		}
		if l.counts.missed > 1 {
			l.counts.err = m.err
		}
		return
	}
	l.counts.missed, l.counts.err = 0, nil
	before := l.counts.now
	l.counts.now = m.counts
	for target, stat := range l.published.stats {
		c, ok := m.counts[stat]
		if !ok {
			continue
		}
		old, seen := before[stat]
		switch {
		case c.active > 0, seen && c.total > old.total, seen && c.total < old.total && c.total > 0:
			t.events = append(t.events, demand.Dialled{Target: target, At: t.now})
		case !seen && before != nil && c.total > 0:
			t.events = append(t.events, demand.Dialled{Target: target, At: t.now})
		}
	}
}
