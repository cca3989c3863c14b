// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"aether.io/aether/internal/plan"
)

const (
	clusterRate  = 10
	clusterBurst = 4
)

// clusterPorts are the ports that are dialled of every address; a Service declares
// all of them.
var clusterPorts = []uint16{80, 81}

// cluster is an API server, a watch that is behind it, and a node. An address is
// allocated before its Service is stored, and freed after it is gone.
type cluster struct {
	t *rapid.T
	*node
	twin      *Demand                   // the same history gives the same effects
	allocated map[netip.Addr]plan.Sight // what an IPAddress object says
	stored    map[netip.Addr]bool       // the Service
	slices    map[netip.Addr]bool       // what its controller has written of it
	stream    []change                  // what the watch has yet to tell
	flights   map[uint64]*flight
	begun     int
	behind    bool // the watch is broken, and the agent knows
	broken    bool // the watch is broken
	// dials are those that Envoy keeps waiting: when they came, and whether a
	// Service has had the address all the time since.
	dials map[netip.AddrPort]*dial
}

type (
	change struct {
		addr netip.Addr
		what thing
	}
	flight struct {
		LookAt
		done  bool // the API server has looked
		found plan.Look
	}
	dial struct {
		at    time.Time
		owned bool
	}
)

func newCluster(t *rapid.T) *cluster {
	config := Config{Hold: propHold, Budget: 64, LookRate: clusterRate, LookBurst: clusterBurst}
	c := &cluster{
		t: t, node: newNode(config), twin: New(config, nil),
		allocated: map[netip.Addr]plan.Sight{}, stored: map[netip.Addr]bool{}, slices: map[netip.Addr]bool{},
		flights: map[uint64]*flight{}, dials: map[netip.AddrPort]*dial{},
	}
	c.step(Synced{}, Opened{Stream: 1, Epoch: 1})
	return c
}

// step steps the node and holds it to its promises.
func (c *cluster) step(evs ...Event) {
	f := c.do(evs...)
	if g := c.twin.Step(c.now, evs, c.w.look); !reflect.DeepEqual(f, g) {
		c.t.Fatalf("effects %+v and %+v", f, g)
	}
	for _, l := range f.Look {
		c.flights[l.Number] = &flight{LookAt: l}
		c.begun++
	}
	if len(c.flights) > MaxLooks {
		c.t.Fatalf("%d looks under way", len(c.flights))
	}
	if most := clusterBurst + int(c.now.Sub(epoch)*clusterRate/time.Second); c.begun > most {
		c.t.Fatalf("%d looks after %v, want at most %d", c.begun, c.now.Sub(epoch), most)
	}
	if at, ok := c.Wake(); ok && !at.After(c.now) {
		c.t.Fatalf("wakes at %v, now is %v", at, c.now)
	}
	for at, d := range c.dials {
		got := c.answer(at)
		switch {
		case got == "none" && !c.now.Before(d.at.Add(LookWait)):
			c.t.Fatalf("%s waits since %v", at, d.at)
		case got == "none":
			continue
		case got == "refuse no-service" && d.owned:
			c.t.Fatalf("%s is refused, though its Service was there before it was dialled", at)
		case got == "refuse no-endpoints" && c.now.Before(d.at.Add(LookWait)):
			c.t.Fatalf("%s is refused, though nobody has told of its endpoints, at %v after %v", at, d.at, c.now)
		}
		delete(c.dials, at)
	}
	for at, a := range c.published {
		if a.Reason == plan.NoService && (c.behind || c.w[at] == served) {
			c.t.Fatalf("%s is refused; behind %t, known %t", at, c.behind, c.w[at] == served)
		}
	}
}

func (c *cluster) dial(at netip.AddrPort) {
	if _, answered := c.published[at]; !answered && c.dials[at] == nil {
		c.dials[at] = &dial{at: c.now, owned: c.stored[at.Addr()]}
	}
	c.step(Asked{Stream: 1, Targets: []netip.AddrPort{at}})
}

// happen lets one thing happen.
func (c *cluster) happen() {
	at := target(rapid.IntRange(1, 6).Draw(c.t, "n")).Addr()
	switch rapid.SampledFrom([]string{
		"dial", "dial", "create", "write", "delete", "other", "tell", "tell", "look", "look", "fail", "land", "land", "time", "time", "break", "mend",
	}).Draw(c.t, "what") {
	case "dial":
		c.dial(netip.AddrPortFrom(at, rapid.SampledFrom(clusterPorts).Draw(c.t, "port")))
	case "create":
		c.create(at)
	case "write":
		c.write(at)
	case "delete":
		c.delete(at)
	case "other":
		if c.allocated[at] == plan.NotLooked {
			c.allocated[at] = plan.OfOther
		}
	case "tell":
		c.tell(1)
	case "look":
		c.look(false)
	case "fail":
		c.look(true)
	case "land":
		c.land()
	case "time":
		c.now = c.now.Add(rapid.SampledFrom([]time.Duration{time.Millisecond, propHold, time.Second, LookWait, time.Minute}).Draw(c.t, "pause"))
		c.step()
	case "break":
		if c.broken = true; rapid.Bool().Draw(c.t, "noticed") {
			c.behind = true
			c.step(Behind{Since: c.now})
		}
	case "mend":
		c.mend()
	}
}

