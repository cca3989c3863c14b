// SPDX-License-Identifier: Apache-2.0

// Package explain turns a decision of package plan into the wire type people
// read, for the running agent and for offline explain alike.
//
// It imports plan, model and the wire types only, so that the CLI can link it
// without Envoy types, xDS or gRPC. It decides nothing and adds nothing that the
// answer does not say.
package explain

import (
	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/plan"
)

// The words of the Kubernetes API and of the CLI for a policy.
const (
	affinityNone     = "None"
	affinityClientIP = "ClientIP"
	policyCluster    = "Cluster"
	policyLocal      = "Local"
	roundRobin       = "round-robin"
	ringHash         = "ring-hash"
)

// FromAnswer returns the answer as an explanation. Endpoints and Path are never
// nil, and no endpoint is used unless the verdict is Balance. Live is left nil.
func FromAnswer(a plan.Answer) api.Explanation {
	return api.Explanation{
		Address:   a.Target.String(),
		Class:     string(a.Class),
		Answer:    string(a.Verdict),
		Reason:    string(a.Reason),
		Service:   serviceRef(a.Service),
		Policy:    policy(a.Policy),
		Endpoints: endpoints(a),
		Path:      append([]string{}, a.Why...),
	}
}

// Row returns the answer as a line of the list of asked names. Demand and Live
// are left for the caller, who knows them.
func Row(a plan.Answer) api.ServiceRow {
	r := api.ServiceRow{
		Address: a.Target.String(),
		Service: serviceRef(a.Service),
		Class:   string(a.Class),
		Answer:  string(a.Verdict),
		Reason:  string(a.Reason),
		Policy:  policy(a.Policy),
		Total:   len(a.Candidates),
	}
	if r.Policy != nil {
		r.Balancing = r.Policy.Balancing
	}
	for i := range a.Candidates {
		if used(&a, &a.Candidates[i]) {
			r.Used++
		}
		if a.Candidates[i].Ready {
			r.Ready++
		}
	}
	return r
}

func used(a *plan.Answer, c *plan.Candidate) bool {
	return c.Chosen && a.Verdict == plan.Balance
}

func serviceRef(s *plan.ServiceRef) *api.ServiceRef {
	if s == nil {
		return nil
	}
	return &api.ServiceRef{Namespace: s.Service.Namespace, Name: s.Service.Name, Port: s.Port}
}

func policy(p *plan.Policy) *api.Policy {
	if p == nil {
		return nil
	}
	out := &api.Policy{
		Affinity:              affinityNone,
		InternalTrafficPolicy: policyCluster,
		Topology:              string(p.Topology),
		Balancing:             roundRobin,
	}
	if p.ClientIPAffinity {
		out.Affinity, out.Balancing = affinityClientIP, ringHash
	}
	if p.InternalLocal {
		out.InternalTrafficPolicy = policyLocal
	}
	return out
}

func endpoints(a plan.Answer) []api.Endpoint {
	out := make([]api.Endpoint, 0, len(a.Candidates))
	for i := range a.Candidates {
		c := &a.Candidates[i]
		out = append(out, api.Endpoint{
			Address:     c.Address,
			Node:        c.Node,
			Zone:        c.Zone,
			Ready:       c.Ready,
			Serving:     c.Serving,
			Terminating: c.Terminating,
			Used:        used(&a, c),
			Why:         c.Why,
		})
	}
	return out
}
