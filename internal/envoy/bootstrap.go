// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	downstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// Timers between Envoy and the agent.
const (
	// An agent that does not answer an HTTP/2 ping is left after 15 + 10 s. One
	// whose process ended is noticed at once: its socket closes.
	xdsPingInterval = 15 * time.Second
	xdsPingTimeout  = 10 * time.Second
	// A name asked for while the agent restarts waits at most onDemandTimeout,
	// so Envoy tries to reach it again well within that.
	xdsRetryBase = 100 * time.Millisecond
	xdsRetryMax  = time.Second
	// statsEviction is how often Envoy looks for counters that stand still.
	statsEviction = time.Hour
	// adminMode keeps the admin socket to Envoy's own user.
	adminMode = 0o600
)

// minDescriptors is the smallest descriptor limit a node's Envoy can work with.
const minDescriptors = 256

// BootstrapSettings say how this node's Envoy starts.
type BootstrapSettings struct {
	// NodeID is the node's name; it identifies this Envoy to the agent.
	NodeID string
	// Cluster is the service cluster this Envoy says it is of. Default "aether".
	Cluster string
	// XDSSocket, RecordSocket and AdminSocket are absolute paths of Unix sockets:
	// the agent's xDS server, its server of connection records, and the one Envoy
	// makes for its admin interface, mode 0600.
	XDSSocket, RecordSocket, AdminSocket string
	// DescriptorLimit is the RLIMIT_NOFILE Envoy will run with, at least 256.
	// Envoy 1.40 crashes when socket(2) returns EMFILE, so it accepts fewer
	// downstream connections than a third of it: a connection holds one
	// descriptor on each side and one more while it tries another endpoint.
	DescriptorLimit uint64
	// AccessLogSuccessPercent is the share of connections without a failure
	// that the access log holds, 0–100. Default 0: failures and refusals only.
	AccessLogSuccessPercent uint32
}

// Validate reports every setting that gives no working bootstrap.
func (b BootstrapSettings) Validate() error {
	var errs []error
	if b.NodeID == "" {
		errs = append(errs, errors.New("node id is empty"))
	}
	errs = append(errs, checkSocket("xds socket", b.XDSSocket), checkSocket("record socket", b.RecordSocket),
		checkSocket("admin socket", b.AdminSocket))
	if b.DescriptorLimit < minDescriptors {
		errs = append(errs, fmt.Errorf("descriptor limit %d: want at least %d", b.DescriptorLimit, minDescriptors))
	}
	if b.AccessLogSuccessPercent > 100 {
		errs = append(errs, fmt.Errorf("access log success percent %d: want 0 to 100", b.AccessLogSuccessPercent))
	}
	return errors.Join(errs...)
}

// MaxConnections returns how many downstream connections Envoy may hold under a
// descriptor limit: 30 of 100 descriptors.
func MaxConnections(descriptorLimit uint64) int64 {
	return int64(min(descriptorLimit, 1<<31) * 3 / 10)
}

// Bootstrap returns Envoy's bootstrap as indented JSON, which Envoy also reads as
// YAML. Equal settings give equal bytes.
func Bootstrap(b BootstrapSettings) ([]byte, error) {
	if err := b.Validate(); err != nil {
		return nil, fmt.Errorf("make bootstrap: %w", err)
	}
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(bootstrap(b))
	if err != nil {
		return nil, fmt.Errorf("make bootstrap: %w", err)
	}
	// protojson spaces its output at random on purpose.
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return nil, fmt.Errorf("make bootstrap: %w", err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

func bootstrap(b BootstrapSettings) *bootstrapv3.Bootstrap {
	cluster := b.Cluster
	if cluster == "" {
		cluster = "aether"
	}
	return &bootstrapv3.Bootstrap{
		Node: &corev3.Node{Id: text(b.NodeID), Cluster: text(cluster)},
		Admin: &bootstrapv3.Admin{
			Address: &corev3.Address{Address: &corev3.Address_Pipe{
				Pipe: &corev3.Pipe{Path: text(b.AdminSocket), Mode: adminMode},
			}},
			IgnoreGlobalConnLimit: true,
		},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{
			Clusters: []*clusterv3.Cluster{socketCluster(XDSCluster, b.XDSSocket, xdsPingInterval, xdsPingTimeout), recordCluster(b.RecordSocket)},
		},
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{
			AdsConfig: adsStream(),
			LdsConfig: ads(0),
			CdsConfig: ads(0),
		},
		LayeredRuntime:  runtime(b),
		OverloadManager: overloadManager(b.DescriptorLimit),
		StatsConfig:     statsConfig(),
		StatsEviction: &bootstrapv3.Bootstrap_StatsEvictionInterval{
			StatsEvictionInterval: duration(statsEviction),
		},
	}
}

// adsStream is one delta stream for every resource type.
func adsStream() *corev3.ApiConfigSource {
	return &corev3.ApiConfigSource{
		ApiType:                   corev3.ApiConfigSource_DELTA_GRPC,
		TransportApiVersion:       corev3.ApiVersion_V3,
		SetNodeOnFirstMessageOnly: true,
		GrpcServices: []*corev3.GrpcService{{
			TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
				ClusterName: XDSCluster,
				RetryPolicy: &corev3.RetryPolicy{RetryBackOff: &corev3.BackoffStrategy{
					BaseInterval: duration(xdsRetryBase),
					MaxInterval:  duration(xdsRetryMax),
				}},
			}},
		}},
	}
}

// socketCluster is a gRPC server of the agent's on a Unix socket. An idle one is
// pinged, and left when it does not answer within the time pong.
func socketCluster(name, socket string, ping, pong time.Duration) *clusterv3.Cluster {
	options := &httpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
					Http2ProtocolOptions: &corev3.Http2ProtocolOptions{
						ConnectionKeepalive: &corev3.KeepaliveSettings{
							Interval: duration(ping),
							Timeout:  duration(pong),
						},
					},
				},
			},
		},
	}
	return &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       duration(connectTimeout),
		TypedExtensionProtocolOptions: map[string]*anypb.Any{
			"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": pack(options),
		},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: pipeAddress(socket)}},
			}}}},
		},
	}
}

// runtime holds what is Envoy's own and not any resource's. The admin layer lets
// the person on call change the log's share while Envoy runs.
func runtime(b BootstrapSettings) *bootstrapv3.LayeredRuntime {
	return &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{
		{
			Name: "aether",
			LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: &structpb.Struct{Fields: map[string]*structpb.Value{
				// Otherwise a close of an internal connection is relayed as a
				// reset and the end of a response can be lost.
				"envoy.reloadable_features.enable_send_rst_on_user_space_socket": structpb.NewBoolValue(false),
				RuntimeSuccessPercent: structpb.NewNumberValue(float64(b.AccessLogSuccessPercent)),
			}}},
		},
		{
			Name:           "admin",
			LayerSpecifier: &bootstrapv3.RuntimeLayer_AdminLayer_{AdminLayer: &bootstrapv3.RuntimeLayer_AdminLayer{}},
		},
	}}
}

func overloadManager(descriptors uint64) *overloadv3.OverloadManager {
	return &overloadv3.OverloadManager{
		RefreshInterval: duration(250 * time.Millisecond),
		ResourceMonitors: []*overloadv3.ResourceMonitor{{
			Name: "envoy.resource_monitors.global_downstream_max_connections",
			ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: pack(&downstreamv3.DownstreamConnectionsConfig{
				MaxActiveDownstreamConnections: MaxConnections(descriptors),
			})},
		}},
	}
}
