// SPDX-License-Identifier: Apache-2.0

// Package refuse is the upstream that resets: a Unix socket that a refusing
// cluster has as its only endpoint.
//
// Envoy's tcp_proxy can only close a connection. What makes a refusal a reset is
// an upstream that resets, which Envoy (since 1.38) relays. A Unix socket that is
// closed with unread data gives its peer ECONNRESET; so the refuser waits until
// Envoy's PROXY v2 header is there, waits a little longer for Envoy to have
// finished connecting, and closes without reading.
//
// Invariants:
//   - No byte is ever read or written: there is nothing to parse and nothing for
//     a pod to forge. Who was refused, and why, Envoy logs and counts itself.
//   - The number of connections held at once is bounded; past the bound a
//     connection is closed without the wait.
//   - Under a storm of refusals the wait grows, so that clients which retry in a
//     loop slow themselves down and not the node.
package refuse
