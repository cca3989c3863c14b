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
		l.holdBack()
	default: // nobody watches
	}
}

func (l *loop) lived(t *turn, m envoyLive) {
	delete(l.starting, m.stream)
	l.sendHeldBack(t)
	l.judgePods(t)
}

// holdBack keeps listeners that a starting Envoy would reject from it until it
// lives: those that the last one rejected, and those of pods whose network
// namespace is gone.
//
// Envoy's log filters wait for their rates, which are asked for when a listener
// comes. Envoy 1.40 notes who waits by the address of the filter, and strikes a
// rejected listener's filters off later than it frees them: a good listener beside
// it, whose filter got the same memory, then waits for ever, and an Envoy that
// starts never serves (seen in one of ten starts beside a dozen such listeners).
// One that has its rates makes nobody wait.
func (l *loop) holdBack() {
	for _, x := range l.pods.byName {
		if err := l.checkNetNS(x.workload.NetNS); err != nil {
			x.listener, x.nack = listenerRejected, "not sent to an Envoy that starts: "+err.Error()
		}
		if x.listener == listenerRejected {
			x.held = true
			l.withdrawListener(x.workload)
		}
	}
}

// sendHeldBack sends what was held back, unless an Envoy starts.
func (l *loop) sendHeldBack(t *turn) {
	if l.isStarting() {
		return
	}
	for _, x := range l.pods.byName {
		if x.held {
			x.held = false
			t.retry = append(t.retry, x.workload)
		}
	}
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
