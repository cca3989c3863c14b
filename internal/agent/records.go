// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/observe"
	"aether.io/aether/internal/plan/demand"
)

// recordsDialled tells what was dialled or in use, by Envoy's connection records.
type recordsDialled struct{ last map[netip.AddrPort]time.Time }

func (recordsDialled) isMessage() {}

func (l *loop) recordsDialled(t *turn, m recordsDialled) {
	for target, at := range m.last {
		t.events = append(t.events, demand.Dialled{Target: target, At: at})
	}
}

// connectionCounter reads how many connections Envoy's capture listeners had, and
// how many of them are open.
type connectionCounter func(context.Context) (total, active uint64, err error)

const (
	statListener      = "listener.capture.downstream_cx_"
	statListenersWant = `^listener\.capture\.downstream_cx_(total|active)$`
)

// adminConnections reads from Envoy's admin socket.
func adminConnections(socket string) connectionCounter {
	admin := newUnixHTTP(socket, scrapeTimeout)
	path := "/stats?" + url.Values{"format": {"json"}, "filter": {statListenersWant}}.Encode()
	return func(ctx context.Context) (total, active uint64, err error) {
		var body struct {
			Stats []struct {
				Name  string `json:"name"`
				Value uint64 `json:"value"`
			} `json:"stats"`
		}
		if err := admin.decode(ctx, path, maxBody, &body); err != nil {
			return 0, 0, fmt.Errorf("read envoy's connections: %w", err)
		}
		for _, s := range body.Stats { // none before the first listener
			switch s.Name {
			case statListener + "total":
				total = s.Value
			case statListener + "active":
				active = s.Value
			}
		}
		return total, active, nil
	}
}

// records is the agent's end of Envoy's connection records.
type records struct {
	hub   *observe.Hub
	count connectionCounter
	lost  atomic.Uint64 // not told of, and waited for in vain
}

// newRecords makes the hub. It does no I/O.
func (a *Agent) newRecords() *records {
	return &records{
		hub: observe.NewHub(observe.Config{
			Names:   a.directory,
			Limits:  observe.Limits{Silence: 3*a.cfg.Envoy.RecordInterval + 5*time.Second},
			Dialled: func(last map[netip.AddrPort]time.Time) { a.mailbox().tell(recordsDialled{last}) },
			Now:     a.deps.Clock.Now,
			Log:     a.deps.Log,
		}),
		count: adminConnections(a.cfg.AdminSocket()),
	}
}

// observeRoutes answers about connections.
func (a *Agent) observeRoutes() observeHandler {
	cli := cliHandler{a.mailbox(), a.deps.Scraper}
	return observeHandler{
		records:     a.records,
		names:       func(w http.ResponseWriter, r *http.Request) (names, bool) { return cli.names(w, r, nil) },
		now:         a.deps.Clock.Now,
		trustDomain: a.cfg.Envoy.TrustDomain,
	}
}

// settleTime is how long a question waits for records that are on their way.
const settleTime = 2*envoy.RecordFlush + 100*time.Millisecond

// read takes Envoy's counters. No Envoy means that the next one counts from zero.
func (r *records) read(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, freshTimeout)
	defer cancel()
	total, active, err := r.count(ctx)
	switch {
	case err == nil:
		r.hub.Count(total, active)
	case errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist):
		r.hub.CountNone()
	}
}

// missing returns what is missing now. Records that Envoy holds back for a moment
// are not: they are waited for, once.
func (r *records) missing(ctx context.Context) observe.Missing {
	r.read(ctx)
	m := r.hub.Missing()
	until := time.NewTimer(settleTime)
	defer until.Stop()
	tick := time.NewTicker(settleTime / 20)
	defer tick.Stop()
	for m.NotTold > r.lost.Load() {
		select {
		case <-tick.C:
			m = r.hub.Missing()
		case <-until.C:
			r.lost.Store(m.NotTold)
		case <-ctx.Done():
			return m
		}
	}
	return m
}

// serve takes records and counts until ctx ends.
func (r *records) serve(ctx context.Context, group *errgroup.Group, ln net.Listener, interval time.Duration, clock Clock) {
	group.Go(func() error {
		r.read(ctx) // before the first record, so that what it finds has ended before
		return r.hub.Serve(ctx, ln)
	})
	group.Go(func() error {
		r.hub.Run(ctx)
		return nil
	})
	group.Go(func() error {
		for {
			select {
			case <-clock.After(interval):
				r.read(ctx)
			case <-ctx.Done():
				return nil
			}
		}
	})
}
