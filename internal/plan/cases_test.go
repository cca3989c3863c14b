// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"fmt"
	"testing"

	"aether.io/aether/internal/model"
)

// TestCases has faults that others met in proxies that balance a ClusterIP from
// EndpointSlices. A letter groups them: A duplicates, B terminating and not ready,
// C hints, D stale and hand-made slices, E odd slices, F ports and names, G
// internalTrafficPolicy, H identity of a ClusterIP, I affinity, J labels, K size,
// M families, N imports. The comment beside a row says where it was reported; rows
// without one were found while writing this. How an object is read is tested where
// it is converted.
func TestCases(t *testing.T) {
	for _, group := range [][]caseRow{duplicateCases, terminatingCases, hintCases, staleCases, oddCases, portCases, policyCases, familyCases} {
		for _, c := range group {
			t.Run(c.name, func(t *testing.T) { history(t, c.steps...) })
		}
	}
}

type caseRow struct {
	name  string
	steps []step
}

// once is a row that one state expresses.
func once(name, want string, changes ...model.Change) caseRow {
	return caseRow{name, []step{do(want, changes...)}}
}

func row(name string, steps ...step) caseRow { return caseRow{name, steps} }

func webSliceB(ports string, endpoints ...string) model.Change {
	return slice("default/web-b", "web", ports, endpoints...)
}

var duplicateCases = []caseRow{
	// kubernetes#101935
	once("A-2 two endpoints on one IP with different ports", "10.1.1.1:8080 10.1.1.1:8081",
		web(), webSlice("10.1.1.1"), webSliceB("http:8081", "10.1.1.1")),
	// cilium#22446
	once("A-3 one pod in two slices, one per port", "10.1.1.1:8090",
		service("default/web", vip, "port80:80 port81:81"),
		slice("default/web-a", "web", "port80:8090", "10.1.1.1"), webSliceB("port81:9090", "10.1.1.1")),
	// kubernetes#93374
	row("A-5 two identical slices, then one is deleted",
		do("10.1.1.1:8080", web(), webSlice("10.1.1.1"), webSliceB("http:8080", "10.1.1.1")),
		do("10.1.1.1:8080", deleteSlice("default/web-a"))),
	// kubernetes#114440
	once("A-6 hostNetwork pod replaced on its node", "10.0.0.5:8080",
		web(), webSlice("10.0.0.5 r+t-", "10.0.0.5 r-s+t+")),
	// kubernetes#109414
	once("A-7 an IP listed for two namespaces is followed in both", "10.1.1.1:8080",
		web(), webSlice("10.1.1.1"), service("shop/api", "10.96.0.11", "http:80"),
		slice("shop/api-a", "api", "http:8080", "10.1.1.1")),
	// kubernetes#115907
	once("A-8 completed and new pod on one IP", "10.1.1.1:8080",
		web(), webSlice("10.1.1.1 r-s-t+", "10.1.1.1")),
}

var terminatingCases = []caseRow{
	// kubernetes#97238, KEP-1669
	once("B-1 the last pod drains", "10.1.1.1:8080", web(), webSlice("10.1.1.1 r-s+t+")),
	// ovn-kubernetes#3435
	once("B-7 only ready was read", "10.1.1.1:8080", web(), webSlice("10.1.1.1 r-s+t+ @n2")),
	// ztunnel#1231
	row("B-9 publishNotReadyAddresses toggled: the slice is followed",
		do("no-endpoints", web(), webSlice("10.1.1.1 r-s-")),
		do("10.1.1.1:8080", webSlice("10.1.1.1 r+s-")),
		do("10.1.1.1:8080", webSlice("10.1.1.1 r+s-t+")),
		do("no-endpoints", webSlice("10.1.1.1 r-s-"))),
	// istio#27935
	once("B-10 not-ready pod in the list", "10.1.1.2:8080", web(), webSlice("10.1.1.1 r-s-t-", "10.1.1.2")),
	// cilium#40279
	row("B-12 a draining one until a ready one appears",
		do("10.1.1.1:8080", web(), webSlice("10.1.1.1 r-s+t+")),
		do("10.1.1.2:8080", webSlice("10.1.1.1 r-s+t+", "10.1.1.2"))),
	once("B-14 serving unset on a terminating endpoint is serving", "10.1.1.1:8080", web(), webSlice("10.1.1.1 r-s?t+")),
	once("B-15 serving, not ready and not terminating", "no-endpoints", web(), webSlice("10.1.1.1 r-s+t-")),
	row("B-16 not ready, ready, terminating, failing, empty",
		do("no-endpoints", web(), webSlice("10.1.1.1 r-s-t-")),
		do("10.1.1.1:8080", webSlice("10.1.1.1")),
		do("10.1.1.1:8080", webSlice("10.1.1.1 r-s+t+")),
		do("no-endpoints", webSlice("10.1.1.1 r-s-t+")),
		do("no-endpoints", webSlice())),
}

