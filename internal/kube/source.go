// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/convert"
	"aether.io/aether/internal/model"
)

// Defaults of Options.
const (
	// DefaultStaleAfter is more than two of the bookmarks that an API server
	// sends about every minute.
	DefaultStaleAfter        = 150 * time.Second
	DefaultDiscoveryInterval = 30 * time.Second
	DefaultRetryCap          = 10 * time.Second
)

// Options are the settings of a Source. Node is required.
type Options struct {
	// Node is the name of the own Node.
	Node string
	// RangeGiven is true when the Service range is not taken from ServiceCIDRs, so
	// that nobody need hear of their absence.
	RangeGiven bool
	// StaleAfter is how long a kind may be silent before it counts as stale.
	StaleAfter time.Duration
	// DiscoveryInterval is how often a kind that the API server does not serve is
	// looked for, up to a fifth more.
	DiscoveryInterval time.Duration
	// RetryCap is the longest pause before a failed list or watch is tried again,
	// up to twice that; the first is below two seconds.
	RetryCap time.Duration

	Log      *slog.Logger
	Registry prometheus.Registerer // nil for no metrics
	Now      func() time.Time
}

// Batch is what the source tells at once.
type Batch struct {
	Changes []model.Change
	// Problems are all that there are now.
	Problems []api.Problem
	// Synced is true when everything has been listed at least once.
	Synced bool
}

// Source is one node's view of the Kubernetes API. It runs once.
type Source struct {
	client *Client
	o      Options
	health *health
	out    *outbox
	meter  *metrics
	stores map[Kind]*store
}

// New makes a source. Nothing is dialled before Run.
func New(c *Client, o Options) (*Source, error) {
	if o.Node == "" {
		return nil, errors.New("no node name")
	}
	orDefault(&o.StaleAfter, DefaultStaleAfter)
	orDefault(&o.DiscoveryInterval, DefaultDiscoveryInterval)
	orDefault(&o.RetryCap, DefaultRetryCap)
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Source{client: c, o: o, out: newOutbox(), stores: map[Kind]*store{}}
	s.health = newHealth(o.Now, o.StaleAfter, s.out.poke)
	s.meter = newMetrics(s.Freshness)
	if o.Registry != nil {
		if err := o.Registry.Register(s.meter); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	for _, k := range Kinds() {
		s.stores[k] = newStore(k, s.out, s.health, s.meter, o.Now)
	}
	return s, nil
}

func orDefault(d *time.Duration, value time.Duration) {
	if *d <= 0 {
		*d = value
	}
}

// Freshness returns how much what was told can be relied on now. It may be
// called from any goroutine, at any time.
func (s *Source) Freshness() Freshness { return s.health.freshness() }

// ConnectOnly lists what only connects in the captured pods of the node, sorted.
// Until the pods have been listed it is an error.
func (s *Source) ConnectOnly() ([]convert.Connecting, error) {
	if f := s.Freshness().Of(Pods); !f.Listed {
		if f.Err != nil {
			return nil, fmt.Errorf("list the node's pods: %w", f.Err)
		}
		return nil, errors.New("list the node's pods: not done yet")
	}
	return s.stores[Pods].connecting(), nil
}

// Run tells sink what the API server has, then every change, until ctx ends, and
// leaves no goroutine. It calls sink from its own goroutine; sink may block, and
// the watches then wait. It returns an error only when no client can be made.
func (s *Source) Run(ctx context.Context, sink func(Batch)) error {
	ctx, cancel := context.WithCancel(ctx)
	var watches sync.WaitGroup
	defer watches.Wait()
	defer s.out.close()
	defer cancel()
	for _, k := range Kinds() {
		w, err := s.newWatcher(k, selectionOf(k, s.o.Node), s.stores[k])
		if err != nil {
			return err
		}
		watches.Go(func() { w.run(ctx) })
	}
	tick := time.NewTimer(0)
	defer tick.Stop()
	log := newSpoken(s)
	for last := (Batch{}); ; {
		tick.Reset(s.pause())
		select {
		case <-ctx.Done():
			return nil
		case <-s.out.wake:
		case <-tick.C:
		}
		log.silent(s.health.cutSilent())
		log.failures()
		b := Batch{Problems: s.problems()}
		b.Changes, b.Synced = s.out.take()
		if len(b.Changes) == 0 && b.Synced == last.Synced && slices.Equal(b.Problems, last.Problems) {
			continue
		}
		if b.Synced && !last.Synced {
			s.o.Log.Info("the API server's objects are known", "addr", s.client.Server())
		}
		sink(b)
		last = Batch{Problems: b.Problems, Synced: b.Synced}
	}
}

const (
	// housekeeping is how often standing failures are looked at, and
	// quietHousekeeping how often silence is while there is none: an agent with
	// nothing to do should not be woken.
	housekeeping      = time.Second
	quietHousekeeping = 10 * time.Second
)

// pause is how long Run waits for a change before it looks after what only time shows.
func (s *Source) pause() time.Duration {
	for _, k := range s.Freshness().Kinds {
		if k.Stale {
			return housekeeping
		}
	}
	return quietHousekeeping
}
