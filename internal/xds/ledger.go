// SPDX-License-Identifier: Apache-2.0

package xds

import "bytes"

// rejection is what Envoy said about a version.
type rejection struct {
	version string
	message string
}

// entry is what is known of one published name.
type entry struct {
	want  blob // the newest that was published
	offer blob // what is offered: want, good, or none when withdrawn
	good  blob // what an Envoy accepted last; none if nobody ever did
	nack  rejection
	named bool // Resource.Named
}

// ledger keeps, for each published name, what is wanted, what is offered and
// what Envoy thinks of it. It is a plain value without locks. The methods that may
// change what is offered report whether they did.
type ledger map[Key]*entry

// publish takes the newest bytes of a name.
func (l ledger) publish(k Key, b blob) (changed bool) {
	e := l[k]
	if e == nil {
		l[k] = &entry{want: b, offer: b}
		return true
	}
	if bytes.Equal(e.want.bytes, b.bytes) {
		return false
	}
	e.want = b
	if e.good.version == b.version {
		e.nack = rejection{} // back to what Envoy has accepted
	}
	return e.show(b)
}

// restrict says whether a published name is part of all there is.
func (l ledger) restrict(k Key, named bool) (changed bool) {
	changed = l[k].named != named
	l[k].named = named
	return changed
}

// remove forgets a name and all that was said about it. That is a change even if
// it was withdrawn: an Envoy may run an earlier version of it.
func (l ledger) remove(k Key) (changed bool) {
	_, changed = l[k]
	delete(l, k)
	return changed
}

// accept notes that an Envoy has taken a version of a name, and reports whether
// that version is what is published now. A name that had been withdrawn, because
// another Envoy refused it, is offered again.
func (l ledger) accept(k Key, b blob) (newest, changed bool) {
	e := l[k]
	if e == nil {
		return false, false
	}
	if b.version == e.want.version {
		e.good = e.want // one copy of the bytes
		e.nack = rejection{}
		return true, e.show(e.want)
	}
	e.good = b
	if e.offer.none() {
		return false, e.show(b)
	}
	return false, false
}

// reject notes that an Envoy refused a version of a name. The name falls back to
// the last accepted version, or to nothing. It stays when the refused version is
// not the newest (the newest has yet to be tried), or is itself the last accepted
// one: an Envoy lives with it, and there is nothing better.
func (l ledger) reject(k Key, version, message string) (changed bool) {
	e := l[k]
	if e == nil {
		return false
	}
	if version != e.want.version && !e.nack.none() {
		return false // the words about the newest version matter more
	}
	e.nack = rejection{version, message}
	if version != e.want.version || version == e.good.version {
		return false
	}
	return e.show(e.good)
}

func (e *entry) show(b blob) (changed bool) {
	changed = e.offer.version != b.version
	e.offer = b
	return changed
}

func (r rejection) none() bool { return r.version == "" }
