// SPDX-License-Identifier: Apache-2.0

package observe

// Tally adds up how many connections Envoy says have ended, across restarts of
// Envoy. The zero value has seen nothing.
type Tally struct {
	begun bool
	last  uint64 // ended, by Envoy's counters of now
	sum   uint64
	// Active is how many connections Envoy says are open.
	Active uint64
}

// None says that no Envoy runs: all that the next one counts is new.
func (t *Tally) None() { t.begun, t.last, t.Active = true, 0, 0 }

// Read takes Envoy's counters. What the first reading finds has ended before.
func (t *Tally) Read(total, active uint64) {
	ended := total - min(active, total)
	switch {
	case !t.begun:
		t.begun = true
	case ended < t.last: // another Envoy: it counts from zero
		t.sum += ended
	default:
		t.sum += ended - t.last
	}
	t.last, t.Active = ended, active
}

// Begun reports whether there was a reading.
func (t *Tally) Begun() bool { return t.begun }

// Ended returns how many connections have ended since the first reading.
func (t *Tally) Ended() uint64 { return t.sum }
