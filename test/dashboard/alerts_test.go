// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fires are, for each alert, series on which it fires and series on which it does
// not, in the notation of Prometheus' rule tests, 15 s a step.
var fires = map[string]struct{ yes, no string }{
	"AetherAgentAway": {`up{job="aether-agent", instance="n1"} 1x10 0x20`, `up{job="aether-agent", instance="n1"} 0x10 1x20`},
	"AetherEnvoyAway": {`aether_agent_envoy_connected{instance="n1"} 1x10 0x20`, `aether_agent_envoy_connected{instance="n1"} 2x30`},
	"AetherEnvoyMetricsAway": {
		`aether_agent_envoy_metrics_failing{instance="n1"} 0x10 1x20`,
		`up{job="aether-envoy", instance="n1"} 1x30
		 aether_agent_envoy_metrics_failing{instance="n1"} 0x30`,
	},
	"AetherEnvoyRestarts": {
		`aether_envoy_process_start_time_seconds{instance="n1"} 1000x10 _x4 2000x10 3000x10`,
		`aether_envoy_process_start_time_seconds{instance="n1"} 1000x10 _x4 2000x20`,
	},
	"AetherEnvoyDescriptors": {
		`aether_envoy_process_open_fds{instance="n1"} 900x30
		 aether_envoy_process_max_fds{instance="n1"} 1000x30`,
		`aether_envoy_process_open_fds{instance="n1"} 300x30
		 aether_envoy_process_max_fds{instance="n1"} 1000x30`,
	},
	"AetherNoServiceRange":   {`aether_agent_service_range_known{instance="n1"} 0x30`, `aether_agent_service_range_known{instance="n1"} 1x30`},
	"AetherSourcesNotSynced": {`aether_agent_sources_synced{instance="n1"} 0x30`, `aether_agent_sources_synced{instance="n1"} 1x30`},
	"AetherRejectedByEnvoy": {
		`aether_xds_resources_rejected{instance="n1", type="listener"} 0x10 1x20`, `aether_xds_resources_rejected{instance="n1", type="listener"} 1x10 0x20`,
	},
	"AetherPodWithoutListener": {
		`aether_agent_pods{instance="n1", listener="rejected"} 1x30`,
		`aether_agent_pods{instance="n1", listener="ready"} 5x30
		 aether_agent_pods{instance="n1", listener="pending"} 0x30`,
	},
	"AetherRefusals": {
		`envoy_aether_proxy_svc_refused{instance="n1", reason="no-endpoints", namespace="shop", service="web", port="http", source_namespace="a", source_service_account="x"} 0+2x30
		 envoy_aether_proxy_svc_refused{instance="n1", reason="no-endpoints", namespace="shop", service="web", port="http", source_namespace="a", source_service_account="y"} 0+2x30`,
		`envoy_aether_proxy_svc_refused{instance="n1", reason="no-endpoints", namespace="shop", service="web", port="http", source_namespace="a", source_service_account="x"} 0+2x30`,
	},
	"AetherConnectionsFail": {
		`envoy_aether_egress_connections{instance="n1", namespace="shop", service="web", port="http", outcome="ok"} 0+90x30
		 envoy_aether_egress_connections{instance="n1", namespace="shop", service="web", port="http", outcome="timeout"} 0+10x30`,
		`envoy_aether_egress_connections{instance="n1", namespace="shop", service="web", port="http", outcome="ok"} 0+90x30
		 envoy_aether_egress_connections{instance="n1", namespace="shop", service="web", port="http", outcome="refused"} 0+90x30
		 envoy_aether_egress_connections{instance="n1", namespace="shop", service="web", port="http", outcome="timeout"} 0+1x30`,
	},
	"AetherAnswersSlow": {
		`aether_agent_answer_seconds_bucket{instance="n1", le="0.05"} 0+50x30
		 aether_agent_answer_seconds_bucket{instance="n1", le="0.1"} 0+100x30
		 aether_agent_answer_seconds_bucket{instance="n1", le="+Inf"} 0+100x30`,
		`aether_agent_answer_seconds_bucket{instance="n1", le="0.001"} 0+100x30
		 aether_agent_answer_seconds_bucket{instance="n1", le="0.05"} 0+100x30
		 aether_agent_answer_seconds_bucket{instance="n1", le="+Inf"} 0+100x30`,
	},
	"AetherNamesOverLimit": {`aether_agent_names_over_limit_total{instance="n1"} 0x20 9x20`, `aether_agent_names_over_limit_total{instance="n1"} 9x60`},
	"AetherConnectionsTurnedAway": {
		`envoy_listener_downstream_global_cx_overflow{instance="n1", envoy_listener_address="capture"} 0x20 4x20`,
		`envoy_connection_limit_limited_connections{instance="n1"} 4x60
		 envoy_listener_downstream_global_cx_overflow{instance="n1", envoy_listener_address="capture"} 4x60`,
	},
	"AetherStatisticsFull": {`envoy_server_stats_overflow_counter{instance="n1"} 0x20 4x20`, `envoy_server_stats_overflow_counter{instance="n1"} 4x60`},
	"AetherAccessLogLost":  {`envoy_filesystem_write_failed{instance="n1"} 0x20 4x20`, `envoy_filesystem_write_failed{instance="n1"} 4x60`},
	"AetherRecordsDropped": {
		`envoy_access_logs_grpc_access_log_logs_dropped{instance="n1"} 0x20 4x20`,
		`envoy_access_logs_grpc_access_log_logs_dropped{instance="n1"} 4x60
		 envoy_access_log_process_ratelimit_denied{instance="n1"} 4x60`,
	},
	"AetherStateNotSaved": {
		`aether_agent_state_file_unsaved{instance="n1", file="demand.json"} 0x10 1x20`, `aether_agent_state_file_unsaved{instance="n1", file="demand.json"} 1x10 0x20`,
	},
}

