// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// histories runs each case as a subtest of both sides.
func histories(t *testing.T, cases []namedHistory) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { agree(t, c.moments...) })
	}
}

type namedHistory struct {
	name    string
	moments []moment
}

func sliceB(ports string, endpoints ...string) event {
	return setSlice(web+"-b", "web", ports, endpoints...)
}

const three = two + " 10.1.1.3:8080"

func TestEndpointsMapFromESC(t *testing.T) {
	histories(t, []namedHistory{
		{"1 slice, 2 hosts, ports 80,443", []moment{
			at(by(two), setService(web, webVIP, "http:80 https:443"), setSlice(web+"-a", "web", "http:8080 https:8443", "10.1.1.1", "10.1.1.2")),
			dialled(webVIP+":443", by("10.1.1.1:8443 10.1.1.2:8443")),
		}},
		{"2 slices, same port", []moment{at(by(three), setWeb(), setWebSlice("10.1.1.1", "10.1.1.2"), sliceB("http:8080", "10.1.1.3"))}},
		{"2 overlapping slices, same port", []moment{at(by(three), setWeb(), setWebSlice("10.1.1.1", "10.1.1.2"), sliceB("http:8080", "10.1.1.2", "10.1.1.3"))}},
		// An endpoint that is unready in one of the slices only has no defined
		// outcome: that is the difference "duplicate".
		{"2 slices, overlapping endpoints, some endpoints unready in 1 or both", []moment{
			at(by("10.1.1.1:8080 10.1.1.3:8080"), setWeb(), setWebSlice("10.1.1.1", "10.1.1.2 r-"), sliceB("http:8080", "10.1.1.2 r-", "10.1.1.3")),
		}},
		{"2 slices, overlapping endpoints, some endpoints unready and some endpoints terminating", []moment{
			at(by(one), setWeb(), setWebSlice("10.1.1.1", "10.1.1.2 r-s+t+"), sliceB("http:8080", "10.1.1.2 r-s+t+", "10.1.1.3 r-s-t+")),
		}},
		{"2 slices, overlapping endpoints, all unready", []moment{
			at("no-endpoints", setWeb(), setWebSlice("10.1.1.1 r-", "10.1.1.2 r-"), sliceB("http:8080", "10.1.1.2 r-", "10.1.1.3 r-")),
		}},
		{"3 slices with different services and namespaces", []moment{
			at(by(one), setWeb(), setWebSlice("10.1.1.1"), setSlice("default/other-a", "other", "http:8080", "10.1.1.2"),
				setSlice("shop/web-a", "web", "http:8080", "10.1.1.3")),
		}},
		{"Nil port should not break anything", []moment{at("no-endpoints", setWeb(), setSlice(web+"-a", "web", "http:", "10.1.1.1", "10.1.1.2"))}},
		{"Different endpoints with duplicate IPs should not be filtered", []moment{
			at(by("10.1.1.1:8080 10.1.1.1:9090 10.1.1.2:8080 10.1.1.2:9090"), setWeb(), setWebSlice("10.1.1.1", "10.1.1.2"), sliceB("http:9090", "10.1.1.1", "10.1.1.2")),
		}},
	})
}

func TestEndpointInfoByServicePort(t *testing.T) {
	histories(t, []namedHistory{
		{"simple use case with 3 endpoints", []moment{at(by(three), setWeb(), setWebSlice("10.1.1.1", "10.1.1.2", "10.1.1.3"))}},
		{"4 different slices with duplicate IPs", []moment{
			at(by(two), setWeb(), setWebSlice("10.1.1.1"), sliceB("http:8080", "10.1.1.1"), setSlice(web+"-c", "web", "http:8080", "10.1.1.1"),
				setSlice(web+"-d", "web", "http:8080", "10.1.1.1", "10.1.1.2")),
		}},
		{"with duplicate Endpoints, prefer non-terminating", []moment{
			at(by(two), setWeb(), setWebSlice("10.1.1.1 r-s+t+", "10.1.1.2"), sliceB("http:8080", "10.1.1.1", "10.1.1.2 r-s-t+")),
		}},
	})
}

