// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"net/netip"
)

// podAddrs hands out pod addresses from a CIDR in order and does not reuse one
// before the CIDR is through, so that a new pod rarely gets the address of one
// that has just gone.
type podAddrs struct {
	cidr netip.Prefix
	next uint64
	used map[netip.Addr]bool
}

func newPodAddrs(cidr netip.Prefix) *podAddrs {
	return &podAddrs{cidr: cidr.Masked(), next: 2, used: map[netip.Addr]bool{}}
}

// reserve takes a given address; false when it is in use.
func (p *podAddrs) reserve(a netip.Addr) bool {
	if p.used[a] {
		return false
	}
	p.used[a] = true
	return true
}

// allocate takes the next free address that avoid does not claim.
func (p *podAddrs) allocate(avoid func(netip.Addr) bool) (netip.Addr, error) {
	size := uint64(1) << (32 - p.cidr.Bits())
	for range size {
		if p.next < 2 || p.next >= size-1 { // network, gateway by custom, broadcast
			p.next = 2
		}
		a := addrAt(p.cidr.Addr(), p.next)
		p.next++
		if !p.used[a] && !avoid(a) {
			p.used[a] = true
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no address left in pod CIDR %s", p.cidr)
}

func (p *podAddrs) release(a netip.Addr) { delete(p.used, a) }
