// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"aether.io/aether/internal/convert"
	"aether.io/aether/internal/model"
)

// fact is what remains of an object.
type fact struct {
	name model.Name
	// set tells the object; nil when it adds nothing to the model.
	set   model.Change
	notes []convert.Note
	// connecting is what only connects in a pod.
	connecting []convert.Connecting
	// caused is when the change was caused that this version brings, in Unix
	// nanoseconds, 0 when the object does not say; created likewise.
	caused, created int64
}

// told is what a store knows of an object of which it told. The change shares
// its lists with the State.
type told struct {
	set    model.Change
	caused int64
}

// store takes a reflector's objects in, and tells the differences. It keeps what
// it told, so that a list that comes again can be compared.
type store struct {
	kind   Kind
	out    *outbox
	health *health
	meter  *metrics
	now    func() time.Time
	intern interner

	mu    sync.Mutex
	told  map[model.Name]told
	notes map[model.Name][]convert.Note
	pods  map[model.Name][]convert.Connecting
	// complained are the first of the notes, sorted; nil when they changed.
	complained []complaint
}

var (
	_ cache.TransformingStore      = (*store)(nil)
	_ cache.ReflectorBookmarkStore = (*store)(nil)
)

func newStore(k Kind, out *outbox, h *health, m *metrics, now func() time.Time) *store {
	return &store{
		kind: k, out: out, health: h, meter: m, now: now,
		told: map[model.Name]told{}, notes: map[model.Name][]convert.Note{}, pods: map[model.Name][]convert.Connecting{},
	}
}

// Transformer makes the reflector keep facts, not objects, while a streaming list
// comes in.
func (s *store) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		s.health.heard(s.kind, false)
		return s.read(o)
	}
}

// read converts an object, unless that is done already.
func (s *store) read(o any) (*fact, error) {
	switch o := o.(type) {
	case *fact:
		return o, nil
	case metav1.Object:
		f := read(s.kind, o)
		s.mu.Lock()
		s.intern.fact(f)
		s.mu.Unlock()
		return f, nil
	}
	return nil, fmt.Errorf("read %s: %T is no API object", s.kind, o)
}

// Add takes in a new object.
func (s *store) Add(o any) error { return s.put(o, eventAdd) }

// Update takes in an object that changed.
func (s *store) Update(o any) error { return s.put(o, eventUpdate) }

func (s *store) put(o any, e event) error {
	s.health.heard(s.kind, false)
	s.meter.event(s.kind, e)
	f, err := s.read(o)
	if err != nil {
		return err
	}
	s.mu.Lock()
	before, known := s.told[f.name]
	change := s.take(f)
	s.mu.Unlock()
	s.measure(f, before, known)
	if change != nil {
		s.out.tell(change)
	}
	return nil
}

// measure notes how long ago what the event tells was caused, where it says so.
// What comes with a list is not measured: it is old for other reasons.
func (s *store) measure(f *fact, before told, known bool) {
	at := f.created
	if s.kind == EndpointSlices {
		at = f.caused
		if known && at == before.caused {
			return
		}
	} else if known {
		return
	}
	if at != 0 {
		s.meter.lag(s.kind, s.now().Sub(time.Unix(0, at)))
	}
}

// take remembers a fact and returns what it changes; nil for nothing.
func (s *store) take(f *fact) model.Change {
	if len(f.notes) > 0 || len(s.notes[f.name]) > 0 {
		s.complained = nil
		keep(s.notes, f.name, f.notes)
	}
	keep(s.pods, f.name, f.connecting)
	before, known := s.told[f.name]
	switch {
	case f.set == nil:
		delete(s.told, f.name)
		if !known {
			return nil
		}
		return deletion(before.set)
	case known && reflect.DeepEqual(before.set, f.set):
		s.told[f.name] = told{before.set, f.caused} // the lists that the State has
		return nil
	}
	s.told[f.name] = told{f.set, f.caused}
	return f.set
}

