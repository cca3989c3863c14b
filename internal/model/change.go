// SPDX-License-Identifier: Apache-2.0

package model

import "net/netip"

// Change is one fact about the world, as a source tells it. The set is closed.
type Change interface{ isChange() }

type (
	// SetService adds or replaces a Service.
	SetService struct{ Service Service }
	// DeleteService removes a Service. It is a no-op when the State holds
	// another Service object (another UID) under that name and UID is set.
	DeleteService struct {
		Name Name
		UID  string
	}
	// SetSlice adds or replaces an EndpointSlice.
	SetSlice struct{ Slice Slice }
	// DeleteSlice removes an EndpointSlice, or one that is no longer usable.
	DeleteSlice struct{ Name Name }
	// SetServiceCIDR adds or replaces a ServiceCIDR object's IPv4 prefixes,
	// whatever its conditions or deletionTimestamp: Services go on living in a
	// range that is not ready or is being deleted (KEP-1880).
	SetServiceCIDR struct {
		Name     string
		Prefixes []netip.Prefix
	}
	// DeleteServiceCIDR removes a ServiceCIDR object.
	DeleteServiceCIDR struct{ Name string }
	// SetImport adds or replaces a ServiceImport.
	SetImport struct{ Import Import }
	// DeleteImport removes a ServiceImport.
	DeleteImport struct{ Name Name }
	// SetNode adds or replaces a Node.
	SetNode struct{ Node Node }
	// DeleteNode removes a Node.
	DeleteNode struct{ Name string }
	// SetWorkload adds or replaces a captured pod of this node.
	SetWorkload struct{ Workload Workload }
	// DeleteWorkload removes a pod.
	DeleteWorkload struct{ Name Name }
)

func (SetService) isChange()        {}
func (DeleteService) isChange()     {}
func (SetSlice) isChange()          {}
func (DeleteSlice) isChange()       {}
func (SetServiceCIDR) isChange()    {}
func (DeleteServiceCIDR) isChange() {}
func (SetImport) isChange()         {}
func (DeleteImport) isChange()      {}
func (SetNode) isChange()           {}
func (DeleteNode) isChange()        {}
func (SetWorkload) isChange()       {}
func (DeleteWorkload) isChange()    {}
