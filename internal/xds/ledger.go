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
	offer blob // what the cache holds: want, good, or none when withdrawn
	good  blob // what an Envoy accepted last; none if nobody ever did
	nack  rejection
}

// ledger keeps, for each published name, what is wanted, what is offered and
// what Envoy thinks of it. It is a plain value without locks; its methods return
// what the cache has to hold now.
type ledger map[Key]*entry

// verdict is what the cache has to do for a key.
type verdict int

const (
	keep   verdict = iota // as it is
	offer                 // hold entry.offer
	retire                // hold nothing
)

// publish takes the newest bytes of a name.
func (l ledger) publish(k Key, b blob) verdict {
	e := l[k]
	if e == nil {
		l[k] = &entry{want: b, offer: b}
		return offer
	}
	if bytes.Equal(e.want.bytes, b.bytes) {
		return keep
	}
	e.want = b
	if e.good.version == b.version {
		e.nack = rejection{} // back to what Envoy has accepted
	}
	return e.show(b)
}

// remove forgets a name and all that was said about it. One that was withdrawn is
// retired too: an Envoy may still run an earlier version of it.
func (l ledger) remove(k Key) verdict {
	if l[k] == nil {
		return keep
	}
	delete(l, k)
	return retire
}

// accept notes that an Envoy has taken a version of a name, and reports whether
// that version is what is published now. A name that had been withdrawn, because
// another Envoy refused it, is offered again.
func (l ledger) accept(k Key, b blob) (newest bool, v verdict) {
	e := l[k]
	if e == nil {
		return false, keep
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
	return false, keep
}

// reject notes that an Envoy refused a version of a name. The name falls back to
// the last accepted version, or to nothing. It stays when the refused version is
// not the newest (the newest has yet to be tried), or is itself the last accepted
// one: an Envoy lives with it, and there is nothing better.
func (l ledger) reject(k Key, version, message string) verdict {
	e := l[k]
	if e == nil {
		return keep
	}
	if version != e.want.version && !e.nack.none() {
		return keep // the words about the newest version matter more
	}
	e.nack = rejection{version, message}
	if version != e.want.version || version == e.good.version {
		return keep
	}
	return e.show(e.good)
}

func (e *entry) show(b blob) verdict {
	if e.offer.version == b.version {
		return keep
	}
	e.offer = b
	if b.none() {
		return retire
	}
	return offer
}

func (r rejection) none() bool { return r.version == "" }
