// SPDX-License-Identifier: Apache-2.0

package refuse

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// Config sets the refuser. Zero values take the defaults.
type Config struct {
	// Delay is the wait between the header and the close in quiet times, default
	// 5 ms. MaxDelay is the wait in a storm, default 250 ms.
	Delay, MaxDelay time.Duration
	// QuietRate and StormRate are the refusals per second up to which Delay and
	// from which on MaxDelay is waited, default 200 and 500: a few dozen clients
	// that retry in a tight loop are slowed to some 300 a second between them.
	QuietRate, StormRate float64
	// HeaderTimeout is how long a peer may take to send anything, default 1 s.
	HeaderTimeout time.Duration
	// MaxHeld is how many connections are held at once, default 8,192 or a
	// quarter of the process's descriptors if that is less: the rest of the agent
	// needs some in a storm too.
	MaxHeld int
	// Log gets changes of state only. Default: nowhere.
	Log *slog.Logger
	// Registerer gets the metrics. Default: none.
	Registerer prometheus.Registerer
}

func (c Config) withDefaults() Config {
	duration := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	number := func(n *float64, v float64) {
		if *n <= 0 {
			*n = v
		}
	}
	duration(&c.Delay, 5*time.Millisecond)
	duration(&c.MaxDelay, 250*time.Millisecond)
	duration(&c.HeaderTimeout, time.Second)
	number(&c.QuietRate, 200)
	number(&c.StormRate, 500)
	c.MaxDelay = max(c.MaxDelay, c.Delay)
	c.StormRate = max(c.StormRate, c.QuietRate+1)
	if c.MaxHeld <= 0 {
		c.MaxHeld = defaultMaxHeld()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

func defaultMaxHeld() int {
	const most = 8192
	var files unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &files) != nil {
		return most
	}
	return int(max(min(files.Cur/4, most), 1))
}

// Server refuses whatever connects to it.
type Server struct {
	cfg   Config
	law   law
	meter *metrics
	slots chan struct{}

	mu   sync.Mutex
	rate rate
}

// New returns a refuser that does nothing yet.
func New(c Config) *Server {
	c = c.withDefaults()
	s := &Server{
		cfg:   c,
		law:   law{base: c.Delay, limit: c.MaxDelay, quiet: c.QuietRate, storm: c.StormRate},
		slots: make(chan struct{}, c.MaxHeld),
	}
	s.meter = newMetrics(c.Registerer, s.currentDelay)
	return s
}

// acceptPause is how long accepting rests when the process has no descriptors
// left: long enough not to spin, short enough to be there when some are free.
const acceptPause = 20 * time.Millisecond

// Serve accepts on ln until ctx ends, then closes ln and every held connection
// and returns nil. It returns an error when ln fails for another reason.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	defer ln.Close()
	var held sync.WaitGroup
	defer held.Wait()
	defer cancel() // before the wait: held connections end with it
	starved := false
	for {
		conn, err := ln.Accept()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil
		case exhausted(err):
			if !starved {
				s.cfg.Log.Warn("no descriptors left to refuse with: resting", "err", err)
			}
			starved = true
			if !pause(ctx, acceptPause) {
				return nil
			}
			continue
		default:
			return fmt.Errorf("accept connections to refuse: %w", err)
		}
		starved = false
		s.take(ctx, conn, &held)
	}
}

// take holds a connection in a goroutine of its own, or closes it at once when
// too many are held.
func (s *Server) take(ctx context.Context, conn net.Conn, held *sync.WaitGroup) {
	s.meter.connections.Inc()
	delay := s.observe(time.Now())
	select {
	case s.slots <- struct{}{}:
	default:
		s.meter.unheld.Inc()
		conn.Close()
		return
	}
	held.Go(func() {
		defer func() { <-s.slots }()
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		if err := awaitData(conn, s.cfg.HeaderTimeout); err != nil {
			s.meter.silent.Inc()
			return
		}
		pause(ctx, delay)
	})
}

// observe counts a refusal and returns how long it is to be held.
func (s *Server) observe(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.law.delay(s.rate.add(now))
}

func (s *Server) currentDelay() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.law.delay(s.rate.at(time.Now()))
}

// awaitData returns nil when something can be read, without reading it.
func awaitData(conn net.Conn, timeout time.Duration) error {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return errors.New("the connection has no descriptor")
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return fmt.Errorf("get the descriptor: %w", err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return fmt.Errorf("set the deadline: %w", err)
	}
	var n int
	var peekErr error
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		for peekErr = unix.EINTR; errors.Is(peekErr, unix.EINTR); {
			n, _, peekErr = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		}
		return !errors.Is(peekErr, unix.EAGAIN)
	})
	switch {
	case err != nil:
		return fmt.Errorf("wait for the header: %w", err)
	case peekErr != nil:
		return fmt.Errorf("look for the header: %w", peekErr)
	case n == 0:
		return errors.New("the peer closed before its header")
	}
	return nil
}

func exhausted(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM)
}

// pause waits; it returns false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
