// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	proxyprotocolv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/proxy_protocol/v3"
	rawv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"aether.io/aether/internal/plan"
)

// Metadata of clusters and endpoints.
const (
	// metadataAether holds namespace, service and port of a cluster, and reason
	// and outcome of a refusing endpoint.
	metadataAether = "aether"
	keyNamespace   = "namespace"
	keyService     = "service"
	keyPort        = "port"
	keyReason      = "reason"
	keyOutcome     = "outcome"
	// metadataSocketMatch is where Envoy looks for what selects an endpoint's
	// transport socket.
	metadataSocketMatch = "envoy.transport_socket_match"
	keyRefuse           = "refuse"
)

// Names under which clusters of unbounded names share their statistics.
const (
	sharedStatRefused     = "refused"
	sharedStatPassthrough = "passthrough"
	sharedStatEmpty       = "empty"
)

// refuser returns the endpoint that resets what is connected to it. It is a Unix
// socket, so neither a pod nor the egress source can come between, and it is
// spoken to with a PROXY v2 header: the bytes it leaves unread turn its close
// into a reset.
func refuser(reason plan.Reason, s Settings) *endpointv3.LbEndpoint {
	return &endpointv3.LbEndpoint{
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: pipeAddress(s.RefuseSocket),
		}},
		Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			metadataAether: stringFields(map[string]string{
				keyReason:  string(reason),
				keyOutcome: string(Refused),
			}),
			metadataSocketMatch: stringFields(map[string]string{keyRefuse: "true"}),
		}},
	}
}

// refusing returns a cluster that refuses under a name that is no declared
// Service port's. It is cheap: it has no discovery and shares its statistics.
func refusing(name string, reason plan.Reason, ref *plan.ServiceRef, s Settings) *clusterv3.Cluster {
	c := static(name, sharedStatRefused)
	c.TransportSocket = proxyProtocolSocket()
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{
		ClusterName: name,
		Endpoints:   []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{refuser(reason, s)}}},
	}
	if ref != nil {
		c.Metadata = serviceMetadata(ref)
	}
	return c
}

// static returns a cluster without discovery that shares its statistics with
// the others of that stat name.
func static(name, statName string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                          name,
		AltStatName:                   statName,
		ClusterDiscoveryType:          &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:                duration(connectTimeout),
		PerConnectionBufferLimitBytes: u32(bufferBytes),
		CircuitBreakers:               openBreakers(),
	}
}

// serviceMetadata names the Service port in a cluster's metadata.
func serviceMetadata(ref *plan.ServiceRef) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		metadataAether: stringFields(map[string]string{
			keyNamespace: ref.Service.Namespace,
			keyService:   ref.Service.Name,
			keyPort:      ref.Port,
		}),
	}}
}

// socketMatches speaks PROXY v2 to the refuser and plain bytes to all others.
func socketMatches() []*clusterv3.Cluster_TransportSocketMatch {
	return []*clusterv3.Cluster_TransportSocketMatch{
		{
			Name:            "refuse",
			Match:           stringFields(map[string]string{keyRefuse: "true"}),
			TransportSocket: proxyProtocolSocket(),
		},
		{
			Name:            "raw",
			Match:           &structpb.Struct{},
			TransportSocket: rawSocket(),
		},
	}
}

func rawSocket() *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name:       "envoy.transport_sockets.raw_buffer",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(&rawv3.RawBuffer{})},
	}
}

func proxyProtocolSocket() *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name: "envoy.transport_sockets.upstream_proxy_protocol",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(&proxyprotocolv3.ProxyProtocolUpstreamTransport{
			Config:          &corev3.ProxyProtocolConfig{Version: corev3.ProxyProtocolConfig_V2},
			TransportSocket: rawSocket(),
		})},
	}
}

// BaseClusters returns the clusters that every node has whatever was asked for.
func BaseClusters(s Settings) []*clusterv3.Cluster {
	return []*clusterv3.Cluster{
		passthroughChain(PassthroughCluster, s),
		passthroughChain(RangePassthroughCluster, s),
		refusing(NotProxiedCluster, plan.NotProxied, nil, s),
	}
}
