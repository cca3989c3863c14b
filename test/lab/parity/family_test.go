// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// families is how many Services are changed at the same time.
const families = 12

// Addresses of the Services. All are below what the API server allocates by itself
// from 10.96.0.0/16.
var (
	firstVIP    = netip.MustParseAddr("10.96.0.16")
	nobodysVIP  = netip.MustParseAddr("10.96.0.200")
	externalVIP = netip.MustParseAddr("10.96.0.220")
	markerVIP   = netip.MustParseAddr("10.96.0.250")
	secondRange = netip.MustParsePrefix("203.0.113.0/24")
)

const vipsPerFamily = 6

func after(a netip.Addr, n int) netip.Addr {
	for range n {
		a = a.Next()
	}
	return a
}

// The servers. Each listens on every live port and says who it is and on which
// address it was reached. Nobody listens on the dead port.
type server struct {
	name, node string
	ip         netip.Addr
	ready      bool
	http, alt  int32    // the numbers of its ports of these names
	groups     []string // what selectors select
}

const (
	livePort1, livePort2, deadPort int32 = 8080, 9090, 7070
)

var servers = []server{
	{"e1", "n1", addr(1), true, 8080, 9090, []string{"mixed", "local"}},
	{"e2", "n1", addr(2), true, 8080, 9090, []string{"pair", "local"}},
	{"e3", "n2", addr(3), true, 8080, 9090, []string{"mixed", "unready", "remote"}},
	{"e4", "n2", addr(4), true, 9090, 8080, []string{"pair"}},
	{"e5", "n3", addr(5), true, 8080, 9090, []string{"mixed", "remote"}},
	{"e6", "n3", addr(6), false, 8080, 9090, []string{"unready", "never"}},
}

// groups are what selectors select: the last is nobody's.
var groups = []string{"mixed", "mixed", "pair", "pair", "local", "remote", "remote", "unready", "never", "nobody"}

func addr(i byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 50, i}) }

// live reports whether a server answers there.
func live(e netip.AddrPort) bool {
	return (int32(e.Port()) == livePort1 || int32(e.Port()) == livePort2) &&
		slices.ContainsFunc(servers, func(s server) bool { return s.ip == e.Addr() })
}

// family is one Service and its slices, as the API server has accepted them.
type family struct {
	*rand.Rand
	index      int
	generation int
	round      int
	service    *corev1.Service // nil: there is none
	slices     map[string]*discoveryv1.EndpointSlice
	old        []netip.Addr // ClusterIPs it had before, the last one first
	// left are slices that once were the Service's, and that kube-proxy was never
	// told the end of.
	left     map[string]bool
	changes  []string // of this round
	accepted int      // writes of this round
	rejected int
}

func newFamily(seed uint64, index int) *family {
	return &family{
		Rand: rand.New(rand.NewPCG(seed, uint64(index))), index: index,
		slices: map[string]*discoveryv1.EndpointSlice{}, left: map[string]bool{},
	}
}

// name is its Service's. It is another one once kube-proxy remembers what it
// should have forgotten.
func (f *family) name() string { return fmt.Sprintf("f%d-%d", f.index, f.generation) }

func (f *family) vip(i int) netip.Addr {
	if i == vipsPerFamily {
		return after(secondRange.Addr(), 10+f.index)
	}
	return after(firstVIP, f.index*vipsPerFamily+i)
}

func (f *family) external() netip.Addr { return after(externalVIP, f.index) }
func (f *family) nobodys() netip.Addr  { return after(nobodysVIP, f.index) }

// note says in words what is changed.
func (f *family) note(format string, args ...any) {
	f.changes = append(f.changes, fmt.Sprintf(format, args...))
}

// one is true once in n.
func (f *family) one(n int) bool { return f.IntN(n) == 0 }

func pick[T any](f *family, from ...T) T { return from[f.IntN(len(from))] }

// maybe is one of the values or nil.
func maybe[T any](f *family, from ...T) *T {
	if i := f.IntN(len(from) + 1); i < len(from) {
		return &from[i]
	}
	return nil
}

// sliceNames are those of its slices, sorted: what is drawn must not depend on a
// map's order.
func (f *family) sliceNames() []string {
	var out []string
	for name := range f.slices {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// clusterIP is the Service's address, the zero Addr when it has none.
func clusterIP(s *corev1.Service) netip.Addr {
	if s == nil || s.Spec.Type == corev1.ServiceTypeExternalName {
		return netip.Addr{}
	}
	a, _ := netip.ParseAddr(s.Spec.ClusterIP) // "None" and "" are none
	return a
}
