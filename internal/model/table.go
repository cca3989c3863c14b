// SPDX-License-Identifier: Apache-2.0

package model

import (
	"hash/maphash"
	"iter"
	"maps"
)

// shardCount is how many small maps a table is cut into. A write copies one of
// them and the array of their pointers: at 10,000 entries that is about 40
// entries and 2 KiB, whatever the size of the change.
const shardCount = 256

// seed only spreads keys over shards. It differs from run to run, and nothing
// but the order of iteration, which no caller may rely on, depends on it.
var seed = maphash.MakeSeed()

func shardOf[K comparable](k K) int {
	return int(maphash.Comparable(seed, k) % shardCount)
}

// table is an immutable map. The zero table is empty.
type table[K comparable, V any] struct {
	shards *[shardCount]map[K]V
}

func (t table[K, V]) get(k K) (V, bool) {
	if t.shards == nil {
		var none V
		return none, false
	}
	v, ok := t.shards[shardOf(k)][k]
	return v, ok
}

func (t table[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		if t.shards == nil {
			return
		}
		for _, shard := range t.shards {
			for k, v := range shard {
				if !yield(k, v) {
					return
				}
			}
		}
	}
}

// writer makes a new table out of an old one, which it leaves alone. It copies a
// shard when it first writes to it, so many changes in one batch copy it once.
type writer[K comparable, V any] struct {
	table[K, V]
	written bool
	own     [shardCount / 64]uint64 // bit set: the shard is the writer's own copy
}

func (w *writer[K, V]) shard(k K) map[K]V {
	if !w.written {
		w.written = true
		fresh := new([shardCount]map[K]V)
		if w.shards != nil {
			*fresh = *w.shards
		}
		w.shards = fresh
	}
	i := shardOf(k)
	if bit := uint64(1) << (i % 64); w.own[i/64]&bit == 0 {
		w.own[i/64] |= bit
		if w.shards[i] = maps.Clone(w.shards[i]); w.shards[i] == nil {
			w.shards[i] = map[K]V{}
		}
	}
	return w.shards[i]
}

func (w *writer[K, V]) set(k K, v V) { w.shard(k)[k] = v }

func (w *writer[K, V]) delete(k K) {
	if _, ok := w.get(k); ok {
		delete(w.shard(k), k)
	}
}

// setList sets a list, or drops the key when the list is empty.
func setList[K comparable, E any](w *writer[K, []E], k K, list []E) {
	if len(list) == 0 {
		w.delete(k)
		return
	}
	w.set(k, list)
}
