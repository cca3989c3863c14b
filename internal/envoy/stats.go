// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"strings"

	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	typematcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// statsConfig makes labels of the parts of a Service cluster's stat name
// (StatName), on top of Envoy's own tag rules, and leaves out what says nothing
// about proxied TCP connections: it is half of a cluster's memory.
func statsConfig() *metricsv3.StatsConfig {
	tag := func(name, regex string) *metricsv3.TagSpecifier {
		return &metricsv3.TagSpecifier{TagName: name, TagValue: &metricsv3.TagSpecifier_Regex{Regex: regex}}
	}
	var unused []*typematcherv3.StringMatcher
	for _, r := range unusedStats {
		unused = append(unused, &typematcherv3.StringMatcher{MatchPattern: &typematcherv3.StringMatcher_SafeRegex{
			SafeRegex: &typematcherv3.RegexMatcher{Regex: r.regex()},
		}})
	}
	return &metricsv3.StatsConfig{
		StatsTags: []*metricsv3.TagSpecifier{
			tag(labelNamespace, `^cluster\.svc\.(([^.]+)\.)[^.]+\.[^.]+\.`),
			tag(labelService, `^cluster\.svc\.[^.]+\.(([^.]+)\.)[^.]+\.`),
			tag(labelPort, `^cluster\.svc\.[^.]+\.[^.]+\.(([^.]+)\.)`),
		},
		StatsMatcher: &metricsv3.StatsMatcher{StatsMatcher: &metricsv3.StatsMatcher_ExclusionList{
			ExclusionList: &typematcherv3.ListStringMatcher{Patterns: unused},
		}},
	}
}

// statFamily names statistics by the regular expression of their root and the
// beginnings of what follows it.
type statFamily struct {
	root  string
	names []string
}

// unusedStats are what Envoy keeps for HTTP, for TLS, for load balancing by zone
// or subset, and as histograms, and what repeats another statistic.
var unusedStats = []statFamily{
	{
		root: `cluster\.(svc\.[^.]+\.[^.]+\.[^.]+|passthrough[a-z_]*|refused|empty)`,
		names: []string{
			"assignment_stale", "assignment_use_cached", "bind_errors", "circuit_breakers", "default",
			"init_fetch_timeout", "lb_local", "lb_recalculate", "lb_subsets", "lb_zone", "max_host_weight",
			"membership_degraded", "membership_excluded", "original_dst", "outlier_detection.ejections_consecutive",
			"outlier_detection.ejections_detected", "outlier_detection.ejections_enforced_[cfls]",
			"outlier_detection.ejections_overflow", "outlier_detection.ejections_success",
			"outlier_detection.ejections_total", "raw", "refuse", "retry", "update_", "upstream\\.",
			"upstream_cx_close", "upstream_cx_connect_ms", "upstream_cx_connect_with", "upstream_cx_destroy",
			"upstream_cx_http", "upstream_cx_idle", "upstream_cx_length", "upstream_cx_max", "upstream_cx_pool",
			"upstream_cx_preconnect", "upstream_cx_protocol", "upstream_cx_.x_bytes_buffered", "upstream_flow",
			"upstream_http3", "upstream_internal", "upstream_queue", "upstream_rq", "version", "warming_state",
		},
	},
	{
		root: `listener\.` + statCapture,
		names: []string{
			"connections_accepted", "downstream_cx_destroy", "downstream_cx_length", "downstream_cx_transport",
			"downstream_pre_cx_timeout", "extension_config", "network_extension_config", "worker_",
		},
	},
	{
		root: `tcp\.cap_[a-z_]+`,
		names: []string{
			"downstream_cx_drain", "downstream_cx_overload", "downstream_cx_.x_bytes", "downstream_flow", "early_data",
			"idle_timeout", "max_downstream", "route_delayed", "upstream_flush",
		},
	},
}

func (f statFamily) regex() string {
	return f.root + `\.(` + strings.Join(f.names, "|") + `).*`
}
