// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/proxy/apis"
	netutils "k8s.io/utils/net"
)

// difference is one way in which Aether differs from kube-proxy on purpose.
// docs/answers.md tells users of each.
type difference struct {
	name string
	why  string
	// holds reports whether it applies to a dial; it looks at the input alone.
	holds func(w *world, target netip.AddrPort) bool
	// passes is true where Aether leaves the address to whoever else serves it
	// (kube-proxy, mostly). It does so if and only if one of these holds.
	passes bool
	// correct takes out of the input what Aether does not count and kube-proxy
	// does. It is nil where a restart of kube-proxy is all it needs.
	correct func(*view)
}

// differences is the whole list. Corrections are made in its order: addresses and
// port numbers that do not count cannot win against a duplicate.
var differences = []difference{
	{
		name:   "api-server",
		why:    "the API server must not need the agent: default/kubernetes is passed through",
		passes: true,
		holds: func(w *world, target netip.AddrPort) bool {
			s := w.services[apiServer]
			return s != nil && vipOf(s) == target.Addr()
		},
	},
	{
		name:   "outside-range",
		why:    "an address outside every ServiceCIDR is not captured for Services, whoever claims it",
		passes: true,
		holds: func(_ *world, target netip.AddrPort) bool {
			return !serviceRange.Contains(target.Addr())
		},
	},
	{
		name:   "service-proxy-name",
		why:    "kube-proxy does not see a Service labelled as another proxy's; Aether knows its address and passes it through",
		passes: true,
		holds:  ownerHas(func(s *corev1.Service) bool { _, ok := s.Labels[apis.LabelServiceProxyName]; return ok }),
	},
	{
		name:   "cilium-global",
		why:    "Cilium balances its global Services over clusters, with endpoints that are in no slice",
		passes: true,
		holds:  ownerHas(func(s *corev1.Service) bool { return s.Annotations["service.cilium.io/global"] == "true" }),
	},
	{
		name:   "opted-out",
		why:    "the Service's own annotation asks for kube-proxy",
		passes: true,
		holds:  ownerHas(func(s *corev1.Service) bool { return s.Annotations["aether.io/service-egress"] == "passthrough" }),
	},
	{
		name:   "external-address",
		why:    "an externalIP or load-balancer address in the range is an external address: its policies are kube-proxy's",
		passes: true,
		holds:  isExternalAddress,
	},
	{
		name: "two-claims",
		why:  "of two Services with one ClusterIP kube-proxy serves either, port by port; Aether serves one: the live, then the older, then the smaller name",
		holds: func(w *world, target netip.AddrPort) bool {
			return len(w.claims(target.Addr())) > 1
		},
		correct: (*view).keepOwners,
	},
	{
		name:  "slice-left",
		why:   "kube-proxy keeps the endpoints of a slice that an update gave to another Service, to none or to another family, until it restarts",
		holds: leftBehind,
	},
	{
		name:    "faulty-address",
		why:     "an address that no endpoint may have counts as absent: a wrong family, loopback, link-local, unspecified, broadcast, multicast, none at all",
		holds:   anyEntry(func(e *entry) bool { return faulty(e.ip) }),
		correct: func(v *view) { v.drop(func(e *entry) bool { return faulty(e.ip) }) },
	},
	{
		name:    "port-number",
		why:     "a slice port outside 1–65535 is ignored, kube-proxy writes it into its rules",
		holds:   anyEntry(impossiblePort),
		correct: func(v *view) { v.drop(impossiblePort) },
	},
	{
		name:    "duplicate",
		why:     "of several entries for one ip:port kube-proxy uses the one its order leaves; Aether the best: not terminating, ready, serving, then the first by slice name",
		holds:   contested,
		correct: (*view).keepBest,
	},
}

// ownerHas applies where the Service that owns the dialled ClusterIP is such a one.
func ownerHas(is func(*corev1.Service) bool) func(*world, netip.AddrPort) bool {
	return func(w *world, target netip.AddrPort) bool {
		claims := w.claims(target.Addr())
		return len(claims) > 0 && is(claims[0])
	}
}

func isExternalAddress(w *world, target netip.AddrPort) bool {
	for _, s := range w.services {
		if s.Spec.Type == corev1.ServiceTypeExternalName {
			continue
		}
		for _, text := range s.Spec.ExternalIPs {
			if toAddr(netutils.ParseIPSloppy(text)) == target.Addr() {
				return true
			}
		}
		for _, in := range s.Status.LoadBalancer.Ingress {
			if toAddr(netutils.ParseIPSloppy(in.IP)) == target.Addr() {
				return true
			}
		}
	}
	return false
}

func leftBehind(w *world, target netip.AddrPort) bool {
	for _, s := range w.claims(target.Addr()) {
		if len(w.left[keyOf(s)]) > 0 {
			return true
		}
	}
	return false
}

// anyEntry applies where an endpoint behind the dialled Service port is such a one.
func anyEntry(is func(*entry) bool) func(*world, netip.AddrPort) bool {
	return func(w *world, target netip.AddrPort) bool {
		for _, e := range behind(w, target) {
			if is(e) {
				return true
			}
		}
		return false
	}
}

// faulty reports whether an address must not be dialled, by the rules told to users.
func faulty(ip string) bool {
	p := netutils.ParseIPSloppy(ip).To4()
	return p == nil || p[0] == 0 || p.IsLoopback() || p.IsLinkLocalUnicast() || p.IsMulticast() || p.Equal([]byte{255, 255, 255, 255})
}

func impossiblePort(e *entry) bool { return *e.port.Port < 1 || *e.port.Port > 65535 }

// contested applies where one ip:port behind the Service port is listed more than
// once and it matters which entry is taken: what kube-proxy may end up with and
// what Aether takes are not all alike.
func contested(w *world, target netip.AddrPort) bool {
	for _, run := range runs(behind(w, target)) {
		first := best(run).effect(w.node)
		for _, e := range survivors(run) {
			if e.effect(w.node) != first {
				return true
			}
		}
	}
	return false
}

// survivors returns the entries of one ip:port that kube-proxy may end up with. It
// walks slices in any order and a slice's endpoints in theirs, and a newcomer
// replaces what is there unless the newcomer is terminating.
func survivors(run []*entry) []*entry {
	last, first := map[string]*entry{}, map[string]*entry{}
	for _, e := range run {
		if !e.terminating() {
			last[e.slice.Name] = e
		}
		if first[e.slice.Name] == nil {
			first[e.slice.Name] = e
		}
	}
	if len(last) == 0 {
		last = first
	}
	var out []*entry
	for _, e := range run {
		if last[e.slice.Name] == e {
			out = append(out, e)
		}
	}
	return out
}
