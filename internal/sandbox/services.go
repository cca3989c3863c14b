// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"aether.io/aether/internal/model"
)

// defaultServiceCIDR is the range when no ServiceCIDR object is given, under the
// name the API server uses for its own.
const (
	defaultServiceCIDR     = "10.96.0.0/16"
	defaultServiceCIDRName = "kubernetes"
)

// serviceCIDRs returns the IPv4 prefixes addresses may be allocated from, by
// object name. Like the API server's allocator it leaves out objects that are
// being deleted or not Ready (a missing condition means Ready). generated is the
// default object, which is to be added when there is none at all. Once it has
// been (hadDefault) it stays beside others, as the API server's own does, unless
// there is one of its name.
func serviceCIDRs(objects map[string]*networkingv1.ServiceCIDR, hadDefault bool) (ranges []netip.Prefix, generated *networkingv1.ServiceCIDR) {
	if len(objects) == 0 || hadDefault && objects[defaultServiceCIDRName] == nil {
		generated = &networkingv1.ServiceCIDR{
			TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
			ObjectMeta: metav1.ObjectMeta{Name: defaultServiceCIDRName},
			Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{defaultServiceCIDR}},
		}
		ranges = append(ranges, netip.MustParsePrefix(defaultServiceCIDR))
	}
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		o := objects[name]
		if o.DeletionTimestamp != nil || slices.ContainsFunc(o.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == networkingv1.ServiceCIDRConditionReady && c.Status == metav1.ConditionFalse
		}) {
			continue
		}
		for _, s := range o.Spec.CIDRs {
			if p, err := netip.ParsePrefix(s); err == nil && p.Addr().Is4() {
				ranges = append(ranges, p.Masked())
			}
		}
	}
	return ranges, generated
}

// needsVIP reports whether the API server would allocate an IPv4 ClusterIP.
func needsVIP(s *corev1.Service) bool {
	return s.Spec.ClusterIP == "" && s.Spec.Type != corev1.ServiceTypeExternalName &&
		(len(s.Spec.IPFamilies) == 0 || s.Spec.IPFamilies[0] == corev1.IPv4Protocol)
}

// allocateVIPs gives every Service that needs one a ClusterIP. A Service keeps
// the address it had (prev); a new one gets an address that depends on its name
// alone unless that is taken, so the same manifests get the same addresses in
// every sandbox. Addresses that manifests name, and used ones, are not given out.
func allocateVIPs(services map[model.Name]*corev1.Service, ranges []netip.Prefix, used map[netip.Addr]bool,
	prev map[model.Name]netip.Addr,
) (map[model.Name]netip.Addr, []Problem) {
	taken := maps.Clone(used)
	if taken == nil {
		taken = map[netip.Addr]bool{}
	}
	var need []model.Name
	for name, s := range services {
		if needsVIP(s) {
			need = append(need, name)
		}
		for _, ip := range append(append([]string{s.Spec.ClusterIP}, s.Spec.ClusterIPs...), s.Spec.ExternalIPs...) {
			if a, err := netip.ParseAddr(ip); err == nil {
				taken[a] = true
			}
		}
	}
	slices.SortFunc(need, model.Name.Compare)
	out := map[model.Name]netip.Addr{}
	inRange := func(a netip.Addr) bool {
		return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	for _, n := range need {
		if a, ok := prev[n]; ok && inRange(a) && !taken[a] {
			out[n] = a
			taken[a] = true
		}
	}
	var problems []Problem
	for _, n := range need {
		if out[n].IsValid() {
			continue
		}
		a, ok := pickVIP(n, ranges, taken)
		if !ok {
			problems = append(problems, Problem{
				Object: "Service " + n.String(), Field: "spec.clusterIP",
				Text: "no address left in the Service range",
			})
			continue
		}
		out[n] = a
		taken[a] = true
	}
	return out, problems
}

// pickVIP picks from the first range with room. It keeps off the network and
// broadcast addresses, off the first address (the API server's by custom) and,
// where the range is large enough, off the low band that is meant for addresses
// chosen by hand (KEP-3070).
func pickVIP(n model.Name, ranges []netip.Prefix, taken map[netip.Addr]bool) (netip.Addr, bool) {
	h := fnv.New32a()
	h.Write([]byte(n.String()))
	start := uint64(h.Sum32())
	for _, r := range ranges {
		size := uint64(1) << (32 - r.Bits())
		if size < 4 {
			continue
		}
		first, count := uint64(2), size-3 // without network, .1 and broadcast
		if low := min(max(16, size/16), 256); size > 2*low {
			if a, ok := firstFree(r.Addr(), low, size-1-low, start, taken); ok {
				return a, true
			}
		}
		if a, ok := firstFree(r.Addr(), first, count, start, taken); ok {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// firstFree walks count addresses from base+first, beginning at start modulo count.
func firstFree(base netip.Addr, first, count, start uint64, taken map[netip.Addr]bool) (netip.Addr, bool) {
	for i := range count {
		a := addrAt(base, first+(start+i)%count)
		if !taken[a] {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// addrAt returns the IPv4 address offset after base.
func addrAt(base netip.Addr, offset uint64) netip.Addr {
	b := base.As4()
	n := uint64(b[0])<<24 | uint64(b[1])<<16 | uint64(b[2])<<8 | uint64(b[3])
	n += offset
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// withVIP returns the Service as the API server would store it, with the VIP.
func withVIP(s *corev1.Service, vip netip.Addr) *corev1.Service {
	s = s.DeepCopy()
	s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	s.Spec.ClusterIP = vip.String()
	s.Spec.ClusterIPs = []string{vip.String()}
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	single, cluster := corev1.IPFamilyPolicySingleStack, corev1.ServiceInternalTrafficPolicyCluster
	s.Spec.IPFamilyPolicy = &single
	if s.Spec.Type == "" {
		s.Spec.Type = corev1.ServiceTypeClusterIP
	}
	if s.Spec.SessionAffinity == "" {
		s.Spec.SessionAffinity = corev1.ServiceAffinityNone
	}
	if s.Spec.InternalTrafficPolicy == nil {
		s.Spec.InternalTrafficPolicy = &cluster
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		p.Protocol = protocolOf(p.Protocol)
		if p.TargetPort == (intstr.IntOrString{}) {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	return s
}

// serviceStatus lists the Services that own an address.
func serviceStatus(services map[model.Name]*corev1.Service, vips map[model.Name]netip.Addr) []ServiceStatus {
	out := []ServiceStatus{}
	for _, n := range slices.SortedFunc(maps.Keys(services), model.Name.Compare) {
		s := services[n]
		row := ServiceStatus{Namespace: n.Namespace, Name: n.Name, VIP: s.Spec.ClusterIP, Ports: []string{}}
		if vip, ok := vips[n]; ok {
			row.VIP, row.Allocated = vip.String(), true
		}
		if row.VIP == "" || row.VIP == corev1.ClusterIPNone || s.Spec.Type == corev1.ServiceTypeExternalName {
			continue
		}
		for _, p := range s.Spec.Ports {
			text := fmt.Sprintf("%d/%s", p.Port, protocolOf(p.Protocol))
			if p.Name != "" {
				text = p.Name + ":" + text
			}
			row.Ports = append(row.Ports, text)
		}
		out = append(out, row)
	}
	return out
}
