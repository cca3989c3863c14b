// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	fsov3 "github.com/envoyproxy/go-control-plane/envoy/extensions/local_address_selectors/filter_state_override/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"aether.io/aether/internal/plan"
)

// Limits and timers of every cluster a captured connection can take.
const (
	// connectTimeout lets one lost SYN (retransmitted after 1 s) pass.
	connectTimeout = 2 * time.Second
	// passthroughConnectTimeout is that of the chains that dial the dialled address
	// and try it once: as long as all attempts of the others take.
	passthroughConnectTimeout = connectAttempts * connectTimeout
	// bufferBytes is the soft limit of a connection's buffer per direction.
	bufferBytes = 64 << 10
	// Keepalive finds a dead peer of a quiet connection in 15 + 3·5 s.
	keepaliveIdle     = 15 * time.Second
	keepaliveInterval = 5 * time.Second
	keepaliveProbes   = 3
	// userTimeout bounds how long sent data may stay unacknowledged.
	userTimeout = 30 * time.Second
	// minRingSize is half of Envoy's default: it spreads the pods of a node over
	// three endpoints within some 8 %, and a ring is most of its cluster's memory.
	minRingSize = 512
	// edsFetchTimeout is how long a new cluster waits for its assignment.
	edsFetchTimeout = time.Second
)

// UpstreamMark is the SO_MARK of Envoy's own pod-sourced sockets. The pod's
// capture rules accept it, so that such a connection is not captured again.
const UpstreamMark = 0xae7e

// Linux socket option numbers.
const (
	solSocket      = 1
	soMark         = 36
	ipprotoTCP     = 6
	tcpUserTimeout = 18
)

// Resources answer one name.
type Resources struct {
	Cluster *clusterv3.Cluster
	// Assignment is nil when the cluster carries its endpoints itself or has none.
	Assignment *endpointv3.ClusterLoadAssignment
}

// Translate returns the resources that carry out an answer, under the name of
// the answer's target.
func Translate(a plan.Answer, s Settings) Resources {
	name := ClusterName(a.Target)
	switch {
	case a.Verdict == plan.Passthrough:
		return Resources{Cluster: passthroughService(name, a, s)}
	case a.Service != nil && a.Policy != nil:
		return Resources{Cluster: servicePort(name, a, s), Assignment: assignment(name, a, s)}
	default:
		return Resources{Cluster: refusing(name, a.Reason, a.Service, s)}
	}
}

// EmptyCluster returns a cluster without endpoints: what a name gets that is
// past the budget. Envoy fails its connections at once.
func EmptyCluster(target netip.AddrPort) *clusterv3.Cluster {
	c := static(ClusterName(target), sharedStatEmpty)
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: c.Name}
	return c
}

// servicePort returns the cluster of a declared Service port. It does not depend
// on which endpoints there are, nor on whether there are any.
func servicePort(name string, a plan.Answer, s Settings) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:                 name,
		AltStatName:          text(StatName(a.Service.Service, a.Service.Port)),
		Metadata:             serviceMetadata(a.Service),
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{
			EdsConfig: ads(edsFetchTimeout),
		},
		LbPolicy:               clusterv3.Cluster_ROUND_ROBIN,
		OutlierDetection:       outlierDetection(),
		TransportSocketMatches: socketMatches(),
		CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{
			HealthyPanicThreshold: &typev3.Percent{Value: 1},
			// By default the workers hear of a second ejection up to 1 s late,
			// and connections fail meanwhile.
			UpdateMergeWindow: duration(0),
		},
	}
	if a.Policy.ClientIPAffinity {
		c.LbPolicy = clusterv3.Cluster_RING_HASH
		c.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{
			MinimumRingSize: wrapperspb.UInt64(minRingSize),
		}}
	}
	applyLimits(c, s)
	return c
}

// passthroughService returns a cluster that dials the dialled address. Only a
// declared port has statistics of its own: who dials may choose any other.
func passthroughService(name string, a plan.Answer, s Settings) *clusterv3.Cluster {
	c := originalDst(name, s)
	c.AltStatName = sharedStatPassthrough
	if a.Service != nil {
		c.Metadata = serviceMetadata(a.Service)
	}
	if a.Service != nil && a.Policy != nil {
		c.AltStatName = text(StatName(a.Service.Service, a.Service.Port))
	}
	return c
}

// passthroughChain returns the cluster of a chain that dials the dialled address.
func passthroughChain(name string, s Settings) *clusterv3.Cluster {
	c := originalDst(name, s)
	c.ConnectTimeout = duration(passthroughConnectTimeout)
	return c
}

func originalDst(name string, s Settings) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST},
		LbPolicy:             clusterv3.Cluster_CLUSTER_PROVIDED,
	}
	applyLimits(c, s)
	return c
}

// applyLimits sets what every cluster of captured connections has in common.
func applyLimits(c *clusterv3.Cluster, s Settings) {
	c.ConnectTimeout = duration(connectTimeout)
	c.PerConnectionBufferLimitBytes = u32(bufferBytes)
	c.CircuitBreakers = openBreakers()
	c.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{TcpKeepalive: keepalive()}
	c.UpstreamBindConfig = bindConfig(s)
}

