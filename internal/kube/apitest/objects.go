// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// place returns an object's kind and key.
func place(o Object) (kind, key, error) {
	k, err := kindOf(o)
	if err != nil {
		return kind{}, key{}, err
	}
	at := key{k.resource, o.GetNamespace(), o.GetName()}
	if at.name == "" || (at.namespace != "") != k.namespaced {
		return kind{}, key{}, fmt.Errorf("%s %q in namespace %q: a name is needed, and a namespace if the kind has them", k.kind, at.name, at.namespace)
	}
	return k, at, nil
}

// known reports as an error that a custom kind has no CRD now.
func (s *Server) known(k kind, at key) error {
	if k.custom && len(k.versions(s)) == 0 {
		return apierrors.NewNotFound(k.groupResource(), at.name)
	}
	return nil
}

// Create stores a new object. UID and creation time are given unless they are
// set. It errs as an API server does when there is one of that name.
func (s *Server) Create(o Object) error {
	k, at, err := place(o)
	if err == nil {
		err = s.known(k, at)
	}
	if err != nil {
		return err
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	if _, ok := s.store.objects[at]; ok {
		return apierrors.NewAlreadyExists(k.groupResource(), at.name)
	}
	s.create(k, at, o)
	return nil
}

// create stores a new object; the store is locked.
func (s *Server) create(k kind, at key, o Object) {
	fresh := o.DeepCopyObject().(Object)
	forget(fresh, s.options.Minor)
	if fresh.GetUID() == "" {
		fresh.SetUID(uuid.NewUUID())
	}
	if created := fresh.GetCreationTimestamp(); created.IsZero() {
		fresh.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	}
	if k.generation {
		fresh.SetGeneration(1)
	}
	s.store.write(at, fresh, stamp)
}

func stamp(o Object, version uint64) { o.SetResourceVersion(strconv.FormatUint(version, 10)) }

// Update replaces a stored object. UID, creation and deletion time stay. One that
// says what is stored already is no write. It errs as an API server does when
// there is none of that name, or one of another resourceVersion than o names. The
// last finalizer taken from an object under deletion removes it.
func (s *Server) Update(o Object) error {
	k, at, err := place(o)
	if err != nil {
		return err
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	return s.update(k, at, o)
}

// update replaces a stored object; the store is locked.
func (s *Server) update(k kind, at key, o Object) error {
	old, ok := s.store.objects[at]
	if !ok {
		return apierrors.NewNotFound(k.groupResource(), at.name)
	}
	if v := o.GetResourceVersion(); v != "" && v != old.GetResourceVersion() {
		return apierrors.NewConflict(k.groupResource(), at.name, fmt.Errorf("the object has been modified"))
	}
	fresh := o.DeepCopyObject().(Object)
	forget(fresh, s.options.Minor)
	fresh.SetUID(old.GetUID())
	fresh.SetCreationTimestamp(old.GetCreationTimestamp())
	fresh.SetDeletionTimestamp(old.GetDeletionTimestamp())
	fresh.SetResourceVersion(old.GetResourceVersion())
	fresh.SetGeneration(old.GetGeneration())
	if equality.Semantic.DeepEqual(old, fresh) {
		return nil
	}
	if k.generation && !sameContent(old, fresh) {
		fresh.SetGeneration(old.GetGeneration() + 1)
	}
	if fresh.GetDeletionTimestamp() != nil && len(fresh.GetFinalizers()) == 0 {
		s.store.write(at, nil, stamp)
		return nil
	}
	s.store.write(at, fresh, stamp)
	return nil
}

// sameContent reports whether two objects differ in their metadata at most, or
// (custom ones and Pods) in their status.
func sameContent(a, b Object) bool {
	return equality.Semantic.DeepEqual(content(a), content(b))
}

func content(o Object) map[string]any {
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		panic(fmt.Sprintf("apitest: read %T: %v", o, err)) // every kind here can be read
	}
	out := map[string]any{}
	for field, v := range m {
		if field != "metadata" && field != "status" {
			out[field] = v
		}
	}
	return out
}

// Delete removes an object, or marks it when it has finalizers. It errs as an API
// server does when there is none of that name.
func (s *Server) Delete(o Object) error {
	k, at, err := place(o)
	if err != nil {
		return err
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	old, ok := s.store.objects[at]
	if !ok {
		return apierrors.NewNotFound(k.groupResource(), at.name)
	}
	if len(old.GetFinalizers()) == 0 {
		s.store.write(at, nil, stamp)
		return nil
	}
	if old.GetDeletionTimestamp() == nil {
		marked := old.DeepCopyObject().(Object)
		now := metav1.NewTime(time.Now().Truncate(time.Second))
		marked.SetDeletionTimestamp(&now)
		s.store.write(at, marked, stamp)
	}
	return nil
}

// Apply creates or replaces objects. It panics for objects that no API server
// would take, among them ServiceImports without their CRD, which are mistakes in
// the test.
func (s *Server) Apply(objects ...Object) {
	for _, o := range objects {
		k, at, err := place(o)
		if err == nil {
			err = s.known(k, at)
		}
		if err != nil {
			panic("apitest: " + err.Error())
		}
		s.store.mu.Lock()
		if _, ok := s.store.objects[at]; !ok {
			s.create(k, at, o)
		} else {
			fresh := o.DeepCopyObject().(Object)
			fresh.SetResourceVersion("")
			err = s.update(k, at, fresh)
		}
		s.store.mu.Unlock()
		if err != nil {
			panic("apitest: " + err.Error())
		}
	}
}

// Stored returns what is stored under an object's kind and name. It must not be
// modified.
func (s *Server) Stored(o Object) (Object, bool) {
	_, at, err := place(o)
	if err != nil {
		return nil, false
	}
	return s.store.get(at)
}

// Objects returns everything stored of a resource ("services"), in order of their
// keys. They must not be modified.
func (s *Server) Objects(resource string) (out []Object) {
	_, all, _ := s.store.now(resource)
	for _, o := range all {
		out = append(out, o.object)
	}
	return out
}

// Version returns the resourceVersion of the last write.
func (s *Server) Version() uint64 {
	v, _ := s.store.state()
	return v
}

// Advance raises the resourceVersion as if other objects had been written.
func (s *Server) Advance(by uint64) { s.store.advance(by) }

// Compact forgets all history: a watch can no longer begin at a version before
// now, nor can a page of an older list be had.
func (s *Server) Compact() { s.store.compact() }

// InstallServiceImports installs the CRD of ServiceImport with the versions, the
// preferred first, or replaces them. Watches of a version that is no longer
// served end.
func (s *Server) InstallServiceImports(versions ...string) {
	s.mu.Lock()
	s.imports = slices.Clone(versions)
	s.mu.Unlock()
	s.faults.end(func(st *stream) bool {
		return st.kind.resource == "serviceimports" && !slices.Contains(versions, st.version)
	}, endClosed)
}

// RemoveServiceImports removes the CRD, and with it all imports.
func (s *Server) RemoveServiceImports() {
	s.store.mu.Lock()
	for _, o := range sorted(s.store.objects, "serviceimports") {
		s.store.write(o.key, nil, stamp)
	}
	s.store.mu.Unlock()
	s.InstallServiceImports()
}

// ServiceImport makes an import of type ClusterSetIP with the VIPs.
func ServiceImport(namespace, name string, ips ...string) *unstructured.Unstructured {
	list := make([]any, 0, len(ips))
	for _, ip := range ips {
		list = append(list, ip)
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": ImportGroup + "/v1beta1", "kind": "ServiceImport",
		"metadata": map[string]any{"namespace": namespace, "name": name},
		"spec":     map[string]any{"type": "ClusterSetIP", "ips": list},
	}}
	u.SetUID(types.UID("import-" + namespace + "-" + name))
	return u
}
