// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The unit tests of kube-proxy 1.37 that say something about a pod's connection
// to a ClusterIP, each by its name there, with inputs of our own. Both sides must
// give the outcome told.

// moment is a point in a history: what happened, and what a dial then meets.
type moment struct {
	events []event
	target netip.AddrPort
	want   string
}

// at is a moment at which 10.96.0.10:80 is dialled.
func at(want string, events ...event) moment { return moment{events, dialWeb, want} }

// dialled is a dial of another address at the moment before.
func dialled(target, want string) moment {
	return moment{target: netip.MustParseAddrPort(target), want: want}
}

func by(endpoints string) string { return "served by " + endpoints }

// agree runs a history on node n1 and requires both sides to give the outcomes.
func agree(t *testing.T, moments ...moment) {
	t.Helper()
	var dials []netip.AddrPort
	for _, m := range moments {
		dials = append(dials, m.target)
	}
	p := newPair("n1", dials)
	for i, m := range moments {
		p.apply(m.events...)
		p.sync()
		f := p.compare(m.target, restarted(corrected(p.world)), newTally())
		if f.problem != "" || f.kubeProxy.String() != m.want || f.aether.String() != m.want {
			t.Errorf("moment %d: want %q; %v", i, m.want, f)
		}
	}
}

// chosen is a case of which endpoints one slice leaves on node n1.
type chosen struct {
	name      string
	zone      string
	options   []func(*corev1.Service)
	endpoints []string
	want      string
}

func (c chosen) run(t *testing.T) {
	t.Run(c.name, func(t *testing.T) {
		agree(t, at(c.want, setNode("n1", c.zone), setWeb(c.options...), setWebSlice(c.endpoints...)))
	})
}

var (
	iTPLocal  = []func(*corev1.Service){localPolicy}
	nodePort  = external(corev1.ServiceExternalTrafficPolicyCluster)
	eTPLocal  = external(corev1.ServiceExternalTrafficPolicyLocal)
	bothLocal = []func(*corev1.Service){localPolicy, eTPLocal}
)

const (
	one = "10.1.1.1:8080"
	two = "10.1.1.1:8080 10.1.1.2:8080"
)