func keep[V any](m map[model.Name][]V, n model.Name, list []V) {
	if len(list) == 0 {
		delete(m, n)
		return
	}
	m[n] = list
}

// Delete takes an object out.
func (s *store) Delete(o any) error {
	s.health.heard(s.kind, false)
	s.meter.event(s.kind, eventDelete)
	m, ok := o.(metav1.Object)
	if !ok {
		return fmt.Errorf("delete of %s: %T is no API object", s.kind, o)
	}
	s.mu.Lock()
	change := s.drop(nameOf(m))
	s.mu.Unlock()
	if change != nil {
		s.out.tell(change)
	}
	return nil
}

// drop forgets an object and returns what that changes; nil for nothing.
func (s *store) drop(n model.Name) model.Change { return s.take(&fact{name: n}) }

// Replace takes in a complete list: it tells what vanished since the last word of
// it, then what is new or different, as one.
func (s *store) Replace(list []any, _ string) error {
	facts := make([]*fact, 0, len(list))
	for _, o := range list {
		f, err := s.read(o)
		if err != nil {
			return err
		}
		facts = append(facts, f)
	}
	s.meter.event(s.kind, eventList)
	s.out.tell(s.replace(facts)...)
	s.health.listed(s.kind)
	s.out.settle(s.kind)
	return nil
}

func (s *store) replace(facts []*fact) (changes []model.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	listed := make(map[model.Name]struct{}, len(facts))
	for _, f := range facts {
		listed[f.name] = struct{}{}
	}
	for _, n := range s.names() {
		if _, ok := listed[n]; ok {
			continue
		}
		if c := s.drop(n); c != nil {
			changes = append(changes, c)
		}
	}
	slices.SortFunc(facts, func(a, b *fact) int { return a.name.Compare(b.name) })
	for _, f := range facts {
		if c := s.take(f); c != nil {
			changes = append(changes, c)
		}
	}
	return changes
}

// names returns every object of which anything is remembered, sorted.
func (s *store) names() []model.Name {
	all := make(map[model.Name]struct{}, len(s.told))
	for n := range s.told {
		all[n] = struct{}{}
	}
	for n := range s.notes {
		all[n] = struct{}{}
	}
	for n := range s.pods {
		all[n] = struct{}{}
	}
	return slices.SortedFunc(maps.Keys(all), model.Name.Compare)
}

// clear tells every object as gone: the API server serves the kind no more.
func (s *store) clear() { s.out.tell(s.replace(nil)...) }

// Bookmark notes that the watch is alive.
func (s *store) Bookmark(string) error {
	s.health.heard(s.kind, true)
	s.meter.event(s.kind, eventBookmark)
	return nil
}

// Resync has nothing to do: nothing is told twice.
func (s *store) Resync() error { return nil }

// connecting lists what only connects in the pods, sorted by pod.
func (s *store) connecting() []convert.Connecting {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []convert.Connecting
	for _, n := range slices.SortedFunc(maps.Keys(s.pods), model.Name.Compare) {
		out = append(out, s.pods[n]...)
	}
	return out
}

// complaints lists the first notes, sorted by object, and how many there are. It is
// asked for with every batch, so it is kept until a note changes.
func (s *store) complaints() (first []complaint, all int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, notes := range s.notes {
		all += len(notes)
	}
	if s.complained == nil && all > 0 {
		for _, n := range slices.SortedFunc(maps.Keys(s.notes), model.Name.Compare) {
			for _, x := range s.notes[n] {
				s.complained = append(s.complained, complaint{n, x})
			}
			if len(s.complained) >= mostComplaints {
				break
			}
		}
		s.complained = s.complained[:min(len(s.complained), mostComplaints)]
	}
	return s.complained, all
}

// complaint is a note and the object it is about.
type complaint struct {
	name model.Name
	note convert.Note
}

// count returns how many objects are told.
func (s *store) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.told)
}
