// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/kubernetes/pkg/proxy/apis"
)

// example is the least input on which a difference shows.
type example struct {
	difference        string
	name              string
	events            []event
	target            string // 10.96.0.10:80 when empty
	kubeProxy, aether string
}

func examples() []example {
	balancer := func(s *corev1.Service) {
		loadBalancer(nil)(s)
		s.Status.LoadBalancer.Ingress[0].IP = externalVIP
	}
	younger := func(s *corev1.Service) { s.CreationTimestamp = created(2) }
	other := setService("default/other", "10.96.0.11", "http:80")
	movedTo := func(service string) event { return setSlice(web+"-a", service, "http:8080", "10.1.1.1") }
	ipv6 := sliceObject(web+"-a", "web", "http:8080", "fd00::1")
	ipv6.AddressType = discoveryv1.AddressTypeIPv6
	start := []event{setWeb(), setWebSlice("10.1.1.1")}
	return []example{
		{"api-server", "default/kubernetes", []event{setService("default/kubernetes", webVIP, "https:443"), setSlice("default/kubernetes", "kubernetes", "https:6443", "10.1.1.1")}, webVIP + ":443", by("10.1.1.1:6443"), "passthrough"},
		{"outside-range", "a Service older than the range", []event{setService(web, outsideVIP, "http:80"), setWebSlice("10.1.1.1")}, outsideVIP + ":80", by(one), "passthrough"},
		{"service-proxy-name", "any value", []event{setWeb(label(apis.LabelServiceProxyName, "")), setWebSlice("10.1.1.1")}, "", "no-service", "passthrough"},
		{"cilium-global", "global", []event{setWeb(annotation("service.cilium.io/global", "true")), setWebSlice("10.1.1.1")}, "", by(one), "passthrough"},
		{"opted-out", "by its annotation", []event{setWeb(annotation("aether.io/service-egress", "passthrough")), setWebSlice("10.1.1.1")}, "", by(one), "passthrough"},
		{"external-address", "externalIP", []event{setWeb(func(s *corev1.Service) { s.Spec.ExternalIPs = []string{externalVIP} })}, externalVIP + ":80", "no-service", "passthrough"},
		{"external-address", "load-balancer address", []event{setWeb(balancer)}, externalVIP + ":80", "no-service", "passthrough"},
		{"two-claims", "the older", append(start, setService("default/a", webVIP, "http:80", younger)), "", "no-endpoints", by(one)},
		{"two-claims", "a port of the loser", append(start, setService("default/z", webVIP, "http:81", younger)), webVIP + ":81", "no-endpoints", "port-not-declared"},
		{"slice-left", "to another Service", append(start, other, movedTo("other")), "", by(one), "no-endpoints"},
		{"slice-left", "to none", append(start, movedTo("")), "", by(one), "no-endpoints"},
		{"slice-left", "to another, and deleted there", append(start, other, movedTo("other"), deleteSlice(web+"-a")), "", by(one), "no-endpoints"},
		{"slice-left", "to another family", append(start, event{slice: ipv6}), "", by(one), "no-endpoints"},
		{"port-number", "negative", []event{setWeb(), setSlice(web+"-a", "web", "http:-1", "10.1.1.1")}, "", by("10.1.1.1:-1"), "no-endpoints"},
		{"port-number", "too large", []event{setWeb(), setSlice(web+"-a", "web", "http:65536", "10.1.1.1")}, "", by("10.1.1.1:65536"), "no-endpoints"},
		{"faulty-address", "turns hints off", []event{setNode("n1", "za"), setWeb(), setWebSlice("10.1.1.1 z:za", "10.1.1.2 z:zb", "239.1.1.1")}, "", by("10.1.1.1:8080 10.1.1.2:8080 239.1.1.1:8080"), by(one)},
		{"faulty-address", "is no endpoint elsewhere", []event{setWeb(localPolicy), setWebSlice("239.1.1.1 @n2")}, "", "no-local-endpoints", "no-endpoints"},
		{"duplicate", "ready, then not ready, in one slice", []event{setWeb(), setWebSlice("10.1.1.1 r+", "10.1.1.1 r-")}, "", "no-endpoints", by(one)},
		{"duplicate", "two that terminate in one slice", []event{setWeb(), setWebSlice("10.1.1.1 r-s-t+", "10.1.1.1 r-s+t+")}, "", "no-endpoints", by(one)},
		{"duplicate", "the later is on another node", []event{setWeb(localPolicy), setWebSlice("10.1.1.1 @n1", "10.1.1.1 @n2")}, "", "no-local-endpoints", by(one)},
	}
}

// faults are the addresses that count as absent, each the only endpoint.
func faultExamples() (out []example) {
	for _, c := range [][2]string{
		{"255.255.255.255", "255.255.255.255:8080"},
		{"0.1.2.3", "0.1.2.3:8080"},
		{"239.1.1.1", "239.1.1.1:8080"},
		{"127.0.0.1", "127.0.0.1:8080"},
		{"169.254.1.1", "169.254.1.1:8080"},
		{"fd00::9", "[fd00::9]:8080"},
		{"host.example", "<nil>:8080"},
	} {
		out = append(out, example{"faulty-address", c[0], []event{setWeb(), setWebSlice(c[0])}, "", by(c[1]), "no-endpoints"})
	}
	return out
}

// TestDifferences shows each difference of the list on the least input: it alone
// applies, and corrected as the list says the input gives both sides one outcome.
func TestDifferences(t *testing.T) {
	shown := map[string]bool{}
	for _, e := range append(examples(), faultExamples()...) {
		shown[e.difference] = true
		t.Run(e.difference+"/"+e.name, func(t *testing.T) {
			target := dialWeb
			if e.target != "" {
				target = netip.MustParseAddrPort(e.target)
			}
			p := newPair("n1", []netip.AddrPort{target})
			for _, ev := range e.events {
				p.apply(ev)
				p.sync()
			}
			f := p.compare(target, restarted(corrected(p.world)), newTally())
			if f.problem != "" {
				t.Fatal(f)
			}
			if f.kubeProxy.String() != e.kubeProxy || f.aether.String() != e.aether {
				t.Errorf("kube-proxy: %q, want %q\nAether: %q, want %q", f.kubeProxy, e.kubeProxy, f.aether, e.aether)
			}
			if got := names(slices.Concat(f.applying(true), f.applying(false))); got != e.difference {
				t.Errorf("%q applies, want %q alone", got, e.difference)
			}
		})
	}
	for _, d := range differences {
		if !shown[d.name] {
			t.Errorf("%s has no example", d.name)
		}
		if d.why == "" {
			t.Errorf("%s has no reason", d.name)
		}
	}
}

// TestDuplicateAcrossSlices: of two entries in two slices kube-proxy takes either,
// from one time to the next; Aether always the same.
func TestDuplicateAcrossSlices(t *testing.T) {
	seen := map[string]int{}
	for range 400 {
		p := newPair("n1", []netip.AddrPort{dialWeb})
		p.apply(setWeb(), setWebSlice("10.1.1.1 r-"), setSlice(web+"-b", "web", "http:8080", "10.1.1.1 r+"))
		p.sync()
		seen[fmt.Sprint("kube-proxy ", p.kubeProxy.dial(dialWeb))]++
		seen[fmt.Sprint("Aether ", p.aether.dial(dialWeb))]++
	}
	if len(seen) != 3 || seen["Aether served by 10.1.1.1:8080"] != 400 {
		t.Errorf("%v", seen)
	}
}
