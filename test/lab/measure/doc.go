// SPDX-License-Identifier: Apache-2.0

// Command measure is the program behind `make bench-cluster`: it brings a real
// Kubernetes up on this machine, fills it with Services and endpoints, and measures
// our agent and kube-proxy beside each other on one node, over the same objects, in
// one run. It prints a table, writes every sample to a file, and writes the figures
// of a run into docs/measurements.md.
//
// Part scope compares ways to learn of endpoints: what the product does, and what
// it might do instead. The latter are made here, out of the product's own source
// and converters, so that the product holds only the one that was chosen
// (docs/decisions/0001-endpointslice-scope.md).
//
// Invariants:
//
//   - A captured pod's connection and one of the pod beside it are made by the same
//     client code, at the same time, to the same Service.
//   - A connection that fails for another reason than the one that is being waited
//     for makes the run invalid: it ends with 1 and says so. A bar that is missed
//     does not.
//   - Every loop is bounded in time. Nothing outlives the run.
//
// It must not configure the node or the cluster in a way that a user would not, but
// for one thing: kube-controller-manager is stopped once the pods are there, for it
// has no part in what is measured and would use the same two cores.
package main
