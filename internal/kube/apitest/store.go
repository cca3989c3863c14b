// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"cmp"
	"maps"
	"slices"
	"sort"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Object is any object of the API.
type Object interface {
	runtime.Object
	metav1.Object
}

// key is an object's place, in the order of etcd's keys.
type key struct{ resource, namespace, name string }

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.resource, o.resource), cmp.Compare(k.namespace, o.namespace), cmp.Compare(k.name, o.name))
}

// event is one write. before is nil for a creation, after for a deletion.
type event struct {
	version       uint64
	key           key
	before, after Object
}

// store is what etcd and the watch cache are to an API server.
type store struct {
	mu      sync.Mutex
	version uint64
	objects map[key]Object
	// events are all writes after forgotten, oldest first.
	events    []event
	forgotten uint64
	limit     int
	// changed is closed and replaced by every write.
	changed chan struct{}
}

// firstVersion is not 0, which has a meaning of its own to clients.
const firstVersion = 1000

func newStore(limit int) *store {
	return &store{
		version: firstVersion, forgotten: firstVersion, limit: limit,
		objects: map[key]Object{}, changed: make(chan struct{}),
	}
}

// write stores after under k, or removes what is there when after is nil. stamp
// writes the new version into after before anybody sees it. s.mu is held.
func (s *store) write(k key, after Object, stamp func(Object, uint64)) {
	s.version++
	before := s.objects[k]
	if after == nil {
		delete(s.objects, k)
	} else {
		stamp(after, s.version)
		s.objects[k] = after
	}
	s.events = append(s.events, event{s.version, k, before, after})
	if extra := len(s.events) - s.limit; extra > 0 {
		s.forgotten = s.events[extra-1].version
		s.events = slices.Delete(s.events, 0, extra)
	}
	s.wake()
}

func (s *store) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// compact forgets all history.
func (s *store) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events, s.forgotten = nil, s.version
}

// advance raises the version, as writes to objects that are not served here do.
func (s *store) advance(by uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version += by
	s.wake()
}

func (s *store) backup() Backup {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Backup{s.version, maps.Clone(s.objects)}
}

func (s *store) restore(b Backup) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, s.forgotten = b.version, b.version
	s.objects, s.events = maps.Clone(b.objects), nil
	s.wake()
}

// stored is an object and its place.
type stored struct {
	key    key
	object Object
}

// now returns the version, what there is of a resource in order, and what is
// closed by the next write.
func (s *store) now(resource string) (uint64, []stored, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version, sorted(s.objects, resource), s.changed
}

// at returns what there was of a resource at a version; false if that is forgotten.
func (s *store) at(resource string, version uint64) ([]stored, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version < s.forgotten {
		return nil, false
	}
	then := maps.Clone(s.objects)
	for _, e := range slices.Backward(s.events) {
		if e.version <= version {
			break
		}
		if e.before == nil {
			delete(then, e.key)
		} else {
			then[e.key] = e.before
		}
	}
	return sorted(then, resource), true
}

// since returns the writes to a resource after a version, the version they lead
// to, and what is closed by the next write; false if some are forgotten.
func (s *store) since(resource string, version uint64) (out []event, now uint64, changed <-chan struct{}, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version < s.forgotten {
		return nil, 0, nil, false
	}
	first := sort.Search(len(s.events), func(i int) bool { return s.events[i].version > version })
	for _, e := range s.events[first:] {
		if e.key.resource == resource {
			out = append(out, e)
		}
	}
	return out, s.version, s.changed, true
}

// state returns the version and what is closed by the next write.
func (s *store) state() (uint64, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version, s.changed
}

func (s *store) get(k key) (Object, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects[k]
	return o, ok
}

func sorted(objects map[key]Object, resource string) (out []stored) {
	for k, o := range objects {
		if k.resource == resource {
			out = append(out, stored{k, o})
		}
	}
	slices.SortFunc(out, func(a, b stored) int { return a.key.compare(b.key) })
	return out
}
