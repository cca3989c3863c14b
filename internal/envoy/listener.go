// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	setstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	originaldstv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/original_dst/v3"
	connlimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/connection_limit/v3"
	networkstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/set_filter_state/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

// The capture listener's address in the pod's network namespace. It is loopback
// on purpose: from outside the pod the listener is not there.
const (
	CaptureAddress = "127.0.0.1"
	CapturePort    = 18001
)

// The filter chains of a capture listener. Every listener has all of them.
const (
	// ChainService asks for an answer by the dialled address's name.
	ChainService = "cap_svc"
	// ChainServicePassthrough dials an address of the Service range unasked.
	ChainServicePassthrough = "cap_passthrough_svc"
	// ChainPassthrough dials the dialled address.
	ChainPassthrough = "cap_passthrough"
	// ChainClosed refuses as not-proxied.
	ChainClosed = "cap_closed"
)

// Keys of filter state.
const (
	stateCluster  = "envoy.tcp_proxy.cluster"
	stateIdentity = "envoy.tls.certificate_mappers.on_demand_secret"
	stateNetNS    = "envoy.network.upstream_bind_override.network_namespace"
	// Factories of objects of those keys that have none of their own.
	factoryHashable = "envoy.hashable_string"
	factoryString   = "envoy.string"
)

// statCapture is the statistics prefix of all capture listeners: they share
// their counters, so their number does not show in Envoy's statistics.
const statCapture = "capture"

// onDemandTimeout is how long a connection waits for the answer to its name.
const onDemandTimeout = 3 * time.Second

// connectAttempts is how many endpoints a connection tries: enough to find the
// one of five that lives in a round of them.
const connectAttempts = 5

// passthroughAttempts is the same for the chains that dial the dialled address:
// there is no other. Who is refused is told at once; a second attempt could even
// be answered a second later than the first, because kernels say "unreachable",
// as kube-proxy's rules do, to one address only so often (icmp_ratelimit).
const passthroughAttempts = 1

// Listener returns a pod's capture listener. c changes nothing but its matcher.
// w.NetNS must be the path of the pod's network namespace: without one Envoy
// would bind in its own.
func Listener(w model.Workload, c plan.Capture, s Settings) *listenerv3.Listener {
	return &listenerv3.Listener{
		Name:                          text(ListenerName(w.Name)),
		Address:                       tcpAddress(CaptureAddress, CapturePort, w.NetNS),
		StatPrefix:                    statCapture,
		Transparent:                   wrapperspb.Bool(true),
		TrafficDirection:              corev3.TrafficDirection_OUTBOUND,
		PerConnectionBufferLimitBytes: u32(bufferBytes),
		TcpKeepalive:                  keepalive(),
		ListenerFilters:               []*listenerv3.ListenerFilter{restoreDialled()},
		FilterChains:                  filterChains(w, s),
		FilterChainMatcher:            matcher(c),
		AccessLog:                     accessLogs(w, s),
	}
}

// restoreDialled makes the dialled address the connection's local address. Envoy
// takes the listener's own otherwise, as it does not bind to 0.0.0.0, and the
// matcher, the name and ORIGINAL_DST clusters would go by that.
func restoreDialled() *listenerv3.ListenerFilter {
	return &listenerv3.ListenerFilter{
		Name: "envoy.filters.listener.original_dst",
		ConfigType: &listenerv3.ListenerFilter_TypedConfig{
			TypedConfig: pack(&originaldstv3.OriginalDst{}),
		},
	}
}

// connectionState returns the filter that puts what a chain's clusters need into
// each connection's filter state. It is a network filter because a listener
// filter for the same costs each connection more.
func connectionState(values ...*setstatev3.FilterStateValue) *listenerv3.Filter {
	return networkFilter("envoy.filters.network.set_filter_state", &networkstatev3.Config{OnNewConnection: values})
}

// state sets one key. An object without a factory of its own key is made by the
// named one.
func state(key, factory, value string) *setstatev3.FilterStateValue {
	return &setstatev3.FilterStateValue{
		Key:        &setstatev3.FilterStateValue_ObjectKey{ObjectKey: key},
		FactoryKey: factory,
		Value:      &setstatev3.FilterStateValue_FormatString{FormatString: format(value)},
	}
}

