// SPDX-License-Identifier: Apache-2.0

package kube

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"aether.io/aether/internal/convert"
)

// Kind is a kind of object that is watched, by the name of its resource. The set
// is closed.
type Kind string

// The kinds.
const (
	Services       Kind = "services"
	EndpointSlices Kind = "endpointslices"
	// ServiceCIDRs are served by Kubernetes 1.33 and later (KEP-1880).
	ServiceCIDRs Kind = "servicecidrs"
	// ServiceImports are served where the CRD of the MCS API is installed
	// (KEP-1645).
	ServiceImports Kind = "serviceimports"
	// Nodes is the own Node, and nothing else.
	Nodes Kind = "nodes"
	// Pods are the own node's.
	Pods Kind = "pods"
)

// Kinds returns every kind.
func Kinds() []Kind {
	return []Kind{Services, EndpointSlices, ServiceCIDRs, ServiceImports, Nodes, Pods}
}

// group returns the kind's API group; the core group is the empty one.
func (k Kind) group() string {
	switch k {
	case EndpointSlices:
		return discoveryv1.GroupName
	case ServiceCIDRs:
		return networkingv1.GroupName
	case ServiceImports:
		return convert.ServiceImportGroup
	}
	return corev1.GroupName
}

// version returns the group and version that is read. That of ServiceImports is
// found by asking.
func (k Kind) version() schema.GroupVersion {
	return schema.GroupVersion{Group: k.group(), Version: "v1"}
}

// object returns the name of the kind's objects, for people.
func (k Kind) object() string {
	switch k {
	case Services:
		return "Service"
	case EndpointSlices:
		return "EndpointSlice"
	case ServiceCIDRs:
		return "ServiceCIDR"
	case ServiceImports:
		return "ServiceImport"
	case Nodes:
		return "Node"
	}
	return "Pod"
}

// optional reports whether an API server may lack the kind.
func (k Kind) optional() bool { return k == ServiceCIDRs || k == ServiceImports }
