// SPDX-License-Identifier: Apache-2.0

package convert

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.io/aether/internal/model"
)

// ServiceImportGroup is the API group of ServiceImport (KEP-1645).
const ServiceImportGroup = "multicluster.x-k8s.io"

// labelManagedImport marks the imports that Aether's own registrar writes; their
// VIPs are mesh VIPs and reach the node another way.
const labelManagedImport = "aether.io/managed-service-import"

// ServiceImport is the ServiceImport of the MCS API, v1alpha1 and v1beta1, which
// have one shape. Its own module is not needed for these few fields. Those that
// Aether does not read are listed so that a misspelt one can be told from them.
type ServiceImport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ServiceImportSpec   `json:"spec,omitempty"`
	Status ServiceImportStatus `json:"status,omitempty"`
}

// ServiceImportType says whether an import has VIPs.
type ServiceImportType string

// The types of a ServiceImport.
const (
	ClusterSetIP ServiceImportType = "ClusterSetIP" // the default
	Headless     ServiceImportType = "Headless"
)

// ServiceImportSpec is what a ServiceImport asks for.
type ServiceImportSpec struct {
	Type ServiceImportType `json:"type,omitempty"`
	// IPs holds up to two VIPs, one per family. It may be empty.
	IPs []string `json:"ips,omitempty"`

	Ports                 []ServiceImportPort           `json:"ports,omitempty"`
	IPFamilies            []corev1.IPFamily             `json:"ipFamilies,omitempty"`
	SessionAffinity       corev1.ServiceAffinity        `json:"sessionAffinity,omitempty"`
	SessionAffinityConfig *corev1.SessionAffinityConfig `json:"sessionAffinityConfig,omitempty"`
	InternalTrafficPolicy *string                       `json:"internalTrafficPolicy,omitempty"`
	TrafficDistribution   *string                       `json:"trafficDistribution,omitempty"`
}

// ServiceImportPort is a port of a ServiceImport; it has no targetPort.
type ServiceImportPort struct {
	Name        string          `json:"name,omitempty"`
	Protocol    corev1.Protocol `json:"protocol,omitempty"`
	AppProtocol *string         `json:"appProtocol,omitempty"`
	Port        int32           `json:"port"`
}

// ServiceImportStatus is what an MCS implementation reports.
type ServiceImportStatus struct {
	Clusters             []ServiceImportCluster `json:"clusters,omitempty"`
	Conditions           []metav1.Condition     `json:"conditions,omitempty"`
	EndpointSliceObjects string                 `json:"endpointSliceObjects,omitempty"` // KEP-1645, not in the published CRD yet
}

// ServiceImportCluster names a cluster that exports the Service.
type ServiceImportCluster struct {
	Cluster string `json:"cluster"`
}

// Import converts a ServiceImport. ok is false when it adds nothing: a Headless
// one, one that Aether manages, one without an IPv4 VIP. An import being deleted
// still counts: its VIP is passed through until the object is gone.
func Import(s *ServiceImport) (out model.Import, ok bool) {
	if _, managed := s.Labels[labelManagedImport]; managed || (s.Spec.Type != "" && s.Spec.Type != ClusterSetIP) {
		return model.Import{}, false
	}
	out.Name = model.Name{Namespace: s.Namespace, Name: s.Name}
	for _, text := range s.Spec.IPs {
		if a, ok := ParseAddr(text); ok && a.Is4() {
			out.VIPs = append(out.VIPs, a)
		}
	}
	out.VIPs = addrSet(out.VIPs)
	if len(out.VIPs) == 0 {
		return model.Import{}, false
	}
	return out, true
}
