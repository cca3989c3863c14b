// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"net/netip"
)

// Name identifies a namespaced object.
type Name struct {
	Namespace string
	Name      string
}

// String returns "namespace/name".
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Compare orders names by namespace, then name.
func (n Name) Compare(o Name) int {
	if c := cmp.Compare(n.Namespace, o.Namespace); c != 0 {
		return c
	}
	return cmp.Compare(n.Name, o.Name)
}

// Protocol is a Service or slice port's transport protocol, as the API spells it.
type Protocol string

// The protocols of the Kubernetes API. Only TCP is captured; the others are kept
// so that a port of another protocol is known not to be a TCP one.
const (
	TCP  Protocol = "TCP"
	UDP  Protocol = "UDP"
	SCTP Protocol = "SCTP"
)

// ServicePort is one entry of a Service's spec.ports. targetPort is absent on
// purpose: it is an input of the EndpointSlice controller and no proxy may read it.
type ServicePort struct {
	Name     string // may be empty
	Port     uint16
	Protocol Protocol
}

// Foreign says why a Service's addresses are somebody else's to balance. Such an
// address is passed through on every port.
type Foreign string

// The reasons for which a Service is foreign.
const (
	NotForeign       Foreign = ""
	ServiceProxyName Foreign = "service-proxy-name" // label service.kubernetes.io/service-proxy-name, any value
	CiliumGlobal     Foreign = "cilium-global"      // annotation service.cilium.io/global: "true"
	OptedOut         Foreign = "opted-out"          // annotation aether.io/service-egress: passthrough
)

// Service is what the node needs to know of a core/v1 Service.
type Service struct {
	Name Name
	UID  string
	// Created is the creation time in Unix seconds, 0 when unknown. Of two
	// Services that claim one VIP the older wins.
	Created int64
	// Deleting is true once deletionTimestamp is set. The Service is served
	// until its object is gone, but a live claim on its VIP wins over it.
	Deleting bool
	// VIP is the IPv4 ClusterIP, or the zero Addr when the Service owns none
	// (headless, ExternalName whatever clusterIP it still carries, IPv6 only).
	VIP netip.Addr
	// ExternalIPs are the IPv4 spec.externalIPs and load-balancer ingress
	// addresses, whatever their ipMode.
	ExternalIPs []netip.Addr
	Ports       []ServicePort
	// Selects is true when it has a selector: the EndpointSlice controller then
	// writes at least one slice for it, an empty one when no pod is selected.
	Selects bool
	// InternalLocal is true for internalTrafficPolicy: Local.
	InternalLocal bool
	// ClientIPAffinity is true for sessionAffinity: ClientIP.
	ClientIPAffinity bool
	Foreign          Foreign
}

// TCPPort returns the TCP port with that number.
func (s *Service) TCPPort(port uint16) (ServicePort, bool) {
	for _, p := range s.Ports {
		if p.Port == port && p.Protocol == TCP {
			return p, true
		}
	}
	return ServicePort{}, false
}

// Slice is an IPv4 EndpointSlice that belongs to a Service of its own namespace.
// Slices of another family, FQDN slices, slices labelled headless and slices
// without a Service never become one, as in kube-proxy 1.37.
type Slice struct {
	Name      Name
	Service   string // label kubernetes.io/service-name
	Ports     []SlicePort
	Endpoints []Endpoint
}

// SlicePort is a usable port of a slice: its number is within 1–65535.
type SlicePort struct {
	Name     string // may be empty; matches only the same Service port name
	Port     uint16
	Protocol Protocol
}

// Endpoint is one endpoint of a slice, the defaults of the API filled in.
type Endpoint struct {
	// Addr is the first address in canonical form. It is the zero Addr when
	// Fault is set and the text could not be read as an address at all.
	Addr netip.Addr
	// Text is the first address as written, for people.
	Text string
	// Fault says why the address must not be used (wrong family, loopback,
	// link-local, unspecified, broadcast, multicast, not an address); empty for
	// a good one. A faulty endpoint counts as absent in every decision.
	Fault       string
	Node        string
	Zone        string // shown to people; never used in a decision
	Ready       bool
	Serving     bool
	Terminating bool
	ZoneHints   []string // hints.forZones
	NodeHints   []string // hints.forNodes
}

// Import is a ClusterSetIP ServiceImport of the MCS API with at least one IPv4 VIP.
type Import struct {
	Name Name
	VIPs []netip.Addr
}

// Node is what the node needs to know of a core/v1 Node.
type Node struct {
	Name string
	Zone string // label topology.kubernetes.io/zone; empty when unset
}

// Workload is a captured pod of this node.
type Workload struct {
	Name           Name
	UID            string
	ServiceAccount string
	IP             netip.Addr
	NetNS          string // path of its network namespace
}