// openBreakers lifts Envoy's limits of 1,024 connections and requests per
// cluster; what bounds a node is the listener's and the overload manager's limit.
func openBreakers() *clusterv3.CircuitBreakers {
	open := func(p corev3.RoutingPriority) *clusterv3.CircuitBreakers_Thresholds {
		return &clusterv3.CircuitBreakers_Thresholds{
			Priority:           p,
			MaxConnections:     u32(math.MaxUint32),
			MaxPendingRequests: u32(math.MaxUint32),
			MaxRequests:        u32(math.MaxUint32),
			MaxRetries:         u32(math.MaxUint32),
		}
	}
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{open(corev3.RoutingPriority_DEFAULT)}}
}

// outlierDetection ejects an endpoint after three connection failures in a row
// and nothing else. All may be ejected: the panic threshold then uses them all.
// Ejected endpoints come back one by one, thanks to the jitter and a short
// interval (they come back on its tick): if several dead ones did at once, all
// attempts of one connection could meet them.
func outlierDetection() *clusterv3.OutlierDetection {
	return &clusterv3.OutlierDetection{
		SplitExternalLocalOriginErrors:         true,
		ConsecutiveLocalOriginFailure:          u32(3),
		EnforcingConsecutiveLocalOriginFailure: u32(100),
		MaxEjectionPercent:                     u32(100),
		Interval:                               duration(time.Second),
		BaseEjectionTime:                       duration(10 * time.Second),
		MaxEjectionTime:                        duration(30 * time.Second),
		MaxEjectionTimeJitter:                  duration(10 * time.Second),
		EnforcingConsecutive_5Xx:               u32(0),
		EnforcingConsecutiveGatewayFailure:     u32(0),
		EnforcingSuccessRate:                   u32(0),
		EnforcingLocalOriginSuccessRate:        u32(0),
		EnforcingFailurePercentage:             u32(0),
		EnforcingFailurePercentageLocalOrigin:  u32(0),
	}
}

func keepalive() *corev3.TcpKeepalive {
	return &corev3.TcpKeepalive{
		KeepaliveTime:     u32(uint32(keepaliveIdle / time.Second)),
		KeepaliveInterval: u32(uint32(keepaliveInterval / time.Second)),
		KeepaliveProbes:   u32(keepaliveProbes),
	}
}

// bindConfig says where upstream sockets are made. With PodSource Envoy's
// selector enters the network namespace that the connection's filter state names.
func bindConfig(s Settings) *corev3.BindConfig {
	b := &corev3.BindConfig{
		SocketOptions: []*corev3.SocketOption{{
			Description: "TCP_USER_TIMEOUT",
			Level:       ipprotoTCP,
			Name:        tcpUserTimeout,
			Value:       &corev3.SocketOption_IntValue{IntValue: userTimeout.Milliseconds()},
			State:       corev3.SocketOption_STATE_PREBIND,
		}},
	}
	if s.EgressSource != PodSource {
		return b
	}
	b.SourceAddress = &corev3.SocketAddress{
		Address:       "0.0.0.0",
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0},
	}
	b.LocalAddressSelector = extension("envoy.upstream.local_address_selector.filter_state_override", &fsov3.Config{})
	b.SocketOptions = append(b.SocketOptions, &corev3.SocketOption{
		Description: "SO_MARK",
		Level:       solSocket,
		Name:        soMark,
		Value:       &corev3.SocketOption_IntValue{IntValue: UpstreamMark},
		State:       corev3.SocketOption_STATE_PREBIND,
	})
	return b
}

// assignment returns the endpoints of a declared Service port: the chosen ones,
// or the refuser alone.
func assignment(name string, a plan.Answer, s Settings) *endpointv3.ClusterLoadAssignment {
	var endpoints []*endpointv3.LbEndpoint
	if a.Verdict == plan.Refuse {
		endpoints = []*endpointv3.LbEndpoint{refuser(a.Reason, s)}
	} else {
		for _, ap := range chosen(a.Candidates) {
			endpoints = append(endpoints, tcpEndpoint(ap))
		}
	}
	return &endpointv3.ClusterLoadAssignment{
		ClusterName: name,
		Endpoints:   []*endpointv3.LocalityLbEndpoints{{LbEndpoints: endpoints}},
	}
}

// chosen returns the addresses of the chosen candidates, each once, sorted.
func chosen(cs []plan.Candidate) []netip.AddrPort {
	var out []netip.AddrPort
	for _, c := range cs {
		if c.Chosen && c.AddrPort.IsValid() {
			out = append(out, c.AddrPort)
		}
	}
	slices.SortFunc(out, func(x, y netip.AddrPort) int {
		return cmp.Or(x.Addr().Compare(y.Addr()), cmp.Compare(x.Port(), y.Port()))
	})
	return slices.Compact(out)
}

func tcpEndpoint(ap netip.AddrPort) *endpointv3.LbEndpoint {
	return &endpointv3.LbEndpoint{
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: tcpAddress(ap.Addr().String(), uint32(ap.Port()), ""),
		}},
	}
}

func tcpAddress(addr string, port uint32, netns string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:                  addr,
		PortSpecifier:            &corev3.SocketAddress_PortValue{PortValue: port},
		NetworkNamespaceFilepath: text(netns),
	}}}
}

func pipeAddress(path string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: text(path)}}}
}

// ads returns a config source on the aggregated stream. A fetch timeout of 0 is
// Envoy's default of 15 s.
func ads(fetchTimeout time.Duration) *corev3.ConfigSource {
	c := &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
	if fetchTimeout > 0 {
		c.InitialFetchTimeout = duration(fetchTimeout)
	}
	return c
}
