// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	dataaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/process_ratelimit/v3"
	grpclogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tracingv3 "github.com/envoyproxy/go-control-plane/envoy/type/tracing/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

// RecordCluster is the agent's socket for connection records, in the bootstrap.
const RecordCluster = "aether_als"

// RecordFlush is how long Envoy keeps a record back to send it with others.
const RecordFlush = 200 * time.Millisecond

const (
	// recordBuffer is how many bytes of records a worker gathers at most before it
	// sends them.
	recordBuffer = 64 << 10
	// An agent that does not answer a ping is left, with what Envoy held for it:
	// in Envoy 1.40 nothing else bounds what waits for one that does not read, some
	// 300 bytes a record. With the default rates that is 2 MiB at most.
	recordPing = 2 * time.Second
	recordPong = 2 * time.Second
	// recordLogName names the stream.
	recordLogName = "aether"
	// recordTag is the key of what a record says beside Envoy's own fields.
	recordTag = "aether"
)

// rate is a token bucket that all workers and listeners share: so many lines or
// records a second.
type rate struct {
	name      string
	perSecond uint32
}

func recordRate(s Settings) rate      { return rate{"aether_records", s.RecordRate} }
func recordFaultRate(s Settings) rate { return rate{"aether_record_faults", s.RecordRate} }
func logFaultRate(s Settings) rate    { return rate{"aether_log_faults", s.AccessLogFaultRate} }

// resource is the bucket's name in Envoy. It holds the number, so that a bucket
// never changes while an Envoy lives: Envoy 1.40 follows a null pointer when a
// bucket changes that was there before one of the filters that use it.
func (r rate) resource() string { return fmt.Sprintf("%s_%d", r.name, r.perSecond) }

// RateLimits returns the token buckets that the logs' filters ask for, by name.
func RateLimits(s Settings) map[string]*typev3.TokenBucket {
	buckets := map[string]*typev3.TokenBucket{}
	for _, r := range []rate{recordRate(s), recordFaultRate(s), logFaultRate(s)} {
		buckets[r.resource()] = &typev3.TokenBucket{
			MaxTokens: r.perSecond, TokensPerFill: u32(r.perSecond), FillInterval: duration(time.Second),
		}
	}
	return buckets
}

// endRecords sends the agent one record of each connection when it ends.
// Failures and refusals have a rate of their own, so that no number of good
// connections can hide them. The loggers of all pods are equal, down to the last
// byte: Envoy opens a stream per worker and configuration, and never closes it.
func endRecords(s Settings) *accesslogv3.AccessLog {
	l := recordLog([]*tracingv3.CustomTag{{Tag: recordTag, Type: &tracingv3.CustomTag_Value{Value: recordFormat}}})
	l.Filter = anyOf(allOf(flagged(), rated(recordFaultRate(s))), rated(recordRate(s)))
	return l
}

// openRecords sends the agent a record of each open connection at intervals. It
// belongs to a chain's proxy, as only that writes while a connection is open. It
// has no rate: there cannot be more than connections per interval.
func openRecords() *accesslogv3.AccessLog {
	l := recordLog(nil)
	l.Filter = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_LogTypeFilter{
		LogTypeFilter: &accesslogv3.LogTypeFilter{Types: []dataaccesslogv3.AccessLogType{dataaccesslogv3.AccessLogType_TcpPeriodic}},
	}}
	return l
}

// reportOpen has a chain's proxy tell the agent of its open connections.
func reportOpen(p *tcpproxyv3.TcpProxy, s Settings) *tcpproxyv3.TcpProxy {
	p.AccessLog = []*accesslogv3.AccessLog{openRecords()}
	p.AccessLogOptions = &tcpproxyv3.TcpProxy_TcpAccessLogOptions{AccessLogFlushInterval: duration(s.RecordInterval)}
	return p
}

func recordLog(tags []*tracingv3.CustomTag) *accesslogv3.AccessLog {
	return &accesslogv3.AccessLog{
		Name: "envoy.access_loggers.tcp_grpc",
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: pack(&grpclogv3.TcpGrpcAccessLogConfig{
			CommonConfig: &grpclogv3.CommonGrpcAccessLogConfig{
				LogName:             recordLogName,
				TransportApiVersion: corev3.ApiVersion_V3,
				BufferFlushInterval: duration(RecordFlush),
				BufferSizeBytes:     u32(recordBuffer),
				GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
					EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: RecordCluster},
				}},
				CustomTags: tags,
			},
		})},
	}
}

// recordCluster is the agent's record server.
func recordCluster(socket string) *clusterv3.Cluster {
	return socketCluster(RecordCluster, socket, recordPing, recordPong)
}

func flagged() *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
		ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{},
	}}
}

// rated lets pass what a token of the bucket can be had for.
func rated(r rate) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{
		ExtensionFilter: &accesslogv3.ExtensionFilter{
			Name: "envoy.access_loggers.extension_filters.process_ratelimit",
			ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{TypedConfig: pack(&ratelimitv3.ProcessRateLimitFilter{
				DynamicConfig: &ratelimitv3.DynamicTokenBucket{ResourceName: r.resource(), ConfigSource: ads(0)},
			})},
		},
	}}
}

func allOf(fs ...*accesslogv3.AccessLogFilter) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_AndFilter{AndFilter: &accesslogv3.AndFilter{Filters: fs}}}
}

func anyOf(fs ...*accesslogv3.AccessLogFilter) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_OrFilter{OrFilter: &accesslogv3.OrFilter{Filters: fs}}}
}
