// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"net/netip"
	"slices"

	netutils "k8s.io/utils/net"
)

// The faults of an endpoint address: a closed set, the values of
// model.Endpoint.Fault. kube-proxy would use all of these but "not an address";
// API validation refuses loopback, link-local and unspecified addresses only, and
// only when it ran.
const (
	FaultNotAnAddress = "not an address"
	FaultWrongFamily  = "wrong family" // IPv6 in an IPv4 slice
	FaultLoopback     = "loopback"     // 127.0.0.0/8
	FaultLinkLocal    = "link-local"   // 169.254.0.0/16
	FaultUnspecified  = "unspecified"  // 0.0.0.0/8
	FaultBroadcast    = "broadcast"    // 255.255.255.255
	FaultMulticast    = "multicast"    // 224.0.0.0/4
)

// ParseAddr reads an address as Kubernetes does for stored objects: leading
// zeros are decimal (010.096.000.010 is 10.96.0.10), and an IPv4-mapped IPv6
// address is the IPv4 address it maps. ok is false for anything else, host names,
// zones and surrounding spaces included.
func ParseAddr(s string) (a netip.Addr, ok bool) {
	a, ok = netip.AddrFromSlice(netutils.ParseIPSloppy(s))
	return a.Unmap(), ok
}

// ParsePrefix reads a CIDR by the rules of ParseAddr. Host bits are valid legacy
// input and are masked off.
func ParsePrefix(s string) (p netip.Prefix, ok bool) {
	ip, network, err := netutils.ParseCIDRSloppy(s)
	if err != nil {
		return netip.Prefix{}, false
	}
	a, _ := netip.AddrFromSlice(ip)
	ones, bits := network.Mask.Size()
	if a.Is4In6() {
		const mapped = 96 // ::ffff:0:0/96 holds the IPv4 addresses
		if bits == 128 {
			ones -= mapped
		}
		if ones < 0 {
			return netip.Prefix{}, false
		}
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, ones).Masked(), true
}

// endpointFault returns why an address must not be an endpoint's, or "".
func endpointFault(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return FaultNotAnAddress
	case !a.Is4():
		return FaultWrongFamily
	case a.As4()[0] == 0:
		return FaultUnspecified
	case a.IsLoopback():
		return FaultLoopback
	case a.IsLinkLocalUnicast():
		return FaultLinkLocal
	case a.IsMulticast():
		return FaultMulticast
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return FaultBroadcast
	}
	return ""
}

// addrSet sorts addresses and drops repeated ones; nil when there are none.
func addrSet(as []netip.Addr) []netip.Addr {
	slices.SortFunc(as, netip.Addr.Compare)
	return slices.Compact(as)
}
