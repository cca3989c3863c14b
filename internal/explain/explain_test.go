// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

func served() plan.Answer {
	return plan.Answer{
		Target:  netip.MustParseAddrPort("10.96.0.12:80"),
		Class:   plan.ClassService,
		Verdict: plan.Balance,
		Service: &plan.ServiceRef{Service: model.Name{Namespace: "shop", Name: "web"}, Port: "http"},
		Policy:  &plan.Policy{ClientIPAffinity: true, InternalLocal: true, Topology: plan.TopologyZone},
		Candidates: []plan.Candidate{
			{Address: "10.244.0.2:8080", Node: "n1", Zone: "za", Ready: true, Serving: true, Chosen: true, Why: "ready"},
			{Address: "10.244.0.3:8080", Node: "n2", Zone: "zb", Terminating: true, Why: "not serving"},
		},
		Why: []string{"10.96.0.12 is shop/web"},
	}
}

func TestFromAnswerServed(t *testing.T) {
	want := api.Explanation{
		Address: "10.96.0.12:80", Class: "service", Answer: "balance",
		Service: &api.ServiceRef{Namespace: "shop", Name: "web", Port: "http"},
		Policy: &api.Policy{
			Affinity: "ClientIP", InternalTrafficPolicy: "Local",
			Topology: "zone", Balancing: "ring-hash",
		},
		Endpoints: []api.Endpoint{
			{Address: "10.244.0.2:8080", Node: "n1", Zone: "za", Ready: true, Serving: true, Used: true, Why: "ready"},
			{Address: "10.244.0.3:8080", Node: "n2", Zone: "zb", Terminating: true, Why: "not serving"},
		},
		Path: []string{"10.96.0.12 is shop/web"},
	}
	if d := cmp.Diff(want, FromAnswer(served())); d != "" {
		t.Errorf("explanation (-want +got):\n%s", d)
	}
}

// A chosen endpoint is used only when the answer balances.
func TestFromAnswerPassthroughUsesNoEndpoint(t *testing.T) {
	a := served()
	a.Verdict, a.Policy = plan.Passthrough, &plan.Policy{Topology: plan.TopologyNone}
	got := FromAnswer(a)
	for _, e := range got.Endpoints {
		if e.Used {
			t.Errorf("%s is used under passthrough", e.Address)
		}
	}
	want := &api.Policy{Affinity: "None", InternalTrafficPolicy: "Cluster", Topology: "none", Balancing: "round-robin"}
	if d := cmp.Diff(want, got.Policy); d != "" {
		t.Errorf("policy (-want +got):\n%s", d)
	}
	if r := Row(a); r.Used != 0 || r.Ready != 1 || r.Total != 2 {
		t.Errorf("row counts used %d ready %d total %d, want 0 1 2", r.Used, r.Ready, r.Total)
	}
}

// Scripts read the JSON: what is absent is null or [], as documented.
func TestFromAnswerRefusedJSON(t *testing.T) {
	got, err := json.Marshal(FromAnswer(plan.Answer{
		Target: netip.MustParseAddrPort("10.96.9.9:1"), Class: plan.ClassUnknown,
		Verdict: plan.Refuse, Reason: plan.NoService,
	}))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"address":"10.96.9.9:1","class":"unknown","answer":"refuse","reason":"no-service",` +
		`"service":null,"policy":null,"endpoints":[],"path":[]}`
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("json (-want +got):\n%s", d)
	}
}

func TestRow(t *testing.T) {
	want := api.ServiceRow{
		Address: "10.96.0.12:80", Class: "service", Answer: "balance",
		Service: &api.ServiceRef{Namespace: "shop", Name: "web", Port: "http"},
		Policy: &api.Policy{
			Affinity: "ClientIP", InternalTrafficPolicy: "Local",
			Topology: "zone", Balancing: "ring-hash",
		},
		Used: 1, Ready: 1, Total: 2, Balancing: "ring-hash",
	}
	if d := cmp.Diff(want, Row(served())); d != "" {
		t.Errorf("row (-want +got):\n%s", d)
	}
}
