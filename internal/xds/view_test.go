// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"maps"
	"slices"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"pgregory.net/rapid"
)

func wildcardView() *view { return newView(Cluster, &discovery.DeltaDiscoveryRequest{}) }

func carrying(names ...string) flight {
	var f flight
	for _, name := range names {
		f.resources = append(f.resources, sent{name, version("1")})
	}
	return f
}

func TestNewView(t *testing.T) {
	for _, test := range []struct {
		name     string
		typ      Type
		req      *discovery.DeltaDiscoveryRequest
		wildcard bool
		names    []string
	}{
		{"empty", Cluster, &discovery.DeltaDiscoveryRequest{}, true, nil},
		{"empty, of a type without wildcard", Assignment, &discovery.DeltaDiscoveryRequest{}, false, nil},
		{"names only", Listener, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a"}}, false, []string{"a"}},
		{"wildcard and names", Cluster, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"*", "a"}}, true, []string{"a"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := newView(test.typ, test.req)
			if got := sorted(v.names); v.wildcard != test.wildcard || !slices.Equal(got, test.names) {
				t.Errorf("wildcard %v, names %v; want %v, %v", v.wildcard, got, test.wildcard, test.names)
			}
		})
	}
}

func TestHeldUpdateIsSentAfterTheAcknowledgement(t *testing.T) {
	v := wildcardView()
	v.send("1", carrying("a"))
	v.offered("a", "2")
	if v.told["a"] != "2" {
		t.Fatalf("the cache is told %q and would send a while it is in flight", v.told["a"])
	}
	// Another response with the old version, made before, does not undo that.
	v.send("2", carrying("a"))
	if v.told["a"] != "2" {
		t.Errorf("the cache is told %q after a late response", v.told["a"])
	}
	v.settle("1")
	if v.told["a"] != "2" {
		t.Errorf("the cache is told %q while one of two responses is out", v.told["a"])
	}
	v.settle("2")
	if v.told["a"] != "" {
		t.Errorf("the cache is told %q after the last acknowledgement, and would not send a", v.told["a"])
	}
	if _, ok := v.settle("2"); ok {
		t.Error("a response was settled twice")
	}
}

func TestUnsubscribedNameIsForgotten(t *testing.T) {
	v := newView(Assignment, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a", "b"}})
	v.send("1", carrying("a", "b"))
	v.unsubscribe([]string{"a"})
	v.offered("a", "2")
	v.resend("a")
	v.settle("1")
	if version, told := v.told["a"]; told {
		t.Errorf("the cache is told %q of a name that Envoy does not want, and would say it was removed", version)
	}
	// With a wildcard the protocol wants to hear what became of it.
	w := newView(Cluster, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"*", "a"}})
	w.send("1", carrying("a"))
	w.settle("1")
	w.unsubscribe([]string{"a"})
	if version, told := w.told["a"]; !told || version != "" {
		t.Errorf("the cache is told %q, %v, and would not send a again", version, told)
	}
}

// all offers the names in version 1.
func all(names ...string) func(func(name, version string)) {
	return func(f func(name, version string)) {
		for _, name := range names {
			f(name, "1")
		}
	}
}

// pending are the names that the cache would send or remove when it offers version 1
// of all.
func pending(v *view, names ...string) (due []string) {
	for _, name := range names {
		if v.told[name] != "1" {
			due = append(due, name)
		}
	}
	return due
}

func TestSearchHoldsTheOthers(t *testing.T) {
	names := []string{"a", "b", "c", "d", "other"}
	v := wildcardView()
	v.send("1", carrying("a", "b", "c", "d"))
	v.settle("1")
	// "other" has not been sent yet: it must not share a response with suspects.
	v.suspect([]string{"a", "b", "c", "d"}, false, all(names...))
	if got := pending(v, names...); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("on trial: %v, want the first half", got)
	}
	v.search.carries("2", carrying("a", "b"))
	v.send("2", carrying("a", "b"))
	// The two of the second half are gone: nothing is left to try.
	v.retired("c", false)
	v.retired("d", false)
	v.settle("2")
	v.judged(nil)
	if v.search.active() {
		t.Errorf("the search goes on with %v", v.search.groups)
	}
	if got := pending(v, "other"); len(got) != 1 {
		t.Error("the other resource is held back for ever")
	}
}

func TestSearchGoesOnWhenTheGroupOnTrialGoes(t *testing.T) {
	for name, drop := range map[string]func(*view, string){
		"removed":      func(v *view, name string) { v.retired(name, false) },
		"unsubscribed": func(v *view, name string) { v.unsubscribe([]string{name}) },
	} {
		t.Run(name, func(t *testing.T) {
			v := newView(Assignment, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a", "b"}})
			v.send("1", carrying("a", "b"))
			v.settle("1")
			v.suspect([]string{"a", "b"}, false, all("a", "b"))
			drop(v, "a")
			if got := pending(v, "b"); len(got) != 1 {
				t.Errorf("b is not tried; groups %v", v.search.groups)
			}
		})
	}
}

// Whichever of the suspects are guilty, the search finds exactly them, and ends.
func TestSearchFindsTheGuilty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 64).Draw(t, "n")
		var names []string
		guilty := map[string]bool{}
		for i := range n {
			name := string(rune('A' + i))
			names = append(names, name)
			if rapid.IntRange(0, 4).Draw(t, "guilty") == 0 {
				guilty[name] = true
			}
		}
		offered := map[string]bool{}
		for _, name := range names {
			offered[name] = true
		}
		v := wildcardView()
		found := map[string]bool{}
		v.suspect(names, false, all(names...))
		for trials := 0; v.search.active(); trials++ {
			if trials > 4*n {
				t.Fatalf("no end: %v", v.search.groups)
			}
			group := slices.Clone(v.search.top())
			if due := pending(v, slices.Sorted(maps.Keys(offered))...); !slices.Equal(due, group) {
				t.Fatalf("would send %v while %v is on trial", due, group)
			}
			v.search.carries("n", carrying(group...))
			v.send("n", carrying(group...))
			v.settle("n")
			switch {
			case !slices.ContainsFunc(group, func(name string) bool { return guilty[name] }):
				v.judged(nil)
			case len(group) == 1:
				found[group[0]] = true
				delete(offered, group[0])
				v.judged(nil)
			default:
				v.suspect(group, true, all(slices.Sorted(maps.Keys(offered))...))
			}
		}
		if !maps.Equal(found, guilty) {
			t.Fatalf("found %v, want %v", found, guilty)
		}
	})
}
