// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	matcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"aether.io/aether/internal/plan"
)

// chainFor evaluates a destination matcher as Envoy's trie does: candidates by
// longest prefix, then by declaration.
func chainFor(t *testing.T, m *matcherv3.Matcher, a netip.Addr) string {
	t.Helper()
	var tree matcherv3.IPMatcher
	if custom := m.GetMatcherTree().GetCustomMatch(); custom != nil {
		if err := custom.GetTypedConfig().UnmarshalTo(&tree); err != nil {
			t.Fatal(err)
		}
	}
	best, on := -1, m.GetOnNoMatch()
	for _, r := range tree.GetRangeMatchers() {
		for _, c := range r.GetRanges() {
			p := netip.PrefixFrom(netip.MustParseAddr(c.GetAddressPrefix()), int(c.GetPrefixLen().GetValue()))
			if p.Contains(a) && p.Bits() > best {
				best, on = p.Bits(), r.GetOnMatch()
			}
		}
	}
	if nested := on.GetMatcher(); nested != nil {
		return chainFor(t, nested, a)
	}
	var name wrapperspb.StringValue
	if err := on.GetAction().GetTypedConfig().UnmarshalTo(&name); err != nil {
		t.Fatal(err)
	}
	return name.GetValue()
}

func TestMatcherLeadsToChains(t *testing.T) {
	enforce, measure := testCapture(), testCapture()
	measure.OnDemand = false
	odd := testCapture()
	odd.Service = append(odd.Service, netip.MustParsePrefix("169.254.7.7/32"), netip.MustParsePrefix("10.96.0.1/32"), netip.MustParsePrefix("0.0.0.0/0"))
	blind := plan.Capture{}
	tests := []struct {
		name    string
		capture plan.Capture
		address string
		want    string
	}{
		{"Service", enforce, "10.96.0.12", ChainService},
		{"end of range", enforce, "10.96.255.255", ChainService},
		{"ClusterSetIP", enforce, "241.0.0.5", ChainService},
		{"Service, measuring", measure, "10.96.0.12", ChainServicePassthrough},
		{"API server", enforce, "10.96.0.1", ChainPassthrough},
		{"API server, measuring", measure, "10.96.0.1", ChainPassthrough},
		{"outside", enforce, "10.97.0.0", ChainPassthrough},
		{"internet", enforce, "198.51.100.7", ChainPassthrough},
		{"loopback", enforce, "127.0.0.1", ChainClosed},
		{"link-local", enforce, "169.254.169.254", ChainClosed},
		{"multicast", enforce, "224.0.0.251", ChainClosed},
		{"zero net", enforce, "0.1.2.3", ChainClosed},
		{"never-proxied wins over a longer range", odd, "169.254.7.7", ChainClosed},
		{"never-proxied wins over a wide range", odd, "127.0.0.1", ChainClosed},
		{"API server wins over its own /32", odd, "10.96.0.1", ChainPassthrough},
		{"range of everything", odd, "198.51.100.7", ChainService},
		{"nothing known", blind, "10.96.0.12", ChainPassthrough},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			l := Listener(testWorkload(), tc.capture, DefaultSettings())
			got := chainFor(t, l.GetFilterChainMatcher(), netip.MustParseAddr(tc.address))
			if got != tc.want {
				t.Errorf("%s leads to %s, want %s", tc.address, got, tc.want)
			}
			if !slices.ContainsFunc(l.GetFilterChains(), func(c *listenerv3.FilterChain) bool { return c.GetName() == got }) {
				t.Errorf("there is no chain %s", got)
			}
		})
	}
}

// outcomeOf applies the outcome rules to an ending.
func outcomeOf(end string) Outcome {
	for _, r := range outcomeRules() {
		if !slices.ContainsFunc(r.all, func(m *matcherv3.StringMatcher) bool { return !occurs(m, end) }) {
			return r.outcome
		}
	}
	return OK
}

func occurs(m *matcherv3.StringMatcher, s string) bool {
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Prefix:
		return strings.HasPrefix(s, p.Prefix)
	case *matcherv3.StringMatcher_Suffix:
		return strings.HasSuffix(s, p.Suffix)
	case *matcherv3.StringMatcher_Contains:
		return strings.Contains(s, p.Contains)
	}
	return false
}