func TestEsDataChanged(t *testing.T) {
	ports := "http:8080 https:8443"
	first := setSlice(web+"-a", "web", ports, "10.1.1.1", "10.1.1.2")
	start := at(by(two), setService(web, webVIP, "http:80 https:443"), first)
	histories(t, []namedHistory{
		{"identical slices, ports only", []moment{at("no-endpoints", setWeb(), setSlice(web+"-a", "web", ports)), at("no-endpoints", setSlice(web+"-a", "web", ports))}},
		{"identical slices, ports out of order", []moment{start, at(by(two), setSlice(web+"-a", "web", "https:8443 http:8080", "10.1.1.1", "10.1.1.2"))}},
		{"port removed", []moment{start, at("no-endpoints", setSlice(web+"-a", "web", "https:8443", "10.1.1.1", "10.1.1.2")), dialled(webVIP+":443", by("10.1.1.1:8443 10.1.1.2:8443"))}},
		{"port added", []moment{
			at("no-endpoints", setService(web, webVIP, "http:80 https:443"), setSlice(web+"-a", "web", "https:8443", "10.1.1.1", "10.1.1.2")),
			at(by(two), first),
		}},
		{"identical with endpoints", []moment{start, at(by(two), first)}},
		{"identical with endpoints out of order", []moment{start, at(by(two), setSlice(web+"-a", "web", ports, "10.1.1.2", "10.1.1.1"))}},
		{"identical with endpoint added", []moment{start, at(by(three), setSlice(web+"-a", "web", ports, "10.1.1.1", "10.1.1.2", "10.1.1.3"))}},
	})
}

// TestEndpointSliceCacheClearedCorrectly and the one of the same service: nothing
// stays of slices that are gone, pending or not.
func TestEndpointSliceCacheClearedCorrectly(t *testing.T) {
	gone, goneB := deleteSlice(web+"-a"), deleteSlice(web+"-b")
	otherSlice := setSlice("default/other-a", "other", "http:8080", "10.1.1.2")
	other, elsewhere := setService("default/other", "10.96.0.11", "http:80"), setService("shop/web", "10.96.0.12", "http:80")
	histories(t, []namedHistory{
		{"one endpoint slice", []moment{at(by(one), setWeb(), setWebSlice("10.1.1.1")), at("no-endpoints", gone)}},
		{"two endpoint slices, same namespace", []moment{
			at(by(one), setWeb(), other, setWebSlice("10.1.1.1"), otherSlice), dialled("10.96.0.11:80", by("10.1.1.2:8080")),
			at("no-endpoints", gone, deleteSlice("default/other-a")), dialled("10.96.0.11:80", "no-endpoints"),
		}},
		{"two endpoint slices, same service", []moment{at(by(two), setWeb(), setWebSlice("10.1.1.1"), sliceB("http:8080", "10.1.1.2")), at("no-endpoints", gone, goneB)}},
		{"two endpoint slices, different namespace", []moment{
			at(by(one), setWeb(), elsewhere, setWebSlice("10.1.1.1"), setSlice("shop/web-a", "web", "http:8080", "10.1.1.2")),
			at("no-endpoints", gone), dialled("10.96.0.12:80", by("10.1.1.2:8080")),
			at("no-endpoints", deleteSlice("shop/web-a")), dialled("10.96.0.12:80", "no-endpoints"),
		}},
		{"added and removed before a sync", []moment{at("no-endpoints", setWeb(), setWebSlice("10.1.1.1"), gone)}},
	})
}

func TestSameServiceEndpointSliceCacheClearedCorrectly(t *testing.T) {
	agree(t,
		at(by(two), setWeb(), setWebSlice("10.1.1.1"), sliceB("http:8080", "10.1.1.2")),
		at(by("10.1.1.2:8080"), deleteSlice(web+"-a")),
		at("no-endpoints", deleteSlice(web+"-b")))
}

