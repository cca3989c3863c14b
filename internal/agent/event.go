// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"strings"

	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/plan/demand"
	"aether.io/aether/internal/xds"
)

// heard takes in an event of the xDS server.
func (l *loop) heard(t *turn, m xdsEvent) {
	switch ev := m.Event.(type) {
	case xds.StreamOpened:
		l.envoys[ev.Stream.ID] = ev.Stream
	case xds.FirstRequest:
		l.begun(t, ev)
	case xds.Asked:
		if ev.Type != xds.Cluster {
			return // Envoy follows the clusters it has
		}
		if ts := l.targets(ev.Names); len(ts) > 0 {
			t.events = append(t.events, demand.Asked{Stream: demand.StreamID(ev.Stream.ID), Targets: ts})
			t.asked = append(t.asked, m.at)
		}
	case xds.Acked:
		l.acked(t, ev)
	case xds.Nacked:
		l.nacked(t, ev)
	case xds.StreamClosed:
		delete(l.envoys, ev.Stream.ID)
		delete(l.starting, ev.Stream.ID)
		l.sendHeldBack(t)
		l.judgePods(t) // what an older Envoy said counts again
		t.events = append(t.events, demand.Closed{Stream: demand.StreamID(ev.Stream.ID)})
	}
}

// isOld reports whether a younger Envoy is connected than that of the stream.
func (l *loop) isOld(s xds.Stream) bool {
	for _, e := range l.envoys {
		if e.Epoch > s.Epoch {
			return true
		}
	}
	return false
}

// begun takes the first request of a type on a stream. It is let go once what it
// names is published.
func (l *loop) begun(t *turn, ev xds.FirstRequest) {
	if l.synced {
		t.done = append(t.done, ev.Done)
	} else {
		l.unasked = append(l.unasked, ev.Done)
	}
	if ev.Type != xds.Cluster {
		return
	}
	if ev.Fresh {
		l.pods.unknown()
		l.starts(ev.Stream.ID)
	}
	held := l.targets(ev.Held)
	has := make(map[netip.AddrPort]bool, len(held))
	for _, h := range held {
		has[h] = true
	}
	var asked []netip.AddrPort
	for _, a := range l.targets(ev.Subscribed) {
		if !has[a] {
			asked = append(asked, a)
		}
	}
	t.events = append(t.events, demand.Opened{
		Stream: demand.StreamID(ev.Stream.ID), Epoch: ev.Stream.Epoch, Held: held, Asked: asked,
	})
}

// targets parses the names of clusters. A name that is neither a target's nor of
// a cluster that every node has is counted and never answered.
func (l *loop) targets(names []string) []netip.AddrPort {
	ts := make([]netip.AddrPort, 0, len(names))
	for _, name := range names {
		target, err := envoy.ParseClusterName(name)
		switch {
		case err == nil:
			ts = append(ts, target)
		case !l.published.base[name]:
			l.meter.malformed.Inc()
			l.log.Debug("a name that is none was asked for", "cluster", name, "err", err)
		}
	}
	return ts
}

// acked and nacked note whose standing with Envoy may have changed; judge looks at
// it when the turn's publication is over. An event tells what was so when it was
// sent, and something newer may have been published since.
func (l *loop) acked(t *turn, ev xds.Acked) {
	for _, r := range ev.Resources {
		if ev.Type == xds.Listener && l.isOld(ev.Stream) {
			continue // it drains, or will: the listener counts where new connections go
		}
		t.judged[xds.Key{Type: ev.Type, Name: r.Name}] = true
		if ev.Type != xds.Cluster {
			continue
		}
		if target, err := envoy.ParseClusterName(r.Name); err == nil {
			l.published.tookAway(target)
		}
	}
}

func (l *loop) nacked(t *turn, ev xds.Nacked) {
	for _, name := range ev.Names {
		t.judged[xds.Key{Type: ev.Type, Name: name}] = true
		l.meter.nacks.WithLabelValues(ev.Type.String()).Inc()
	}
}

// judge remembers what Envoy thinks of resources now. A rejection is never fatal:
// the last accepted version stays in force, and so does everything else that was
// published with it.
func (l *loop) judge(t *turn) {
	for key := range t.update {
		if l.nacks[key] != "" {
			t.judged[key] = true
		}
	}
	for key := range t.judged {
		words, rejected := l.xds.Nack(key.Type, key.Name)
		if rejected {
			l.nacks[key] = words
		} else {
			delete(l.nacks, key)
		}
		if key.Type != xds.Listener {
			continue
		}
		pod, err := envoy.ParseListenerName(key.Name)
		switch {
		case err != nil:
		case rejected:
			l.pods.rejected(pod, words)
		case l.xds.Accepted(key.Type, key.Name) && !l.isStarting():
			l.pods.accepted(pod)
		}
	}
}

// nackOf returns Envoy's words about a target's cluster or assignment.
func (l *loop) nackOf(target netip.AddrPort) string {
	name := envoy.ClusterName(target)
	var words []string
	for _, t := range []xds.Type{xds.Cluster, xds.Assignment} {
		if m := l.nacks[xds.Key{Type: t, Name: name}]; m != "" {
			words = append(words, m)
		}
	}
	return strings.Join(words, "; ")
}