// constant is a key that also everything upstream of the listener sees.
func constant(key, factory, value string) *setstatev3.FilterStateValue {
	v := state(key, factory, literal(value))
	v.SharedWithUpstream = setstatev3.FilterStateValue_TRANSITIVE
	return v
}

func format(f string) *corev3.SubstitutionFormatString {
	return &corev3.SubstitutionFormatString{
		Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
			Specifier: &corev3.DataSource_InlineString{InlineString: f},
		}},
	}
}

// filterChains returns every chain, in a fixed order and independent of what the
// matcher leads to. A chain sets the state that its own clusters can need: the
// pod's namespace for dialling from it, its identity for mTLS.
func filterChains(w model.Workload, s Settings) []*listenerv3.FilterChain {
	ask := []*setstatev3.FilterStateValue{
		state(stateCluster, "", clusterPrefix+"%DOWNSTREAM_LOCAL_ADDRESS%"),
		constant(stateIdentity, factoryHashable, SPIFFEID(s.TrustDomain, w.Name.Namespace, w.ServiceAccount)),
	}
	once := func(name, cluster string) *listenerv3.Filter {
		p := tcpProxy(name, cluster)
		p.MaxConnectAttempts = u32(passthroughAttempts)
		return proxyFilter(reportOpen(p, s))
	}
	leave := func(name, cluster string) *listenerv3.FilterChain {
		return chain(name, s, once(name, cluster))
	}
	if s.EgressSource == PodSource {
		from := constant(stateNetNS, factoryString, w.NetNS)
		ask = append(ask, from)
		leave = func(name, cluster string) *listenerv3.FilterChain {
			return chain(name, s, connectionState(from), once(name, cluster))
		}
	}
	onDemand := tcpProxy(ChainService, NotProxiedCluster)
	onDemand.HashPolicy = []*typev3.HashPolicy{{
		PolicySpecifier: &typev3.HashPolicy_SourceIp_{SourceIp: &typev3.HashPolicy_SourceIp{}},
	}}
	onDemand.OnDemand = &tcpproxyv3.TcpProxy_OnDemand{OdcdsConfig: ads(0), Timeout: duration(onDemandTimeout)}
	return []*listenerv3.FilterChain{
		chain(ChainService, s, connectionState(ask...), proxyFilter(reportOpen(onDemand, s))),
		leave(ChainServicePassthrough, RangePassthroughCluster),
		leave(ChainPassthrough, PassthroughCluster),
		// No limit here: the refuser ends such a connection within its delay.
		{Name: ChainClosed, Filters: []*listenerv3.Filter{proxyFilter(tcpProxy(ChainClosed, NotProxiedCluster))}},
	}
}

func proxyFilter(p *tcpproxyv3.TcpProxy) *listenerv3.Filter {
	return networkFilter("envoy.filters.network.tcp_proxy", p)
}

// chain puts the connection limit before a chain's own filters.
func chain(name string, s Settings, filters ...*listenerv3.Filter) *listenerv3.FilterChain {
	limit := networkFilter("envoy.filters.network.connection_limit", &connlimitv3.ConnectionLimit{
		StatPrefix:     statCapture,
		MaxConnections: wrapperspb.UInt64(uint64(s.PodConnectionLimit)),
	})
	return &listenerv3.FilterChain{Name: name, Filters: append([]*listenerv3.Filter{limit}, filters...)}
}

// tcpProxy returns the proxy that all chains have in common: no idle timeout, as
// no kernel path has one, and the pod's address as the hash for affinity.
func tcpProxy(name, cluster string) *tcpproxyv3.TcpProxy {
	return &tcpproxyv3.TcpProxy{
		StatPrefix:         name,
		ClusterSpecifier:   &tcpproxyv3.TcpProxy_Cluster{Cluster: cluster},
		IdleTimeout:        duration(0),
		MaxConnectAttempts: u32(connectAttempts),
	}
}

func networkFilter(name string, m proto.Message) *listenerv3.Filter {
	return &listenerv3.Filter{Name: name, ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(m)}}
}

// accessLogs returns the log, the records and the counters of a pod's connections.
func accessLogs(w model.Workload, s Settings) []*accesslogv3.AccessLog {
	return append([]*accesslogv3.AccessLog{connectionLog(w, s), endRecords(s)}, counters(w)...)
}
