// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// A named resource is for those who ask for it, or had it when they came.
func TestNamedIsNoPartOfAllThereIs(t *testing.T) {
	l := offering(Cluster, "all", "named")
	if !l.restrict(Key{Cluster, "named"}, true) || l.restrict(Key{Cluster, "named"}, true) {
		t.Error("restrict does not tell a change")
	}
	fresh := wildcardView(l)
	names, removed := brings(t, fresh, Cluster, l, "1")
	want(t, "a fresh Envoy is brought", names, "all")
	want(t, "a fresh Envoy loses", removed)
	fresh.subscribe(Cluster, []string{"named"}, l)
	names, _ = brings(t, fresh, Cluster, l, "2")
	want(t, "having asked it is brought", names, "named")

	back := newView(Cluster, &discovery.DeltaDiscoveryRequest{
		ResourceNamesSubscribe:  []string{"*"},
		InitialResourceVersions: map[string]string{"named": "1", "all": "1"},
	}, l)
	names, removed = brings(t, back, Cluster, l, "1")
	want(t, "one that had it is brought", names)
	want(t, "one that had it loses", removed)
	l.publish(Key{Cluster, "named"}, version("2"))
	back.touch("named", true)
	names, _ = brings(t, back, Cluster, l, "2")
	want(t, "one that had it is brought the next version", names, "named")

	// What a Service takes over is everybody's.
	late := wildcardView(l)
	names, _ = brings(t, late, Cluster, l, "1")
	want(t, "a late Envoy is brought", names, "all")
	if !l.restrict(Key{Cluster, "named"}, false) {
		t.Error("restrict does not tell a change")
	}
	late.touch("named", true)
	names, _ = brings(t, late, Cluster, l, "2")
	want(t, "then it is brought", names, "named")
}