var hintCases = []caseRow{
	// kubernetes#124699
	once("C-2 one ready endpoint without a hint", "10.1.1.1:8080 10.1.1.2:8080 10.1.1.3:8080",
		web(), webSlice("10.1.1.1 z:za", "10.1.1.2 z:zb", "10.1.1.3")),
	// kubernetes#123401
	row("C-4 all hints go and come back",
		do("10.1.1.1:8080", web(), webSlice("10.1.1.1 z:za", "10.1.1.2 z:zb")),
		do("10.1.1.1:8080 10.1.1.2:8080", webSlice("10.1.1.1", "10.1.1.2")),
		do("10.1.1.1:8080", webSlice("10.1.1.1 z:za", "10.1.1.2 z:zb"))),
	// cilium#18710
	once("C-5 three zones", "10.1.1.1:8080", web(), webSlice("10.1.1.1 z:za", "10.1.1.2 z:zb", "10.1.1.3 z:zc")),
	// cilium#37930
	once("C-6 same zone does not mean same node", "10.1.1.1:8080 10.1.1.2:8080",
		web(), webSlice("10.1.1.1 @n1 z:za", "10.1.1.2 @n2 z:za", "10.1.1.3 @n3 z:zb")),
	// cilium#45214
	once("C-9 hints are read per port", "10.1.1.1:8080",
		service("default/web", vip, "port80:80 port81:81"),
		slice("default/web-a", "web", "port80:8080", "10.1.1.1 n:n2"),
		webSliceB("port81:8081", "10.1.1.2 n:n1")),
	// ovn-kubernetes#6888
	once("C-12 zones without hints", "10.1.1.1:8080 10.1.1.2:8080",
		web(), webSlice("10.1.1.1 zone=za", "10.1.1.2 zone=zb")),
	once("C-14 a draining one here, ready ones elsewhere", "10.1.1.2:8080",
		web(), webSlice("10.1.1.1 r-s+t+ z:za", "10.1.1.2 z:zb")),
	once("C-15 all terminating with hints", "10.1.1.1:8080 10.1.1.2:8080",
		web(), webSlice("10.1.1.1 r-s+t+ z:za", "10.1.1.2 r-s+t+ z:zb")),
	once("C-17 hints over two slices with different numbers", "10.1.1.1:8080 10.1.1.2:9090",
		web(), webSlice("10.1.1.1 z:za"), webSliceB("http:9090", "10.1.1.2")),
}

