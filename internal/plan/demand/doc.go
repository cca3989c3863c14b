// SPDX-License-Identifier: Apache-2.0

// Package demand is the state machine of the names that Envoy asked for on
// demand: which are answered, which wait, which are turned away and which are
// remembered for the next start.
//
// Envoy asks for a name once in its life, never again, and never unsubscribes.
// So a name that is asked and answered is never withdrawn while the Envoy that
// asked lives; only its answer changes. What bounds the node is the admission:
//
//   - A declared TCP port of a known Service is always admitted and remembered
//     on disk with its last dial.
//   - Every other in-range address (an unknown one, an undeclared port, another
//     balancer's address) shares one budget on the node and is not remembered.
//     A name leaves the budget when a Service takes it over. Past the budget a
//     name is turned away: published empty and withdrawn at once, until a
//     Service takes it over.
//   - An unknown address about to be refused is first held for a moment, so that
//     a Service created a moment before its first dial is served. Objects come one
//     by one: a Service that turns up without endpoints does not end the hold.
//   - An address outside the Service range, and the API server's, is never
//     answered. It is kept in mind, since Envoy will not ask again, and answered
//     when a range takes it in.
//   - Nothing is answered before the sources have synced.
//
// A fresh Envoy starts with the remembered Service ports. Once no older Envoy's
// stream lives, every name that no living stream has asked for is forgotten, except
// Service ports that still exist and were dialled within the window.
//
// The machine is deterministic: equal configurations and histories give equal
// states and equal effects. Time and decisions are arguments. It has no
// goroutines, clocks, I/O or logs, and is not safe for concurrent use.
package demand
