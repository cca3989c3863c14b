// SPDX-License-Identifier: Apache-2.0

// Package observe takes Envoy's connection records and remembers what people ask
// about: which connections are open, which have ended lately and how, and which
// destinations pods dial.
//
// Store is the pure part: records in, connections out, by a time that the caller
// gives. Hub puts a lock around one Store and hands what comes in to followers;
// Serve is the gRPC server that Envoy streams to.
//
// Invariants:
//   - Every collection has a bound. What falls out of one is counted, and the
//     count is given with every answer.
//   - Nobody who asks, however slow, keeps Envoy's stream waiting: a follower
//     that does not keep up loses connections and is told how many.
//   - Envoy's own counters say how many connections there were. What it did not
//     send, or what was lost on the way, is the difference.
//
// It decides nothing, and does not know what a mode change would alter.
package observe
