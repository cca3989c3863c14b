// SPDX-License-Identifier: Apache-2.0

// Package proxy supervises the Envoy of one node: it starts it, starts it again
// when it dies, and replaces it without a connection lost (Envoy's hot restart) on
// request, for an upgrade, or to have it forget the names it was asked for.
//
// An epoch is one Envoy process. In a hot restart the next epoch is started beside
// the serving one, takes over its listening sockets, in every pod's network
// namespace, and tells it to drain: new connections are the new epoch's at once,
// established ones stay with the old epoch until the shutdown time is over.
//
// Invariants:
//   - The serving epoch is never ended for a new one that does not work. The new
//     one's bootstrap is validated before it starts, and until it serves the old
//     one does. What went wrong is the request's answer, and is told.
//   - Established connections live for the shutdown time, whatever else happens
//     to other epochs. A restart that is asked for while an older epoch still
//     drains therefore waits for its end, since Envoy would end it: at most one
//     epoch drains per chain of hot restarts. A request may ask not to wait.
//   - When the serving epoch dies, the next one starts at once, as a chain of its
//     own (another base id, epoch 0): an epoch can neither be the child of a dead
//     one nor share its shared memory with one that is still there.
//   - Envoys are forked from one OS thread that stays: Envoy asks for a signal
//     when the thread that forked it ends. So no Envoy outlives the supervisor.
//
// The decisions are machine.step, without clocks, goroutines or I/O; what is left
// is its shell. The package knows nothing of Services, pods or xDS, and opens no
// socket but its own API's.
//
// Two things are done about Envoy 1.40 that it does not do itself. An epoch that
// dies before it serves leaves a mark in shared memory that keeps every later one
// from starting; the supervisor clears it (sharedMemory). And an epoch whose parent
// dies before its time aborts some ten seconds later, when the parent does not
// answer; the supervisor answers in the parent's place (standIn).
package proxy