// TestOutcomeRules applies the rules to endings as Envoy 1.40 wrote them.
func TestOutcomeRules(t *testing.T) {
	seen := map[Outcome]bool{}
	for end, want := range map[string]Outcome{
		"-;;Normal;;":                                OK,
		"-;;RemoteReset;;":                           ClientReset,
		"UR;;LocalReset;;":                           ServerReset,
		"UR;;RemoteReset;;":                          ServerReset,
		"NC;;Normal;tcp_initializion_failure:3;":     Unanswered,
		"UH;;Normal;tcp_initializion_failure:1;":     Unanswered,
		"UF,URX;;Normal;tcp_initializion_failure:0;": Timeout,
		"UF,URX;;Normal;tcp_initializion_failure:0;delayed_connect_error:_Connection_refused": ConnectFailed,
		"UR;refused;LocalReset;;": Refused,
		"-;refused;RemoteReset;;": Refused,
		"UF,URX;refused;Normal;tcp_initializion_failure:0;immediate_connect_error:_No_such_file_or_directory|remote_address:/run/aether/refuse.sock": Refused,
		"-;;Normal;over_connection_limit;":                                  Refused,
		"-;;Normal;purging_socket_that_have_not_progressed_to_connections;": OK,
	} {
		if got := outcomeOf(end); got != want {
			t.Errorf("outcome of %q is %s, want %s", end, got, want)
		}
		seen[want] = true
	}
	for _, o := range Outcomes() {
		if !seen[o] {
			t.Errorf("no ending gives %s", o)
		}
	}
	for _, r := range outcomeRules() {
		if !slices.Contains(Outcomes(), r.outcome) {
			t.Errorf("%s is not in the closed set", r.outcome)
		}
	}
}

func TestLogSchemaIsComplete(t *testing.T) {
	keys := map[string]bool{}
	for _, f := range LogSchema() {
		if f.Key == "" || f.Doc == "" || f.Type != "string" && f.Type != "number" || keys[f.Key] {
			t.Errorf("bad or repeated field %+v", f)
		}
		keys[f.Key] = true
	}
	if !keys["reason"] || len(keys) != len(logFields) {
		t.Errorf("schema holds %v", keys)
	}
}

// TestUnusedStats holds which statistics are kept.
func TestUnusedStats(t *testing.T) {
	left := func(name string) bool {
		return !slices.ContainsFunc(unusedStats, func(f statFamily) bool {
			return regexp.MustCompile("^(?:" + f.regex() + ")$").MatchString(name)
		})
	}
	for name, want := range map[string]bool{
		"cluster.svc.default.web.http.upstream_cx_total":                                    true,
		"cluster.svc.default.web.8080.upstream_cx_active":                                   true,
		"cluster.svc.default.web.http.upstream_cx_connect_fail":                             true,
		"cluster.svc.default.web.http.upstream_cx_connect_timeout":                          true,
		"cluster.svc.default.web.http.upstream_cx_none_healthy":                             true,
		"cluster.svc.default.web.http.membership_healthy":                                   true,
		"cluster.svc.default.web.http.outlier_detection.ejections_active":                   true,
		"cluster.svc.default.web.http.outlier_detection.ejections_enforced_total":           true,
		"cluster.svc.default.web.http.assignment_timeout_received":                          true,
		"cluster.passthrough_original_dst.upstream_cx_rx_bytes_total":                       true,
		"cluster.aether_xds.upstream_rq_total":                                              true,
		"listener.capture.downstream_cx_total":                                              true,
		"listener.capture.downstream_global_cx_overflow":                                    true,
		"tcp.cap_svc.on_demand_cluster_timeout":                                             true,
		"connection_limit.capture.limited_connections":                                      true,
		"aether_proxy_svc_refused.reason.no-service":                                        true,
		"cluster.svc.default.web.http.upstream_rq_total":                                    false,
		"cluster.svc.default.web.http.upstream_cx_length_ms":                                false,
		"cluster.svc.default.web.http.circuit_breakers.default.cx_open":                     false,
		"cluster.svc.default.web.http.outlier_detection.ejections_enforced_consecutive_5xx": false,
		"cluster.refused.lb_subsets_active":                                                 false,
		"listener.capture.worker_0.downstream_cx_total":                                     false,
		"tcp.cap_passthrough.idle_timeout":                                                  false,
	} {
		if got := left(name); got != want {
			t.Errorf("%s is kept: %v, want %v", name, got, want)
		}
	}
}
