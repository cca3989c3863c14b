// SPDX-License-Identifier: Apache-2.0

// Package oracle holds the node's decisions against kube-proxy's own code.
//
// It has no code of its own, only tests. They draw a cluster of Services,
// EndpointSlices and Nodes and a history of what happens to it, tell both sides
// each event, and compare for every address and port what kube-proxy 1.37 does
// with a connection to it (which endpoints serve it, or why none does) and what
// internal/convert, internal/model and internal/plan answer. kube-proxy's side
// is its ServiceChangeTracker, EndpointsChangeTracker and CategorizeEndpoints, behind
// the selectors of its informers and the API server's own defaulting.
//
// Invariants:
//   - What differs on purpose is a list (differences_test.go). An entry says on
//     which inputs it applies and how the input must be written so that kube-proxy
//     does what Aether does. In every state the answer must equal what a restarted
//     kube-proxy does with the input so corrected, and where it differs from what
//     the running kube-proxy does, an entry of the list must apply.
//   - An entry that never explains anything in a long run fails that run.
//   - A counter-example is printed as manifests for `aetherctl explain -f`.
//
// It is a module of its own, because k8s.io/kubernetes is no dependency of the
// product. It needs neither root nor network nor a kernel feature. It must not
// reimplement the choice of endpoints: whatever is compared with comes out of
// kube-proxy's code.
//
// docs/oracle.md says how to run it.
package oracle
