// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"path"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	dataaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/process_ratelimit/v3"
	grpclogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	tracingv3 "github.com/envoyproxy/go-control-plane/envoy/type/tracing/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
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

// rate is a token bucket that all workers and listeners share, for a number of
// lines or records a second.
type rate struct {
	name      string
	perSecond uint32
}

func recordRate(s Settings) rate      { return rate{"records", s.RecordRate} }
func recordFaultRate(s Settings) rate { return rate{"record-faults", s.RecordRate} }
func logFaultRate(s Settings) rate    { return rate{"log-faults", s.AccessLogFaultRate} }

// resource is the bucket's name in Envoy. It holds the number, so that a bucket
// never changes: Envoy 1.40 writes through a null pointer when one changes that a
// filter found there when it was made.
func (r rate) resource() string { return fmt.Sprintf("aether-%s-%d", r.name, r.perSecond) }

func (r rate) file() string { return r.resource() + ".json" }

// RateFiles returns the files that Settings.RatesDir must hold before Envoy is
// sent a listener, by name. The content belongs to the name.
//
// Over ADS, as a resource of its own type, a bucket comes after the listeners that
// want it, and they wait for it. In Envoy 1.40 a listener that is rejected then
// takes the place of a good one in that wait, when the good one's filter gets the
// memory of the rejected one's: the good one waits for ever, and an Envoy that has
// just started never serves (seen in 1 of 35 starts beside a rejected listener).
// A file is read as the filter is made, and nothing waits.
func RateFiles(s Settings) map[string][]byte {
	files := map[string][]byte{}
	for _, r := range []rate{recordRate(s), recordFaultRate(s), logFaultRate(s)} {
		bucket := &typev3.TokenBucket{MaxTokens: r.perSecond, TokensPerFill: u32(r.perSecond), FillInterval: duration(time.Second)}
		content, err := protojson.Marshal(&discoveryv3.DiscoveryResponse{
			VersionInfo: rateVersion,
			Resources: []*anypb.Any{pack(&discoveryv3.Resource{
				Name: r.resource(), Version: rateVersion, Resource: pack(bucket),
			})},
		})
		if err != nil {
			panic(err) // a message of numbers and strings
		}
		files[r.file()] = content
	}
	return files
}

// rateVersion is the one version that a bucket ever has.
const rateVersion = "1"

// endRecords sends the agent one record of each connection when it ends.
// Failures and refusals have a rate of their own, so that no number of good
// connections can hide them. The loggers of all pods are equal, down to the last
// byte: Envoy opens a stream per worker and configuration, and never closes it.
func endRecords(s Settings) *accesslogv3.AccessLog {
	l := recordLog([]*tracingv3.CustomTag{{Tag: recordTag, Type: &tracingv3.CustomTag_Value{Value: recordFormat}}})
	l.Filter = anyOf(allOf(flagged(), rated(recordFaultRate(s), s)), rated(recordRate(s), s))
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
func rated(r rate, s Settings) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{
		ExtensionFilter: &accesslogv3.ExtensionFilter{
			Name: "envoy.access_loggers.extension_filters.process_ratelimit",
			ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{TypedConfig: pack(&ratelimitv3.ProcessRateLimitFilter{
				DynamicConfig: &ratelimitv3.DynamicTokenBucket{
					ResourceName: r.resource(),
					ConfigSource: &corev3.ConfigSource{
						ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{
							PathConfigSource: &corev3.PathConfigSource{Path: path.Join(s.RatesDir, r.file())},
						},
						ResourceApiVersion: corev3.ApiVersion_V3,
					},
				},
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
