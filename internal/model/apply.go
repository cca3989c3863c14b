// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
)

// Apply returns the State after the changes, in order, and what they touched.
// The State keeps the lists inside the changes: they must not be modified
// afterwards. A change that says what the State holds already touches nothing.
func (s *State) Apply(cs []Change) (*State, Dirty) {
	d := newDraft(s)
	for _, c := range cs {
		d.apply(c)
	}
	return d.finish()
}

// draft is a State in the making.
type draft struct {
	from  *State
	dirty Dirty

	services           writer[Name, *Service]
	vips, externals    writer[netip.Addr, []*Service]
	slices             writer[Name, *Slice]
	byService          writer[Name, []*Slice]
	imports            writer[Name, *Import]
	importVIPs         writer[netip.Addr, []*Import]
	nodes              writer[string, Node]
	workloads          writer[Name, Workload]
	cidrs              map[string][]netip.Prefix
	changed, newRanges bool
}

func newDraft(s *State) *draft {
	d := &draft{from: s, cidrs: s.cidrs}
	d.services.table = s.services
	d.vips.table, d.externals.table = s.vips, s.externals
	d.slices.table, d.byService.table = s.slices, s.byService
	d.imports.table, d.importVIPs.table = s.imports, s.importVIPs
	d.nodes.table, d.workloads.table = s.nodes, s.workloads
	return d
}

func (d *draft) finish() (*State, Dirty) {
	if !d.changed {
		return d.from, d.dirty
	}
	next := &State{
		options:  d.from.options,
		services: d.services.table, vips: d.vips.table, externals: d.externals.table,
		slices: d.slices.table, byService: d.byService.table,
		imports: d.imports.table, importVIPs: d.importVIPs.table,
		nodes: d.nodes.table, workloads: d.workloads.table,
		cidrs: d.cidrs, rng: d.from.rng,
	}
	if d.newRanges {
		next.rng = next.ranges()
		d.dirty.Range = !next.rng.equal(d.from.rng)
	}
	before, _ := d.from.APIServer()
	after, _ := next.APIServer()
	if before != after {
		d.dirty.Range = true
	}
	return next, d.dirty
}

func (d *draft) apply(c Change) {
	switch c := c.(type) {
	case SetService:
		d.setService(&c.Service)
	case DeleteService:
		d.deleteService(c)
	case SetSlice:
		d.setSlice(&c.Slice)
	case DeleteSlice:
		d.deleteSlice(c.Name)
	case SetServiceCIDR:
		d.setCIDR(c)
	case DeleteServiceCIDR:
		d.deleteCIDR(c.Name)
	case SetImport:
		d.setImport(&c.Import)
	case DeleteImport:
		d.deleteImport(c.Name)
	case SetNode, DeleteNode:
		d.applyNode(c)
	case SetWorkload, DeleteWorkload:
		d.applyWorkload(c)
	}
}

func (d *draft) setService(svc *Service) {
	old, held := d.services.get(svc.Name)
	if held && old.equal(svc) {
		return
	}
	d.changed = true
	if held {
		d.withdraw(old)
	}
	d.services.set(svc.Name, svc)
	if svc.VIP.IsValid() {
		claims, _ := d.vips.get(svc.VIP)
		d.vips.set(svc.VIP, withClaim(claims, svc))
	}
	for _, a := range svc.externalIPs() {
		claims, _ := d.externals.get(a)
		d.externals.set(a, withClaim(claims, svc))
	}
	d.claim(svc)
}

func (d *draft) deleteService(c DeleteService) {
	old, held := d.services.get(c.Name)
	if !held || (c.UID != "" && c.UID != old.UID) {
		return
	}
	d.changed = true
	d.withdraw(old)
	d.services.delete(c.Name)
}

// withdraw takes the Service's claims on addresses back.
func (d *draft) withdraw(svc *Service) {
	if svc.VIP.IsValid() {
		claims, _ := d.vips.get(svc.VIP)
		setList(&d.vips, svc.VIP, without(claims, svc))
	}
	for _, a := range svc.externalIPs() {
		claims, _ := d.externals.get(a)
		setList(&d.externals, a, without(claims, svc))
	}
	d.claim(svc)
}

// touch marks every address of the Service.
func (d *draft) touch(svc *Service) {
	if svc.VIP.IsValid() {
		mark(&d.dirty.Addrs, svc.VIP)
	}
	for _, a := range svc.externalIPs() {
		mark(&d.dirty.Addrs, a)
	}
}

// claim marks every address of a Service that is not what it was.
func (d *draft) claim(svc *Service) {
	d.touch(svc)
	if svc.VIP.IsValid() {
		mark(&d.dirty.Claims, svc.VIP)
	}
	for _, a := range svc.externalIPs() {
		mark(&d.dirty.Claims, a)
	}
}

func (d *draft) touchByName(n Name) {
	if svc, ok := d.services.get(n); ok {
		d.touch(svc)
	}
}

func (d *draft) setSlice(sl *Slice) {
	old, held := d.slices.get(sl.Name)
	if held && old.equal(sl) {
		return
	}
	d.changed = true
	if held && old.service() != sl.service() {
		d.detach(old)
	}
	d.slices.set(sl.Name, sl)
	list, _ := d.byService.get(sl.service())
	d.byService.set(sl.service(), withNamed(list, sl, (*Slice).name))
	d.touchByName(sl.service())
}

