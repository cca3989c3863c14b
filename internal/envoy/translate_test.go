// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

func mustMarshal(t interface{ Fatal(...any) }, m proto.Message) []byte {
	b, err := Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// endpointsOf lists an assignment's endpoints as text.
func endpointsOf(r Resources) []string {
	var out []string
	for _, l := range r.Assignment.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			if p := e.GetEndpoint().GetAddress().GetPipe(); p != nil {
				out = append(out, p.GetPath()+" "+e.GetMetadata().GetFilterMetadata()[metadataAether].GetFields()[keyReason].GetStringValue())
				continue
			}
			a := e.GetEndpoint().GetAddress().GetSocketAddress()
			out = append(out, netip.AddrPortFrom(netip.MustParseAddr(a.GetAddress()), uint16(a.GetPortValue())).String())
		}
	}
	return out
}

func TestTranslateForms(t *testing.T) {
	web := served("10.96.0.12:80", "web", "http", "10.244.1.2:8080", "10.244.1.1:8080")
	notChosen := served("10.96.0.12:80", "web", "http", "10.244.1.2:8080", "10.244.1.3:8080")
	notChosen.Candidates[1].Chosen = false
	notChosen.Candidates = append(notChosen.Candidates, plan.Candidate{Address: "bad", Chosen: true}, notChosen.Candidates[0])
	local := noEndpoints("10.96.0.12:80", "web", "http")
	local.Reason = plan.NoLocalEndpoints
	const socket = DefaultRefuseSocket
	tests := []struct {
		name      string
		answer    plan.Answer
		discovery clusterv3.Cluster_DiscoveryType
		policy    clusterv3.Cluster_LbPolicy
		stat      string
		endpoints []string
		inline    int
	}{
		{"served", web, clusterv3.Cluster_EDS, clusterv3.Cluster_ROUND_ROBIN, "svc.default.web.http", []string{"10.244.1.1:8080", "10.244.1.2:8080"}, 0},
		{"only chosen, once, with an address", notChosen, clusterv3.Cluster_EDS, clusterv3.Cluster_ROUND_ROBIN, "svc.default.web.http", []string{"10.244.1.2:8080"}, 0},
		{"affinity", clientIP(web), clusterv3.Cluster_EDS, clusterv3.Cluster_RING_HASH, "svc.default.web.http", []string{"10.244.1.1:8080", "10.244.1.2:8080"}, 0},
		{"no endpoints", noEndpoints("10.96.0.12:80", "web", "http"), clusterv3.Cluster_EDS, clusterv3.Cluster_ROUND_ROBIN, "svc.default.web.http", []string{socket + " no-endpoints"}, 0},
		{"no local endpoints", local, clusterv3.Cluster_EDS, clusterv3.Cluster_ROUND_ROBIN, "svc.default.web.http", []string{socket + " no-local-endpoints"}, 0},
		{"no service", noService("10.96.9.9:80"), clusterv3.Cluster_STATIC, clusterv3.Cluster_ROUND_ROBIN, "refused", nil, 1},
		{"port not declared", portNotDeclared("10.96.0.12:81", "web", "81"), clusterv3.Cluster_STATIC, clusterv3.Cluster_ROUND_ROBIN, "refused", nil, 1},
		{"passed through, known", passedThrough(web), clusterv3.Cluster_ORIGINAL_DST, clusterv3.Cluster_CLUSTER_PROVIDED, "svc.default.web.http", nil, 0},
		{"passed through, port not declared", passedThrough(portNotDeclared("10.96.0.12:81", "web", "81")), clusterv3.Cluster_ORIGINAL_DST, clusterv3.Cluster_CLUSTER_PROVIDED, "passthrough", nil, 0},
		{"passed through, unknown", passedThrough(noService("10.96.9.9:80")), clusterv3.Cluster_ORIGINAL_DST, clusterv3.Cluster_CLUSTER_PROVIDED, "passthrough", nil, 0},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			r := Translate(tc.answer, DefaultSettings())
			c := r.Cluster
			if c.GetName() != ClusterName(tc.answer.Target) || c.GetType() != tc.discovery || c.GetLbPolicy() != tc.policy || c.GetAltStatName() != tc.stat {
				t.Errorf("cluster %s, type %v, policy %v, stat name %s", c.GetName(), c.GetType(), c.GetLbPolicy(), c.GetAltStatName())
			}
			if diff := cmp.Diff(tc.endpoints, endpointsOf(r)); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
			if (r.Assignment == nil) != (tc.endpoints == nil) || r.Assignment != nil && r.Assignment.GetClusterName() != c.GetName() {
				t.Errorf("assignment %v", r.Assignment)
			}
			if got := len(c.GetLoadAssignment().GetEndpoints()); got != tc.inline {
				t.Errorf("%d inline localities, want %d", got, tc.inline)
			}
			checkValid(t, c)
			if r.Assignment != nil {
				checkValid(t, r.Assignment)
			}
		})
	}
}

func TestEmptyClusterHasNoEndpoints(t *testing.T) {
	c := EmptyCluster(netip.MustParseAddrPort("10.96.0.12:80"))
	checkValid(t, c)
	if c.GetName() != "svc:10.96.0.12:80" || len(c.GetLoadAssignment().GetEndpoints()) != 0 || c.GetAltStatName() != "empty" {
		t.Errorf("empty cluster: %v", c)
	}
}