func TestUpdateEndpointsMap(t *testing.T) {
	unnamed := setService(web, webVIP, ":80")
	a := func(ports string, endpoints ...string) event {
		return setSlice(web+"-a", "web", ports, endpoints...)
	}
	gone := func(suffix string) event { return deleteSlice(web + suffix) }
	twoPorts, other := setService(web, webVIP, "http:80 https:443"), setService("default/other", "10.96.0.11", "http:80")
	histories(t, []namedHistory{
		{"empty", []moment{at("no-endpoints", setWeb())}},
		{"no change, unnamed port", []moment{at(by(one), unnamed, a(":8080", "10.1.1.1")), at(by(one), a(":8080", "10.1.1.1"))}},
		{"no change, named port, local", []moment{at(by(one), setWeb(localPolicy), a("http:8080", "10.1.1.1 @n1")), at(by(one), a("http:8080", "10.1.1.1 @n1"))}},
		{"no change, multiple slices", []moment{at(by(two), setWeb(), a("http:8080", "10.1.1.1"), sliceB("http:8080", "10.1.1.2")), at(by(two), sliceB("http:8080", "10.1.1.2"))}},
		{"no change, multiple slices, multiple ports, local", []moment{
			at(by(one), setService(web, webVIP, "http:80 https:443", localPolicy), a("http:8080", "10.1.1.1 @n1"), sliceB("https:8443", "10.1.1.1 @n1")),
			dialled(webVIP+":443", by("10.1.1.1:8443")),
			at(by(one), sliceB("https:8443", "10.1.1.1 @n1")), dialled(webVIP+":443", by("10.1.1.1:8443")),
		}},
		{"no change, multiple services, slices, IPs, and ports", []moment{
			at(by(two), twoPorts, other, a("http:8080 https:8443", "10.1.1.1 @n1", "10.1.1.2"), setSlice("default/other-a", "other", "http:9090", "10.1.1.3", "10.1.1.1")),
			dialled("10.96.0.11:80", by("10.1.1.1:9090 10.1.1.3:9090")),
			at(by(two), a("http:8080 https:8443", "10.1.1.1 @n1", "10.1.1.2")), dialled("10.96.0.11:80", by("10.1.1.1:9090 10.1.1.3:9090")),
		}},
		{"add an EndpointSlice", []moment{at("no-endpoints", setWeb()), at(by(one), a("http:8080", "10.1.1.1"))}},
		{"remove an EndpointSlice", []moment{at(by(one), setWeb(), a("http:8080", "10.1.1.1")), at("no-endpoints", gone("-a"))}},
		{"add an IP and port", []moment{
			at(by(one), twoPorts, a("http:8080", "10.1.1.1")), dialled(webVIP+":443", "no-endpoints"),
			at(by(two), a("http:8080 https:8443", "10.1.1.1", "10.1.1.2")), dialled(webVIP+":443", by("10.1.1.1:8443 10.1.1.2:8443")),
		}},
		{"remove an IP and port", []moment{
			at(by(two), twoPorts, a("http:8080 https:8443", "10.1.1.1", "10.1.1.2")),
			at(by(one), a("http:8080", "10.1.1.1")), dialled(webVIP+":443", "no-endpoints"),
		}},
		{"add a slice to an endpoint", []moment{
			at(by(one), twoPorts, a("http:8080", "10.1.1.1")),
			at(by(one), sliceB("https:8443", "10.1.1.1")), dialled(webVIP+":443", by("10.1.1.1:8443")),
		}},
		{"remove a slice from an endpoint", []moment{
			at(by(one), twoPorts, a("http:8080", "10.1.1.1"), sliceB("https:8443", "10.1.1.1")),
			at(by(one), gone("-b")), dialled(webVIP+":443", "no-endpoints"),
		}},
		{"rename a port", []moment{at(by(one), setWeb(), a("http:8080", "10.1.1.1")), at("no-endpoints", a("http-2:8080", "10.1.1.1"))}},
		{"renumber a port", []moment{at(by(one), setWeb(), a("http:8080", "10.1.1.1")), at(by("10.1.1.1:9090"), a("http:9090", "10.1.1.1"))}},
		{"complex add and remove", []moment{
			at(by(two), twoPorts, other, a("http:8080", "10.1.1.1", "10.1.1.2"), sliceB("https:8443", "10.1.1.3")),
			at(by("10.1.1.2:8080 10.1.1.4:8080"), a("http:8080", "10.1.1.2", "10.1.1.4"), gone("-b"), setSlice("default/other-a", "other", "http:9090", "10.1.1.3")),
			dialled(webVIP+":443", "no-endpoints"), dialled("10.96.0.11:80", by("10.1.1.3:9090")),
		}},
		{"change from 0 endpoint address to 1 unnamed port", []moment{at("no-endpoints", unnamed, a("")), at(by(one), a(":8080", "10.1.1.1"))}},
		{"change from ready to terminating pod", []moment{at(by(one), setWeb(), a("http:8080", "10.1.1.1 r+s+t-")), at(by(one), a("http:8080", "10.1.1.1 r-s+t+"))}},
		{"change from terminating to empty pod", []moment{at(by(one), setWeb(), a("http:8080", "10.1.1.1 r-s+t+")), at("no-endpoints", a("http:8080"))}},
	})
}

