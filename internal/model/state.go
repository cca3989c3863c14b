// SPDX-License-Identifier: Apache-2.0

package model

import (
	"iter"
	"net/netip"

	"go4.org/netipx"
)

// Options fix what no source can tell.
type Options struct {
	// RangeOverride replaces the union of all ServiceCIDRs when not empty.
	// ClusterSetIPs are added to it all the same. Host bits are ignored, and so
	// are IPv6 prefixes: a list of nothing else leaves the range unknown.
	RangeOverride []netip.Prefix
}

// State is an immutable snapshot of everything the node knows. New makes the
// first one, Apply every later one.
type State struct {
	options Options

	services  table[Name, *Service]
	vips      table[netip.Addr, []*Service] // claims on a ClusterIP, the winner first
	externals table[netip.Addr, []*Service] // claims on an external IP, the winner first

	slices    table[Name, *Slice]
	byService table[Name, []*Slice] // sorted by slice name

	imports    table[Name, *Import]
	importVIPs table[netip.Addr, []*Import] // sorted by import name

	nodes     table[string, Node]
	workloads table[Name, Workload]

	cidrs map[string][]netip.Prefix // ServiceCIDR objects by name
	rng   ranges
}

// ranges is what CIDRs, the override and the imports amount to.
type ranges struct {
	service *netipx.IPSet  // the Service range, without ClusterSetIPs; nil when unknown
	outside []netip.Addr   // the ClusterSetIPs outside it, sorted
	list    []netip.Prefix // both, merged and sorted
}

// apiServerService is the Service every API server keeps for itself. Its name is
// its identity: with several ServiceCIDRs (KEP-1880) "the first address of the
// range" is not defined.
var apiServerService = Name{Namespace: "default", Name: "kubernetes"}

// Dirty names what an Apply may have changed the answer of.
type Dirty struct {
	// Addrs holds every address whose owner, ports, policy or endpoints changed.
	Addrs map[netip.Addr]struct{}
	// Claims holds those of Addrs of which more than endpoints changed: the owner,
	// ports or policy.
	Claims map[netip.Addr]struct{}
	// Range is true when the Service range, its being known, or the API
	// server's VIP changed: every listener and every answer is affected.
	Range bool
	// Nodes and Workloads hold the names of changed Nodes and pods.
	Nodes     map[string]struct{}
	Workloads map[Name]struct{}
}

// Empty reports whether nothing was touched.
func (d Dirty) Empty() bool {
	return !d.Range && len(d.Addrs) == 0 && len(d.Nodes) == 0 && len(d.Workloads) == 0
}

// New returns an empty State.
func New(o Options) *State {
	s := &State{options: o}
	s.rng = s.ranges()
	return s
}

// APIServer returns the VIP of default/kubernetes.
func (s *State) APIServer() (netip.Addr, bool) {
	svc, ok := s.services.get(apiServerService)
	if !ok || !svc.VIP.IsValid() {
		return netip.Addr{}, false
	}
	return svc.VIP, true
}

// APIServerService returns the Service default/kubernetes.
func (s *State) APIServerService() (*Service, bool) { return s.services.get(apiServerService) }

// RangeKnown reports whether an override or any ServiceCIDR gives an IPv4 prefix.
func (s *State) RangeKnown() bool { return s.rng.service != nil }

// InRange reports whether a belongs to the Service range or is a ClusterSetIP.
func (s *State) InRange(a netip.Addr) bool {
	if s.rng.service != nil && s.rng.service.Contains(a) {
		return true
	}
	_, ok := s.importVIPs.get(a)
	return ok
}

// Range returns the merged, sorted prefixes of the Service range and, as /32s,
// the ClusterSetIPs outside it.
func (s *State) Range() []netip.Prefix { return s.rng.list }

// ServiceByVIP returns the Service that owns the ClusterIP: of several claims a
// live one wins over a deleting one, then the older, then the smaller name. (An
// address is free for a new Service before the object of the old one is gone,
// Kubernetes issue 87603.)
func (s *State) ServiceByVIP(a netip.Addr) (*Service, bool) {
	return first(s.vips.get(a))
}

// ClaimsOnVIP returns every Service that claims the ClusterIP, the owner first.
func (s *State) ClaimsOnVIP(a netip.Addr) []*Service {
	claims, _ := s.vips.get(a)
	return claims
}

// ServiceByExternalIP returns the Service that lists a as externalIP or
// load-balancer address; of several the one ServiceByVIP's rule would prefer.
func (s *State) ServiceByExternalIP(a netip.Addr) (*Service, bool) {
	return first(s.externals.get(a))
}

// ImportByVIP returns the import that holds the ClusterSetIP; of several the
// one with the smallest name.
func (s *State) ImportByVIP(a netip.Addr) (*Import, bool) {
	return first(s.importVIPs.get(a))
}

func first[T any](list []*T, ok bool) (*T, bool) {
	if !ok {
		return nil, false
	}
	return list[0], true
}

// Service returns a Service by name.
func (s *State) Service(n Name) (*Service, bool) { return s.services.get(n) }

// Services iterates over all Services in no particular order.
func (s *State) Services() iter.Seq[*Service] {
	return values(s.services)
}

// Slices returns the Service's slices sorted by name.
func (s *State) Slices(service Name) []*Slice {
	list, _ := s.byService.get(service)
	return list
}

// Node returns a Node by name.
func (s *State) Node(name string) (Node, bool) { return s.nodes.get(name) }

// Workload returns a captured pod by name.
func (s *State) Workload(n Name) (Workload, bool) { return s.workloads.get(n) }

// Workloads iterates over the captured pods in no particular order.
func (s *State) Workloads() iter.Seq[Workload] {
	return values(s.workloads)
}

func values[K comparable, V any](t table[K, V]) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, v := range t.all() {
			if !yield(v) {
				return
			}
		}
	}
}
