// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	matcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	statslogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stats/v3"
	transformv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/actions/transform_stat/v3"
	statsinputv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/stats/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"aether.io/aether/internal/model"
)

// Counters of captured connections. Envoy's Prometheus form puts "envoy_" before
// each name. They are counted once, at a connection's end.
const (
	// CounterRefused counts refusals by reason, namespace, service, port,
	// source_namespace and source_service_account. The three labels of the
	// Service are empty when the refused address is no Service's.
	CounterRefused = "aether_proxy_svc_refused"
	// CounterConnections counts connections by source_namespace,
	// source_service_account, namespace, service, port and outcome. The three
	// labels of the Service are empty for what is passed through unasked.
	CounterConnections = "aether_egress_connections"
	// CounterBytesSent and CounterBytesReceived count what the pods sent to and
	// received from their peers, by the labels of CounterConnections without
	// outcome.
	CounterBytesSent     = "aether_egress_bytes_sent"
	CounterBytesReceived = "aether_egress_bytes_received"
	// CounterMilliseconds sums how long the connections lasted, by the same
	// labels as the bytes.
	CounterMilliseconds = "aether_egress_connection_milliseconds"
)

// Labels of the counters.
const (
	labelReason               = "reason"
	labelNamespace            = "namespace"
	labelService              = "service"
	labelPort                 = "port"
	labelSourceNamespace      = "source_namespace"
	labelSourceServiceAccount = "source_service_account"
	labelOutcome              = "outcome"
)

// Bounds of the counters on a node. All listeners share one scope for refusals
// and one for the rest, so that neither can crowd out the other. Envoy drops
// what does not fit and counts it as envoy_server_stats_overflow_counter; a counter
// that stands still for between one and two eviction intervals is forgotten.
const (
	maxRefusedCounters = 5_000
	maxEgressCounters  = 40_000
)

// counters returns the loggers that count a pod's connections.
func counters(w model.Workload) []*accesslogv3.AccessLog {
	source := []*statslogv3.Config_Tag{
		tag(labelSourceNamespace, literal(w.Name.Namespace)),
		tag(labelSourceServiceAccount, literal(w.ServiceAccount)),
	}
	service := []*statslogv3.Config_Tag{
		tag(labelNamespace, "%CLUSTER_METADATA(aether:namespace)%"),
		tag(labelService, "%CLUSTER_METADATA(aether:service)%"),
		tag(labelPort, "%CLUSTER_METADATA(aether:port)%"),
	}
	reason := tag(labelReason, "%UPSTREAM_METADATA(aether:reason)%")
	reason.Rules = dropWithoutReason()
	outcome := tag(labelOutcome, ending)
	outcome.Rules = endingToOutcome()
	one := wrapperspb.UInt64(1)
	return []*accesslogv3.AccessLog{
		statsLog("aether_refused", maxRefusedCounters,
			&statslogv3.Config_Counter{Stat: stat(CounterRefused, []*statslogv3.Config_Tag{reason}, service, source), ValueFixed: one},
		),
		statsLog("aether_egress", maxEgressCounters,
			&statslogv3.Config_Counter{Stat: stat(CounterConnections, source, service, []*statslogv3.Config_Tag{outcome}), ValueFixed: one},
			// Envoy names directions from its own side: it receives what the pod sends.
			&statslogv3.Config_Counter{Stat: stat(CounterBytesSent, source, service), ValueFormat: "%BYTES_RECEIVED%"},
			&statslogv3.Config_Counter{Stat: stat(CounterBytesReceived, source, service), ValueFormat: "%BYTES_SENT%"},
			&statslogv3.Config_Counter{Stat: stat(CounterMilliseconds, source, service), ValueFormat: "%DURATION%"},
		),
	}
}

func statsLog(scope string, limit uint32, counters ...*statslogv3.Config_Counter) *accesslogv3.AccessLog {
	return &accesslogv3.AccessLog{
		Name: "envoy.access_loggers.stats",
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: pack(&statslogv3.Config{
			StatsScope: &typev3.Scope{MaxCounters: u32(limit), EnableEviction: true, SharingName: scope},
			Counters:   counters,
		})},
	}
}

