// SPDX-License-Identifier: Apache-2.0

package upstream_test

import "errors"

// row is one test of upstream's.
type row struct {
	group, name string
	conformance bool
	applies     applies
	// predicted is what was expected before it ran, seen what a run of it shows.
	predicted, seen result
	// why explains: what we restate of a test that applies partly, why one does not
	// apply or fails, and every result that is not the predicted one.
	why string
	// fails is the failure of one that fails.
	fails error
	// disruptive ones stop a program, and run alone.
	disruptive bool
	run        func(*scene)
}

// applies says whether a test dials a ClusterIP over TCP from a pod.
type applies string

const (
	yes    applies = "yes"
	partly applies = "partly" // as far as it does
	no     applies = "no"
)

type result string

const (
	pass result = "pass"
	fail result = "fail"
	none result = "" // does not apply
)

// The failures by design.
var (
	errResetAfterConnect = errors.New("connect succeeds and a reset follows, which is not the refusal of the connection that is wanted")
	errNoExpiry          = errors.New("the client stays with its endpoint, however long it was away")
)

const (
	whyReset = "`connect()` succeeds before the proxy decides, and the reset follows; the test wants ECONNREFUSED from `connect()`"
	whyHash  = "affinity is a hash of the pod's address and has no timeout; the test wants another endpoint after it"
	nodeSide = "dials from a node, or a node port: kube-proxy's"
	notTCP   = "UDP or SCTP"
	apiOnly  = "reads and writes objects, dials nothing"
)

// The groups, as upstream calls them.
const (
	services     = "Services"
	slicesGroup  = "EndpointSlice"
	mirroring    = "EndpointSliceMirroring"
	distribution = "Traffic Distribution"
	hints        = "Topology Hints"
	cidrs        = "Service CIDRs"
	cidrAPI      = "ServiceCIDR and IPAddress API"
	granular     = "Networking, Granular Checks: Services"
	lifecycle    = "Connectivity Pod Lifecycle"
	conntrack    = "Conntrack"
	otherGroups  = "other groups"
)

// in is a row of a test that applies and passes, as was predicted.
func in(group, name string, run func(*scene)) row {
	return row{group: group, name: name, applies: yes, predicted: pass, seen: pass, run: run}
}

// conform marks a Conformance test.
func (r row) conform() row { r.conformance = true; return r }

// part marks one that applies partly, and says which part.
func (r row) part(why string) row { r.applies, r.why = partly, why; return r }

// because says on what a result depends.
func (r row) because(why string) row { r.why = why; return r }

// disrupts marks one that stops a program.
func (r row) disrupts() row { r.disruptive = true; return r }

// failing is for one that fails by design, as was predicted.
func (r row) failing(err error, why string) row {
	r.predicted, r.seen, r.fails, r.why = fail, fail, err, why
	return r
}

// out is a row of a test that does not apply.
func out(group, name, why string) row { return row{group: group, name: name, applies: no, why: why} }