// create allocates an address, and stores the Service then or, when the API server
// dies in between, never.
func (c *cluster) create(at netip.Addr) {
	switch {
	case c.allocated[at] == plan.NotLooked:
		c.allocated[at] = plan.OfService
	case c.allocated[at] == plan.OfService && !c.stored[at]:
		c.stored[at] = true
		c.stream = append(c.stream, change{at, early})
	}
}

// write has the controller write the slices of a Service.
func (c *cluster) write(at netip.Addr) {
	if c.stored[at] && !c.slices[at] {
		c.slices[at] = true
		c.stream = append(c.stream, change{at, served})
	}
}

// delete removes the Service and then, at another time, frees its address.
func (c *cluster) delete(at netip.Addr) {
	if !c.stored[at] {
		delete(c.allocated, at)
		return
	}
	delete(c.stored, at)
	delete(c.slices, at)
	for _, p := range clusterPorts {
		if d := c.dials[netip.AddrPortFrom(at, p)]; d != nil {
			d.owned = false
		}
	}
	c.stream = append(c.stream, change{at, unknown})
}

// tell has the watch tell the next n changes.
func (c *cluster) tell(n int) {
	if c.broken {
		return
	}
	for ; n > 0 && len(c.stream) > 0; n-- {
		next := c.stream[0]
		c.stream = c.stream[1:]
		var ts []netip.AddrPort
		for _, p := range clusterPorts {
			ts = append(ts, netip.AddrPortFrom(next.addr, p))
			c.w[ts[len(ts)-1]] = next.what
		}
		c.step(Changed{Targets: ts})
	}
}

// mend has the watch tell all that it missed before the agent takes it for fresh.
func (c *cluster) mend() {
	c.broken = false
	if c.behind {
		c.tell(len(c.stream))
		c.behind = false
		c.step(Behind{})
	}
}

// look has the API server look, or fail to.
func (c *cluster) look(fail bool) {
	for n := uint64(1); n <= c.number; n++ {
		f := c.flights[n]
		if f == nil || f.done {
			continue
		}
		f.done = true
		switch {
		case fail:
			f.found = plan.Look{Sight: plan.Blind, Cause: plan.Unreachable}
		case c.allocated[f.Addr] == plan.NotLooked:
			f.found = plan.Look{Sight: plan.Absent, At: c.now}
		default:
			f.found = plan.Look{Sight: c.allocated[f.Addr], At: c.now}
		}
		return
	}
}

// land brings the answer of a look to the node.
func (c *cluster) land() {
	var done []uint64
	for n := uint64(1); n <= c.number; n++ {
		if f := c.flights[n]; f != nil && f.done {
			done = append(done, n)
		}
	}
	if len(done) == 0 {
		return
	}
	f := c.flights[rapid.SampledFrom(done).Draw(c.t, "landing")]
	delete(c.flights, f.Number)
	c.step(Looked{LookAt: f.LookAt, Found: f.found})
}

// settleDown lets a quiet quarter of an hour pass with everything at its best.
func (c *cluster) settleDown() {
	c.mend()
	for _, at := range slices.SortedFunc(maps.Keys(c.stored), netip.Addr.Compare) {
		c.write(at)
	}
	c.tell(len(c.stream))
	end := c.now.Add(15 * time.Minute)
	for {
		for len(c.flights) > 0 {
			c.look(false)
			c.land()
		}
		at, ok := c.Wake()
		if !ok || at.After(end) {
			break
		}
		c.now = at
		c.step()
	}
}

// Whatever the API server, the watch and the network do: a dial that comes when
// its Service is there is not refused as nobody's, nothing the watch knows is, no
// dial waits beyond the bound, and while the sources are known to be behind nothing
// is refused for being unknown. When all is well again every name has its true answer.
func TestLookPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCluster(t)
		for range rapid.IntRange(1, 60).Draw(t, "things") {
			c.happen()
		}
		c.settleDown()
		for at := range c.published {
			want := "refuse no-service"
			switch {
			case c.stored[at.Addr()]:
				want = "balance"
			case c.allocated[at.Addr()] != plan.NotLooked && c.suspects[at.Addr()].found.Sight != plan.Absent:
				want = "passthrough"
			}
			if got := c.answer(at); got != want {
				t.Fatalf("%s is answered %q in the end, want %q", at, got, want)
			}
		}
	})
}
