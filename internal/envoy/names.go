// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"net/netip"
	"strings"

	"aether.io/aether/internal/model"
)

// Prefixes of the names this room makes.
const (
	clusterPrefix  = "svc:"
	listenerPrefix = "capture:"
)

// Names of the clusters that every node has.
const (
	// PassthroughCluster dials what lies outside the Service range, and the API
	// server, at the dialled address.
	PassthroughCluster = "passthrough_original_dst"
	// RangePassthroughCluster dials addresses of the Service range at the
	// dialled address, in mode passthrough.
	RangePassthroughCluster = "passthrough_service_range"
	// NotProxiedCluster refuses what is never proxied.
	NotProxiedCluster = "refuse_not_proxied"
	// XDSCluster is the agent's xDS socket, in the bootstrap.
	XDSCluster = "aether_xds"
)

// ClusterName returns the name under which a dialled IPv4 address is asked for
// and answered, such as "svc:10.96.0.12:80".
func ClusterName(target netip.AddrPort) string {
	return clusterPrefix + target.String()
}

// ParseClusterName is the inverse of ClusterName. It accepts the canonical form
// only: a name that ClusterName cannot make is an error.
func ParseClusterName(name string) (netip.AddrPort, error) {
	text, ok := strings.CutPrefix(name, clusterPrefix)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("parse cluster name %q: no prefix %q", name, clusterPrefix)
	}
	target, err := netip.ParseAddrPort(text)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("parse cluster name %q: %w", name, err)
	}
	if !target.Addr().Is4() {
		return netip.AddrPort{}, fmt.Errorf("parse cluster name %q: not an IPv4 address", name)
	}
	if target.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("parse cluster name %q: port 0", name)
	}
	if target.String() != text {
		return netip.AddrPort{}, fmt.Errorf("parse cluster name %q: not in canonical form", name)
	}
	return target, nil
}

// ListenerName returns the name of a pod's capture listener, such as
// "capture:default/web-0".
func ListenerName(pod model.Name) string {
	return listenerPrefix + pod.Namespace + "/" + pod.Name
}

// ParseListenerName is the inverse of ListenerName. Namespace and name must be
// there and neither may hold a slash, as no Kubernetes name does.
func ParseListenerName(name string) (model.Name, error) {
	text, ok := strings.CutPrefix(name, listenerPrefix)
	if !ok {
		return model.Name{}, fmt.Errorf("parse listener name %q: no prefix %q", name, listenerPrefix)
	}
	ns, pod, ok := strings.Cut(text, "/")
	if !ok || ns == "" || pod == "" || strings.Contains(pod, "/") {
		return model.Name{}, fmt.Errorf("parse listener name %q: want %snamespace/name", name, listenerPrefix)
	}
	return model.Name{Namespace: ns, Name: pod}, nil
}

// StatName returns the name under which Envoy keeps a Service port's cluster
// statistics, "svc.<namespace>.<name>.<port>". A Service's namespace, name and
// port name hold no dots (RFC 1123 and RFC 1035 labels), so it can be taken
// apart again; the bootstrap's tag rules do so.
func StatName(service model.Name, port string) string {
	return "svc." + service.Namespace + "." + service.Name + "." + port
}

// SPIFFEID returns the identity of a ServiceAccount's pods,
// "spiffe://<trust domain>/ns/<namespace>/sa/<service account>".
func SPIFFEID(trustDomain, namespace, serviceAccount string) string {
	return "spiffe://" + trustDomain + "/ns/" + namespace + "/sa/" + serviceAccount
}
