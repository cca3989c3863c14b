// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"time"
)

// The pace of Service ports with many endpoints. Each change of one of them costs as
// much as it has endpoints: some 1.5 µs of CPU for each here, and 3 µs of Envoy's main
// thread, where every first connection waits behind it. A rollout changes them dozens
// of times a second. So after an answer the changes of a while are made one, and what
// they cost stays at some fiftieth of a core.
const (
	// pacedFrom is how many endpoints a port has at least that is paced.
	pacedFrom = 500
	// pacePerEndpoint is the shortest time from one answer to the next, for each
	// endpoint: 100 ms with 500.
	pacePerEndpoint = 200 * time.Microsecond
	// maxPace bounds it, from 5,000 on. It is kube-proxy's default pace
	// (minSyncPeriod), which is that of all Services.
	maxPace = time.Second
)

// pace is which names are not answered anew for now when their endpoints change. The
// first change after a quiet time is never late, and what else changes never is: who
// has the address, ports, policy, range, zone.
type pace struct {
	until map[netip.AddrPort]time.Time // of those that are paced
	late  map[netip.AddrPort]time.Time // when the oldest change came that the answer lacks
}

func newPace() pace {
	return pace{until: map[netip.AddrPort]time.Time{}, late: map[netip.AddrPort]time.Time{}}
}

// answered notes that a name has an answer now, of so many endpoints.
func (p *pace) answered(t netip.AddrPort, now time.Time, endpoints int) {
	delete(p.late, t)
	if endpoints < pacedFrom {
		delete(p.until, t)
		return
	}
	p.until[t] = now.Add(min(time.Duration(endpoints)*pacePerEndpoint, maxPace))
}

// forget notes that a name has no answer any more.
func (p *pace) forget(t netip.AddrPort) {
	delete(p.late, t)
	delete(p.until, t)
}

// defers reports whether a name whose endpoints have changed is answered later, and
// takes note of it.
func (p *pace) defers(t netip.AddrPort, now, changed time.Time) bool {
	if !now.Before(p.until[t]) {
		return false
	}
	if _, ok := p.late[t]; !ok {
		p.late[t] = changed
	}
	return true
}

// due returns the names that are to be answered anew now, and when the oldest change
// of theirs came.
func (p *pace) due(now time.Time) (due []netip.AddrPort, oldest time.Time) {
	for t, changed := range p.late {
		if now.Before(p.until[t]) {
			continue
		}
		due = append(due, t)
		if oldest.IsZero() || changed.Before(oldest) {
			oldest = changed
		}
	}
	for _, t := range due {
		delete(p.late, t)
	}
	return due, oldest
}

// wake returns when the first name is due.
func (p *pace) wake() (first time.Time, ok bool) {
	for t := range p.late {
		if at := p.until[t]; !ok || at.Before(first) {
			first, ok = at, true
		}
	}
	return first, ok
}
