// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"
	"slices"
	"testing"
)

// A table as nft prints it, with each form a Service port can have in it.
const listing = `{"nftables": [
 {"table": {"family": "ip", "name": "kube-proxy"}},
 {"set": {"name": "cluster-ips", "elem": ["10.96.0.10", "10.96.0.11"]}},
 {"map": {"name": "service-ips", "elem": [
  [{"concat": ["10.96.0.10", "tcp", 80]}, {"goto": {"target": "service-AAAAAAAA-d/one/tcp/"}}],
  [{"concat": ["10.96.0.10", "tcp", 81]}, {"goto": {"target": "service-BBBBBBBB-d/two/tcp/"}}],
  [{"concat": ["10.96.0.10", "tcp", 82]}, {"goto": {"target": "service-CCCCCCCC-d/sticky/tcp/"}}],
  [{"concat": ["10.96.0.20", "tcp", 80]}, {"goto": {"target": "external-DDDDDDDD-d/ext/tcp/"}}]]}},
 {"map": {"name": "no-endpoint-services", "elem": [
  [{"elem": {"val": {"concat": ["10.96.0.11", "tcp", 80]}, "comment": "d/none"}}, {"goto": {"target": "reject-chain"}}],
  [{"elem": {"val": {"concat": ["10.96.0.11", "tcp", 81]}, "comment": "d/local"}}, {"drop": null}],
  [{"elem": {"val": {"concat": ["10.96.0.20", "tcp", 80]}, "comment": "d/ext"}}, {"drop": null}]]}},
 {"map": {"name": "service-nodeports", "elem": [[{"concat": ["tcp", 30001]}, {"goto": {"target": "external-DDDDDDDD-d/ext/tcp/"}}]]}},
 {"map": {"name": "no-endpoint-nodeports", "elem": [[{"elem": {"val": {"concat": ["tcp", 30002]}}}, {"goto": {"target": "reject-chain"}}]]}},
 {"rule": {"chain": "service-AAAAAAAA-d/one/tcp/", "expr": [
  {"match": {"op": "==", "left": {"meta": {"key": "l4proto"}}, "right": "tcp"}}, {"dnat": {"addr": "10.1.1.1", "port": 8080}}]}},
 {"rule": {"chain": "service-BBBBBBBB-d/two/tcp/", "expr": [{"dnat": {"family": "ip", "addr": {"map": {
  "key": {"numgen": {"mode": "random", "mod": 2, "offset": 0}},
  "data": {"set": [[0, {"concat": ["10.1.1.2", 8080]}], [1, {"concat": ["10.1.1.1", 9090]}]]}}}}}]}},
 {"rule": {"chain": "service-CCCCCCCC-d/sticky/tcp/", "expr": [{"match": {"op": "==", "left": "x", "right": "@affinity-1"}}, {"goto": {"target": "endpoint-1"}}]}},
 {"rule": {"chain": "service-CCCCCCCC-d/sticky/tcp/", "expr": [{"vmap": {"key": {"numgen": {}},
  "data": {"set": [[0, {"goto": {"target": "endpoint-1"}}], [1, {"goto": {"target": "endpoint-2"}}]]}}}]}},
 {"rule": {"chain": "endpoint-1", "expr": [{"set": {"op": "update"}}, {"dnat": {"addr": "10.1.1.1", "port": 8080}}]}},
 {"rule": {"chain": "endpoint-2", "expr": [{"dnat": {"addr": "10.1.1.2", "port": 8080}}]}},
 {"rule": {"chain": "external-DDDDDDDD-d/ext/tcp/", "expr": [{"match": {}}, {"goto": {"target": "service-BBBBBBBB-d/two/tcp/"}}]}},
 {"rule": {"chain": "external-DDDDDDDD-d/ext/tcp/", "expr": [{"goto": {"target": "local-DDDDDDDD-d/ext/tcp/"}}]}},
 {"rule": {"chain": "local-DDDDDDDD-d/ext/tcp/", "expr": [{"dnat": {"addr": "10.1.1.9", "port": 8080}}]}}
]}`

func TestRulesDecide(t *testing.T) {
	rules, err := parseRules([]byte(listing))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, to string
		verdict  Verdict
		reaches  []string
	}{
		{"one endpoint", "10.96.0.10:80", Serve, []string{"10.1.1.1:8080"}},
		{"two, picked by a map", "10.96.0.10:81", Serve, []string{"10.1.1.1:9090", "10.1.1.2:8080"}},
		{"two, with affinity", "10.96.0.10:82", Serve, []string{"10.1.1.1:8080", "10.1.1.2:8080"}},
		{"external, none local: a pod is served all the same", "10.96.0.20:80", Serve, []string{"10.1.1.1:9090", "10.1.1.2:8080"}},
		{"no endpoints", "10.96.0.11:80", Reject, nil},
		{"none local", "10.96.0.11:81", Drop, nil},
		{"undeclared port", "10.96.0.10:9", Reject, nil},
		{"nobody's", "10.96.0.12:80", None, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			wantDecision(t, rules.Decide(netip.MustParseAddrPort(c.to)), c.verdict, c.reaches)
		})
	}
	wantDecision(t, rules.DecideNodePort(30001), Serve, []string{"10.1.1.1:9090", "10.1.1.2:8080"})
	wantDecision(t, rules.DecideNodePort(30002), Reject, nil)
	wantDecision(t, rules.DecideNodePort(30003), None, nil)
}

func wantDecision(t *testing.T, d Decision, verdict Verdict, reaches []string) {
	t.Helper()
	var got []string
	for _, e := range d.Endpoints {
		got = append(got, e.String())
	}
	if d.Verdict != verdict || !slices.Equal(got, reaches) {
		t.Errorf("%s %v, want %s %v", d.Verdict, got, verdict, reaches)
	}
}
