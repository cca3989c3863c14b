// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"net/netip"
	"slices"
	"time"

	"aether.io/aether/internal/plan"
)

// Defaults and limits.
const (
	// DefaultBudget is the number of names on a node that may be answered
	// although they are no Service port's.
	DefaultBudget = 1024
	// DefaultHold is how long an unknown address waits for its Service where nobody
	// looks.
	DefaultHold = 300 * time.Millisecond
	// DefaultWindow is how long a Service port is remembered after its last dial.
	DefaultWindow = 7 * 24 * time.Hour
	// OnDemandTimeout is how long Envoy keeps a connection waiting for an
	// answer. No hold lasts longer.
	OnDemandTimeout = 3 * time.Second
	// saveStep is the longest time for which the file may be behind in nothing
	// but last dials. A window below ten of it is cut into ten instead.
	saveStep = time.Hour
)

// Config holds the constants of the machine.
type Config struct {
	Budget int           // names that are no Service port's
	Hold   time.Duration // cut to OnDemandTimeout
	Window time.Duration // how long an undialled Service port outlives its Envoy
	// LookRate is how many looks at unknown addresses are begun a second in the long
	// run, LookBurst how many at once. With a rate of 0 or less there is nobody who
	// looks, and the hold decides.
	LookRate, LookBurst int
}

// StreamID names one xDS stream. The machine never compares two of them but for
// equality.
type StreamID uint64

// Lookup answers for one address, by the state of the world now. It must give
// the same answer throughout one Step.
type Lookup func(netip.AddrPort) plan.Answer

// Event is something that happened. The set is closed.
type Event interface{ isEvent() }

type (
	// Synced says that Services and EndpointSlices are complete.
	Synced struct{}
	// Opened is a stream's first request. Epoch tells the age of the Envoy: one
	// that has just started has a higher number than all before it, one that came
	// back has the number it had, or 0 when it is older than all numbered ones.
	// Held are names it has resources of, Asked are names it only subscribes to.
	Opened struct {
		Stream      StreamID
		Epoch       uint64
		Held, Asked []netip.AddrPort
	}
	// Asked is a later request of an open stream.
	Asked struct {
		Stream  StreamID
		Targets []netip.AddrPort
	}
	// Closed is the end of a stream.
	Closed struct{ Stream StreamID }
	// Dialled says that a connection to the target was seen at that time.
	Dialled struct {
		Target netip.AddrPort
		At     time.Time
	}
	// Changed says that the answers of these targets may have changed.
	Changed struct{ Targets []netip.AddrPort }
)

func (Synced) isEvent()  {}
func (Opened) isEvent()  {}
func (Asked) isEvent()   {}
func (Closed) isEvent()  {}
func (Dialled) isEvent() {}
func (Changed) isEvent() {}

// Effects is what the caller must do after a Step. The lists are sorted by
// address and name no target twice; no target is in two lists.
type Effects struct {
	// Publish holds the answers to publish, whether or not they differ from
	// what is published already.
	Publish []plan.Answer
	// Withdraw holds names whose resources are to be removed.
	Withdraw []netip.AddrPort
	// TurnAway holds names to publish as an empty cluster and withdraw at once.
	TurnAway []netip.AddrPort
	// Save is true when what Remembered returns should be written to disk.
	Save bool
	// Look holds the looks to begin now, at most MaxLooks less those under way. Each
	// is to be answered with a Looked, whatever comes of it.
	Look []LookAt
}

// Kind says where a name stands.
type Kind uint8

// The kinds of names.
const (
	KindNone      Kind = iota // not known here
	KindWaiting               // asked before the sources synced
	KindHeld                  // waiting for its Service, or that Service's endpoints
	KindService               // answered, and a Service port's at some time
	KindOther                 // answered, within the budget
	KindOverLimit             // turned away
	KindOutside               // outside the range; never answered
)

// String returns the kind as metrics and status print it.
func (k Kind) String() string {
	return [...]string{"none", "waiting", "held", "service", "other", "over-limit", "outside"}[k]
}

// Kinds returns every kind a name can have, in order.
func Kinds() []Kind {
	return []Kind{KindWaiting, KindHeld, KindService, KindOther, KindOverLimit, KindOutside}
}

// View is what is known of one name.
type View struct {
	Kind Kind
	// Asked is true when an open stream asked for the name or holds it.
	Asked bool
	// LastDial is the time of the last dial seen or of the first ask.
	LastDial time.Time
	// Looks is true when the name is answered and its answer is that after Look.
	Looks bool
	Look  plan.Look
}

// Demand is the set of names. The zero value is not usable; call New.
type Demand struct {
	cfg     Config
	synced  bool
	names   map[netip.AddrPort]*entry
	byAddr  map[netip.Addr][]uint16 // sorted ports of names
	held    map[netip.AddrPort]*entry
	streams map[StreamID]uint64 // open, with their epochs
	asked   map[StreamID]int    // how many names each of them asked for or holds
	newest  uint64              // highest epoch seen
	// forget is true when nothing was forgotten since the newest Envoy came.
	forget    bool
	counts    [KindOutside + 1]int
	places    int // how many names are held that have a place in the budget
	overLimit uint64
	stale     bool // last dials moved since the last save
	savedAt   time.Time
	looks
}

