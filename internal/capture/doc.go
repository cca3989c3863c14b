// SPDX-License-Identifier: Apache-2.0

// Package capture diverts a pod's outgoing TCP connections to the capture
// listener that the node's Envoy has bound inside the pod's network namespace.
//
// It holds the pod's rule set three times over and keeps the three equal: as
// typed data ([Rules]), as the text that nft prints ([RuleSet.Text]) and as a
// packet evaluator ([RuleSet.Evaluate]). Install, Remove and Check are the thin
// kernel writer and reader; they speak netlink and run no program.
//
// Invariants:
//   - A connection is captured or not when its first segment leaves; what was
//     decided holds for its lifetime, across Install with another Config.
//   - Nothing but a connection that the output chain chose is diverted to the
//     listener, whatever marks a process puts on its sockets or frames.
//   - A captured segment that no proxy takes is reset. It never reaches another
//     listener of the pod and never leaves the pod.
//   - Installing twice is the same as installing once, the table changes in one
//     transaction, and Remove leaves nothing of ours behind.
//   - The calling thread's network namespace is never changed.
//
// Only IPv4 TCP is captured. This is attribution, not isolation: a process with
// NET_RAW can put [ProxyMark] on its sockets and pass by, and one with NET_ADMIN
// can remove the rules.
//
// The package must not decide where a captured connection goes, talk to the
// agent, or know what a Service is.
package capture

import "net/netip"

// Names and numbers of the capture contract. They are public: whoever writes
// rules of their own into a pod's network namespace must keep off them.
const (
	// TableName is the nft table of family ip that holds the rules.
	TableName = "aether_capture"

	// DivertMark is the packet mark and the connection mark (ct mark) of what is
	// captured.
	DivertMark uint32 = 0xae71

	// ProxyMark is the mark Envoy sets on its own upstream sockets in the pod's
	// network namespace; what carries it is left alone.
	ProxyMark uint32 = 0xae7e

	// RouteTable holds one route: everything is local, by way of lo.
	RouteTable = 100

	// RulePriority is where the policy rule "DivertMark: look up RouteTable"
	// stands: after the local table (0), before main (32766).
	RulePriority = 100

	// MeshHTTPPort and MeshTCPPort are the ports of the mesh's own Services; they
	// are captured even when RedirectAll is off.
	MeshHTTPPort uint16 = 18081
	MeshTCPPort  uint16 = 18082
)

// ListenerAddress is where captured connections are delivered: Envoy's capture
// listener, on the pod's loopback so that it does not exist from outside.
func ListenerAddress() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 18001)
}

// NeverCaptured returns the destinations that are left alone in every pod: this
// host (0/8), loopback, link-local with the cloud metadata service, multicast.
func NeverCaptured() []netip.Prefix {
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{0, 0, 0, 0}), 8),
		netip.PrefixFrom(netip.AddrFrom4([4]byte{127, 0, 0, 0}), 8),
		netip.PrefixFrom(netip.AddrFrom4([4]byte{169, 254, 0, 0}), 16),
		netip.PrefixFrom(netip.AddrFrom4([4]byte{224, 0, 0, 0}), 4),
	}
}
