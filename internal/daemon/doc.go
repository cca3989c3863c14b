// SPDX-License-Identifier: Apache-2.0

// Package daemon is what every long-running binary shares: logging, signals,
// build information, health and metrics over HTTP, Unix sockets, the lock of a
// run directory, and files that are replaced whole or not at all.
//
// Invariants:
//   - A file written here is the old one or the new one, never a part of either,
//     whenever the process or the machine stops.
//   - A socket or lock of a living process is never taken away from it.
//   - Nothing here knows what the binary is for; it imports no other room.
package daemon