var categorizeCases = []chosen{
	{
		"should use topology since all endpoints have hints, node has a zone label and and there are endpoints for the node's zone", "za", nil,
		[]string{"10.1.1.1 z:za", "10.1.1.2 z:zb", "10.1.1.3 z:zc", "10.1.1.4 z:za"},
		by("10.1.1.1:8080 10.1.1.4:8080"),
	},
	{
		"externalTrafficPolicy: Local, topology ignored for Local endpoints", "za",
		[]func(*corev1.Service){eTPLocal},
		[]string{"10.1.1.1 @n1 z:zb", "10.1.1.2 @n1 z:za"},
		by("10.1.1.2:8080"),
	},
	{
		"internalTrafficPolicy: Local, topology ignored for Local endpoints", "za", iTPLocal,
		[]string{"10.1.1.1 @n1 z:zb", "10.1.1.2 @n1 z:za", "10.1.1.3 @n2 z:za"},
		by(two),
	},
	{"empty node labels", "", nil, []string{"10.1.1.1 z:za", "10.1.1.2 z:zb"}, by(two)},
	{"empty zone label", "", nil, []string{"10.1.1.1 z:za", "10.1.1.2 z:za"}, by(two)},
	{"node in different zone, no endpoint filtering", "zx", nil, []string{"10.1.1.1 z:za", "10.1.1.2 z:zb"}, by(two)},
	{"unready endpoint", "za", nil, []string{"10.1.1.1 z:za", "10.1.1.2 z:zb", "10.1.1.3 r- z:za"}, by(one)},
	{"only unready endpoints in same zone (should not filter)", "za", nil, []string{"10.1.1.1 z:zb", "10.1.1.2 z:zc", "10.1.1.3 r- z:za"}, by(two)},
	{"missing hints, no filtering applied", "za", nil, []string{"10.1.1.1 z:za", "10.1.1.2"}, by(two)},
	{
		"multiple hints per endpoint, filtering includes any endpoint with zone included", "zc", nil,
		[]string{"10.1.1.1 z:za,zb,zc", "10.1.1.2 z:zb,zc", "10.1.1.3 z:zb,zd"},
		by(two),
	},
	// The gate is locked on since 1.35; no node hints at all is what is left of it.
	{
		"PreferSameNode falls back to same-zone when feature gate disabled", "za", nil,
		[]string{"10.1.1.1 z:za", "10.1.1.2 z:za", "10.1.1.3 z:zb"},
		by(two),
	},
	{"PreferSameNode available", "za", nil, []string{"10.1.1.1 z:za n:n1", "10.1.1.2 z:za n:n2", "10.1.1.3 z:zb n:n3"}, by(one)},
	{"PreferSameNode ignored if some endpoints unhinted", "za", nil, []string{"10.1.1.1 z:za n:n1", "10.1.1.2"}, by(two)},
	{
		"PreferSameNode falls back to PreferSameZone if no endpoint for node", "za", nil,
		[]string{"10.1.1.1 z:za n:n4", "10.1.1.2 z:za n:n2", "10.1.1.3 z:zb n:n3"},
		by(two),
	},
	{
		"conflicting topology and localness require merging allEndpoints", "za",
		[]func(*corev1.Service){eTPLocal},
		[]string{"10.1.1.1 @n1 z:zb", "10.1.1.2 @n2 z:za"},
		by("10.1.1.2:8080"),
	},
	{"internalTrafficPolicy: Local, with empty endpoints", "", iTPLocal, nil, "no-endpoints"},
	{"internalTrafficPolicy: Local, but all endpoints are remote", "", iTPLocal, []string{"10.1.1.1 @n2", "10.1.1.2 @n3"}, "no-local-endpoints"},
	{"internalTrafficPolicy: Local, all endpoints are local", "", iTPLocal, []string{"10.1.1.1 @n1", "10.1.1.2 @n1"}, by(two)},
	{"internalTrafficPolicy: Local, some endpoints are local", "", iTPLocal, []string{"10.1.1.1 @n1", "10.1.1.2 @n2"}, by(one)},
	{"Cluster traffic policy, endpoints not Ready", "", nil, []string{"10.1.1.1 r-", "10.1.1.2 r-"}, "no-endpoints"},
	{"Cluster traffic policy, some endpoints are Ready", "", nil, []string{"10.1.1.1", "10.1.1.2 r-"}, by(one)},
	{"Cluster traffic policy, all endpoints are terminating", "", nil, []string{"10.1.1.1 r-s+t+ @n1", "10.1.1.2 r-s+t+ @n2"}, by(two)},
	{"iTP: Local, eTP: Cluster, some endpoints local", "", []func(*corev1.Service){localPolicy, nodePort}, []string{"10.1.1.1 @n1", "10.1.1.2 @n2"}, by(one)},
	{"iTP: Cluster, eTP: Local, some endpoints local", "", []func(*corev1.Service){eTPLocal}, []string{"10.1.1.1 @n1", "10.1.1.2 @n2"}, by(two)},
	{"iTP: Local, eTP: Local, some endpoints local", "", bothLocal, []string{"10.1.1.1 @n1", "10.1.1.2 @n2"}, by(one)},
	{"iTP: Local, eTP: Local, all endpoints remote", "", bothLocal, []string{"10.1.1.1 @n2", "10.1.1.2 @n3"}, "no-local-endpoints"},
	{
		"iTP: Local, eTP: Local, all endpoints remote and terminating", "", bothLocal,
		[]string{"10.1.1.1 r-s+t+ @n2", "10.1.1.2 r-s+t+ @n3"},
		"no-local-endpoints",
	},
	{
		"iTP: Cluster, eTP: Local, with terminating endpoints", "",
		[]func(*corev1.Service){eTPLocal},
		[]string{"10.1.1.1 @n2", "10.1.1.2 r-s- @n1", "10.1.1.3 r-s+t+ @n1", "10.1.1.4 r-s+t+ @n2"},
		by(one),
	},
	{
		"externalTrafficPolicy ignored if not externally accessible", "",
		[]func(*corev1.Service){func(s *corev1.Service) {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}},
		[]string{"10.1.1.1 @n2", "10.1.1.2 @n1"},
		by(two),
	},
	{"no cluster endpoints for iTP:Local internal-only service", "", iTPLocal, []string{"10.1.1.1 @n1", "10.1.1.2 @n2"}, by(one)},
	{"empty endpoints when no service endpoints exist", "", nil, nil, "no-endpoints"},
	{"single endpoint not ready, not serving, not terminating", "za", nil, []string{"10.1.1.1 r-s-t-"}, "no-endpoints"},
}

