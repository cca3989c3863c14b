// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

const (
	none = plan.TopologyNone
	two  = "10.1.2.3:8080 10.1.2.4:8080"
)

var categorizeCases = []struct {
	name      string
	service   func(*model.Service)
	noNode    bool // this node's name is not known
	zone      string
	endpoints []string
	want      string
	topology  plan.Topology
}{
	{
		"should use topology since all endpoints have hints, node has a zone and there are endpoints for the zone", nil, false, "za",
		[]string{"10.1.2.3 z:za", "10.1.2.4 z:zb", "10.1.2.5 z:zc", "10.1.2.6 z:za"},
		"10.1.2.3:8080 10.1.2.6:8080", plan.TopologyZone,
	},
	{
		"externalTrafficPolicy: Local, topology ignored for Local endpoints", nil, false, "za",
		[]string{"10.1.2.3 @n1 z:zb", "10.1.2.4 @n1 z:za"},
		"10.1.2.4:8080", plan.TopologyZone,
	},
	{
		"internalTrafficPolicy: Local, topology ignored for Local endpoints", local, false, "za",
		[]string{"10.1.2.3 @n1 z:zb", "10.1.2.4 @n1 z:za", "10.1.2.5 @n2 z:za"},
		two, none,
	},
	{
		"empty node labels", nil, false, "",
		[]string{"10.1.2.3 z:za", "10.1.2.4 z:zb"},
		two, none,
	},
	{
		"empty zone label", nil, false, "",
		[]string{"10.1.2.3 z:za", "10.1.2.4 z:zc"},
		two, none,
	},
	{
		"node in different zone, no endpoint filtering", nil, false, "zx",
		[]string{"10.1.2.3 z:za", "10.1.2.4 z:zb"},
		two, none,
	},
	{
		"unready endpoint", nil, false, "za",
		[]string{"10.1.2.3 z:za", "10.1.2.4 z:zb", "10.1.2.5 r- z:za"},
		"10.1.2.3:8080", plan.TopologyZone,
	},
	{
		"only unready endpoints in same zone (should not filter)", nil, false, "za",
		[]string{"10.1.2.3 z:zb", "10.1.2.4 z:zc", "10.1.2.5 r- z:za"},
		two, none,
	},
	{
		"missing hints, no filtering applied", nil, false, "za",
		[]string{"10.1.2.3 z:za", "10.1.2.4"},
		two, none,
	},
	{
		"multiple hints per endpoint, filtering includes any endpoint with zone included", nil, false, "zc",
		[]string{"10.1.2.3 z:za,zb,zc", "10.1.2.4 z:zb,zc", "10.1.2.5 z:zb,zd"},
		two, plan.TopologyZone,
	},
	{
		"PreferSameNode falls back to same-zone when feature gate disabled", nil, false, "za",
		// The gate is locked on since 1.35; without node hints is what is left of it.
		[]string{"10.1.2.3 z:za", "10.1.2.4 z:za", "10.1.2.5 z:zb"},
		two, plan.TopologyZone,
	},
	{
		"PreferSameNode available", nil, false, "za",
		[]string{"10.1.2.3 z:za n:n1", "10.1.2.4 z:za n:n2", "10.1.2.5 z:zb n:n3"},
		"10.1.2.3:8080", plan.TopologyNode,
	},
	{
		"PreferSameNode ignored if some endpoints unhinted", nil, false, "za",
		[]string{"10.1.2.3 z:za n:n1", "10.1.2.4"},
		two, none,
	},
	{
		"PreferSameNode falls back to PreferSameZone if no endpoint for node", nil, false, "za",
		[]string{"10.1.2.3 z:za n:n4", "10.1.2.4 z:za n:n2", "10.1.2.5 z:zb n:n3"},
		two, plan.TopologyZone,
	},
	{
		"conflicting topology and localness require merging allEndpoints", nil, false, "za",
		// The merged list is no ClusterIP's: the local endpoint hinted elsewhere stays out.
		[]string{"10.1.2.3 @n1 z:zb", "10.1.2.4 @n2 z:za"},
		"10.1.2.4:8080", plan.TopologyZone,
	},
	{"internalTrafficPolicy: Local, with empty endpoints", local, false, "za", nil, "no-endpoints", none},
	{
		"internalTrafficPolicy: Local, but all endpoints are remote", local, false, "za",
		[]string{"10.1.2.3 @n2", "10.1.2.4 @n3"},
		"no-local-endpoints", none,
	},
	{
		"internalTrafficPolicy: Local, all endpoints are local", local, false, "za",
		[]string{"10.1.2.3 @n1", "10.1.2.4 @n1"},
		two, none,
	},
	{
		"internalTrafficPolicy: Local, some endpoints are local", local, false, "za",
		[]string{"10.1.2.3 @n1", "10.1.2.4 @n2"},
		"10.1.2.3:8080", none,
	},
	{
		"Cluster traffic policy, endpoints not Ready", nil, false, "za",
		[]string{"10.1.2.3 r-", "10.1.2.4 r-s-"},
		"no-endpoints", none,
	},
	{
		"Cluster traffic policy, some endpoints are Ready", nil, false, "za",
		[]string{"10.1.2.3 r-s+t+", "10.1.2.4"},
		"10.1.2.4:8080", none,
	},
	{
		"Cluster traffic policy, all endpoints are terminating", nil, false, "za",
		[]string{"10.1.2.3 r-s+t+", "10.1.2.4 r-s+t+"},
		two, none,
	},
	{
		"iTP: Local, eTP: Cluster, some endpoints local", local, false, "za",
		[]string{"10.1.2.3 @n1", "10.1.2.4 @n2"},
		"10.1.2.3:8080", none,
	},
	{
		"iTP: Cluster, eTP: Local, some endpoints local", nil, false, "za",
		[]string{"10.1.2.3 @n1", "10.1.2.4 @n2"},
		two, none,
	},
	{
		"iTP: Local, eTP: Local, some endpoints local", local, false, "za",
		[]string{"10.1.2.3 @n1", "10.1.2.4 @n2"},
		"10.1.2.3:8080", none,
	},
	{
		"iTP: Local, eTP: Local, all endpoints remote", local, false, "za",
		[]string{"10.1.2.3 @n2", "10.1.2.4 @n2"},
		"no-local-endpoints", none,
	},
	{
		"iTP: Local, eTP: Local, all endpoints remote and terminating", local, false, "za",
		[]string{"10.1.2.3 r-s+t+ @n2", "10.1.2.4 r-s+t+ @n2"},
		"no-local-endpoints", none,
	},
	{
		"iTP: Cluster, eTP: Local, with terminating endpoints", nil, false, "za",
		[]string{"10.1.2.3 r-s- @n1", "10.1.2.4 r-s+t+ @n1", "10.1.2.5 @n2", "10.1.2.6 r-s-t+ @n2"},
		"10.1.2.5:8080", none,
	},
	{
		"externalTrafficPolicy ignored if not externally accessible", nil, false, "za",
		[]string{"10.1.2.3 @n2", "10.1.2.4 @n1"},
		two, none,
	},
	{
		"no cluster endpoints for iTP:Local internal-only service", local, false, "za",
		[]string{"10.1.2.3 @n2 z:za", "10.1.2.4 @n1"},
		"10.1.2.4:8080", none,
	},
	{"empty endpoints when no service endpoints exist", nil, false, "za", nil, "no-endpoints", none},
	{
		"single endpoint not ready, not serving, not terminating", nil, false, "za",
		[]string{"10.1.2.3 r-s-t-"},
		"no-endpoints", none,
	},

	// What the node itself can lack, and what hints can say.
	{
		"own node name unknown, nothing is local", local, true, "za",
		[]string{"10.1.2.3 @n1", "10.1.2.4"},
		"no-local-endpoints", none,
	},
	{
		"own node name unknown, node hints do not apply", nil, true, "za",
		[]string{"10.1.2.3 n:n1", "10.1.2.4 n:n2"},
		two, none,
	},
	{
		"a hint that names the empty zone applies to a node without one", nil, false, "",
		[]string{"10.1.2.3 z:", "10.1.2.4 z:za"},
		"10.1.2.3:8080", plan.TopologyZone,
	},
	{
		"node hints complete, zone hints not", nil, false, "za",
		[]string{"10.1.2.3 n:n1", "10.1.2.4 z:za n:n2"},
		"10.1.2.3:8080", plan.TopologyNode,
	},
	{
		"ready and terminating is ready", nil, false, "za",
		[]string{"10.1.2.3 r+s-t+", "10.1.2.4 r-s+t+"},
		"10.1.2.3:8080", none,
	},
}

