// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
)

// init lets time in a bubble be its own. client-go reports errors through a list
// of handlers that the process has once; one of them slows callers down by when
// the last error was, which in another bubble may be years ahead.
func init() {
	utilruntime.ErrorHandlers = slices.Clone(utilruntime.ErrorHandlers[:1])
}

// latestMinor is the minor version of Kubernetes that is played by default.
const latestMinor = 37

// Options says which API server to play. The zero value is today's, on loopback.
type Options struct {
	// Minor is the minor version, as 32 in 1.32; 0 means 37. It decides which
	// versions of networking.k8s.io exist (none before 1.31, v1beta1 until 1.36,
	// v1 from 1.33), whether streaming lists do (1.32, and from 1.34), whether
	// they are compressed (1.37), and which fields of a slice's hints are kept.
	Minor int
	// BetaNetworking turns networking.k8s.io/v1beta1 on; it is off by default.
	BetaNetworking bool
	// PlainLists turns streaming lists off, whatever the version.
	PlainLists bool
	// LegacyDiscovery leaves aggregated discovery out, as before 1.26.
	LegacyDiscovery bool
	// InMemory replaces loopback TCP by pipes; see the package comment.
	InMemory bool
	// BookmarkEvery is how often a watch gets a bookmark; 0 means a minute.
	BookmarkEvery time.Duration
	// History is how many changes are remembered for watches; 0 means 10,000.
	History int
}

func (o Options) withDefaults() Options {
	if o.Minor == 0 {
		o.Minor = latestMinor
	}
	if o.BookmarkEvery == 0 {
		o.BookmarkEvery = time.Minute
	}
	if o.History == 0 {
		o.History = 10_000
	}
	return o
}

// streamingLists reports whether sendInitialEvents is known (KEP-3157).
func (o Options) streamingLists() bool {
	return !o.PlainLists && (o.Minor == 32 || o.Minor >= 34)
}

// Server is an API server. Its methods may be called from any goroutine.
type Server struct {
	options Options
	network network
	server  *http.Server
	store   *store
	faults  faults
	records records

	serving sync.WaitGroup // Serve loops
	working sync.WaitGroup // handlers

	mu       sync.Mutex
	listener net.Listener // nil while down
	closed   bool
	conns    map[*conn]struct{}
	frozen   bool
	hangs    bool     // connections are ended before they are answered
	imports  []string // versions of ServiceImport that are served, the preferred first
}

// New starts a server.
func New(o Options) (*Server, error) {
	o = o.withDefaults()
	s := &Server{options: o, store: newStore(o.History), conns: map[*conn]struct{}{}}
	s.faults.init()
	if o.InMemory {
		s.network = &memory{}
	} else {
		s.network = &loopback{}
	}
	config, err := serverTLS()
	if err != nil {
		return nil, fmt.Errorf("make the API server's certificate: %w", err)
	}
	s.server = &http.Server{
		Handler:   http.HandlerFunc(s.serve),
		TLSConfig: config,
		ErrorLog:  log.New(io.Discard, "", 0), // aborted connections are what tests ask for
	}
	if err := s.Up(); err != nil {
		return nil, err
	}
	return s, nil
}

// Start starts a server that ends with the test.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Config returns how a client reaches the server. Every call returns a new one.
func (s *Server) Config() *rest.Config {
	c := &rest.Config{
		Host:            "https://" + s.network.address(),
		TLSClientConfig: rest.TLSClientConfig{CAData: authority()},
		// Tests ask faster than any program would.
		QPS: -1,
	}
	if s.options.InMemory {
		c.Dial = s.network.dial
	}
	return c
}

// Close ends the server, its connections and its goroutines.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.faults.heal()
	s.Down()
	// Down has closed what there was; this ends what net/http keeps.
	_ = s.server.Close()
	s.serving.Wait()
	s.working.Wait()
}

// Down refuses connections and closes those that are open.
func (s *Server) Down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil {
		_ = s.listener.Close()
		s.listener = nil
	}
	s.closeConns()
}

// closeConns closes every connection; s.mu is held.
func (s *Server) closeConns() {
	for c := range s.conns {
		_ = c.Conn.Close()
	}
	clear(s.conns)
}

// Up accepts connections again, on the same address.
func (s *Server) Up() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil || s.closed {
		return nil
	}
	l, err := s.network.listen()
	if err != nil {
		return fmt.Errorf("listen as an API server: %w", err)
	}
	s.listener = l
	s.serving.Go(func() {
		if err := s.server.ServeTLS(&accepting{Listener: l, server: s}, "", ""); !errors.Is(err, net.ErrClosed) && !errors.Is(err, http.ErrServerClosed) {
			panic(err) // a listener of ours ends in no other way
		}
	})
	return nil
}

// Freeze makes the network swallow everything, on open connections and on new
// ones: nobody is told, as when a firewall drops packets.
func (s *Server) Freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = true
	for c := range s.conns {
		c.frozen.Store(true)
	}
}

// Thaw ends Freeze. Connections that lost something are closed.
func (s *Server) Thaw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = false
	for c := range s.conns {
		if c.frozen.Load() {
			_ = c.Conn.Close()
			delete(s.conns, c)
		}
	}
}

// HangUp ends every connection, open ones and those to come, before anything is
// answered, as a balancer does that has no server; HangUp(false) ends that.
func (s *Server) HangUp(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hangs = on; on {
		s.closeConns()
	}
}

// Restart closes every connection and forgets the history, as a new process does
// whose watch cache begins with a list.
func (s *Server) Restart() {
	s.Down()
	s.store.compact()
	_ = s.Up()
}

// Backup is the content of a server at one moment.
type Backup struct {
	version uint64
	objects map[key]Object
}

// Backup returns what the server holds now.
func (s *Server) Backup() Backup { return s.store.backup() }

// Restore restarts the server with an older content and its resourceVersion, as
// when etcd is restored from a backup without raising its revision.
func (s *Server) Restore(b Backup) {
	s.Down()
	s.working.Wait() // no stream may tell of both worlds
	s.store.restore(b)
	_ = s.Up()
}

// adopt takes a new connection in; it reports false when none is wanted.
func (s *Server) adopt(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil || s.hangs {
		return false
	}
	c.frozen.Store(s.frozen)
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// network is where clients and server meet.
type network interface {
	listen() (net.Listener, error)
	dial(ctx context.Context, network, address string) (net.Conn, error)
	address() string
}