func TestCategorizeEndpoints(t *testing.T) {
	for _, c := range categorizeCases {
		c.run(t)
	}
}

// TestNFTables has the cases of nftables/proxier_test.go that fix a verdict on a
// pod's connection to a ClusterIP.
func TestNFTables(t *testing.T) {
	drained := []func(*corev1.Service){localPolicy}
	for _, c := range []chosen{
		{"TestNoEndpointsReject/pod to cluster IP with no endpoints", "", nil, nil, "no-endpoints"},
		{"TestExternalTrafficPolicyLocal/pod to cluster IP hits both endpoints, unmasqueraded", "", []func(*corev1.Service){eTPLocal}, []string{"10.1.1.1 @n2", "10.1.1.2 @n1"}, by(two)},
		{"TestExternalTrafficPolicyCluster/pod to cluster IP hits both endpoints, unmasqueraded", "", []func(*corev1.Service){nodePort}, []string{"10.1.1.1 @n2", "10.1.1.2 @n1"}, by(two)},
		{"TestInternalTrafficPolicy/internalTrafficPolicy is cluster", "", nil, []string{"10.1.1.1 @n1", "10.1.1.2 @n2"}, by(two)},
		{"TestInternalTrafficPolicy/internalTrafficPolicy is local and there is one local endpoint", "", iTPLocal, []string{"10.1.1.1 @n1", "10.1.1.2 @n2"}, by(one)},
		{"TestInternalTrafficPolicy/internalTrafficPolicy is local and there are multiple local endpoints", "", iTPLocal, []string{"10.1.1.1 @n1", "10.1.1.2 @n1", "10.1.1.3 @n2"}, by(two)},
		{"TestInternalTrafficPolicy/internalTrafficPolicy is local and there are no local endpoints", "", iTPLocal, []string{"10.1.1.1 @n2", "10.1.1.2 @n3"}, "no-local-endpoints"},
		{"TestTerminatingEndpointsTrafficPolicyLocal/ready endpoints exist", "", drained, []string{"10.1.1.1 @n1", "10.1.1.2 r-s+t+ @n1", "10.1.1.3 @n2"}, by(one)},
		{"TestTerminatingEndpointsTrafficPolicyLocal/only terminating endpoints exist", "", drained, []string{"10.1.1.1 r-s+t+ @n1", "10.1.1.2 r-s-t+ @n1", "10.1.1.3 r-s+t+ @n2"}, by(one)},
		{"TestTerminatingEndpointsTrafficPolicyLocal/terminating endpoints on remote node", "", drained, []string{"10.1.1.1 r-s+t+ @n2"}, "no-local-endpoints"},
		{"TestTerminatingEndpointsTrafficPolicyLocal/no usable endpoints on any node", "", drained, []string{"10.1.1.1 r-s-t+ @n1", "10.1.1.2 r-s-t+ @n2"}, "no-endpoints"},
		{"TestTerminatingEndpointsTrafficPolicyCluster/ready endpoints exist", "", nil, []string{"10.1.1.1 @n1", "10.1.1.2 @n2", "10.1.1.3 r-s+t+ @n1"}, by(two)},
		{"TestTerminatingEndpointsTrafficPolicyCluster/only terminating endpoints exist", "", nil, []string{"10.1.1.1 r-s+t+ @n1", "10.1.1.2 r-s+t+ @n2", "10.1.1.3 r-s-t+ @n1"}, by(two)},
		{"TestTerminatingEndpointsTrafficPolicyCluster/terminating endpoints on remote node", "", nil, []string{"10.1.1.1 r-s+t+ @n2"}, by(one)},
		{"TestTerminatingEndpointsTrafficPolicyCluster/no usable endpoints on any node", "", nil, []string{"10.1.1.1 r-s-t+ @n1", "10.1.1.2 r-s-t+ @n2"}, "no-endpoints"},
	} {
		c.run(t)
	}
	t.Run("TestInternalTrafficPolicy/endpoints deleted", func(t *testing.T) {
		agree(t, at("no-local-endpoints", setWeb(localPolicy), setWebSlice("10.1.1.1 @n2")), at("no-endpoints", deleteSlice(web+"-a")))
	})
	t.Run("TestTerminatingEndpointsTrafficPolicyCluster/pod to clusterIP after endpoints deleted", func(t *testing.T) {
		agree(t, at(by(one), setWeb(), setWebSlice("10.1.1.1 r-s+t+ @n2")), at("no-endpoints", deleteSlice(web+"-a")))
	})
	t.Run("TestTerminatingEndpointsTrafficPolicyLocal/pod to clusterIP after endpoints deleted", func(t *testing.T) {
		agree(t, at(by(one), setWeb(localPolicy), setWebSlice("10.1.1.1 r-s+t+ @n1")), at("no-endpoints", deleteSlice(web+"-a")))
	})
	t.Run("TestBadIPs", func(t *testing.T) {
		agree(t, at(by(one), setService(web, "010.096.000.010", "http:80"), setWebSlice("010.001.001.001")))
	})
	t.Run("TestClusterIPGeneral", testClusterIPGeneral)
}

