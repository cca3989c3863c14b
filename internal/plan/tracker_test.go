// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

// TestUpdateEndpointsMap has the cases of kube-proxy 1.37's test of that name:
// what VIP:80 uses before and after a change of the slices.
func TestUpdateEndpointsMap(t *testing.T) {
	unnamed := service("default/web", vip, ":80")
	b := func(ports string, eps ...string) model.Change { return slice("default/web-b", "web", ports, eps...) }
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"empty", []step{do("no-endpoints", web())}},
		{"no change, unnamed port", []step{
			do("10.1.1.1:8080", unnamed, slice("default/web-a", "web", ":8080", "10.1.1.1")),
			do("10.1.1.1:8080", slice("default/web-a", "web", ":8080", "10.1.1.1")),
		}},
		{"no change, named port, local", []step{
			do("10.1.1.1:8080", web(), webSlice("10.1.1.1 @n1")),
			do("10.1.1.1:8080", webSlice("10.1.1.1 @n1")),
		}},
		{"no change, multiple slices", []step{
			do("10.1.1.1:8080 10.1.1.2:8080", web(), webSlice("10.1.1.1"), b("http:8080", "10.1.1.2")),
			do("10.1.1.1:8080 10.1.1.2:8080", b("http:8080", "10.1.1.2")),
		}},
		{"no change, multiple slices, multiple ports, mixed locality", []step{
			do("10.1.1.1:8080 10.1.1.2:8080", web(), webSlice("10.1.1.1 @n2"), b("http:8080 dns:53", "10.1.1.2 @n1")),
			do("10.1.1.1:8080 10.1.1.2:8080", webSlice("10.1.1.1 @n2")),
		}},
		{"no change, multiple services, slices, IPs and ports", []step{
			do("10.1.1.1:8080 10.1.1.3:8080", web(), service("default/dns", "10.96.0.11", "http:80"),
				webSlice("10.1.1.1", "10.1.1.3"), slice("default/dns-a", "dns", "http:8080", "10.1.1.9")),
			do("10.1.1.1:8080 10.1.1.3:8080", slice("default/dns-a", "dns", "http:8080", "10.1.1.9")),
		}},
		{"add a slice", []step{do("no-endpoints", web()), do("10.1.1.1:8080", webSlice("10.1.1.1"))}},
		{"remove a slice", []step{do("10.1.1.1:8080", web(), webSlice("10.1.1.1")), do("no-endpoints", deleteSlice("default/web-a"))}},
		{"add an IP and port", []step{
			do("10.1.1.1:8080", web(), webSlice("10.1.1.1")),
			do("10.1.1.1:8080 10.1.1.2:8080", slice("default/web-a", "web", "http:8080 https:8443", "10.1.1.1", "10.1.1.2")),
		}},
		{"remove an IP and port", []step{
			do("10.1.1.1:8080 10.1.1.2:8080", web(), slice("default/web-a", "web", "http:8080 https:8443", "10.1.1.1", "10.1.1.2")),
			do("10.1.1.1:8080", webSlice("10.1.1.1")),
		}},
		{"add a slice to an endpoint", []step{
			do("10.1.1.1:8080", web(), webSlice("10.1.1.1")),
			do("10.1.1.1:8080 10.1.1.2:8080", b("http:8080", "10.1.1.2")),
		}},
		{"remove a slice from an endpoint", []step{
			do("10.1.1.1:8080 10.1.1.2:8080", web(), webSlice("10.1.1.1"), b("http:8080", "10.1.1.2")),
			do("10.1.1.1:8080", deleteSlice("default/web-b")),
		}},
		{"rename a port", []step{
			do("10.1.1.1:8080", web(), webSlice("10.1.1.1")),
			do("no-endpoints", slice("default/web-a", "web", "http2:8080", "10.1.1.1")),
		}},
		{"renumber a port", []step{
			do("10.1.1.1:8080", web(), webSlice("10.1.1.1")),
			do("10.1.1.1:9090", slice("default/web-a", "web", "http:9090", "10.1.1.1")),
		}},
		{"complex add and remove", []step{
			do("10.1.1.1:8080 10.1.1.2:8080", web(), webSlice("10.1.1.1"), b("http:8080", "10.1.1.2")),
			do("10.1.1.3:9090 10.1.1.4:8080", deleteSlice("default/web-b"), webSlice("10.1.1.4"),
				slice("default/web-c", "web", "http:9090", "10.1.1.3"), slice("default/web-d", "web", "dns:53", "10.1.1.5")),
		}},
		{"change from 0 endpoint address to 1 unnamed port", []step{
			do("no-endpoints", unnamed, slice("default/web-a", "web", "")),
			do("10.1.1.1:8080", slice("default/web-a", "web", ":8080", "10.1.1.1")),
		}},
		{"change from ready to terminating", []step{
			do("10.1.1.1:8080 10.1.1.2:8080", web(), webSlice("10.1.1.1", "10.1.1.2")),
			do("10.1.1.2:8080", webSlice("10.1.1.1 r-s+t+", "10.1.1.2")),
		}},
		{"change from terminating to empty", []step{
			do("10.1.1.1:8080", web(), webSlice("10.1.1.1 r-s+t+")), do("no-endpoints", webSlice()),
		}},
	} {
		t.Run(c.name, func(t *testing.T) { history(t, c.steps...) })
	}
}

