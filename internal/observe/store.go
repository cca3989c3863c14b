// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"container/list"
	"net/netip"
	"slices"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/model"
)

// Limits bound a Store. Zero values take the defaults.
type Limits struct {
	// Open is how many open connections are known, default 20,000.
	Open int
	// Ended is how many ended connections are remembered, default 10,000.
	Ended int
	// Destinations is how many pairs of a source and a dialled address are
	// remembered, default 10,000; the one not dialled for longest is forgotten.
	Destinations int
	// Silence is how long an open connection is believed to be open without
	// being heard of, default 35 s: three intervals and some.
	Silence time.Duration
}

func (l Limits) withDefaults() Limits {
	number := func(n *int, v int) {
		if *n <= 0 {
			*n = v
		}
	}
	number(&l.Open, 20_000)
	number(&l.Ended, 10_000)
	number(&l.Destinations, 10_000)
	if l.Silence <= 0 {
		l.Silence = 35 * time.Second
	}
	return l
}

// late is how long after its end a connection may still be told of as open: the
// two records come over two streams.
const late = 2 * time.Second

// Store remembers connections. The zero value is not usable; call NewStore.
type Store struct {
	limits Limits
	open   map[key]*held
	gone   map[key]time.Time // ended, or given up, lately

	ring  []Connection // of ended ones, oldest at next once it is full
	next  int
	ended uint64 // told of since the start

	dests   map[destinationKey]*list.Element
	order   *list.List // of *Destination, dialled last first
	dialled map[netip.AddrPort]time.Time

	forgotten        uint64 // ended connections that fell out of the ring
	forgottenTargets uint64 // destinations that fell out
	crowded          uint64 // records of open connections that found no room
	silent           uint64 // open connections that were given up
}

// held is an open connection.
type held struct {
	Connection
	heard time.Time
}

// Destination is what one ServiceAccount's pods dial.
type Destination struct {
	Namespace, ServiceAccount string
	Dialled                   netip.AddrPort
	Service                   *api.ServiceRef
	First, Last               time.Time
	Times, Refused, Failed    uint64
}

type destinationKey struct {
	namespace, account string
	dialled            netip.AddrPort
}

// Losses are what a Store once knew, or could not take in.
type Losses struct {
	Ended        uint64 // ended connections that are no longer remembered
	Destinations uint64 // destinations that are no longer remembered
	Open         uint64 // records of open connections that found no room
	Silent       uint64 // open connections given up because nothing was heard of them
}

// NewStore returns an empty Store.
func NewStore(l Limits) *Store {
	l = l.withDefaults()
	return &Store{
		limits: l, open: map[key]*held{}, gone: map[key]time.Time{},
		dests: map[destinationKey]*list.Element{}, order: list.New(),
		dialled: map[netip.AddrPort]time.Time{},
	}
}

// Add takes in what is told of a connection now. It returns the connection as it
// is known then, whether that was news (its end, or the first that is heard of
// it), and false when nothing is to be said: a record that came late.
func (s *Store) Add(now time.Time, c Connection) (_ Connection, news, ok bool) {
	k := c.key()
	if c.Open {
		return s.addOpen(now, k, c)
	}
	before := s.open[k]
	delete(s.open, k)
	s.gone[k] = now
	c.since(before)
	s.ended++
	switch {
	case len(s.ring) < s.limits.Ended:
		s.ring = append(s.ring, c)
	default:
		s.ring[s.next] = c
		s.next = (s.next + 1) % len(s.ring)
		s.forgotten++
	}
	s.count(&c, before == nil)
	return c, true, true
}

func (s *Store) addOpen(now time.Time, k key, c Connection) (_ Connection, news, ok bool) {
	if _, ended := s.gone[k]; ended {
		return c, false, false
	}
	c.Duration = now.Sub(c.Start)
	before := s.open[k]
	if before == nil && len(s.open) >= s.limits.Open {
		s.crowded++
		return c, false, false
	}
	c.since(before)
	s.open[k] = &held{c, now}
	if before == nil {
		s.count(&c, true)
	}
	s.note(&c, now)
	return c, before == nil, true
}

