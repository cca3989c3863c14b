// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	dto "github.com/prometheus/client_model/go"

	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/model"
	"aether.io/aether/internal/xds"
)

// assignments counts what is published of web's endpoints, and keeps the newest.
type assignments struct {
	publisher
	count  int
	newest *endpointv3.ClusterLoadAssignment
}

func (a *assignments) Publish(u xds.Update) error {
	for _, r := range u.Set {
		if r.Type == xds.Assignment && r.Name == envoy.ClusterName(web) {
			a.count++
			a.newest = r.Message.(*endpointv3.ClusterLoadAssignment)
		}
	}
	return a.publisher.Publish(u)
}

func (a *assignments) has(address string) bool {
	return strings.Contains(a.newest.String(), fmt.Sprintf("%q", address))
}

// large is a loop that answers for web, with so many endpoints in slices of 100.
func large(t *testing.T, endpoints int) (*loopTest, *assignments) {
	n := newLoopTest(t)
	seen := &assignments{publisher: n.xds}
	n.xds = seen
	n.sync(t)
	var cs []model.Change
	for i := range endpoints / 100 {
		cs = append(cs, slice("web", fmt.Sprintf("web-%d", i), 1000+i*10, 100))
	}
	cs = append(cs, model.DeleteSlice{Name: model.Name{Namespace: "default", Name: "web-x"}})
	n.clock.Advance(second)
	n.turn([]message{n.batch(true, cs...)})
	n.ask(t, web)
	n.clock.Advance(2 * second)
	seen.count = 0
	return n, seen
}

// roll changes a slice of web: its first endpoint gets an address of its own.
func roll(n *loopTest, number int) (address string) {
	s := slice("web", "web-1", 1010, 100)
	a := netip.AddrFrom4([4]byte{10, 200, byte(number >> 8), byte(number)})
	s.Slice.Endpoints[0].Addr, s.Slice.Endpoints[0].Text = a, a.String()
	n.turn([]message{n.batch(true, s)})
	return a.String()
}

// A Service with a thousand endpoints that rolls 50 times a second is answered for at
// most five times a second; its first change at once, and its last one in the end.
func TestPaceOfALargeService(t *testing.T) {
	n, seen := large(t, 1000)
	last := roll(n, 1)
	if seen.count != 1 || !seen.has(last) {
		t.Fatalf("after one change %d assignments were published, want one, with %s", seen.count, last)
	}
	for i := range 50 {
		n.clock.Advance(20 * time.Millisecond)
		last = roll(n, 2+i)
	}
	if seen.count < 5 || seen.count > 6 {
		t.Errorf("in a second with 50 changes %d assignments were published, want 6", seen.count)
	}
	for {
		at, ok := n.pace.wake()
		if !ok {
			break
		}
		if wake, ok := n.wake(); !ok || wake.After(at) {
			t.Fatalf("the loop wakes at %v (%v), want %v at the latest", wake, ok, at)
		}
		n.clock.Advance(at.Sub(n.clock.Now()))
		n.turn(nil)
	}
	if !seen.has(last) {
		t.Errorf("the newest assignment lacks %s, which came last", last)
	}
	quiet := seen.count
	n.clock.Advance(second)
	n.turn(nil)
	if seen.count != quiet {
		t.Errorf("%d assignments were published though nothing changed", seen.count-quiet)
	}
}

// The lag of a change that is told later is counted once, when it is told, and is that
// of the change that waited longest.
func TestLagOfPacedChanges(t *testing.T) {
	n, _ := large(t, 5000)
	lag := func() (told uint64, sum float64) {
		var m dto.Metric
		if err := n.meter.lag.Write(&m); err != nil {
			t.Fatal(err)
		}
		return m.Histogram.GetSampleCount(), m.Histogram.GetSampleSum()
	}
	roll(n, 1)
	told, sum := lag()
	for i := range 2 {
		n.clock.Advance(200 * time.Millisecond)
		roll(n, 2+i)
	}
	if again, _ := lag(); again != told {
		t.Errorf("%d changes that wait are counted as told", again-told)
	}
	n.clock.Advance(600 * time.Millisecond)
	n.turn(nil)
	again, all := lag()
	if waited := all - sum; again != told+1 || math.Abs(waited-0.8) > 1e-6 {
		t.Errorf("%d are counted, with %v s, want 1, with 0.8 s", again-told, waited)
	}
}

// What else changes of a large Service is answered at once, and so is a small one.
func TestPaceIsForEndpointsOfLargeServices(t *testing.T) {
	t.Run("the Service goes", func(t *testing.T) {
		n, seen := large(t, 5000)
		roll(n, 1)
		n.clock.Advance(20 * time.Millisecond)
		roll(n, 2)
		n.clock.Advance(20 * time.Millisecond)
		n.turn([]message{n.batch(true, model.DeleteService{Name: model.Name{Namespace: "default", Name: "web"}})})
		if n.published[xds.Key{Type: xds.Assignment, Name: envoy.ClusterName(web)}] {
			t.Error("its assignment is still there")
		}
		if _, ok := n.pace.wake(); ok || len(n.pace.until) != 0 {
			t.Errorf("it is still paced: %+v", n.pace)
		}
		if seen.count != 1 {
			t.Errorf("%d assignments were published, want 1", seen.count)
		}
	})
	t.Run("its ports change", func(t *testing.T) {
		n, seen := large(t, 5000)
		roll(n, 1)
		n.clock.Advance(20 * time.Millisecond)
		last := roll(n, 2)
		svc := webService().(model.SetService)
		svc.Service.ClientIPAffinity = true
		n.clock.Advance(20 * time.Millisecond)
		n.turn([]message{n.batch(true, svc)})
		if seen.count != 2 || !seen.has(last) {
			t.Errorf("%d assignments were published, want 2, the second with %s", seen.count, last)
		}
	})
	t.Run("a small Service", func(t *testing.T) {
		n, seen := large(t, 400)
		for i := range 10 {
			n.clock.Advance(20 * time.Millisecond)
			roll(n, i)
		}
		if seen.count != 10 || len(n.pace.until) != 0 {
			t.Errorf("after ten changes %d assignments were published, want 10", seen.count)
		}
	})
}
