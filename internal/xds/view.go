// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"slices"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
)

// view is what the linear cache is told about one type on one stream: what Envoy
// wants and which versions it has. The cache sends whatever differs, so telling it
// less or more than the truth is how a resource is sent again (an unknown version)
// or held back (the version that is offered now).
//
// A view is guarded by Server.mu.
type view struct {
	wildcard bool
	names    map[string]struct{} // subscribed to by name

	// told maps names to the version the cache believes Envoy has; "" is some
	// unknown version. It is true except for names in due.
	told map[string]string
	// due are names that were held back although they had changed.
	due map[string]struct{}
	// holds are the names that Envoy said it has when it connected: it got them
	// over another stream, maybe from an earlier server.
	holds map[string]struct{}

	flights map[string]flight // by nonce: responses without an acknowledgement
	busy    map[string]int    // by name: how many of flights carry it

	search search
}

// flight is a response that was sent.
type flight struct {
	resources []sent
	removed   []string
}

type sent struct {
	name string
	blob blob
}

func (f flight) names() []string {
	names := make([]string, len(f.resources))
	for i, r := range f.resources {
		names[i] = r.name
	}
	return names
}

// newView starts a view from the first request of its type on a stream.
func newView(typ Type, req *discovery.DeltaDiscoveryRequest) *view {
	v := &view{
		names:   map[string]struct{}{},
		told:    map[string]string{},
		due:     map[string]struct{}{},
		holds:   map[string]struct{}{},
		flights: map[string]flight{},
		busy:    map[string]int{},
	}
	for name, version := range req.GetInitialResourceVersions() {
		v.told[name] = version
		v.holds[name] = struct{}{}
	}
	// An empty first request means all there is, except for assignments: Envoy
	// always asks for those by name.
	v.wildcard = typ != Assignment && len(req.GetResourceNamesSubscribe()) == 0
	v.subscribe(req.GetResourceNamesSubscribe(), false)
	v.unsubscribe(req.GetResourceNamesUnsubscribe())
	return v
}

// subscribe adds names and returns those that are new, sorted. With again, a
// name that Envoy asks for is sent although it has been sent before: Envoy asks
// once more when it has dropped a resource.
func (v *view) subscribe(names []string, again bool) (added []string) {
	for _, name := range names {
		if name == "*" {
			v.wildcard = true
			continue
		}
		if _, old := v.names[name]; !old {
			v.names[name] = struct{}{}
			added = append(added, name)
		}
		if _, known := v.told[name]; known && again {
			v.resend(name)
		}
	}
	slices.Sort(added)
	return added
}

func (v *view) unsubscribe(names []string) {
	for _, name := range names {
		if name == "*" {
			v.wildcard = false
			continue
		}
		_, named := v.names[name]
		delete(v.names, name)
		if named && v.wildcard {
			v.told[name] = "" // the protocol wants an answer: here it is, or it is gone
			continue
		}
		v.forget(name)
		delete(v.holds, name)
		v.drop(name)
	}
}

func (v *view) wants(name string) bool {
	if v.wildcard {
		return true
	}
	_, ok := v.names[name]
	return ok
}

// held reports whether name must not be sent now: it is in flight, or the guilty
// are being searched for among others.
func (v *view) held(name string) bool {
	return v.busy[name] > 0 || v.search.excludes(name)
}

// offered prepares for the cache holding a new version of name.
func (v *view) offered(name, version string) {
	if v.held(name) && v.wants(name) {
		v.told[name] = version
		v.due[name] = struct{}{}
	}
}

// resend has name sent again, now or as soon as it is no longer held.
func (v *view) resend(name string) {
	if !v.wants(name) {
		return
	}
	if v.held(name) {
		v.due[name] = struct{}{}
		return
	}
	v.told[name] = ""
	delete(v.due, name)
}

// retired prepares for the cache holding name no more. When it is withdrawn, only
// because Envoy rejected it, an Envoy that runs an earlier version keeps that; it
// is told to drop it when the name is removed.
func (v *view) retired(name string, withdrawn bool) {
	v.drop(name)
	if _, ok := v.holds[name]; !ok {
		return
	}
	if withdrawn {
		v.forget(name)
	} else if _, ok := v.told[name]; !ok {
		v.told[name] = ""
	}
}

func (v *view) forget(name string) {
	delete(v.told, name)
	delete(v.due, name)
}

// send notes a response that is on its way. It returns the names of resources
// that Envoy had in another version.
func (v *view) send(nonce string, f flight) (replaced []string) {
	for _, r := range f.resources {
		if old, ok := v.told[r.name]; ok && old != r.blob.version {
			replaced = append(replaced, r.name)
		}
		if _, newer := v.due[r.name]; !newer {
			v.told[r.name] = r.blob.version
		}
		v.busy[r.name]++
	}
	for _, name := range f.removed {
		v.forget(name)
		delete(v.holds, name)
	}
	v.flights[nonce] = f
	return replaced
}

// settle ends a flight and has sent what was held back for it.
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
	v.release()
	return f, true
}

// release has everything sent that was held back and need not be any longer.
func (v *view) release() {
	for name := range v.due {
		if !v.held(name) {
			delete(v.due, name)
			v.told[name] = ""
		}
	}
}

// subscription is what the linear cache reads. It is the delta server's own
// subscription except for the versions.
type subscription struct {
	cache.Subscription
	view *view
}

func (s subscription) ReturnedResources() map[string]string { return s.view.told }
