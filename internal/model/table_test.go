// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"testing"

	"pgregory.net/rapid"
)

// size counts the entries of a table.
func (t table[K, V]) size() int {
	n := 0
	for range t.all() {
		n++
	}
	return n
}

// TestTableIsAMap: any history of writes leaves the map it says, in every
// generation: earlier tables are not written to.
func TestTableIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var now table[int, int]
		plain := map[int]int{}
		type generation struct {
			table table[int, int]
			plain map[int]int
		}
		var all []generation
		for range rapid.IntRange(1, 6).Draw(t, "generations") {
			w := writer[int, int]{table: now}
			for range rapid.IntRange(0, 20).Draw(t, "writes") {
				k := rapid.IntRange(0, 40).Draw(t, "key")
				if rapid.Bool().Draw(t, "delete") {
					w.delete(k)
					delete(plain, k)
					continue
				}
				v := rapid.Int().Draw(t, "value")
				w.set(k, v)
				plain[k] = v
			}
			now = w.table
			all = append(all, generation{now, maps.Clone(plain)})
		}
		for i, g := range all {
			if got := maps.Collect(g.table.all()); !maps.Equal(got, g.plain) {
				t.Fatalf("generation %d: %v, want %v", i, got, g.plain)
			}
			for k := range 41 {
				got, ok := g.table.get(k)
				want, held := g.plain[k]
				if got != want || ok != held {
					t.Fatalf("generation %d key %d: %d %t, want %d %t", i, k, got, ok, want, held)
				}
			}
		}
	})
}

// TestIterationStops: a caller may break out of a loop over a table.
func TestIterationStops(t *testing.T) {
	w := writer[int, int]{}
	for i := range 1000 {
		w.set(i, i)
	}
	n := 0
	for range w.all() {
		if n++; n == 3 {
			break
		}
	}
	if n != 3 {
		t.Errorf("%d entries seen after a break at 3", n)
	}
}
