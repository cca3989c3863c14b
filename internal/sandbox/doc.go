// SPDX-License-Identifier: Apache-2.0

// Package sandbox makes a Kubernetes node on one machine out of network
// namespaces. It plays kubelet (runs the containers of Pod manifests, probes
// them), CNI plugin (network, capture, the agent told), API server (the defaults
// it fills in, ClusterIPs it allocates) and EndpointSlice controller. The agent
// and Envoy run as its children, as they do on a node, and are started again
// when they die. There is no kube-proxy in it.
//
// # What a Pod manifest says here
//
// Containers are processes of this machine in the pod's network, mount, PID and
// UTS namespaces, with the capabilities container runtimes leave by default:
// they see this machine's files and need no image. Read are command, args, env
// (values and fieldRef), workingDir, ports, readinessProbe (tcpSocket, httpGet,
// exec), securityContext (privileged, capabilities), init containers and
// sidecars, restartPolicy, terminationGracePeriodSeconds, hostname, subdomain,
// nodeName, serviceAccountName and hostNetwork. The images aether/echo and
// aether/client are built in; their programs are also in every pod's PATH as
// aether-echo and aether-client. Volumes, resources, users, liveness and startup
// probes are not done.
//
//   - status.podIP fixes the pod's address.
//   - label aether.io/managed: "false" leaves the pod uncaptured; every other pod
//     of this node is captured, under its capture.aether.io annotations.
//   - spec.nodeName of another node: the pod runs, uncaptured, as that node's.
//   - metadata.deletionTimestamp: its endpoints are terminating, it runs on.
//   - annotation sandbox.aether.io/ready: "true" or "false" overrides its probes,
//     and may change while it runs.
//   - annotation sandbox.aether.io/outside: "203.0.113.7,10.96.0.1" makes it a part
//     of the external world that holds these addresses.
//
// A manifest that changes what cannot change in a running pod replaces the pod.
//
// # Beside an API server
//
// With Config.Source the agent has a source of truth of its own, and the program
// that holds the node plays kubelet for it: it gives the pods (Node.SetPod,
// RemovePod) and looks what becomes of them (Node.Pods). The sandbox then writes
// no objects and allocates no addresses to Services; names of Services are not
// known in its pods.
//
// # Without root
//
// An ordinary user's node is the same one inside user, mount, network, PID and
// IPC namespaces of that user, in which the process that holds it is root. Start
// puts its holder there; a program that calls Up itself goes there as a whole by
// EnterNamespaces. Both try the namespaces first and say which setting of the
// system is in the way. Status says what does not work without root.
//
// # Invariants
//
//   - The node's namespace has no route to the host's network: what belongs to
//     no pod and to no outside address is blackholed there.
//   - No namespace, process, interface or file outlives Down. When the process
//     that holds the node is killed, the kernel ends its children with it; the
//     next Up or Clean of that name removes what else is left. Without root that
//     is files alone: the first process of the PID namespace ends with the
//     holder, and all others with the first.
//   - An ordinary user's holder, sockets and files are for that user alone, and
//     its namespaces are entered from inside only: callers outside send what they
//     want over Unix sockets, their standard files among it.
//   - Everything the sandbox adds to the user's objects is written as Kubernetes
//     YAML beside them; the agent reads directories, or Config.Source, and nothing
//     of ours.
//
// It must not decide anything about traffic and must not import plan, envoy or
// xds: what works here works because the agent and Envoy do it.
package sandbox