var staleCases = []caseRow{
	// kubernetes#105987
	once("D-1 a mirrored slice beside the controller's", "10.1.1.1:8080 10.1.1.7:8080",
		web(), webSlice("10.1.1.1"), webSliceB("http:8080", "10.1.1.7")),
	// istio#47098
	once("D-4 a leftover slice beside a mirrored one", "10.1.1.1:8080 10.1.1.9:8080",
		web(), webSlice("10.1.1.1"), webSliceB("http:8080", "10.1.1.9")),
	// kubernetes#125354
	row("D-7 a slice is deleted and not made again",
		do("10.1.1.1:8080", web(), webSlice("10.1.1.1")), do("no-endpoints", deleteSlice("default/web-a"))),
	// istio#60951
	once("D-8 a hand-made slice, no node, no zone", "10.1.1.1:8080", web(), webSlice("10.1.1.1")),
	// kube-router#1917
	once("D-14 another Service has no slice", "10.1.1.1:8080",
		web(), webSlice("10.1.1.1"), service("default/other", "10.96.0.11", "http:80")),
	// linkerd2#10003
	once("D-15 the pod behind an endpoint is never looked at", "10.1.1.1:8080", web(), webSlice("10.1.1.1 @n9")),
	// kubernetes#141592
	row("D-18 fast delete and recreate: the slices are followed",
		do("10.1.1.1:8080", web(), webSlice("10.1.1.1")),
		do("10.1.1.1:8080", model.DeleteService{Name: name("default/web")}, web()),
		do("10.1.1.2:8080", webSlice("10.1.1.2"))),
}

var oddCases = []caseRow{
	// ingress-nginx#9149
	once("E-2 a slice of a pod without the named port", "10.1.1.1:8080",
		web(), webSlice("10.1.1.1"), webSliceB("", "10.1.1.2")),
	// istio#35990
	once("E-8 a bad string in a slice never becomes an endpoint", "10.1.1.1:8080",
		web(), webSlice("example.com fault=bad", "10.1.1.1")),
	// kubernetes#136502
	row("E-9 ports nil, then empty",
		do("no-endpoints", web(), model.SetSlice{Slice: model.Slice{Name: name("default/web-a"), Service: "web"}}),
		do("no-endpoints", model.SetSlice{Slice: model.Slice{Name: name("default/web-a"), Service: "web", Ports: []model.SlicePort{}}})),
	once("E-13 a slice of another namespace", "no-endpoints", web(), slice("shop/web-a", "web", "http:8080", "10.1.1.1")),
	once("E-13 a slice without a Service", "no-endpoints", web(), slice("default/web-a", "", "http:8080", "10.1.1.1")),
}

var portCases = []caseRow{
	// ovn-kubernetes#5216
	once("F-1 a target port changed by a rollout", "10.1.1.1:8080 10.1.1.2:9090",
		web(), webSlice("10.1.1.1"), webSliceB("http:9090", "10.1.1.2")),
	// ovn-kubernetes#5698
	once("F-2 a named port of different numbers", "10.1.1.1:8080 10.1.1.2:9090",
		web(), webSlice("10.1.1.1"), webSliceB("http:9090", "10.1.1.2")),
	// openshift/ovn-kubernetes#515
	once("F-3 the slice's number, not targetPort", "10.1.1.1:8080", web(), webSlice("10.1.1.1")),
	// kubernetes#132647
	once("F-4 no targetPort", "10.1.1.1:8090",
		service("default/web", vip, "port80:80"), slice("default/web-a", "web", "port80:8090", "10.1.1.1")),
	// linkerd2#1420
	once("F-6 unnamed matches unnamed", "10.1.1.1:8080",
		service("default/web", vip, ":80"), slice("default/web-a", "web", ":8080", "10.1.1.1")),
	// ovn-kubernetes#4123
	once("F-8 an unnamed slice port for a Service of two ports", "no-endpoints",
		service("default/web", vip, "blah:80/UDP blah2:80"), slice("default/web-a", "web", ":8080", "10.1.1.1")),
	// antrea#3535
	once("F-9 names that differ do not match, single port or not", "no-endpoints",
		service("default/web", vip, ":80"), slice("default/web-a", "web", "http:8080", "10.1.1.1")),
	// skipper#1074
	once("F-10 own port only", "10.1.1.1:8080",
		service("default/web", vip, "http:80 grpc:81"), slice("default/web-a", "web", "http:8080 grpc:9090", "10.1.1.1")),
	// kubernetes#85020
	row("F-12 two protocols on one number, one is dropped by a patch",
		do("10.1.1.1:8080", service("default/web", vip, "http:80 dns:80/UDP"), webSlice("10.1.1.1")),
		do("port-not-declared", service("default/web", vip, "dns:80/UDP")),
		do("port-not-declared", service("default/web", vip, "http:8888"))),
	once("F-13 one name, another protocol", "no-endpoints", web(), slice("default/web-a", "web", "http:8080/UDP", "10.1.1.1")),
	row("F-14 a port is renamed in the slice",
		do("10.1.1.1:8080", web(), webSlice("10.1.1.1")),
		do("no-endpoints", slice("default/web-a", "web", "http2:8080", "10.1.1.1")),
		do("10.1.1.1:8080", service("default/web", vip, "http2:80"))),
}

