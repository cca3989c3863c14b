// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
)

// Defaults of Config.
const (
	DefaultHoldTimeout = 2 * time.Second
	DefaultStopTimeout = 2 * time.Second
)

// Config is what a Server needs.
type Config struct {
	// Sink takes the events. It is called from the streams' goroutines and may
	// block; a stream makes no progress meanwhile, and Serve does not return. It
	// must not call back into the Server's Serve. Nil discards events and holds no
	// request.
	Sink func(Event)
	// HoldTimeout bounds how long a first request waits for its Done; default 2 s.
	HoldTimeout time.Duration
	// StopTimeout is how long Serve waits for streams to end before it cuts them;
	// default 2 s.
	StopTimeout time.Duration
	// Metrics counts what happens in this one server; nil counts for nobody.
	Metrics *Metrics
	// Log defaults to slog.Default().
	Log *slog.Logger
}

// Server is a delta ADS server. All methods may be called concurrently.
type Server struct {
	cfg    Config
	caches map[Type]*cache.LinearCache

	// mu guards what follows and every view. It is taken before a cache's own
	// lock, never while calling the sink.
	mu       sync.Mutex
	ledger   ledger
	sessions map[uint64]*session
	lastID   uint64
	epochs   epochs
}

// New makes a Server that offers nothing yet.
func New(cfg Config) *Server {
	cfg.HoldTimeout = cmp.Or(cfg.HoldTimeout, DefaultHoldTimeout)
	cfg.StopTimeout = cmp.Or(cfg.StopTimeout, DefaultStopTimeout)
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics()
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	s := &Server{
		cfg:      cfg,
		caches:   map[Type]*cache.LinearCache{},
		ledger:   ledger{},
		sessions: map[uint64]*session{},
	}
	for _, t := range offerOrder {
		s.caches[t] = cache.NewLinearCache(string(t))
	}
	cfg.Metrics.server.Store(s)
	return s
}

// Publish offers what u sets and stops offering what u removes; see the package
// comment for order and atomicity. It never waits for Envoy. A resource that
// cannot be published (a type that is not served, no name, bytes that cannot be
// made) is left as it was and named in the error; all others take effect.
func (s *Server) Publish(u Update) error {
	var errs []error
	blobs := make(map[Key]blob, len(u.Set))
	for _, r := range u.Set {
		k, err := r.key()
		if err != nil {
			errs = append(errs, fmt.Errorf("publish: %w", err))
			continue
		}
		b, err := newBlob(r.Message)
		if err != nil {
			errs = append(errs, fmt.Errorf("publish %s %q: %w", k.Type, k.Name, err))
			continue
		}
		blobs[k] = b
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := newChanges(s.ledger)
	for _, k := range u.Remove {
		delete(blobs, k)
		c.add(k, s.ledger.remove(k))
	}
	for k, b := range blobs {
		c.add(k, s.ledger.publish(k, b))
	}
	if err := s.apply(c); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// changes are what the caches have to take over from the ledger.
type changes struct {
	ledger ledger
	set    map[Type]map[string]types.Resource
	retire map[Type][]string
}

func newChanges(l ledger) *changes {
	return &changes{l, map[Type]map[string]types.Resource{}, map[Type][]string{}}
}

func (c *changes) add(k Key, v verdict) {
	switch v {
	case keep:
	case offer:
		if c.set[k.Type] == nil {
			c.set[k.Type] = map[string]types.Resource{}
		}
		c.set[k.Type][k.Name] = c.ledger[k].offer.message()
	case retire:
		c.retire[k.Type] = append(c.retire[k.Type], k.Name)
	}
}

// apply brings the caches in line, in the order the package promises. The caller
// holds mu.
func (s *Server) apply(c *changes) error {
	var errs []error
	for _, t := range offerOrder {
		set := c.set[t]
		if len(set) == 0 {
			continue
		}
		for _, ses := range s.sessions {
			if v := ses.views[t]; v != nil {
				for name := range set {
					v.offered(name, s.ledger[Key{t, name}].offer.version)
				}
			}
		}
		errs = append(errs, s.caches[t].UpdateResources(set, nil))
	}
	for _, t := range slices.Backward(offerOrder) {
		gone := c.retire[t]
		if len(gone) == 0 {
			continue
		}
		for _, ses := range s.sessions {
			if v := ses.views[t]; v != nil {
				for _, name := range gone {
					_, withdrawn := s.ledger[Key{t, name}]
					v.retired(name, withdrawn)
				}
			}
		}
		errs = append(errs, s.caches[t].UpdateResources(nil, gone))
	}
	return errors.Join(errs...)
}

// offered calls f for every resource of a type that the cache holds. The caller
// holds mu.
func (s *Server) offered(t Type) func(func(name, version string)) {
	return func(f func(name, version string)) {
		for k, e := range s.ledger {
			if k.Type == t && !e.offer.none() {
				f(k.Name, e.offer.version)
			}
		}
	}
}

// Nack returns Envoy's words about a resource, and false when no Envoy rejected
// what was published under that name.
func (s *Server) Nack(t Type, name string) (message string, rejected bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.ledger[Key{t, name}]
	if e == nil || e.nack.none() {
		return "", false
	}
	return e.nack.message, true
}

// Accepted reports whether an Envoy has accepted what is published under the name
// now.
func (s *Server) Accepted(t Type, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.ledger[Key{t, name}]
	return e != nil && e.good.version == e.want.version
}
