// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"sync"

	"aether.io/aether/internal/model"
)

// roomInOutbox is how many changes may wait for the sink before watches wait
// too. A list is taken in whole, whatever its size.
const roomInOutbox = 4096

// outbox holds what is to be told next.
type outbox struct {
	wake chan struct{} // holds a value while there may be something to tell

	mu      sync.Mutex
	room    sync.Cond
	changes []model.Change
	settled map[Kind]bool
	closed  bool
}

func newOutbox() *outbox {
	o := &outbox{wake: make(chan struct{}, 1), settled: map[Kind]bool{}}
	o.room.L = &o.mu
	return o
}

// poke makes the teller look.
func (o *outbox) poke() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// tell adds changes, as one, and waits while too many wait already.
func (o *outbox) tell(cs ...model.Change) {
	if len(cs) == 0 {
		return
	}
	o.mu.Lock()
	for len(o.changes) >= roomInOutbox && !o.closed {
		o.room.Wait()
	}
	o.changes = append(o.changes, cs...)
	o.mu.Unlock()
	o.poke()
}

// settle says that a kind's first list was told, or will not come.
func (o *outbox) settle(k Kind) {
	o.mu.Lock()
	o.settled[k] = true
	o.mu.Unlock()
	o.poke()
}

// take returns what is to be told, and whether all that must be known is.
func (o *outbox) take() (cs []model.Change, synced bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	cs, o.changes = o.changes, nil
	o.room.Broadcast()
	synced = true
	for _, k := range Kinds() {
		synced = synced && (o.settled[k] || k == Pods)
	}
	return cs, synced
}

// close lets those go on who wait for room; what they add is never told.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.room.Broadcast()
}
