// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"time"

	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/xds"
)

// An Envoy that has just started acknowledges its first listeners some milliseconds
// before it listens on them: before its workers run. A pod that were told ready then
// could have its first connections refused. So an acknowledgement of the youngest
// Envoy counts once its workers run, which its admin interface tells.

const (
	// liveTimeout bounds the wait; after it an acknowledgement counts as it is.
	liveTimeout = 2 * time.Second
	livePause   = 5 * time.Millisecond
	// maxStarting is how many Envoys may be starting: far more than ever are.
	maxStarting = 8
	liveQuery   = "/stats?filter=^listener_manager.workers_started$"
	maxLive     = 4096
)

// envoyLive tells that the Envoy of a stream listens, or that nobody knows.
type envoyLive struct{ stream uint64 }

func (envoyLive) isMessage() {}

// starts notes that the Envoy of a stream has just started, and has it watched.
func (l *loop) starts(stream uint64) {
	select {
	case l.lives <- stream:
		l.starting[stream] = true
	default: // nobody watches
	}
}

func (l *loop) lived(t *turn, m envoyLive) {
	delete(l.starting, m.stream)
	l.judgePods(t)
}

// judgePods has every pod's listener looked at again.
func (l *loop) judgePods(t *turn) {
	for name := range l.pods.byName {
		t.judged[xds.Key{Type: xds.Listener, Name: envoy.ListenerName(name)}] = true
	}
}

// isStarting reports whether the youngest Envoy does not listen yet.
func (l *loop) isStarting() bool {
	for id := range l.starting {
		if s, open := l.envoys[id]; open && !l.isOld(s) {
			return true
		}
	}
	return false
}

// watchStarts waits for Envoys to listen, one after the other, until ctx ends.
func watchStarts(ctx context.Context, streams <-chan uint64, admin unixHTTP, tell func(message)) {
	for {
		select {
		case stream := <-streams:
			awaitWorkers(ctx, admin)
			if ctx.Err() != nil {
				return
			}
			tell(envoyLive{stream})
		case <-ctx.Done():
			return
		}
	}
}

// awaitWorkers returns when Envoy's workers run, when nobody can tell, or after
// liveTimeout.
func awaitWorkers(ctx context.Context, admin unixHTTP) {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	for {
		b, err := admin.get(ctx, liveQuery, maxLive)
		if err != nil || !bytes.HasPrefix(b, []byte("listener_manager.workers_started: 0")) {
			return
		}
		select {
		case <-time.After(livePause):
		case <-ctx.Done():
			return
		}
	}
}
