// SPDX-License-Identifier: Apache-2.0

// Package check says in words whether a node is healthy: it makes findings of
// facts, each with what was seen, why it matters and its fix.
//
// Invariants:
//   - It is a pure function of the facts. Looking is the agent's business.
//   - What could not be looked at is "not checked" with the reason, never "ok".
//   - Every finding that is not ok has a reason and, where a person can do
//     something, a command to paste or a setting to change.
//   - The identifiers of findings are stable, and each is a heading of
//     docs/check.md.
//
// It must not decide about traffic or change anything.
package check
