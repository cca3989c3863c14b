// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"aether.io/aether/internal/model"
)

// ServiceCIDR returns the IPv4 prefixes of a ServiceCIDR, masked, sorted and
// without repeats, whatever its conditions or deletionTimestamp: one that is not
// Ready still holds live ClusterIPs. Entries that are no CIDR are ignored.
func ServiceCIDR(c *networkingv1.ServiceCIDR) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range c.Spec.CIDRs {
		if p, ok := ParsePrefix(text); ok && p.Addr().Is4() {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}

// Node converts a Node. Its zone is the label topology.kubernetes.io/zone and
// nothing else.
func Node(n *corev1.Node) model.Node {
	return model.Node{Name: n.Name, Zone: n.Labels[corev1.LabelTopologyZone]}
}