// since sets what went since the connection was heard of before, or since its
// start.
func (c *Connection) since(before *held) {
	bytes, over := c.BytesSent+c.BytesReceived, c.Duration
	if before != nil {
		bytes -= min(bytes, before.BytesSent+before.BytesReceived)
		over -= before.Duration
	}
	if over <= 0 {
		over = time.Millisecond
	}
	c.Moved = float64(bytes)
	c.Rate = c.Moved / over.Seconds()
}

// count adds the connection to its destination: the dial once, the outcome when
// it has ended.
func (s *Store) count(c *Connection, dial bool) {
	k := destinationKey{c.Source.Pod.Namespace, c.Source.ServiceAccount, c.Dialled}
	e := s.dests[k]
	if e == nil {
		if s.order.Len() >= s.limits.Destinations {
			oldest := s.order.Back()
			d := s.order.Remove(oldest).(*Destination)
			delete(s.dests, destinationKey{d.Namespace, d.ServiceAccount, d.Dialled})
			s.forgottenTargets++
		}
		e = s.order.PushFront(&Destination{
			Namespace: k.namespace, ServiceAccount: k.account, Dialled: c.Dialled, First: c.Start,
		})
		s.dests[k] = e
	}
	d := e.Value.(*Destination)
	if c.Service != nil {
		d.Service = c.Service
	}
	if dial {
		d.Times++
	}
	if c.Start.After(d.Last) {
		d.Last = c.Start
		s.order.MoveToFront(e)
	}
	switch {
	case c.Outcome == envoy.Refused:
		d.Refused++
	case c.Failed():
		d.Failed++
	}
	s.note(c, c.Start)
}

// note remembers that a target was dialled, or in use, at that time.
func (s *Store) note(c *Connection, at time.Time) {
	if at.After(s.dialled[c.Dialled]) && (len(s.dialled) < s.limits.Destinations || !s.dialled[c.Dialled].IsZero()) {
		s.dialled[c.Dialled] = at
	}
}

// TakeDialled returns the targets that were dialled or in use since it was called
// last, with the latest time of each, or nil.
func (s *Store) TakeDialled() map[netip.AddrPort]time.Time {
	if len(s.dialled) == 0 {
		return nil
	}
	out := s.dialled
	s.dialled = map[netip.AddrPort]time.Time{}
	return out
}

// Expire gives up open connections of which nothing was heard for too long.
func (s *Store) Expire(now time.Time) {
	for k, h := range s.open {
		if now.Sub(h.heard) > s.limits.Silence {
			delete(s.open, k)
			s.silent++
		}
	}
	for k, at := range s.gone {
		if now.Sub(at) > late {
			delete(s.gone, k)
		}
	}
}

// Open returns the open connections, oldest first.
func (s *Store) Open() []Connection {
	out := make([]Connection, 0, len(s.open))
	for _, h := range s.open {
		out = append(out, h.Connection)
	}
	slices.SortFunc(out, func(a, b Connection) int { return a.Start.Compare(b.Start) })
	return out
}

// OpenCount returns how many open connections are known.
func (s *Store) OpenCount() int { return len(s.open) }

// Ended returns the ended connections that are remembered, in the order in which
// they were told.
func (s *Store) Ended() []Connection {
	out := make([]Connection, 0, len(s.ring))
	out = append(out, s.ring[s.next:]...)
	return append(out, s.ring[:s.next]...)
}

// Told returns how many ends of connections were told of.
func (s *Store) Told() uint64 { return s.ended }

// Destinations returns what is dialled, the last first.
func (s *Store) Destinations() []Destination {
	out := make([]Destination, 0, s.order.Len())
	for e := s.order.Front(); e != nil; e = e.Next() {
		out = append(out, *e.Value.(*Destination))
	}
	return out
}

// Losses returns what is not there.
func (s *Store) Losses() Losses {
	return Losses{Ended: s.forgotten, Destinations: s.forgottenTargets, Open: s.crowded, Silent: s.silent}
}

// String is the pod's name as people write it, empty when it is not known.
func (s Source) String() string {
	if s.Pod == (model.Name{}) {
		return ""
	}
	return s.Pod.String()
}
