// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"sync"
	"time"
)

// Freshness says how much what was told can be relied on.
type Freshness struct {
	// Kinds holds every kind, in the order of Kinds.
	Kinds []KindFreshness
	// UnreachableSince is when the API server stopped answering; zero while it
	// answers, be it with refusals. Unreachable is what is met since then.
	UnreachableSince time.Time
	Unreachable      error
}

// KindFreshness is that of one kind.
type KindFreshness struct {
	Kind Kind
	// Absent is true when the API server said that it does not serve the kind.
	Absent bool
	// Listed is true once a complete list was told.
	Listed bool
	// LastContact is when anything was heard of the kind last: a list, the start
	// of a watch, an event, a bookmark. (Of an idle kind an API server sends a
	// bookmark about every minute.)
	LastContact time.Time
	// FailingSince is when requests began to fail, zero while a watch is open or
	// being opened for the first time; Err is the last failure.
	FailingSince time.Time
	Err          error
	// Stale is true when what was told may be out of date: the kind was never
	// listed, its requests fail, its watch ended some time ago and no other is open,
	// or nothing was heard of it for Options.StaleAfter.
	Stale bool
}

// Of returns one kind's.
func (f Freshness) Of(k Kind) KindFreshness {
	for _, x := range f.Kinds {
		if x.Kind == k {
			return x
		}
	}
	return KindFreshness{Kind: k, Stale: true}
}

// health keeps what is known of each kind's requests and streams.
type health struct {
	now        func() time.Time
	staleAfter time.Duration
	changed    func() // called after every change but mere contact

	mu    sync.Mutex
	kinds map[Kind]*contact
}

// contact is one kind's.
type contact struct {
	absent, listed bool
	last           time.Time
	failingSince   time.Time
	err            error
	closed         time.Time // when the last watch ended; zero while one is open
	// bookmarks is true once a bookmark came: silence means something then.
	bookmarks bool
	cut       func() // ends the watch that is open; nil when none is
}

func newHealth(now func() time.Time, staleAfter time.Duration, changed func()) *health {
	h := &health{now: now, staleAfter: staleAfter, changed: changed, kinds: map[Kind]*contact{}}
	for _, k := range Kinds() {
		h.kinds[k] = &contact{}
	}
	return h
}

// freshness returns a copy of what is known.
func (h *health) freshness() Freshness {
	h.mu.Lock()
	defer h.mu.Unlock()
	var f Freshness
	now := h.now()
	for _, k := range Kinds() {
		c := h.kinds[k]
		x := KindFreshness{
			Kind: k, Absent: c.absent, Listed: c.listed, LastContact: c.last, FailingSince: c.failingSince, Err: c.err,
			Stale: !c.failingSince.IsZero() || !c.absent && (!c.listed || now.Sub(c.last) > h.staleAfter ||
				!c.closed.IsZero() && now.Sub(c.closed) > grace),
		}
		if c.err != nil && failureOf(c.err) == failUnreachable && (f.UnreachableSince.IsZero() || x.FailingSince.Before(f.UnreachableSince)) {
			f.UnreachableSince, f.Unreachable = x.FailingSince, cause(c.err)
		}
		f.Kinds = append(f.Kinds, x)
	}
	return f
}

// heard notes an event or a bookmark.
func (h *health) heard(k Kind, bookmark bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.kinds[k]
	c.last = h.now()
	c.bookmarks = c.bookmarks || bookmark
}

// update changes what is known of a kind.
func (h *health) update(k Kind, change func(*contact)) {
	h.mu.Lock()
	change(h.kinds[k])
	h.mu.Unlock()
	h.changed()
}

// listed notes a complete list. It does not end a failure: a watch must follow.
func (h *health) listed(k Kind) {
	h.update(k, func(c *contact) { c.listed, c.absent, c.last = true, false, h.now() })
}

// opened notes a watch that began, which cut ends.
func (h *health) opened(k Kind, cut func()) {
	h.update(k, func(c *contact) {
		c.last, c.failingSince, c.err, c.closed, c.cut = h.now(), time.Time{}, nil, time.Time{}, cut
	})
}

// closed notes that the watch has ended.
func (h *health) closed(k Kind) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.kinds[k]
	c.closed, c.cut = h.now(), nil
}

// failed notes a request that failed.
func (h *health) failed(k Kind, err error) {
	h.update(k, func(c *contact) {
		if c.failingSince.IsZero() {
			c.failingSince = h.now()
		}
		c.err = err
	})
}

// gone notes that the API server does not serve the kind.
func (h *health) gone(k Kind) {
	h.update(k, func(c *contact) { *c = contact{absent: true, last: h.now()} })
}

// cutSilent ends watches of which nothing was heard for longer than staleAfter
// though bookmarks were: the reflector then watches anew from where it was.
func (h *health) cutSilent() (cut []Kind) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, k := range Kinds() {
		c := h.kinds[k]
		if c.cut != nil && c.bookmarks && h.now().Sub(c.last) > h.staleAfter {
			c.cut()
			c.cut = nil
			cut = append(cut, k)
		}
	}
	return cut
}
