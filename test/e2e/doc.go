// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the product as a whole: the real kernel's network namespaces
// and TPROXY, a real Envoy, the real agent, Services and EndpointSlices from
// Kubernetes YAML, and no kube-proxy anywhere.
//
// A test brings up a node with up, dials from pods and looks at what came of it:
// what the client saw, what the access log and the counters say, what the agent
// explains. Files named after what they help with hold the means (harness, dial,
// agent, envoy, log, ledger, manifest); the others hold tests. It needs root and an Envoy
// and fails, never skips, without them.
//
// At the end of every node the harness itself checks what must hold whatever was
// tested: no connection was logged twice, the agent raced and complained about
// nothing, and neither it nor Envoy ended unasked. Tests that break things keep an
// account as well (ledger): every connection that a client saw fail has a cause in
// a line of the access log or in a counter. The accounts are printed at the end.
package e2e