type entry struct {
	kind Kind
	// service is true once a declared Service port owned the name: it is
	// outside the budget and remembered until it is forgotten.
	service bool
	placed  bool      // it is held, and has a place in the budget
	until   time.Time // end of the hold; zero when there is to be none
	waits   bool      // a connection waits for the answer
	dialled time.Time
	holders []StreamID // open streams that asked for the name or hold it
	class   plan.Class // when it was last settled
	after   uint64     // looks up to this one were begun before it was asked for
	found   bool       // its Service came while it was held
}

// New returns the machine with the remembered names, which are answered as soon
// as the sources have synced. Zero fields of c take their defaults, except Hold.
func New(c Config, remembered []Name) *Demand {
	if c.Budget <= 0 {
		c.Budget = DefaultBudget
	}
	if c.Window <= 0 {
		c.Window = DefaultWindow
	}
	c.Hold = min(max(c.Hold, 0), OnDemandTimeout)
	d := &Demand{
		cfg:    c,
		names:  map[netip.AddrPort]*entry{},
		byAddr: map[netip.Addr][]uint16{},
		held:   map[netip.AddrPort]*entry{},

		streams: map[StreamID]uint64{},
		asked:   map[StreamID]int{},
		looks:   newLooks(c),
	}
	for _, n := range remembered {
		if !valid(n.Target) || d.names[n.Target] != nil {
			continue
		}
		e := d.add(n.Target)
		e.service, e.dialled = true, n.LastDial
	}
	return d
}

// valid reports whether t can be a name at all: IPv4 and a port.
func valid(t netip.AddrPort) bool { return t.Addr().Is4() && t.Port() != 0 }

// add makes a waiting entry for t.
func (d *Demand) add(t netip.AddrPort) *entry {
	e := &entry{kind: KindWaiting}
	d.names[t] = e
	d.counts[KindWaiting]++
	ports := d.byAddr[t.Addr()]
	i, _ := slices.BinarySearch(ports, t.Port())
	d.byAddr[t.Addr()] = slices.Insert(ports, i, t.Port())
	return e
}

func (d *Demand) remove(t netip.AddrPort) {
	d.become(t, d.names[t], KindNone)
	delete(d.names, t)
	ports := d.byAddr[t.Addr()]
	i, _ := slices.BinarySearch(ports, t.Port())
	if ports = slices.Delete(ports, i, i+1); len(ports) == 0 {
		delete(d.byAddr, t.Addr())
		delete(d.suspects, t.Addr())
		return
	}
	d.byAddr[t.Addr()] = ports
}

func (d *Demand) become(t netip.AddrPort, e *entry, k Kind) {
	d.counts[e.kind]--
	d.counts[k]++
	if e.placed {
		d.places--
	}
	e.kind, e.placed = k, k == KindHeld && !e.service
	if e.placed {
		d.places++
	}
	if k == KindHeld {
		d.held[t] = e
	} else {
		delete(d.held, t)
	}
}

// used returns how much of the budget is taken. A held name that was no Service
// port's has its place already, so that it can be answered when its hold ends.
func (d *Demand) used() int { return d.counts[KindOther] + d.places }

// Look returns what is known of t.
func (d *Demand) Look(t netip.AddrPort) View {
	e, ok := d.names[t]
	if !ok {
		return View{}
	}
	v := View{Kind: e.kind, Asked: len(e.holders) > 0, LastDial: e.dialled}
	if d.suspects[t.Addr()] != nil && e.kind.answered() {
		v.Looks, v.Look = true, d.sight(t.Addr(), e)
	}
	return v
}

// Targets returns every name known here, sorted.
func (d *Demand) Targets() []netip.AddrPort {
	out := make([]netip.AddrPort, 0, len(d.names))
	for t := range d.names {
		out = append(out, t)
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}

// TargetsOf returns the names known here with that address, sorted.
func (d *Demand) TargetsOf(a netip.Addr) []netip.AddrPort {
	out := make([]netip.AddrPort, 0, len(d.byAddr[a]))
	for _, p := range d.byAddr[a] {
		out = append(out, netip.AddrPortFrom(a, p))
	}
	return out
}

// Count returns the number of names of a kind.
func (d *Demand) Count(k Kind) int { return d.counts[k] }

// Newest returns the youngest Envoy's stream and how many names it asked for or
// holds: what it keeps for the rest of its life, answered or not. It is false when no
// stream is open.
func (d *Demand) Newest() (id StreamID, names int, ok bool) {
	var epoch uint64
	for s, e := range d.streams {
		if !ok || e > epoch || e == epoch && s > id {
			id, epoch, ok = s, e, true
		}
	}
	return id, d.asked[id], ok
}

// OverLimit returns how many names were turned away since New.
func (d *Demand) OverLimit() uint64 { return d.overLimit }

// Wake returns when the next hold ends or the next look begins, and false when
// neither is to be.
func (d *Demand) Wake() (time.Time, bool) {
	first, ok := d.wake()
	for _, e := range d.held {
		if !ok || e.until.Before(first) {
			first, ok = e.until, true
		}
	}
	return first, ok
}

// Remembered returns the names worth keeping on disk, sorted.
func (d *Demand) Remembered() []Name {
	out := make([]Name, 0, d.counts[KindService])
	for t, e := range d.names {
		if e.service {
			out = append(out, Name{Target: t, LastDial: e.dialled})
		}
	}
	slices.SortFunc(out, func(a, b Name) int { return a.Target.Compare(b.Target) })
	return out
}
