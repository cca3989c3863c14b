// SPDX-License-Identifier: Apache-2.0

package xds_test

import (
	"fmt"
	"slices"
	"testing"

	"aether.io/aether/internal/xds"
	"aether.io/aether/internal/xds/xdstest"
)

func TestRejectedListenerKeepsTheOthers(t *testing.T) {
	n := newNode(t, xds.Config{})
	r := &refuse{}
	bad, good := listener("capture:x/bad", 0), listener("capture:x/good", 0)
	r.add(t, bad, errBad)
	n.publish(bad, good)
	n.serve()
	e := n.envoy(xdstest.Options{Judge: r.judge})
	connect(t, e)
	holds(t, e, good)
	nacked := event(n, func(xds.Nacked) bool { return true })
	if nacked.Type != xds.Listener || !slices.Equal(nacked.Names, []string{bad.Name}) {
		t.Errorf("rejected: %+v", nacked)
	}
	if words, rejected := n.server.Nack(xds.Listener, bad.Name); !rejected || words != nacked.Message {
		t.Errorf("remembered (%v): %q, want %q", rejected, words, nacked.Message)
	}
	if _, rejected := n.server.Nack(xds.Listener, good.Name); rejected {
		t.Error("the good listener counts as rejected")
	}
	// The good one is sent again and now counts.
	event(n, func(a xds.Acked) bool {
		return slices.ContainsFunc(a.Resources, func(a xds.Accepted) bool { return a.Name == good.Name && a.Newest })
	})

	// Publishing the same once more changes nothing, for this Envoy or a new one.
	before := len(e.Responses())
	n.publish(bad, good)
	fresh := n.envoy(xdstest.Options{Judge: r.judge})
	connect(t, fresh)
	holds(t, fresh, good)
	for _, resp := range append(brought(fresh), e.Responses()[before:]...) {
		if slices.Contains(resp.Names, bad.Name) {
			t.Errorf("the rejected bytes were sent again: %+v", resp)
		}
	}

	// Other bytes clear it.
	mended := listener(bad.Name, 1)
	n.publish(mended)
	holds(t, e, mended)
	holds(t, fresh, mended)
	event(n, func(a xds.Acked) bool {
		return slices.ContainsFunc(a.Resources, func(a xds.Accepted) bool { return a.Name == bad.Name })
	})
	if words, rejected := n.server.Nack(xds.Listener, bad.Name); rejected {
		t.Errorf("still rejected: %s", words)
	}
}

func TestRejectedVersionFallsBackToTheAcceptedOne(t *testing.T) {
	n := newNode(t, xds.Config{})
	r := &refuse{}
	good, bad := listener("l", 0), listener("l", 1)
	r.add(t, bad, errBad)
	n.publish(good)
	n.serve()
	e := n.envoy(xdstest.Options{Judge: r.judge})
	connect(t, e)
	event(n, func(a xds.Acked) bool { return a.Type == xds.Listener && len(a.Resources) == 1 })
	n.publish(bad)
	event(n, func(xds.Nacked) bool { return true })
	holds(t, e, good)

	fresh := n.envoy(xdstest.Options{Judge: r.judge})
	connect(t, fresh)
	holds(t, fresh, good)
	st := n.server.Status().Resources[0]
	if st.Offered != st.Accepted || st.Offered == st.Published || st.Rejection == "" {
		t.Errorf("status %+v", st)
	}
	if n.server.Accepted(xds.Listener, "l") {
		t.Error("the rejected version counts as accepted")
	}
	// Back to what Envoy has: nothing is wrong any more.
	n.publish(good)
	if _, rejected := n.server.Nack(xds.Listener, "l"); rejected {
		t.Error("the accepted bytes count as rejected")
	}
	n.remove(xds.Listener, "l")
	for _, e := range []*xdstest.Envoy{e, fresh} {
		wait(t, e, "the listener is gone", func() bool { return len(e.Resources(string(xds.Listener))) == 0 })
	}
}

