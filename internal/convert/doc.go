// SPDX-License-Identifier: Apache-2.0

// Package convert turns Kubernetes API objects into the nouns of package model.
// Every source of truth (YAML directory, API server) goes through it, so that
// both read an object alike.
//
// It reads what kube-proxy reads, and is stricter in two things only: an endpoint
// address that no Service may have is marked as faulty instead of being trusted,
// and a slice port outside 1–65535 is ignored.
//
// Invariants:
//   - It never panics and never fails: an object is tolerated, in part ignored,
//     or not usable. What a person should hear of is returned as a Note.
//   - A field the API server would have defaulted means its default when absent.
//   - Nothing in a result depends on the order of entries whose order has no
//     meaning (external addresses, prefixes, VIPs of an import).
//   - A result shares no memory with the object it came from, but strings.
//
// It is pure: no goroutines, clocks, I/O or logs.
package convert

// Note is something about an object that a person should hear of, though the
// object is used all the same.
type Note struct {
	// Field is the path within the object, for example "spec.ports[0].port".
	Field string
	// Text says what is wrong and what was made of it.
	Text string
}
