// SPDX-License-Identifier: Apache-2.0

// Package model holds the nouns of the node (Service, EndpointSlice, range,
// Node, workload) and State, the immutable index over them that every decision
// reads.
//
// Invariants:
//   - A *State never changes after Apply returned it; values reached through it
//     must not be modified.
//   - Apply reports what it touched in Dirty. Whoever rebuilds only what Dirty
//     names gets the same answers as whoever rebuilds everything.
//   - The result of a set of objects does not depend on the order in which they
//     arrived.
//   - One change costs the same with ten thousand Services as with a hundred.
//
// model decides nothing: classes, endpoint choice and answers belong to package
// plan. It has no goroutines, clocks, I/O or logs, and imports nothing but the
// standard library and netipx.
package model