// TestEndpointSliceUpdate has the cases of kube-proxy 1.37's test of that name.
// FQDN slices never become a model.Slice.
func TestEndpointSliceUpdate(t *testing.T) {
	two := do("10.1.1.1:8080 10.1.1.2:8080", web(), webSlice("10.1.1.1", "10.1.1.2"))
	for _, c := range []struct {
		name string
		then step
	}{
		{"add a slice that already exists", do("10.1.1.1:8080 10.1.1.2:8080", webSlice("10.1.1.1", "10.1.1.2"))},
		{"add an overlapping slice", do("10.1.1.1:8080 10.1.1.2:8080 10.1.1.3:8080",
			slice("default/web-b", "web", "http:8080", "10.1.1.2", "10.1.1.3"))},
		{"add an overlapping slice with partial ports", do("10.1.1.1:8080 10.1.1.2:8080",
			slice("default/web-b", "web", "https:8443", "10.1.1.1", "10.1.1.3"))},
		{"remove an overlapping slice", do("10.1.1.1:8080 10.1.1.2:8080",
			slice("default/web-b", "web", "http:8080", "10.1.1.2", "10.1.1.3"), deleteSlice("default/web-b"))},
		{"remove a slice that does not exist", do("10.1.1.1:8080 10.1.1.2:8080", deleteSlice("default/web-x"))},
		{"all unready", do("no-endpoints", webSlice("10.1.1.1 r-", "10.1.1.2 r-"))},
		{"all ready", do("10.1.1.1:8080 10.1.1.2:8080", webSlice("10.1.1.1 r-", "10.1.1.2 r-"), webSlice("10.1.1.1", "10.1.1.2"))},
		{"some ready", do("10.1.1.2:8080", webSlice("10.1.1.1 r-", "10.1.1.2"))},
		{"some terminating", do("10.1.1.2:8080", webSlice("10.1.1.1 r-s+t+", "10.1.1.2"))},
	} {
		t.Run(c.name, func(t *testing.T) { history(t, two, c.then) })
	}
}

// TestServiceToServiceMap has the cases of kube-proxy 1.37's Service tests that
// concern which addresses and ports a Service owns. A Service without an IPv4
// ClusterIP (headless, ExternalName, of the other family) reaches us with no VIP.
func TestServiceToServiceMap(t *testing.T) {
	ready := webSlice("10.1.1.1")
	for _, c := range []struct {
		name    string
		changes []model.Change
		dial    string
		want    string
	}{
		{"nothing", nil, vip + ":80", "no-service"},
		{"headless service", []model.Change{service("default/web", "", "http:80"), ready}, vip + ":80", "no-service"},
		{"headless service without port", []model.Change{service("default/web", "", "")}, vip + ":80", "no-service"},
		{"headless sctp service", []model.Change{service("default/web", "", "sip:7777/SCTP")}, vip + ":7777", "no-service"},
		{"external name", []model.Change{service("default/web", "", "http:80"), ready}, vip + ":80", "no-service"},
		{"cluster ip", []model.Change{web(), ready}, vip + ":80", "10.1.1.1:8080"},
		{"cluster ip, second port", []model.Change{
			service("default/web", vip, "http:80 https:443"), ready,
			slice("default/web-b", "web", "https:8443", "10.1.1.1"),
		}, vip + ":443", "10.1.1.1:8443"},
		{"udp port", []model.Change{service("default/web", vip, "dns:53/UDP")}, vip + ":53", "port-not-declared"},
		{"load balancer, its address outside the range", []model.Change{web(externalIP("1.2.3.4")), ready}, "1.2.3.4:80", "passthrough"},
		{"load balancer, its address in the range", []model.Change{web(externalIP("10.96.7.7")), ready}, "10.96.7.7:80", "passthrough"},
		{"load balancer, its ClusterIP", []model.Change{web(externalIP("1.2.3.4")), ready}, vip + ":80", "10.1.1.1:8080"},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, plan.Decide(state(c.changes...), enforce(), target(c.dial)), c.want)
		})
	}
}

// TestBuildServiceMap has kube-proxy 1.37's TestBuildServiceMapAddRemove,
// TestBuildServiceMapServiceUpdate, TestServiceMapUpdateHeadless and
// TestUpdateServiceTypeExternalName as histories.
func TestBuildServiceMap(t *testing.T) {
	ready := webSlice("10.1.1.1")
	gone := model.DeleteService{Name: name("default/web"), UID: "uid-default/web"}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"add and remove", []step{do("10.1.1.1:8080", web(), ready), do("no-service", gone), do("10.1.1.1:8080", web())}},
		{"a port removed", []step{
			do("10.1.1.1:8080", service("default/web", vip, "http:80 https:443"), ready),
			do("port-not-declared", service("default/web", vip, "https:443")),
		}},
		{"a port renamed", []step{do("10.1.1.1:8080", web(), ready), do("no-endpoints", service("default/web", vip, "web:80"))}},
		{"no-op update", []step{do("10.1.1.1:8080", web(), ready), do("10.1.1.1:8080", web())}},
		{"to headless, by another object", []step{do("10.1.1.1:8080", web(), ready), do("no-service", gone, service("default/web", "", "http:80"))}},
		{"to ExternalName and back", []step{
			do("10.1.1.1:8080", web(), ready),
			do("no-service", service("default/web", "", "http:80")), do("10.1.1.1:8080", web()),
		}},
	} {
		t.Run(c.name, func(t *testing.T) { history(t, c.steps...) })
	}
}