// anyAnswer draws an answer for a declared Service port, served or refused.
func anyAnswer() *rapid.Generator[plan.Answer] {
	return rapid.Custom(func(t *rapid.T) plan.Answer {
		a := served("10.96.0.12:80", anyLabel().Draw(t, "service"), anyLabel().Draw(t, "port"))
		a.Target = anyTarget().Draw(t, "target")
		for range rapid.IntRange(0, 12).Draw(t, "endpoints") {
			ap := anyTarget().Draw(t, "endpoint")
			a.Candidates = append(a.Candidates, plan.Candidate{Address: ap.String(), AddrPort: ap, Chosen: rapid.Bool().Draw(t, "chosen")})
		}
		if rapid.Bool().Draw(t, "refused") {
			a.Verdict, a.Reason = plan.Refuse, rapid.SampledFrom([]plan.Reason{plan.NoEndpoints, plan.NoLocalEndpoints}).Draw(t, "reason")
		}
		return a
	})
}

// TestServedOrRefusedIsOneCluster holds that a declared port's cluster does not
// depend on its endpoints, its verdict or its reason.
func TestServedOrRefusedIsOneCluster(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := anyAnswer().Draw(t, "answer")
		b := anyAnswer().Draw(t, "other")
		b.Target, b.Service, b.Policy = a.Target, a.Service, a.Policy
		x, y := Translate(a, DefaultSettings()).Cluster, Translate(b, DefaultSettings()).Cluster
		if !bytes.Equal(mustMarshal(t, x), mustMarshal(t, y)) {
			t.Fatalf("clusters differ:\n%s", cmp.Diff(x, y, protocmp.Transform()))
		}
	})
}

// TestTranslateIsIndependentOfOrder holds that equal sets give equal bytes.
func TestTranslateIsIndependentOfOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := anyAnswer().Draw(t, "answer")
		b := a
		b.Candidates = slices.Clone(a.Candidates)
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		r.Shuffle(len(b.Candidates), func(i, j int) { b.Candidates[i], b.Candidates[j] = b.Candidates[j], b.Candidates[i] })
		x, y := Translate(a, DefaultSettings()), Translate(b, DefaultSettings())
		if !bytes.Equal(mustMarshal(t, x.Cluster), mustMarshal(t, y.Cluster)) || !bytes.Equal(mustMarshal(t, x.Assignment), mustMarshal(t, y.Assignment)) {
			t.Fatal("bytes depend on the candidates' order")
		}
	})
}

// TestListenerChangesOnlyItsMatcher holds that no Capture touches anything of a
// listener but the matcher, and that equal sets give equal bytes.
func TestListenerChangesOnlyItsMatcher(t *testing.T) {
	prefix := rapid.Custom(func(t *rapid.T) netip.Prefix {
		return netip.PrefixFrom(anyTarget().Draw(t, "address").Addr(), rapid.IntRange(0, 32).Draw(t, "bits")).Masked()
	})
	rapid.Check(t, func(t *rapid.T) {
		c := plan.Capture{
			NeverProxied: rapid.SliceOf(prefix).Draw(t, "never"),
			Service:      rapid.SliceOf(prefix).Draw(t, "service"),
			OnDemand:     rapid.Bool().Draw(t, "on demand"),
		}
		for range rapid.IntRange(0, 2).Draw(t, "api servers") {
			c.APIServer = append(c.APIServer, anyTarget().Draw(t, "api server").Addr())
		}
		w := testWorkload()
		got, base := Listener(w, c, DefaultSettings()), Listener(w, plan.Capture{}, DefaultSettings())
		reversed := c
		for _, s := range []*[]netip.Prefix{&reversed.NeverProxied, &reversed.Service} {
			*s = slices.Clone(*s)
			slices.Reverse(*s)
		}
		if !bytes.Equal(mustMarshal(t, got), mustMarshal(t, Listener(w, reversed, DefaultSettings()))) {
			t.Fatal("bytes depend on the ranges' order")
		}
		if err := validateAll(got); err != nil {
			t.Fatal(err)
		}
		got.FilterChainMatcher, base.FilterChainMatcher = nil, nil
		if !bytes.Equal(mustMarshal(t, got), mustMarshal(t, base)) {
			t.Fatalf("more than the matcher changed:\n%s", cmp.Diff(base, got, protocmp.Transform()))
		}
	})
}

// TestOddNamesDoNotBreakFormats holds that a name cannot become a format operator
// and that no name makes a message that cannot be marshalled.
func TestOddNamesDoNotBreakFormats(t *testing.T) {
	w := model.Workload{
		Name: model.Name{Namespace: "a%DURATION%", Name: "b\xff%"}, ServiceAccount: "%REQ(x)%", NetNS: "/run/netns/%NO%",
	}
	l := Listener(w, testCapture(), DefaultSettings())
	mustMarshal(t, l)
	checkValid(t, l)
	if got := literal(w.ServiceAccount); got != "%%REQ(x)%%" {
		t.Errorf("literal = %q", got)
	}
}