func (d *draft) deleteSlice(n Name) {
	old, held := d.slices.get(n)
	if !held {
		return
	}
	d.changed = true
	d.detach(old)
	d.slices.delete(n)
}

// detach takes the slice from the Service it belongs to.
func (d *draft) detach(sl *Slice) {
	list, _ := d.byService.get(sl.service())
	setList(&d.byService, sl.service(), without(list, sl))
	d.touchByName(sl.service())
}

func (d *draft) setCIDR(c SetServiceCIDR) {
	if old, held := d.cidrs[c.Name]; held && slices.Equal(old, c.Prefixes) {
		return
	}
	d.changed, d.newRanges = true, true
	d.cidrs = withCIDR(d.cidrs, c.Name, c.Prefixes)
}

func (d *draft) deleteCIDR(name string) {
	if _, held := d.cidrs[name]; !held {
		return
	}
	d.changed, d.newRanges = true, true
	d.cidrs = maps.Clone(d.cidrs)
	delete(d.cidrs, name)
}

func (d *draft) setImport(im *Import) {
	old, held := d.imports.get(im.Name)
	if held && slices.Equal(old.VIPs, im.VIPs) {
		return
	}
	if held {
		d.withdrawImport(old)
	}
	d.changed, d.newRanges = true, true
	d.imports.set(im.Name, im)
	for _, a := range distinct(im.VIPs) {
		list, _ := d.importVIPs.get(a)
		d.importVIPs.set(a, withNamed(list, im, (*Import).name))
		mark(&d.dirty.Addrs, a)
		mark(&d.dirty.Claims, a)
	}
}

func (d *draft) deleteImport(n Name) {
	old, held := d.imports.get(n)
	if !held {
		return
	}
	d.changed, d.newRanges = true, true
	d.withdrawImport(old)
	d.imports.delete(n)
}

func (d *draft) withdrawImport(im *Import) {
	for _, a := range distinct(im.VIPs) {
		list, _ := d.importVIPs.get(a)
		setList(&d.importVIPs, a, without(list, im))
		mark(&d.dirty.Addrs, a)
		mark(&d.dirty.Claims, a)
	}
}

func (d *draft) applyNode(c Change) {
	switch c := c.(type) {
	case SetNode:
		d.changed = put(&d.nodes, &d.dirty.Nodes, c.Node.Name, c.Node) || d.changed
	case DeleteNode:
		d.changed = drop(&d.nodes, &d.dirty.Nodes, c.Name) || d.changed
	}
}

func (d *draft) applyWorkload(c Change) {
	switch c := c.(type) {
	case SetWorkload:
		d.changed = put(&d.workloads, &d.dirty.Workloads, c.Workload.Name, c.Workload) || d.changed
	case DeleteWorkload:
		d.changed = drop(&d.workloads, &d.dirty.Workloads, c.Name) || d.changed
	}
}

// put sets an object and marks its key; an equal one changes nothing.
func put[K, V comparable](w *writer[K, V], dirty *map[K]struct{}, k K, v V) (changed bool) {
	if old, held := w.get(k); held && old == v {
		return false
	}
	w.set(k, v)
	mark(dirty, k)
	return true
}

// drop removes an object and marks its key.
func drop[K, V comparable](w *writer[K, V], dirty *map[K]struct{}, k K) (changed bool) {
	if _, held := w.get(k); !held {
		return false
	}
	w.delete(k)
	mark(dirty, k)
	return true
}

func mark[K comparable](set *map[K]struct{}, k K) {
	if *set == nil {
		*set = map[K]struct{}{}
	}
	(*set)[k] = struct{}{}
}

// withClaim returns the claims with svc in its place, the strongest first.
func withClaim(claims []*Service, svc *Service) []*Service {
	i, _ := slices.BinarySearchFunc(claims, svc, compareClaims)
	return slices.Insert(slices.Clip(claims), i, svc)
}

// compareClaims orders Services that claim one address, the strongest first: a
// live one, then the older (an unknown time of creation counts as the oldest),
// then the smaller name.
func compareClaims(a, b *Service) int {
	return cmp.Or(
		compareBool(a.Deleting, b.Deleting),
		cmp.Compare(a.Created, b.Created),
		a.Name.Compare(b.Name),
	)
}

// compareBool sorts false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// withNamed returns a list sorted by name with v in it, in the place of its
// namesake if there is one.
func withNamed[T any](list []*T, v *T, name func(*T) Name) []*T {
	i, held := slices.BinarySearchFunc(list, v, func(a, b *T) int { return name(a).Compare(name(b)) })
	if held {
		next := slices.Clone(list)
		next[i] = v
		return next
	}
	return slices.Insert(slices.Clip(list), i, v)
}

// without returns a copy of the list that lacks v itself.
func without[T any](list []*T, v *T) []*T {
	i := slices.Index(list, v)
	if i < 0 {
		return list
	}
	return slices.Concat(list[:i], list[i+1:])
}