func TestEndpointSliceUpdate(t *testing.T) {
	start := at(by(three), setWeb(), setWebSlice("10.1.1.1", "10.1.1.2", "10.1.1.3"))
	fqdn := sliceObject(web+"-f", "web", "http:8080", "host.example.com")
	fqdn.AddressType = discoveryv1.AddressTypeFQDN
	histories(t, []namedHistory{
		{"add a simple slice that doesn't already exist", []moment{at("no-endpoints", setWeb()), at(by(one), setWebSlice("10.1.1.1"))}},
		{"add the same slice that already exists", []moment{start, at(by(three), setWebSlice("10.1.1.1", "10.1.1.2", "10.1.1.3"))}},
		{"add an FQDN slice (invalid address type)", []moment{start, at(by(three), event{slice: fqdn})}},
		{"add a slice that overlaps with existing state", []moment{start, at(by(three+" 10.1.1.4:8080"), sliceB("http:8080", "10.1.1.1", "10.1.1.4"))}},
		{"add a slice that overlaps with existing state and partial ports", []moment{
			at(by(three), setService(web, webVIP, "http:80 https:443"), setSlice(web+"-a", "web", "http:8080 https:8443", "10.1.1.1", "10.1.1.2", "10.1.1.3")),
			at(by(three+" 10.1.1.4:8080"), sliceB("http:8080", "10.1.1.1", "10.1.1.4")), dialled(webVIP+":443", by("10.1.1.1:8443 10.1.1.2:8443 10.1.1.3:8443")),
		}},
		{"remove a slice that overlaps with existing state", []moment{
			at(by(three), setWeb(), setWebSlice("10.1.1.1", "10.1.1.2"), sliceB("http:8080", "10.1.1.2", "10.1.1.3")),
			at(by("10.1.1.2:8080 10.1.1.3:8080"), deleteSlice(web+"-a")),
		}},
		{"remove a slice that doesn't even exist in current state", []moment{start, at(by(three), deleteSlice(web+"-z"))}},
		{"transition all endpoints to unready state", []moment{start, at("no-endpoints", setWebSlice("10.1.1.1 r-", "10.1.1.2 r-", "10.1.1.3 r-"))}},
		{"transition all endpoints to ready state", []moment{at("no-endpoints", setWeb(), setWebSlice("10.1.1.1 r-", "10.1.1.2 r-")), at(by(two), setWebSlice("10.1.1.1", "10.1.1.2"))}},
		{"transition some endpoints to ready state", []moment{at("no-endpoints", setWeb(), setWebSlice("10.1.1.1 r-", "10.1.1.2 r-")), at(by(one), setWebSlice("10.1.1.1", "10.1.1.2 r-"))}},
		{"transition some endpoints to terminating state", []moment{start, at(by("10.1.1.3:8080"), setWebSlice("10.1.1.1 r-s+t+", "10.1.1.2 r-s-t+", "10.1.1.3"))}},
	})
}

func TestCheckoutChanges(t *testing.T) {
	histories(t, []namedHistory{
		{"empty slices", []moment{at("no-endpoints", setWeb(), setSlice(web+"-a", "web", ""))}},
		{"adding initial slice", []moment{at("no-endpoints", setWeb()), at(by(two), setWebSlice("10.1.1.1", "10.1.1.2", "10.1.1.3 r-"))}},
		{"removing port in update", []moment{
			at(by(two), setService(web, webVIP, "http:80 https:443"), setSlice(web+"-a", "web", "http:8080 https:8443", "10.1.1.1", "10.1.1.2")),
			at("no-endpoints", setSlice(web+"-a", "web", "https:8443", "10.1.1.1", "10.1.1.2")),
		}},
	})
}

// TestGetLocalEndpointIPs: which endpoints count as this node's.
func TestGetLocalEndpointIPs(t *testing.T) {
	local := setService(web, webVIP, "http:80 https:443", localPolicy)
	histories(t, []namedHistory{
		{"Case[0]: nothing", []moment{at("no-endpoints", local)}},
		{"Case[1]: unnamed port, none local", []moment{at("no-local-endpoints", setService(web, webVIP, ":80", localPolicy), setSlice(web+"-a", "web", ":8080", "10.1.1.1"))}},
		{"Case[2]: unnamed port, local", []moment{at(by(one), setService(web, webVIP, ":80", localPolicy), setSlice(web+"-a", "web", ":8080", "10.1.1.1 @n1"))}},
		{"Case[3]: named local and non-local ports for the same IP", []moment{
			at("no-local-endpoints", local, setSlice(web+"-a", "web", "http:8080", "10.1.1.1 @n2"), sliceB("https:8443", "10.1.1.1 @n1")),
			dialled(webVIP+":443", by("10.1.1.1:8443")),
		}},
		{"Case[4]: named local and non-local ports for different IPs", []moment{
			at(by(two), local, setSlice(web+"-a", "web", "http:8080", "10.1.1.1 @n1", "10.1.1.2 @n1", "10.1.1.3 @n2"), sliceB("https:8443", "10.1.1.3 @n2")),
			dialled(webVIP+":443", "no-local-endpoints"),
		}},
		{"Case[5]: named local and non-local ports for different IPs, some not ready", []moment{
			at(by(one), local, setSlice(web+"-a", "web", "http:8080", "10.1.1.1 @n1", "10.1.1.2 r- @n1", "10.1.1.3 @n2"), sliceB("https:8443", "10.1.1.1 r- @n1")),
			dialled(webVIP+":443", "no-endpoints"),
		}},
		// None counts for the health check; the fall-back uses those that serve.
		{"Case[6]: all endpoints are terminating", []moment{
			at(by(one), local, setSlice(web+"-a", "web", "http:8080", "10.1.1.1 r-s+t+ @n1", "10.1.1.2 r-s-t+ @n1", "10.1.1.3 r-s+t+ @n2")),
		}},
	})
}