func testClusterIPGeneral(t *testing.T) {
	const other, mixed = "default/other", "http:80 dns:80/UDP assoc:80/SCTP"
	for _, c := range []struct {
		name    string
		moments []moment
	}{
		{"simple clusterIP", []moment{at(by(one), setWeb(), setWebSlice("10.1.1.1"))}},
		{"clusterIP with multiple endpoints", []moment{at(by(two), setWeb(), setWebSlice("10.1.1.1", "10.1.1.2"))}},
		{"clusterIP with TargetPort", []moment{at(by("10.1.1.1:9090"), setWeb(), setSlice(web+"-a", "web", "http:9090", "10.1.1.1"))}},
		{"clusterIP with TCP, UDP, and SCTP on same port (TCP)", []moment{
			at(by(one), setService(web, webVIP, mixed), setSlice(web+"-a", "web", "http:8080 dns:53/UDP assoc:99/SCTP", "10.1.1.1")),
		}},
		{"UDP-only port does not match TCP traffic", []moment{ // TCP is what is dialled here
			at("port-not-declared", setService(web, webVIP, "dns:80/UDP"), setSlice(web+"-a", "web", "dns:53/UDP", "10.1.1.1")),
		}},
		{"svc1 does not accept svc2's ports", []moment{
			at(by(one), setWeb(), setWebSlice("10.1.1.1"), setService(other, "10.96.0.11", "http:443"), setSlice(other+"-a", "other", "http:8443", "10.1.1.2")),
			dialled(webVIP+":443", "port-not-declared"),
			dialled("10.96.0.11:443", by("10.1.1.2:8443")),
			dialled("10.96.0.11:80", "port-not-declared"),
		}},
		{"packet to unallocated cluster ip", []moment{at("no-service"), dialled("10.96.0.50:80", "no-service")}},
	} {
		t.Run(c.name, func(t *testing.T) { agree(t, c.moments...) })
	}
}
