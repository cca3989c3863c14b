// SPDX-License-Identifier: Apache-2.0

// Package sandbox makes a Kubernetes node on one machine out of network
// namespaces. It plays kubelet (runs the containers of Pod manifests, probes
// them), CNI plugin (network, capture, the agent told), API server (the defaults
// it fills in, ClusterIPs it allocates) and EndpointSlice controller. The agent
// and Envoy run as its children, as they do on a node, and are started again
// when they die. There is no kube-proxy in it.
//
// Invariants:
//   - The node's namespace has no route to the host's network: what belongs to
//     no pod and to no outside address is blackholed there.
//   - No namespace, process, interface or file outlives Down. When the process
//     that holds the node is killed, the kernel ends its children with it; the
//     next Up or Clean of that name removes what else is left.
//   - Everything the sandbox adds to the user's objects is written as Kubernetes
//     YAML beside them; the agent reads directories and nothing of ours.
//
// It must not decide anything about traffic and must not import plan, envoy or
// xds: what works here works because the agent and Envoy do it.
package sandbox
