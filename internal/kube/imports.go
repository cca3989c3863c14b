// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"aether.io/aether/internal/convert"
)

// serviceImport is what is read of a ServiceImport. All versions have this shape.
type serviceImport struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec struct {
		Type convert.ServiceImportType `json:"type,omitempty"`
		IPs  []string                  `json:"ips,omitempty"`
	} `json:"spec,omitempty"`
}

// serviceImportList is a list of them.
type serviceImportList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []serviceImport `json:"items"`
}

// converted returns the object in the form that package convert reads.
func (s *serviceImport) converted() *convert.ServiceImport {
	return &convert.ServiceImport{
		ObjectMeta: s.ObjectMeta, Spec: convert.ServiceImportSpec{Type: s.Spec.Type, IPs: s.Spec.IPs},
	}
}

func (s *serviceImport) deepCopy() *serviceImport {
	out := *s
	s.DeepCopyInto(&out.ObjectMeta)
	out.Spec.IPs = slices.Clone(s.Spec.IPs)
	return &out
}

// DeepCopyObject is runtime.Object's.
func (s *serviceImport) DeepCopyObject() runtime.Object { return s.deepCopy() }

// DeepCopyObject is runtime.Object's.
func (l *serviceImportList) DeepCopyObject() runtime.Object {
	out := *l
	l.DeepCopyInto(&out.ListMeta)
	out.Items = nil
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].deepCopy())
	}
	return &out
}

// importScheme knows ServiceImports of one version.
func importScheme(v schema.GroupVersion) *runtime.Scheme {
	s := runtime.NewScheme()
	s.AddKnownTypeWithName(v.WithKind("ServiceImport"), &serviceImport{})
	s.AddKnownTypeWithName(v.WithKind("ServiceImportList"), &serviceImportList{})
	metav1.AddToGroupVersion(s, v)
	return s
}