func stat(name string, tags ...[]*statslogv3.Config_Tag) *statslogv3.Config_Stat {
	s := &statslogv3.Config_Stat{Name: name}
	for _, t := range tags {
		s.Tags = append(s.Tags, t...)
	}
	return s
}

func tag(name, format string) *statslogv3.Config_Tag {
	return &statslogv3.Config_Tag{Name: name, ValueFormat: format}
}

// dropWithoutReason counts nothing for a connection whose endpoint names no reason.
func dropWithoutReason() *matcherv3.Matcher {
	return exactly("", &transformv3.TransformStat{DropStat: &transformv3.TransformStat_DropStat{}})
}

// endingToOutcome replaces an ending by its outcome.
func endingToOutcome() *matcherv3.Matcher {
	list := &matcherv3.Matcher_MatcherList{}
	for _, r := range outcomeRules() {
		list.Matchers = append(list.Matchers, &matcherv3.Matcher_MatcherList_FieldMatcher{
			Predicate: every(r.all),
			OnMatch:   transform(outcomeTag(r.outcome)),
		})
	}
	return &matcherv3.Matcher{
		MatcherType: &matcherv3.Matcher_MatcherList_{MatcherList: list},
		OnNoMatch:   transform(outcomeTag(OK)),
	}
}

// exactly applies an action to one value.
func exactly(value string, action *transformv3.TransformStat) *matcherv3.Matcher {
	return &matcherv3.Matcher{MatcherType: &matcherv3.Matcher_MatcherTree_{MatcherTree: &matcherv3.Matcher_MatcherTree{
		Input: tagValue(),
		TreeType: &matcherv3.Matcher_MatcherTree_ExactMatchMap{ExactMatchMap: &matcherv3.Matcher_MatcherTree_MatchMap{
			Map: map[string]*matcherv3.Matcher_OnMatch{value: transform(action)},
		}},
	}}}
}

// every holds when all the string matchers do.
func every(all []*matcherv3.StringMatcher) *matcherv3.Matcher_MatcherList_Predicate {
	predicates := make([]*matcherv3.Matcher_MatcherList_Predicate, 0, len(all))
	for _, m := range all {
		predicates = append(predicates, &matcherv3.Matcher_MatcherList_Predicate{
			MatchType: &matcherv3.Matcher_MatcherList_Predicate_SinglePredicate_{
				SinglePredicate: &matcherv3.Matcher_MatcherList_Predicate_SinglePredicate{
					Input:   tagValue(),
					Matcher: &matcherv3.Matcher_MatcherList_Predicate_SinglePredicate_ValueMatch{ValueMatch: m},
				},
			},
		})
	}
	if len(predicates) == 1 {
		return predicates[0]
	}
	return &matcherv3.Matcher_MatcherList_Predicate{
		MatchType: &matcherv3.Matcher_MatcherList_Predicate_AndMatcher{
			AndMatcher: &matcherv3.Matcher_MatcherList_Predicate_PredicateList{Predicate: predicates},
		},
	}
}

func tagValue() *xdscorev3.TypedExtensionConfig {
	return &xdscorev3.TypedExtensionConfig{Name: "tag_value", TypedConfig: pack(&statsinputv3.StatTagValueInput{})}
}

func outcomeTag(o Outcome) *transformv3.TransformStat {
	return &transformv3.TransformStat{UpdateTag: &transformv3.TransformStat_UpdateTag{NewTagValue: string(o)}}
}

func transform(action *transformv3.TransformStat) *matcherv3.Matcher_OnMatch {
	return &matcherv3.Matcher_OnMatch{OnMatch: &matcherv3.Matcher_OnMatch_Action{
		Action: &xdscorev3.TypedExtensionConfig{Name: "transform_stat", TypedConfig: pack(action)},
	}}
}