var policyCases = []caseRow{
	// kubernetes#121371
	once("G-1 Local and none here", "no-local-endpoints", web(local), webSlice("10.1.1.1 @n2")),
	// calico#8255
	once("G-3 Local with a load balancer, remote only", "no-local-endpoints",
		web(local, externalIP("1.2.3.4")), webSlice("10.1.1.1 @n2")),
	// kubernetes#106497
	once("G-4 internal and external policy are independent", "10.1.1.1:8080",
		web(local, externalIP("1.2.3.4")), webSlice("10.1.1.1 @n1", "10.1.1.2 @n2")),
	// antrea#4845
	row("G-5 the policy is edited on a live Service",
		do("10.1.1.1:8080 10.1.1.2:8080", web(), webSlice("10.1.1.1 @n1", "10.1.1.2 @n2")),
		do("10.1.1.1:8080", web(local)),
		do("10.1.1.1:8080 10.1.1.2:8080", web())),
	// kubernetes#134895
	once("G-6 no fall-back to remote ones", "no-local-endpoints", web(local), webSlice("10.1.1.1 @n2", "10.1.1.2 r- @n1")),
	once("G-8 local draining, remote ready", "10.1.1.1:8080", web(local), webSlice("10.1.1.1 r-s+t+ @n1", "10.1.1.2 @n2")),
	once("G-10 NodePort, Local, remote only", "no-local-endpoints", web(local), webSlice("10.1.1.1 @n2")),
}

var familyCases = []caseRow{
	// kubernetes#94505
	once("M-1 an address of the other family in a slice", "10.1.1.1:8080",
		web(), webSlice("fd00::9 fault=family", "10.1.1.1")),
	// cilium#27096: what leaves the chosen set is not hashed to.
	row("I-1 a draining pod loses its sticky clients to a ready one",
		do("10.1.1.1:8080", web(affinity), webSlice("10.1.1.1")),
		do("10.1.1.2:8080", webSlice("10.1.1.1 r-s+t+", "10.1.1.2"))),
	// kubernetes#25314
	row("I-4 affinity, scaled to none and back",
		do("10.1.1.1:8080", web(affinity), webSlice("10.1.1.1")),
		do("no-endpoints", webSlice()),
		do("10.1.1.1:8080", webSlice("10.1.1.1"))),
	// kubernetes#98570
	row("K-5 a slice is added empty, then filled",
		do("no-endpoints", web(), webSlice()), do("10.1.1.1:8080", webSlice("10.1.1.1"))),
}

// TestCasesSize has the rows about large Services.
func TestCasesSize(t *testing.T) {
	for _, c := range []struct {
		name         string
		slices, each int
	}{
		{"K-1 5,000 endpoints in 50 slices", 50, 100},
		{"K-2 1,500 endpoints in two slices are not cut at 1,000", 2, 750},
	} {
		t.Run(c.name, func(t *testing.T) {
			changes := []model.Change{web()}
			for i := range c.slices {
				var eps []string
				for j := range c.each {
					n := i*c.each + j
					eps = append(eps, fmt.Sprintf("10.1.%d.%d", n/250, n%250+1))
				}
				changes = append(changes, slice(fmt.Sprintf("default/web-%d", i), "web", "http:8080", eps...))
			}
			a := dial(state(changes...))
			chosen := 0
			for _, candidate := range a.Candidates {
				if candidate.Chosen {
					chosen++
				}
			}
			if want := c.slices * c.each; chosen != want {
				t.Errorf("%d endpoints used, want %d", chosen, want)
			}
		})
	}
}
