// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func headless(s *corev1.Service) {
	s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
}

func externalName(s *corev1.Service) {
	s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
}

func loadBalancer(mode *corev1.LoadBalancerIPMode) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.7", IPMode: mode}}
	}
}

// families gives the Service a ClusterIP for each family told.
func families(ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies = ips[0], ips, nil
		for _, ip := range ips {
			f := corev1.IPv4Protocol
			if ip == six {
				f = corev1.IPv6Protocol
			}
			s.Spec.IPFamilies = append(s.Spec.IPFamilies, f)
		}
	}
}

// oldStyle is a Service of before there were families.
func oldStyle(ip string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies = ip, nil, nil }
}

const six = "fd00:96::10"

// served1 is a Service of one endpoint, whatever else it is.
func served1(want string, options ...func(*corev1.Service)) []moment {
	return []moment{at(want, setWeb(options...), setWebSlice("10.1.1.1"))}
}

func TestServiceToServiceMap(t *testing.T) {
	histories(t, []namedHistory{
		{"nothing", []moment{at("no-service")}},
		{"headless service", served1("no-service", headless)},
		{"headless sctp service", []moment{at("no-service", setService(web, webVIP, "assoc:80/SCTP", headless))}},
		{"headless service without port", []moment{at("no-service", setService(web, webVIP, "", headless))}},
		{"cluster ip service", served1(by(one))},
		{"nodeport service", served1(by(one), nodePort)},
		{"load balancer service", served1(by(one), loadBalancer(nil))},
		{"load balancer service ipMode VIP", served1(by(one), loadBalancer(new(corev1.LoadBalancerIPModeVIP)))},
		{"load balancer service ipMode Proxy", served1(by(one), loadBalancer(new(corev1.LoadBalancerIPModeProxy)))},
		{"load balancer service with only local traffic policy", served1(by(one), loadBalancer(nil), func(s *corev1.Service) {
			s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = corev1.ServiceExternalTrafficPolicyLocal, 31000
		})},
		{"external name service", served1("no-service", externalName)},
		{"service with ipv6 clusterIP under ipv4 mode, service should be filtered", served1("no-service", families(six))},
		{"service with ipv4 configurations under ipv4 mode", served1(by(one), families(webVIP))},
		{"service with both ipv4 and ipv6 configurations under ipv4 mode, ipv6 fields should be filtered", served1(by(one), families(six, webVIP), func(s *corev1.Service) {
			s.Spec.ExternalIPs = []string{"192.0.2.8", "2001:db8::8"}
		})},
		{"service with extra space in LoadBalancerSourceRanges", served1(by(one), loadBalancer(nil), func(s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges = []string{" 10.1.2.0/28"}
		})},
	})
}

func TestGetClusterIPByFamily(t *testing.T) {
	histories(t, []namedHistory{
		{"old style service ipv4. want ipv4", served1(by(one), oldStyle(webVIP))},
		{"old style service ipv6. want ipv4", served1("no-service", oldStyle(six))},
		{"service single stack ipv4. want ipv4", served1(by(one), families(webVIP))},
		{"service single stack ipv6. want ipv4", served1("no-service", families(six))},
		{"service dual stack ipv4,6. want ipv4", served1(by(one), families(webVIP, six))},
		{"service dual stack ipv6,4. want ipv4", served1(by(one), families(six, webVIP))},
	})
}

func TestShouldSkipService(t *testing.T) {
	histories(t, []namedHistory{
		{"Cluster IP is None", served1("no-service", headless)},
		{"Cluster IP is empty", served1("no-service", oldStyle(""))},
		{"ExternalName type service", served1("no-service", externalName)},
		{"ClusterIP type service with ClusterIP set", served1(by(one))},
		{"NodePort type service with ClusterIP set", served1(by(one), nodePort)},
		{"LoadBalancer type service with ClusterIP set", served1(by(one), loadBalancer(nil))},
	})
}

func TestServiceMapUpdateHeadless(t *testing.T) {
	agree(t, at("no-service", setWeb(headless), setWebSlice("10.1.1.1"), setService("default/bare", "", "", headless)), dialled("10.96.0.1:80", "no-service"))
}