// A server that was restarted does not have the bytes of what Envoy runs. When
// Envoy rejects what the new server makes of it, the old one must stay.
func TestRejectionAfterARestartRemovesNothing(t *testing.T) {
	n := newNode(t, xds.Config{})
	r := &refuse{}
	rs := []xds.Resource{listener("l", 0), cluster("c", 0), assignment("c", 1)}
	bad := []xds.Resource{listener("l", 1), cluster("c", 1), assignment("c", 2)}
	for _, b := range bad {
		r.add(t, b, errBad)
	}
	n.publish(rs...)
	n.serve()
	e := n.envoy(xdstest.Options{Judge: r.judge})
	connect(t, e)
	holds(t, e, rs...)
	for _, r := range rs {
		event(n, func(a xds.Acked) bool { return a.Type == r.Type && len(a.Resources) == 1 })
	}
	n.stop()
	wait(t, e, "the stream ends", func() bool { return !e.Connected() })

	for range 2 { // it must survive a second reconnect too
		again := newNode(t, xds.Config{})
		again.path = n.path
		again.publish(bad...)
		again.serve()
		connect(t, e)
		for _, b := range bad {
			event(again, func(n xds.Nacked) bool { return n.Type == b.Type })
		}
		e.Disconnect()
		connect(t, e)
		event(again, func(f xds.FirstRequest) bool { return f.Stream.ID == 2 && f.Type == xds.Listener })
		other := listener("other", 0)
		again.publish(other)
		holds(t, e, append(rs, other)...)
		again.remove(xds.Listener, "l", "other")
		wait(t, e, "a removed listener is gone", func() bool { return len(e.Resources(string(xds.Listener))) == 0 })
		again.publish(rs[0])
		holds(t, e, rs...)
		event(again, func(a xds.Acked) bool {
			return a.Type == xds.Listener && len(a.Resources) == 1 && a.Resources[0].Newest
		})
		again.stop()
		wait(t, e, "the stream ends", func() bool { return !e.Connected() })
	}
}

// Envoy names nobody when it rejects an assignment.
func TestUnnamedGuiltyAreFound(t *testing.T) {
	for _, test := range []struct {
		name      string
		of, every int
		err       error
	}{
		{"one of one", 1, 1, errBad},
		{"one of two", 2, 2, errBad},
		{"one of a thousand", 1000, 1000, errBad},
		{"ten of a hundred", 100, 10, errBad},
		{"all of eight", 8, 1, errBad},
		{"one of a hundred that does not decode", 100, 100, xdstest.Undecodable(errBad)},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t, xds.Config{})
			r := &refuse{}
			bad := 0
			var set, want []xds.Resource
			for i := range test.of {
				name := fmt.Sprintf("svc:%04d", i)
				a := assignment(name, 80)
				set = append(set, cluster(name, 0), a)
				if i%test.every == test.every/2 {
					r.add(t, a, test.err)
					bad++
				} else {
					want = append(want, a)
				}
			}
			n.publish(set...)
			n.serve()
			e := n.envoy(xdstest.Options{Judge: r.judge})
			connect(t, e)
			holds(t, e, want...)
			wait(t, e, "all guilty are found", func() bool { return count[xds.Nacked](n) == bad })
			if got := len(e.Resources(string(xds.Assignment))); got != len(want) {
				t.Errorf("envoy holds %d assignments, want %d", got, len(want))
			}
			t.Logf("%d responses", len(e.Responses()))
			// Nothing is held back afterwards.
			n.publish(assignment("svc:0000", 81))
			holds(t, e, assignment("svc:0000", 81))
		})
	}
}

func TestUndecodableClusterKeepsTheOthers(t *testing.T) {
	n := newNode(t, xds.Config{})
	r := &refuse{}
	var set []xds.Resource
	for i := range 20 {
		name := fmt.Sprintf("svc:%d", i)
		set = append(set, cluster(name, 0), assignment(name, 80))
	}
	r.add(t, set[6], xdstest.Undecodable(errBad))
	n.publish(set...)
	n.serve()
	e := n.envoy(xdstest.Options{Judge: r.judge})
	connect(t, e)
	holds(t, e, slices.Delete(slices.Clone(set), 6, 8)...)
	if got := event(n, func(xds.Nacked) bool { return true }).Names; !slices.Equal(got, []string{"svc:3"}) {
		t.Errorf("found %v guilty, want svc:3", got)
	}
}

// Two Envoys of different versions may judge differently: what one of them has
// accepted is not taken away.
func TestOneEnvoyRejectsWhatTheOtherAccepts(t *testing.T) {
	n := newNode(t, xds.Config{})
	r := &refuse{}
	l := listener("l", 0)
	r.add(t, l, errBad)
	n.publish(l)
	n.serve()
	lax := n.envoy(xdstest.Options{})
	connect(t, lax)
	event(n, func(a xds.Acked) bool { return a.Type == xds.Listener && len(a.Resources) == 1 })
	strict := n.envoy(xdstest.Options{Judge: r.judge})
	connect(t, strict)
	event(n, func(xds.Nacked) bool { return true })
	holds(t, lax, l)
	late := n.envoy(xdstest.Options{})
	connect(t, late)
	holds(t, late, l)
	if got := len(strict.Resources(string(xds.Listener))); got != 0 {
		t.Errorf("the strict Envoy holds %d listeners", got)
	}
}
