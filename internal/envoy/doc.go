// SPDX-License-Identifier: Apache-2.0

// Package envoy translates what the plan decided into Envoy messages: the
// cluster and assignment that answer a name, a pod's capture listener, the
// clusters every node has, and Envoy's bootstrap.
//
// Nothing is decided here. An Answer says what a name leads to, a Capture says
// which ranges a listener tells apart, Settings say how a node is set up; the
// functions of this package only spell that out for Envoy 1.40.
//
// Invariants:
//   - Equal input gives equal bytes, whatever the order of what is a set in it.
//     Marshal is the one way to turn a message into bytes.
//   - A capture listener's filter chains depend on the pod and the Settings
//     alone; a Capture changes only its matcher. So no change of ranges or mode
//     drains a connection.
//   - Whether a declared Service port is served or refused changes only its
//     assignment, never its cluster.
//   - A name is made by one function and parsed by one function.
//
// The package has no goroutines, clocks, I/O or logs.
package envoy