func TestUpdateServiceTypeExternalName(t *testing.T) {
	agree(t, at("no-service", setWeb(externalName), setWebSlice("10.1.1.1")))
}

func TestBuildServiceMapAddRemove(t *testing.T) {
	others := []event{
		setService("default/node", "10.96.0.11", "http:80", nodePort),
		setService("default/balancer", "10.96.0.12", "http:80 dns:81/UDP", loadBalancer(nil)),
	}
	agree(t,
		at("no-endpoints", append(others, setWeb())...), dialled("10.96.0.11:80", "no-endpoints"), dialled("10.96.0.12:80", "no-endpoints"),
		dialled("10.96.0.12:81", "port-not-declared"),
		at("no-service", deleteService(web), deleteService("default/balancer")), dialled("10.96.0.12:80", "no-service"), dialled("10.96.0.11:80", "no-endpoints"))
}

func TestBuildServiceMapServiceUpdate(t *testing.T) {
	agree(t,
		at(by(one), setWeb(), setWebSlice("10.1.1.1")),
		at(by(one), setWeb(loadBalancer(nil))), // another type
		at(by(one), setWeb(loadBalancer(nil))), // nothing new
		at(by(one), setWeb()),                  // and back
		at("port-not-declared", setService(web, webVIP, "http:81")), dialled(webVIP+":81", by(one)),
		at("no-service", setService(web, "10.96.0.11", "http:80")), dialled("10.96.0.11:80", by(one)))
}

func TestServiceCacheLeaks(t *testing.T) {
	agree(t,
		at(by(one), setWeb(), setWebSlice("10.1.1.1")),
		at("no-service", deleteService(web)),
		at("no-service", setWeb(), deleteService(web)), // seen by nobody in between
		at(by(one), setWeb()))
}

// TestInPlaceChanges has no namesake: the ways in which a live Service or slice
// changes, each told to both sides as one update.
func TestInPlaceChanges(t *testing.T) {
	const second = "10.96.0.11:80"
	start := at(by(one), setWeb(), setWebSlice("10.1.1.1 @n2"))
	labelled := func(headlessLabel bool) event {
		s := sliceObject(web+"-a", "web", "http:8080", "10.1.1.1")
		if headlessLabel {
			s.Labels[corev1.IsHeadlessService] = ""
		}
		return event{slice: s}
	}
	histories(t, []namedHistory{
		{"to ExternalName and back with another address", []moment{
			start, at("no-service", setWeb(externalName)), at("no-service", setService(web, "10.96.0.11", "http:80")), dialled(second, by(one)),
		}},
		{"to dual stack and back", []moment{start, at(by(one), setWeb(families(webVIP, six))), at("no-service", setWeb(families(six))), at(by(one), setWeb())}},
		{"internalTrafficPolicy", []moment{start, at("no-local-endpoints", setWeb(localPolicy)), at(by(one), setWeb())}},
		{"sessionAffinity", []moment{
			start, at(by(one)+" (ClientIP)", setWeb(func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })), at(by(one), setWeb()),
		}},
		{"port name", []moment{start, at("no-endpoints", setService(web, webVIP, "web:80")), at(by(one), setWeb())}},
		{"port protocol", []moment{start, at("port-not-declared", setService(web, webVIP, "http:80/UDP")), at(by(one), setWeb())}},
		{"selector", []moment{start, at(by(one), setWeb(func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "web"} }))}},
		{"being deleted", []moment{start, at(by(one), setWeb(func(s *corev1.Service) { s.DeletionTimestamp = new(created(2)) })), at("no-service", deleteService(web))}},
		{"headless label on the slice", []moment{start, at("no-endpoints", labelled(true)), at(by(one), labelled(false))}},
		{"slice used again for other ports", []moment{start, at("no-endpoints", setSlice(web+"-a", "web", "dns:53/UDP", "10.1.1.1")), at(by(one), setWebSlice("10.1.1.1"))}},
		{"zone of the node", []moment{
			at(by(one), setNode("n1", "za"), setWeb(), setWebSlice("10.1.1.1 z:za", "10.1.1.2 z:zb")),
			at(by("10.1.1.2:8080"), setNode("n1", "zb")), at(by(two), setNode("n1", "")), at(by(two), setNode("n2", "za")),
		}},
	})
}