// rows are all tests of upstream's that have to do with Services.
var rows = []row{
	in(services, "should serve a basic endpoint from pods", basicEndpoint).conform(),
	in(services, "should serve multiport endpoints from pods", multiport).conform(),
	in(services, "should be updated after adding or deleting ports", addAndDeletePorts),
	in(services, "should preserve source pod IP for traffic thru service cluster IP [LinuxOnly]", preservesSource).
		because("with `--egress-source=pod`, the default; with `node` the server sees the node's address and the test fails"),
	in(services, "should allow pods to hairpin back to themselves through services", hairpin),
	in(services, "should be able to up and down services", upAndDown),
	in(services, "should work after the service has been recreated", recreated),
	in(services, "should work after restarting kube-proxy [Disruptive]", kubeProxyRestarts).disrupts().
		part("it is about kube-proxy; ours serves all the same, also while kube-proxy is away"),
	in(services, "should work after restarting apiserver [Disruptive]", apiServerRestarts).disrupts().
		part("its other checks are of kube-proxy"),
	in(services, "should be able to create a functioning NodePort service", nodePort).conform().
		part("the ClusterIP is ours; the node's port is passed through to kube-proxy, and answers too"),
	out(services, "should be possible to connect to a service via ExternalIP when the external IP is not assigned to a node",
		"an external address: passed through, kube-proxy's"),
	in(services, "should be able to update service type to NodePort listening on same port number but different protocols", toNodePortWithUDP).
		part("upstream looks at the object only; dialled here before and after"),
	in(services, "should be able to change the type from ExternalName to ClusterIP", externalNameToClusterIP).conform(),
	in(services, "should be able to change the type from ExternalName to NodePort", externalNameToNodePort).conform().
		part("the ClusterIP is ours; the node's port is passed through to kube-proxy, and answers too"),
	out(services, "should be able to change the type from ClusterIP to ExternalName", "DNS; the ClusterIP is withdrawn").conform(),
	out(services, "should be able to change the type from NodePort to ExternalName", "DNS; the ClusterIP is withdrawn").conform(),
	out(services, "should prevent NodePort collisions", apiOnly),
	out(services, "should check NodePort out-of-range", apiOnly),
	out(services, "should release NodePorts on delete", nodeSide),
	in(services, "should create endpoints for unready pods", unreadyPods),
	in(services, "should be able to connect to terminating and unready endpoints if PublishNotReadyAddresses is true", publishedAll),
	in(services, "should not be able to connect to terminating and unready endpoints if PublishNotReadyAddresses is false", publishedReady),
	in(services, "should have session affinity work for service with type clusterIP [LinuxOnly]", affinity).conform(),
	in(services, "should have session affinity timeout work for service with type clusterIP [LinuxOnly]", affinityTimeout).
		failing(errNoExpiry, whyHash),
	in(services, "should be able to switch session affinity for service with type clusterIP [LinuxOnly]", switchAffinity).conform(),
	out(services, "should have session affinity work for NodePort service [LinuxOnly]", nodeSide).conform(),
	out(services, "should have session affinity timeout work for NodePort service [LinuxOnly]", nodeSide),
	out(services, "should be able to switch session affinity for NodePort service [LinuxOnly]", nodeSide).conform(),
	in(services, "should implement service.kubernetes.io/service-proxy-name", proxyName),
	in(services, "should implement service.kubernetes.io/headless", headlessSlice),
	in(services, "should be rejected when no endpoints exist", rejectedWithoutEndpoints).failing(errResetAfterConnect, whyReset),
	in(services, "should be rejected for evicted pods (no endpoints exist)", rejectedForEvicted).failing(errResetAfterConnect, whyReset),
	in(services, "should respect internalTrafficPolicy=Local Pod to Pod", localPodToPod),
	out(services, "should respect internalTrafficPolicy=Local Pod (hostNetwork: true) to Pod", "the client is in the node's network: not captured"),
	in(services, "should respect internalTrafficPolicy=Local Pod and Node, to Pod (hostNetwork: true)", localToHostNetwork).
		part("the pod's part; the node's is kube-proxy's"),
	out(services, "should support externalTrafficPolicy=Local for type=NodePort", nodeSide),
	out(services, "should fail health check node port if there are only terminating endpoints", nodeSide),
	in(services, "should fallback to terminating endpoints when there are no ready endpoints with internalTrafficPolicy=Cluster", terminatingCluster),
	in(services, "should fallback to local terminating endpoints when there are no ready endpoints with internalTrafficPolicy=Local", terminatingLocal),
	out(services, "should fallback to terminating endpoints when there are no ready endpoints with externallTrafficPolicy=Cluster", nodeSide),
	out(services, "should fallback to local terminating endpoints when there are no ready endpoints with externalTrafficPolicy=Local", nodeSide),
	out(services, "should find a service from listing all namespaces", apiOnly).conform(),
	out(services, "should complete a service status lifecycle", apiOnly).conform(),
	out(services, "should delete a collection of services", apiOnly).conform(),
	in(services, "should serve endpoints on same port and different protocols", protocols).conform().
		part("the TCP half"),
	in(services, "should serve endpoints on same port and different protocol for internal traffic on Type LoadBalancer", loadBalancer).
		part("the TCP half of the ClusterIP; the balancer's address is passed through"),
	out(services, "should allow creating a basic SCTP service with pod and endpoints [LinuxOnly]", notTCP),
	out(services, "should implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes", nodeSide),
	in(services, "should connect to the ports exposed by restartable init containers", initContainerPort),
	in(services, "should connect to the named ports exposed by restartable init containers", initContainerNamedPort),
	in(services, "should support named targetPorts that resolve to different ports on different endpoints", namedTargetPorts),

	in(slicesGroup, "should support a Service with multiple ports specified in multiple EndpointSlices", portsInSlices).conform(),
	in(slicesGroup, "should support a Service with multiple endpoint IPs specified in multiple EndpointSlices", addressesInSlices).conform(),
	out(slicesGroup, "should create and delete EndpointSlices for a Service with a selector that matches no pods", apiOnly).conform(),
	out(slicesGroup, "should create Endpoints and EndpointSlices for Pods matching a Service", apiOnly).conform(),
	out(slicesGroup, "should support creating EndpointSlice API operations", apiOnly).conform(),
	in(mirroring, "should mirror a custom Endpoint with multiple subsets and same IP address", mirrored),
	out(mirroring, "should mirror a custom Endpoints resource through create update and delete", apiOnly).conform(),

	in(distribution, "should route traffic to an endpoint in the same zone when using PreferClose", sameZone("PreferClose")),
	in(distribution, "should route traffic correctly between pods on multiple nodes when using PreferClose", multipleNodes("PreferClose")),
	in(distribution, "should route traffic to an endpoint in the same zone when using PreferSameZone", sameZone("PreferSameZone")),
	in(distribution, "should route traffic correctly between pods on multiple nodes when using PreferSameZone", multipleNodes("PreferSameZone")),
	in(distribution, "should route traffic to an endpoint on the same node or fall back to same zone when using PreferSameNode", sameNode),
	in(distribution, "should route traffic to an endpoint on the same node when using PreferSameNode and fall back when the endpoint becomes unavailable", sameNodeGoes),
	in(hints, "should distribute endpoints evenly", distributedEvenly),
	in(cidrs, "should create Services and serve on different Service CIDRs", otherCIDR),
	out(cidrAPI, "should support ServiceCIDR API operations", apiOnly).conform(),
	out(cidrAPI, "should support IPAddress API operations", apiOnly).conform(),

	in(granular, "should function for pod-Service: http", podToService),
	in(granular, "should function for endpoint-Service: http", endpointToService),
	in(granular, "should function for multiple endpoint-Services with same selector", sameSelector),
	in(granular, "should update endpoints: http", updateEndpoints),
	in(granular, "should function for client IP based session affinity: http [LinuxOnly]", affinity),
	in(granular, "should be able to handle large requests: http", largeRequests),
	in(granular, "should function for service endpoints using hostNetwork", hostNetworkEndpoints),
	out(granular, "the variants of these for udp and sctp", notTCP),
	out(granular, "should function for node-Service: http", nodeSide),
	out(granular, "should update nodePort: http", nodeSide),
	out(granular, "should support basic nodePort: udp functionality", notTCP),
	out(granular, "should recreate its iptables rules if they are deleted", "kube-proxy's own rules"),
	out("Networking, Granular Checks: Pods", "all four", "dial pods' addresses, no Service").conform(),
	in(lifecycle, "should be able to have zero downtime on a Blue Green deployment using Services and Readiness Gates", blueGreen),
	out(lifecycle, "should be able to connect from a Pod to a terminating Pod", "dials a pod's address, no Service"),
	out(lifecycle, "should be able to connect to other Pod from a terminating Pod", "dials a pod's address, no Service"),
	out(conntrack, "all", "UDP, or raw packets"),
	out("Dual-stack", "all checks of a secondary family's Services", "IPv6 is not captured"),
	out(otherGroups, "DNS, HostPort, NoSNAT, KubeProxy, LocalhostNodePorts, LoadBalancers, Proxy, Endpoints, Service endpoints latency, API Server",
		"no ClusterIP over TCP from a pod, or the API alone"),
}
