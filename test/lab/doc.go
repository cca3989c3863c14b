// SPDX-License-Identifier: Apache-2.0

// Package lab makes a real Kubernetes cluster on one machine: etcd,
// kube-apiserver, kube-controller-manager and kube-proxy from Go modules, our
// agent and Envoy, and pods that are network namespaces with Pod objects. README.md
// beside it says how tests use it.
//
// # Invariants
//
//   - Nothing in the lab has a route to the host's network. The one way in is a
//     forwarder of the host's loopback to kube-apiserver.
//   - No process, namespace, interface or file outlives Down, but for the programs
//     that were built. When the process that holds the lab is killed the kernel
//     ends its children; the next Up or Clean of that name removes the rest.
//   - The agent has the rights of the product's own manifest and no others.
//   - What the lab does of scheduler and kubelet it does through the API, as they
//     do. It writes no EndpointSlice and decides nothing about traffic.
package lab
