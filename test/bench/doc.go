// SPDX-License-Identifier: Apache-2.0

// Command bench is the program behind `make bench`: it makes nodes out of
// network namespaces, measures what the node proxy costs on this machine, in time,
// memory and CPU, prints a table and writes every sample to a file. It also
// writes the figures of a run into docs/measurements.md.
//
// Two things that are compared are measured in one run, next to each other in
// time and in turns, over the same servers, by the same client, with the same
// access log and counters; what is reported is the median of the ratios of
// neighbours with its spread. A machine that is busy with something else changes
// the figures much more than the ratios.
//
// Invariants:
//
//   - A failed request, a connection that the access log does not hold, or a
//     connection that took another way than it should makes the run invalid: it
//     ends with 1 and says so. A bar that is missed does not.
//   - Every loop is bounded in time and in connections.
//   - Nothing outlives the run: namespaces, processes and logs go with the node.
//
// It must not configure the node in any way a user would not: what is measured is
// the product with its defaults, every connection logged.
package main
