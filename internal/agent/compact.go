// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/plan/demand"
)

// Envoy keeps some 2 KiB for every name that it ever asked for, whatever became of
// it, and lists all of them when it reconnects. When one Envoy has asked for more
// names than CompactNames, its supervisor is asked for a hot restart: the next one
// begins with the remembered Service ports alone.

const (
	// DefaultCompactNames is far above what pods that are no scanners dial, and far
	// below what hurts: 32 MiB in Envoy, 1 MB in the first request of a stream.
	DefaultCompactNames = 16_000
	// compactInterval is the shortest time between two of these restarts, or
	// between two tries.
	compactInterval = 10 * time.Minute
	// compactTimeout bounds one: the supervisor answers when the new Envoy serves,
	// or that it has to wait.
	compactTimeout = 2 * time.Minute
)

// Restarter asks the supervisor of Envoy for a hot restart. scheduled means that it
// comes later; nil and false that it is done.
type Restarter func(ctx context.Context, reason string) (scheduled bool, err error)

// compaction decides when to ask for a restart. It is a plain value: time and what
// is so are arguments.
type compaction struct {
	limit  int // 0 is never
	busy   bool
	taken  demand.StreamID // the last stream whose Envoy is, or was, restarted for this
	tried  time.Time
	failed error // of the last try, until one succeeds
}

// due reports whether to ask now, for a stream that asked for so many names. It
// notes that it was asked.
func (c *compaction) due(now time.Time, stream demand.StreamID, names int) bool {
	if c.limit == 0 || names <= c.limit || c.busy || stream == c.taken {
		return false
	}
	if !c.tried.IsZero() && now.Sub(c.tried) < compactInterval {
		return false
	}
	c.busy, c.tried = true, now
	return true
}

// over takes in what became of the question for a stream.
func (c *compaction) over(stream demand.StreamID, err error) {
	c.busy, c.failed = false, err
	if err == nil {
		c.taken = stream
	}
}

// wake returns when due becomes true because of the time alone.
func (c *compaction) wake(stream demand.StreamID, names int) (time.Time, bool) {
	if c.limit == 0 || names <= c.limit || c.busy || stream == c.taken || c.tried.IsZero() {
		return time.Time{}, false
	}
	return c.tried.Add(compactInterval), true
}

// problem says why Envoy keeps more names than it should, nil when it does not.
func (c *compaction) problem(names int) error {
	if names <= c.limit {
		return nil
	}
	return c.failed
}

// compacted is what became of a restart that was asked for.
type compacted struct {
	stream    demand.StreamID
	scheduled bool
	err       error
}

func (compacted) isMessage() {}

// compactionDue has a hot restart asked for when it is time. The question is put by
// another goroutine.
func (l *loop) compactionDue(now time.Time) {
	stream, names, ok := l.demand.Newest()
	if !ok || !l.synced || !l.compaction.due(now, stream, names) {
		return
	}
	l.log.Info("Envoy was asked for many names, it is to be restarted to forget them", "stream", uint64(stream), "count", names)
	select {
	case l.compacts <- stream:
	default: // never: it has room for one, and one is asked at a time
	}
}

func (l *loop) compacted(m compacted) {
	l.compaction.over(m.stream, m.err)
	switch {
	case m.err != nil:
		l.meter.compactions.WithLabelValues("failed").Inc()
		l.log.Warn("Envoy keeps the names it was asked for", "err", m.err)
	case m.scheduled:
		l.meter.compactions.WithLabelValues("scheduled").Inc()
		l.log.Info("Envoy will be restarted to forget names when an older one has ended")
	default:
		l.meter.compactions.WithLabelValues("done").Inc()
	}
}

// compactor puts the questions, until there are no more or ctx ends.
func compactor(ctx context.Context, streams <-chan demand.StreamID, restart Restarter, limit int, tell func(message)) {
	for {
		select {
		case stream := <-streams:
			bounded, cancel := context.WithTimeout(ctx, compactTimeout)
			scheduled, err := restart(bounded, fmt.Sprintf("more than %d names were asked for", limit))
			cancel()
			if ctx.Err() != nil {
				return
			}
			tell(compacted{stream, scheduled, err})
		case <-ctx.Done():
			return
		}
	}
}

// supervisorOf asks over the supervisor's socket.
func supervisorOf(socket string) Restarter {
	client := newUnixHTTP(socket, compactTimeout).client
	return func(ctx context.Context, reason string) (bool, error) {
		body, err := json.Marshal(api.ProxyRestartRequest{Reason: reason})
		if err != nil {
			return false, fmt.Errorf("ask for a hot restart: %w", err)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://proxy/v1/restart", bytes.NewReader(body))
		if err != nil {
			return false, fmt.Errorf("ask for a hot restart: %w", err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return false, fmt.Errorf("ask for a hot restart: %w", err)
		}
		defer resp.Body.Close()
		if resp.StatusCode/100 == 2 {
			return resp.StatusCode == http.StatusAccepted, nil
		}
		var e api.Error
		if json.NewDecoder(io.LimitReader(resp.Body, maxBody)).Decode(&e) != nil || e.Error == "" {
			e.Error = resp.Status
		}
		return false, fmt.Errorf("ask for a hot restart: %w", errors.New(e.Error))
	}
}
