// SPDX-License-Identifier: Apache-2.0

package kube

// Stale reports whether any of the kinds that Service answers are made of may be
// out of date: Services, EndpointSlices, ServiceCIDRs.
func (f Freshness) Stale() bool {
	return f.Of(Services).Stale || f.Of(EndpointSlices).Stale || f.Of(ServiceCIDRs).Stale
}