// TestAlertsFire: each alert fires when it should, and not when it should not.
func TestAlertsFire(t *testing.T) {
	rules := alertRules(t)
	for _, r := range rules {
		series, ok := fires[r.where]
		if !ok {
			t.Errorf("%s is not tested", r.where)
			continue
		}
		t.Run(r.where, func(t *testing.T) {
			for text, want := range map[string]bool{series.yes: true, series.no: false} {
				s := newStore()
				end := s.load(t, text)
				got := evaluate(t, newEngine(), s, r, end)
				if len(got) > 0 != want {
					t.Errorf("fires %t, want %t: %v on\n%s", len(got) > 0, want, got, text)
				}
				for _, sample := range got {
					if !sample.Metric.Has("instance") {
						t.Errorf("it does not say on which node: %v", sample)
					}
				}
			}
		})
	}
	for name := range fires {
		if !slices.ContainsFunc(rules, func(q query) bool { return q.where == name }) {
			t.Errorf("there is no alert %s", name)
		}
	}
}

// TestScrapeConfiguration: the example scrapes what the test does, where the agent
// serves it by default.
func TestScrapeConfiguration(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(), "examples/prometheus/prometheus.yml"))
	if err != nil {
		t.Fatal(err)
	}
	for job, path := range jobs {
		_, of, found := strings.Cut(string(text), "- job_name: "+job+"\n")
		of, _, _ = strings.Cut(of, "- job_name:")
		if !found || !strings.Contains(of, `targets: ["127.0.0.1:18090"]`) {
			t.Errorf("the example has no job %s at the agent's default address", job)
		}
		if path != "/metrics" && !strings.Contains(of, fmt.Sprintf("metrics_path: %s\n", path)) {
			t.Errorf("job %s is not scraped at %s", job, path)
		}
	}
	if !strings.Contains(string(text), "- alerts.yml\n") {
		t.Error("the example does not read the alerts")
	}
}
