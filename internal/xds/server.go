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
	cfg Config

	// mu guards what follows and every view. It is never held while the sink runs
	// or a response is sent.
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
		ledger:   ledger{},
		sessions: map[uint64]*session{},
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
	named := map[Key]bool{}
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
		blobs[k], named[k] = b, r.Named
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range u.Remove {
		delete(blobs, k)
	}
	set := changes{}
	for k, b := range blobs {
		changed := s.ledger.publish(k, b)
		set.note(k, s.ledger.restrict(k, named[k]) || changed)
	}
	for _, t := range offerOrder {
		s.offer(t, set[t])
	}
	gone := changes{}
	for _, k := range u.Remove {
		gone.note(k, s.ledger.remove(k))
	}
	for _, t := range slices.Backward(offerOrder) {
		s.offer(t, gone[t])
	}
	return errors.Join(errs...)
}

// changes are the names under which something else is offered than before.
type changes map[Type][]string

func (c changes) note(k Key, changed bool) {
	if changed {
		c[k.Type] = append(c[k.Type], k.Name)
	}
}

// offer has every stream take note of changed names. The caller holds mu.
func (s *Server) offer(t Type, names []string) {
	if len(names) == 0 {
		return
	}
	for _, ses := range s.sessions {
		v := ses.views[t]
		if v == nil {
			continue
		}
		for _, name := range names {
			e := s.ledger[Key{t, name}]
			v.touch(name, e != nil && !e.offer.none())
		}
		ses.respond(t, false)
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
