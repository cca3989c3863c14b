// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// What is counted for a stream is what a look at all names finds, and the newest
// stream is of the highest epoch.
func TestNewestCountsWhatItsStreamAskedFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, cfg, remembered := genHistory(t)
		d := New(cfg, remembered)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			d.Step(h.now, h.batch(), h.w.look)
			id, names, ok := d.Newest()
			if ok != (len(d.streams) > 0) {
				t.Fatalf("newest %d %t of streams %v", id, ok, d.streams)
			}
			held := 0
			for _, e := range d.names {
				if slices.Contains(e.holders, id) {
					held++
				}
			}
			if ok && held != names {
				t.Fatalf("stream %d has %d names, counted %d", id, held, names)
			}
			for other, epoch := range d.streams {
				if epoch > d.streams[id] {
					t.Fatalf("stream %d of epoch %d is newer than %d of %d", other, epoch, id, d.streams[id])
				}
			}
			for s := range d.asked {
				if _, open := d.streams[s]; !open {
					t.Fatalf("stream %d is counted and not open", s)
				}
			}
		}
	})
}