// TestCategorizeEndpoints has the cases of kube-proxy 1.37's test of that name,
// with what they say about a ClusterIP connection. externalTrafficPolicy never
// concerns one, so it has no field here; its cases stand for what they leave
// alone.
func TestCategorizeEndpoints(t *testing.T) {
	for _, c := range categorizeCases {
		t.Run(c.name, func(t *testing.T) {
			svc := c.service
			if svc == nil {
				svc = func(*model.Service) {}
			}
			s := plan.Settings{Mode: plan.ModeEnforce, Node: thisNode, Zone: c.zone}
			if c.noNode {
				s.Node = ""
			}
			a := plan.Decide(state(web(svc), webSlice(c.endpoints...)), s, target(vip+":80"))
			expect(t, a, c.want)
			if a.Policy == nil || a.Policy.Topology != c.topology {
				t.Errorf("policy %+v, want topology %s", a.Policy, c.topology)
			}
		})
	}
}

// TestEmptyHintListIsNoHint: an API object can carry forZones: [].
func TestEmptyHintListIsNoHint(t *testing.T) {
	hinted, empty := endpoint("10.1.2.3 z:za"), endpoint("10.1.2.4")
	empty.ZoneHints = []string{}
	sl := webSlice().(model.SetSlice)
	sl.Slice.Endpoints = []model.Endpoint{hinted, empty}
	expect(t, dial(state(web(), sl)), "10.1.2.3:8080 10.1.2.4:8080")
}
