// SPDX-License-Identifier: Apache-2.0

// Package readme has no code of its own: its test types the commands of the
// README into a shell, with the real programs, the real Envoy and the real kernel,
// and compares what they say with what the README shows. While that node is up, it
// holds the reference documents against it.
package readme
