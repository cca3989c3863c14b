// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"slices"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// view is what the Envoy of one stream wants and has of one type. It finds what
// has to be sent from the names that something happened to, so that an answer
// costs what it brings, however much is offered.
//
// A view is guarded by Server.mu.
type view struct {
	wildcard bool
	names    map[string]struct{} // subscribed to by name

	// has are the versions that Envoy has or is being sent; "" is an unknown one.
	has map[string]string
	// listed are the names that Envoy said it has when it connected: it got them
	// over another stream, maybe from an earlier server.
	listed map[string]struct{}
	// dirty are the wanted names for which Envoy may have to be sent something.
	// Those that are held stay here.
	dirty map[string]struct{}

	queue   []flight          // made, and not yet sent
	flights map[string]flight // sent, by nonce, and not yet acknowledged
	busy    map[string]int    // by name: how many of both carry it

	search search
	begun  bool // its first request was passed on
}

// flight is one response.
type flight struct {
	resources []sent   // by name
	removed   []string // sorted
	trial     int      // the group of the search that it carries, or 0
}

type sent struct {
	name string
	blob blob
}

func (f flight) empty() bool { return len(f.resources)+len(f.removed) == 0 }

func (f flight) response(t Type) *discovery.DeltaDiscoveryResponse {
	resp := &discovery.DeltaDiscoveryResponse{TypeUrl: string(t), RemovedResources: f.removed}
	for _, r := range f.resources {
		resp.Resources = append(resp.Resources, &discovery.Resource{
			Name:     r.name,
			Version:  r.blob.version,
			Resource: &anypb.Any{TypeUrl: string(t), Value: r.blob.bytes},
		})
	}
	return resp
}

func (f flight) names() []string {
	names := make([]string, len(f.resources))
	for i, r := range f.resources {
		names[i] = r.name
	}
	return names
}

// newView starts a view from the first request of its type on a stream.
func newView(t Type, req *discovery.DeltaDiscoveryRequest, l ledger) *view {
	v := &view{
		names:   map[string]struct{}{},
		has:     map[string]string{},
		listed:  map[string]struct{}{},
		dirty:   map[string]struct{}{},
		flights: map[string]flight{},
		busy:    map[string]int{},
	}
	subscribe := req.GetResourceNamesSubscribe()
	if len(subscribe) == 0 && t != Assignment {
		// An empty first request means all there is, except for assignments: Envoy
		// always asks for those by name.
		subscribe = []string{"*"}
	}
	v.subscribe(t, subscribe, l)
	v.unsubscribe(req.GetResourceNamesUnsubscribe())
	for name, version := range req.GetInitialResourceVersions() {
		if v.wants(name) {
			v.has[name] = version
			v.listed[name] = struct{}{}
			v.dirty[name] = struct{}{}
		}
	}
	return v
}

// subscribe adds names and returns those that are new, sorted. What Envoy has been
// sent is sent again when it asks for it: it does so when it has dropped a resource.
func (v *view) subscribe(t Type, names []string, l ledger) (added []string) {
	for _, name := range names {
		if name == "*" {
			v.wildcard = true
			for k := range l {
				if k.Type == t {
					v.dirty[k.Name] = struct{}{}
				}
			}
			continue
		}
		if _, old := v.names[name]; !old {
			v.names[name] = struct{}{}
			added = append(added, name)
		}
		if _, has := v.has[name]; has {
			v.resend(name)
		}
		v.dirty[name] = struct{}{}
	}
	slices.Sort(added)
	return added
}

func (v *view) unsubscribe(names []string) {
	for _, name := range names {
		if name == "*" {
			v.wildcard = false
			for name := range v.has {
				if !v.wants(name) {
					v.forget(name)
				}
			}
			continue
		}
		_, named := v.names[name]
		delete(v.names, name)
		switch {
		case !v.wildcard:
			v.forget(name)
		case named:
			v.resend(name) // the protocol wants an answer: here it is, or it is gone
		}
	}
}

// forget drops what Envoy has dropped.
func (v *view) forget(name string) {
	delete(v.has, name)
	delete(v.listed, name)
	delete(v.dirty, name)
	v.search.drop(name)
}

func (v *view) wants(name string) bool {
	if v.wildcard {
		return true
	}
	_, ok := v.names[name]
	return ok
}

// entitled reports whether Envoy gets what is offered under a name that it wants.
func (v *view) entitled(e *entry, name string) bool {
	if !e.named {
		return true
	}
	_, asked := v.names[name]
	_, listed := v.listed[name]
	return asked || listed
}

// held reports whether name must not be sent now: it is in flight, or the guilty are
// being searched for among others.
func (v *view) held(name string) bool {
	return v.busy[name] > 0 || v.search.excludes(name)
}

// touch notes that what is offered under name has changed.
func (v *view) touch(name string, offered bool) {
	if !offered {
		v.search.drop(name)
	}
	if v.wants(name) {
		v.dirty[name] = struct{}{}
	}
}

// resend notes that it is unknown what Envoy has under name.
func (v *view) resend(name string) {
	if v.wants(name) {
		v.has[name] = ""
		v.dirty[name] = struct{}{}
	}
}

// next makes the response that Envoy needs now, which may be empty, and counts it
// as made. Replaced are the names of resources that Envoy had in another version.
func (v *view) next(t Type, l ledger) (f flight, replaced []string) {
	f.trial = v.search.trial()
	for name := range v.dirty {
		if v.held(name) {
			continue
		}
		delete(v.dirty, name)
		e := l[Key{t, name}]
		version, has := v.has[name]
		_, listed := v.listed[name]
		switch {
		case e != nil && !e.offer.none() && v.entitled(e, name):
			if has && version == e.offer.version {
				continue
			}
			if has {
				replaced = append(replaced, name)
			}
			f.resources = append(f.resources, sent{name, e.offer})
			v.has[name] = e.offer.version
			v.busy[name]++
		case e != nil && listed:
			// Withdrawn, only because Envoy rejected it: it keeps what it came with.
			v.has[name] = ""
		case has:
			f.removed = append(f.removed, name)
			delete(v.has, name)
			delete(v.listed, name)
		}
	}
	slices.SortFunc(f.resources, func(a, b sent) int { return strings.Compare(a.name, b.name) })
	slices.Sort(f.removed)
	return f, replaced
}

// made queues a response for sending.
func (v *view) made(f flight) { v.queue = append(v.queue, f) }

// send notes that the oldest response in the queue goes out.
func (v *view) send(nonce string) flight {
	f := v.queue[0]
	v.queue = v.queue[1:]
	v.flights[nonce] = f
	return f
}

// settle ends a flight: its names may be sent again.
func (v *view) settle(nonce string) (flight, bool) {
	f, ok := v.flights[nonce]
	if !ok {
		return flight{}, false
	}
	delete(v.flights, nonce)
	for _, r := range f.resources {
		if v.busy[r.name]--; v.busy[r.name] == 0 {
			delete(v.busy, r.name)
		}
	}
	return f, true
}
