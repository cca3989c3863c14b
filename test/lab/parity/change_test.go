// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// finalizer keeps a deleted Service from going.
const finalizer = "parity.aether.io/wait"

// oldVIPs is how many former addresses of a family are dialled.
const oldVIPs = 2

// wrote books one write. What the API server refuses to accept is counted; another
// error is one of the test's.
func (f *family) wrote(what string, err error) (accepted bool, _ error) {
	switch {
	case err == nil:
		f.accepted++
		return true, nil
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err),
		strings.Contains(err.Error(), "duplicate nodePort"): // told as an internal error
		f.rejected++
		f.note("refused: %s: %v", what, err)
		return false, nil
	}
	return false, fmt.Errorf("family %d: %s: %w", f.index, what, err)
}

// set makes the Service what the API server has made of it; nil: it is gone.
func (f *family) set(s *corev1.Service) {
	before, now := clusterIP(f.service), clusterIP(s)
	f.service = s
	f.old = slices.DeleteFunc(f.old, func(a netip.Addr) bool { return a == now || a == before })
	if before.IsValid() && before != now {
		f.old = append([]netip.Addr{before}, f.old...)
		f.old = f.old[:min(len(f.old), oldVIPs)]
	}
}

// change makes the changes of one round.
func (p *parity) change(ctx context.Context, f *family) error {
	f.changes, f.accepted, f.rejected, f.round = nil, 0, 0, p.round
	if len(f.left) > 0 && f.one(2) {
		return p.renew(ctx, f)
	}
	for n := 1 + f.IntN(2); n > 0 || f.accepted == 0 && n > -5; n-- {
		if err := p.changeOnce(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

func (p *parity) changeOnce(ctx context.Context, f *family) error {
	s := f.service
	switch {
	case s == nil && !f.one(4):
		return p.create(ctx, f, f.drawService())
	case s != nil && s.DeletionTimestamp != nil && f.one(2):
		s = s.DeepCopy()
		s.Finalizers = nil
		return p.update(ctx, f, s, "let go of the deleted one")
	case s == nil || f.one(2):
		return p.changeSlices(ctx, f)
	case s.DeletionTimestamp != nil:
		return nil
	}
	s = s.DeepCopy()
	switch n := f.IntN(24); {
	case n == 0:
		return p.delete(ctx, f)
	case n < 3:
		return p.recreate(ctx, f)
	case n == 3:
		s.Finalizers = []string{finalizer}
		if err := p.update(ctx, f, s, "finalizer"); err != nil {
			return err
		}
		return p.delete(ctx, f)
	case n < 7 && s.Spec.Type == corev1.ServiceTypeLoadBalancer:
		s.Status.LoadBalancer.Ingress = f.ingressOf()
		return p.updateStatus(ctx, f, s)
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		f.fromExternalName(s)
	case clusterIP(s).IsValid() && n == 7:
		f.toExternalName(s)
	case n < 14:
		f.changePorts(s)
		if err := p.update(ctx, f, s, "change of ports"); err != nil || len(f.slices) == 0 || f.one(3) {
			return err
		}
		slice := f.slices[pick(f, f.sliceNames()...)].DeepCopy()
		f.drawSlicePorts(slice)
		f.note("slice %s follows", slice.Name)
		return p.updateSlice(ctx, f, slice)
	default:
		f.changeField(s)
	}
	return p.update(ctx, f, s, "change of the Service")
}

func (p *parity) create(ctx context.Context, f *family, s *corev1.Service) error {
	made, err := p.Client().CoreV1().Services(p.Namespace).Create(ctx, s, metav1.CreateOptions{})
	ok, err := f.wrote("create Service", err)
	if !ok {
		return err
	}
	f.set(made)
	if len(made.Spec.Selector) == 0 && len(f.slices) < 2 {
		return p.changeSlices(ctx, f)
	}
	return nil
}

func (p *parity) update(ctx context.Context, f *family, s *corev1.Service, what string) error {
	s.ResourceVersion = "" // whatever it is now
	made, err := p.Client().CoreV1().Services(p.Namespace).Update(ctx, s, metav1.UpdateOptions{})
	ok, err := f.wrote(what, err)
	switch {
	case ok && made.DeletionTimestamp != nil && len(made.Finalizers) == 0:
		f.set(nil)
	case ok:
		f.set(made)
	}
	return err
}

func (p *parity) updateStatus(ctx context.Context, f *family, s *corev1.Service) error {
	s.ResourceVersion = ""
	f.note("load balancer %v", s.Status.LoadBalancer.Ingress)
	made, err := p.Client().CoreV1().Services(p.Namespace).UpdateStatus(ctx, s, metav1.UpdateOptions{})
	ok, err := f.wrote("load balancer", err)
	if ok {
		f.set(made)
	}
	return err
}

func (p *parity) delete(ctx context.Context, f *family) error {
	f.note("delete Service")
	services := p.Client().CoreV1().Services(p.Namespace)
	ok, err := f.wrote("delete Service", services.Delete(ctx, f.service.Name, metav1.DeleteOptions{}))
	if !ok {
		return err
	}
	left, err := services.Get(ctx, f.service.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		left, err = nil, nil
	}
	if err == nil {
		f.set(left)
	}
	return err
}

// recreate deletes the Service and makes another of its name at once: at the same
// address, at another, or headless.
func (p *parity) recreate(ctx context.Context, f *family) error {
	if err := p.delete(ctx, f); err != nil || f.service != nil {
		return err
	}
	s := f.drawService()
	switch f.IntN(4) {
	case 0:
		s.Spec.Type, s.Spec.ClusterIP = corev1.ServiceTypeClusterIP, corev1.ClusterIPNone
		s.Spec.ExternalIPs = nil
		f.tidy(s)
		f.note("headless")
	case 1:
		if len(f.old) > 0 {
			s.Spec.ClusterIP = f.old[0].String()
			f.note("again at %s", s.Spec.ClusterIP)
		}
	}
	return p.create(ctx, f, s)
}

func (p *parity) changeSlices(ctx context.Context, f *family) error {
	names := f.sliceNames()
	free := fmt.Sprintf("%s-s%d", f.name(), f.IntN(3))
	switch n := f.IntN(20); {
	case f.slices[free] == nil && (n < 8 || len(names) == 0):
		return p.createSlice(ctx, f, f.drawSlice(free))
	case len(names) == 0:
		return nil
	case n < 3:
		return p.deleteSlice(ctx, f, pick(f, names...))
	case n < 6:
		return p.giveAway(ctx, f, pick(f, names...))
	case n == 6 && len(names) > 1:
		return p.move(ctx, f, names)
	}
	s := f.slices[pick(f, names...)].DeepCopy()
	f.changeSlice(s)
	return p.updateSlice(ctx, f, s)
}

func (p *parity) createSlice(ctx context.Context, f *family, s *discoveryv1.EndpointSlice) error {
	made, err := p.Client().DiscoveryV1().EndpointSlices(p.Namespace).Create(ctx, s, metav1.CreateOptions{})
	ok, err := f.wrote("create slice", err)
	if ok {
		f.slices[s.Name] = made
		if read(made) {
			delete(f.left, s.Name)
		}
	}
	return err
}

func (p *parity) updateSlice(ctx context.Context, f *family, s *discoveryv1.EndpointSlice) error {
	s.ResourceVersion = ""
	made, err := p.Client().DiscoveryV1().EndpointSlices(p.Namespace).Update(ctx, s, metav1.UpdateOptions{})
	ok, err := f.wrote("change slice", err)
	if ok {
		f.slices[s.Name] = made
	}
	return err
}

func (p *parity) deleteSlice(ctx context.Context, f *family, name string) error {
	f.note("delete slice %s", name)
	err := p.Client().DiscoveryV1().EndpointSlices(p.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) { // with its Service, by a controller
		err = nil
	}
	ok, err := f.wrote("delete slice", err)
	if ok {
		delete(f.slices, name)
	}
	return err
}

// read reports whether kube-proxy reads the slice for IPv4.
func read(s *discoveryv1.EndpointSlice) bool {
	_, hidden := s.Labels[corev1.IsHeadlessService]
	return !hidden && s.AddressType == discoveryv1.AddressTypeIPv4
}

// giveAway changes which Service a slice is of. The family has nothing to do with
// it any more; kube-proxy does not know.
func (p *parity) giveAway(ctx context.Context, f *family, name string) error {
	s := f.slices[name].DeepCopy()
	if f.one(2) {
		s.Labels[discoveryv1.LabelServiceName] = "somebody"
	} else {
		delete(s.Labels, discoveryv1.LabelServiceName)
	}
	f.note("slice %s is of %q now", name, s.Labels[discoveryv1.LabelServiceName])
	wasRead, before := read(s), f.accepted
	if err := p.updateSlice(ctx, f, s); err != nil || f.accepted == before {
		return err
	}
	if wasRead {
		f.left[name] = true
	}
	// It goes, so that its name is free; kube-proxy takes that for the other's.
	return p.deleteSlice(ctx, f, name)
}

// move moves an endpoint from a slice to another, which is in both for a moment or
// in neither.
func (p *parity) move(ctx context.Context, f *family, names []string) error {
	i := f.IntN(len(names))
	from, to := f.slices[names[i]].DeepCopy(), f.slices[names[(i+1)%len(names)]].DeepCopy()
	if len(from.Endpoints) == 0 || from.AddressType != to.AddressType {
		return nil
	}
	f.note("move an endpoint from %s to %s", from.Name, to.Name)
	to.Endpoints = append(to.Endpoints, from.Endpoints[0])
	from.Endpoints = from.Endpoints[1:]
	order := []*discoveryv1.EndpointSlice{to, from}
	if f.one(2) {
		slices.Reverse(order)
	}
	for _, s := range order {
		if err := p.updateSlice(ctx, f, s); err != nil {
			return err
		}
	}
	return nil
}

// renew gives the family a Service of another name, of which kube-proxy remembers
// nothing.
func (p *parity) renew(ctx context.Context, f *family) error {
	for _, name := range f.sliceNames() {
		if err := p.deleteSlice(ctx, f, name); err != nil {
			return err
		}
	}
	if s := f.service; s != nil {
		if len(s.Finalizers) > 0 {
			s = s.DeepCopy()
			s.Finalizers = nil
			if err := p.update(ctx, f, s, "let go"); err != nil {
				return err
			}
		}
		if f.service != nil {
			if err := p.delete(ctx, f); err != nil {
				return err
			}
		}
	}
	f.generation++
	clear(f.left)
	return p.create(ctx, f, f.drawService())
}
