// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	dataaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"

	"aether.io/aether/internal/envoy"
)

// Config is what a Hub needs. Names is required.
type Config struct {
	Names  Names
	Limits Limits
	// Dialled takes, once a second, the targets that were dialled or in use. It
	// may block.
	Dialled func(map[netip.AddrPort]time.Time)
	// Now is the clock, default time.Now.
	Now func() time.Time
	Log *slog.Logger
}

// Hub shares one Store. Its methods may be called concurrently.
type Hub struct {
	cfg   Config
	begun time.Time

	mu        sync.Mutex
	store     *Store
	tally     Tally
	told      uint64 // ends that are in the tally too
	followers map[*Follower]struct{}

	unreadable atomic.Uint64
}

// housekeeping is how often open connections are given up and dials passed on.
const housekeeping = time.Second

// NewHub makes a Hub that has seen nothing.
func NewHub(c Config) *Hub {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Dialled == nil {
		c.Dialled = func(map[netip.AddrPort]time.Time) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Hub{cfg: c, begun: c.Now(), store: NewStore(c.Limits), followers: map[*Follower]struct{}{}}
}

// Begun is when the Hub began to watch.
func (h *Hub) Begun() time.Time { return h.begun }

// Run keeps house until ctx ends.
func (h *Hub) Run(ctx context.Context) {
	t := time.NewTicker(housekeeping)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		h.mu.Lock()
		h.store.Expire(h.cfg.Now())
		dialled := h.store.TakeDialled()
		h.mu.Unlock()
		if dialled != nil {
			h.cfg.Dialled(dialled)
		}
	}
}

// Take takes in what Envoy sent.
func (h *Hub) Take(entries []*dataaccesslogv3.TCPAccessLogEntry) {
	connections := make([]Connection, 0, len(entries))
	for _, e := range entries {
		r, err := envoy.ReadRecord(e)
		if err != nil {
			if h.unreadable.Add(1) == 1 {
				h.cfg.Log.Warn("envoy tells of a connection in a way that is not understood", "err", err)
			}
			continue
		}
		connections = append(connections, name(r, h.cfg.Names))
	}
	now := h.cfg.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range connections {
		known, news, ok := h.store.Add(now, c)
		if !ok {
			continue
		}
		if !c.Open && !c.Ended().Before(h.begun) {
			h.told++
		}
		for f := range h.followers {
			f.offer(&known, news)
		}
	}
}

// Count takes Envoy's counters of connections: all and open ones.
func (h *Hub) Count(total, active uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tally.Read(total, active)
}

// CountNone notes that no Envoy runs.
func (h *Hub) CountNone() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tally.None()
}

// Missing is what the Hub does not know or no longer knows.
type Missing struct {
	Since                          time.Time
	Counted                        bool
	Told, NotTold, OpenNotTold     uint64
	Forgotten, ForgottenTargets    uint64
	Unreadable, Crowded, NotClosed uint64
}

// Missing returns what is missing.
func (h *Hub) Missing() Missing {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.store.Losses()
	m := Missing{
		Since: h.begun, Counted: h.tally.Begun(), Told: h.told,
		Forgotten: l.Ended, ForgottenTargets: l.Destinations,
		Unreadable: h.unreadable.Load(), Crowded: l.Open, NotClosed: l.Silent,
	}
	if ended := h.tally.Ended(); ended > h.told {
		m.NotTold = ended - h.told
	}
	if open := uint64(h.store.OpenCount()); h.tally.Active > open {
		m.OpenNotTold = h.tally.Active - open
	}
	return m
}

// Destinations returns what is dialled, the last first.
func (h *Hub) Destinations() []Destination {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.store.Destinations()
}

// Connections returns the connections that are remembered: the ended ones in the
// order they were told, then the open ones, oldest first. With a follower it is
// told of all that come after them.
func (h *Hub) Connections(f *Follower) (ended, open []Connection) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if f != nil {
		h.followers[f] = struct{}{}
	}
	open = h.store.Open()
	for i, now := 0, h.cfg.Now(); i < len(open); i++ {
		open[i].Duration = now.Sub(open[i].Start)
	}
	return h.store.Ended(), open
}

// Follower gets connections as they come.
type Follower struct {
	// C gives them. It is never closed.
	C       chan Connection
	filter  Filter
	updates bool
	lost    atomic.Uint64
}

// NewFollower makes a follower of what the filter asks for, with room for so many
// connections that it has not taken yet. It hears of the end of a connection and
// of the first that is known of an open one; with updates each time something is.
func NewFollower(f Filter, room int, updates bool) *Follower {
	return &Follower{C: make(chan Connection, room), filter: f, updates: updates}
}

func (f *Follower) offer(c *Connection, news bool) {
	if !news && !f.updates || !f.filter.Matches(c) {
		return
	}
	select {
	case f.C <- *c:
	default:
		f.lost.Add(1)
	}
}

// Lost returns how many connections the follower was too slow for.
func (f *Follower) Lost() uint64 { return f.lost.Load() }

// Leave ends a follower.
func (h *Hub) Leave(f *Follower) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.followers, f)
}
