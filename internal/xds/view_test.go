// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"maps"
	"slices"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// offering is a ledger of a type that offers the names in version 1.
func offering(t Type, names ...string) ledger {
	l := ledger{}
	for _, name := range names {
		l.publish(Key{t, name}, version("1"))
	}
	return l
}

// wildcardView wants all clusters.
func wildcardView(l ledger) *view { return newView(Cluster, &discovery.DeltaDiscoveryRequest{}, l) }

// brings makes and sends the next response and returns what it carries.
func brings(t tester, v *view, typ Type, l ledger, nonce string) (resources, removed []string) {
	t.Helper()
	f, _ := v.next(typ, l)
	v.made(f)
	if sent := v.send(nonce); !slices.Equal(sent.names(), f.names()) {
		t.Fatalf("sent %v, made %v", sent.names(), f.names())
	}
	return f.names(), f.removed
}

type tester interface {
	Helper()
	Fatalf(string, ...any)
}

func want(t tester, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s %v, want %v", what, got, want)
	}
}

func TestNewView(t *testing.T) {
	for _, test := range []struct {
		name     string
		typ      Type
		req      *discovery.DeltaDiscoveryRequest
		wildcard bool
		names    []string
		brings   []string
		removes  []string
	}{
		{"empty", Cluster, &discovery.DeltaDiscoveryRequest{}, true, nil, []string{"a", "b"}, nil},
		{"listed and not wanted", Assignment, &discovery.DeltaDiscoveryRequest{InitialResourceVersions: map[string]string{"a": "0", "gone": "0"}}, false, nil, nil, nil},
		{"empty, of a type without wildcard", Assignment, &discovery.DeltaDiscoveryRequest{}, false, nil, nil, nil},
		{"names only", Listener, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a", "x"}}, false, []string{"a", "x"}, []string{"a"}, nil},
		{"wildcard and names", Cluster, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"*", "a"}}, true, []string{"a"}, []string{"a", "b"}, nil},
		{
			"a reconnect",
			Cluster,
			&discovery.DeltaDiscoveryRequest{
				ResourceNamesSubscribe:  []string{"*", "a"},
				InitialResourceVersions: map[string]string{"a": "1", "b": "old", "gone": "1"},
			},
			true,
			[]string{"a"},
			[]string{"b"},
			[]string{"gone"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := offering(test.typ, "a", "b")
			v := newView(test.typ, test.req, l)
			if got := slices.Sorted(maps.Keys(v.names)); v.wildcard != test.wildcard || !slices.Equal(got, test.names) {
				t.Errorf("wildcard %v, names %v; want %v, %v", v.wildcard, got, test.wildcard, test.names)
			}
			resources, removed := brings(t, v, test.typ, l, "1")
			want(t, "brings", resources, test.brings...)
			want(t, "removes", removed, test.removes...)
		})
	}
}

func TestNextNamesWhatItReplaces(t *testing.T) {
	l := offering(Cluster, "new", "changed", "same")
	v := newView(Cluster, &discovery.DeltaDiscoveryRequest{
		InitialResourceVersions: map[string]string{"changed": "old", "same": "1"},
	}, l)
	f, replaced := v.next(Cluster, l)
	want(t, "brings", f.names(), "changed", "new")
	want(t, "replaces", replaced, "changed")
	resp := f.response(Cluster)
	if got := resp.GetResources()[0]; got.GetName() != "changed" || got.GetVersion() != "1" || string(got.GetResource().GetValue()) != "1" || got.GetResource().GetTypeUrl() != string(Cluster) {
		t.Errorf("the response carries %v", got)
	}
}

func TestOneUpdateInFlightAndTheNewestAfterIt(t *testing.T) {
	l := offering(Cluster, "a")
	v := wildcardView(l)
	names, _ := brings(t, v, Cluster, l, "1")
	want(t, "brings", names, "a")
	for _, newer := range []string{"2", "3"} {
		l.publish(Key{Cluster, "a"}, version(newer))
		v.touch("a", true)
		names, _ = brings(t, v, Cluster, l, "empty"+newer)
		want(t, "while a is in flight brings", names)
	}
	if _, ok := v.settle("1"); !ok {
		t.Fatal("the response is not known")
	}
	f, _ := v.next(Cluster, l)
	if len(f.resources) != 1 || f.resources[0].blob.version != "3" {
		t.Errorf("after the acknowledgement brings %v", f.resources)
	}
	if _, ok := v.settle("1"); ok {
		t.Error("a response was settled twice")
	}
}

// Made but not sent counts as in flight.
func TestResponseInTheQueueIsInFlight(t *testing.T) {
	l := offering(Cluster, "a")
	v := wildcardView(l)
	f, _ := v.next(Cluster, l)
	v.made(f)
	v.touch("a", true)
	if again, _ := v.next(Cluster, l); !again.empty() {
		t.Errorf("brings %v again", again.names())
	}
}

func TestRemovalWaitsForItsResource(t *testing.T) {
	l := offering(Cluster, "a")
	v := wildcardView(l)
	brings(t, v, Cluster, l, "1")
	l.remove(Key{Cluster, "a"})
	v.touch("a", false)
	_, removed := brings(t, v, Cluster, l, "2")
	want(t, "while a is in flight removes", removed)
	v.settle("1")
	_, removed = brings(t, v, Cluster, l, "3")
	want(t, "removes", removed, "a")
	v.touch("a", false)
	_, removed = brings(t, v, Cluster, l, "4")
	want(t, "removes again", removed)
}

func TestUnsubscribedNameIsForgotten(t *testing.T) {
	l := offering(Assignment, "a", "b")
	v := newView(Assignment, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a", "b"}}, l)
	brings(t, v, Assignment, l, "1")
	v.unsubscribe([]string{"a"})
	v.touch("a", true)
	v.resend("a")
	v.settle("1")
	names, removed := brings(t, v, Assignment, l, "2")
	want(t, "brings", names)
	want(t, "removes", removed)
	v.subscribe(Assignment, []string{"a"}, l)
	names, _ = brings(t, v, Assignment, l, "3")
	want(t, "subscribed again brings", names, "a")

	// With a wildcard the protocol wants to hear what became of it.
	l = offering(Cluster, "a", "b")
	w := newView(Cluster, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"*", "a"}}, l)
	brings(t, w, Cluster, l, "1")
	w.settle("1")
	w.unsubscribe([]string{"a"})
	names, _ = brings(t, w, Cluster, l, "2")
	want(t, "brings", names, "a")
	w.settle("2")
	// Without the wildcard nothing is wanted any more, until it is back.
	w.unsubscribe([]string{"*"})
	w.touch("b", true)
	if f, _ := w.next(Cluster, l); !f.empty() {
		t.Errorf("without a wildcard brings %v, removes %v", f.names(), f.removed)
	}
	w.subscribe(Cluster, []string{"*"}, l)
	names, _ = brings(t, w, Cluster, l, "3")
	want(t, "with the wildcard back brings", names, "a", "b")
}

func TestWithdrawnResourceStaysWhereItWas(t *testing.T) {
	for _, listed := range []bool{true, false} {
		l := offering(Cluster, "a")
		req := &discovery.DeltaDiscoveryRequest{}
		if listed {
			req.InitialResourceVersions = map[string]string{"a": "0"}
		}
		v := newView(Cluster, req, l)
		brings(t, v, Cluster, l, "1")
		v.settle("1")
		if !l.reject(Key{Cluster, "a"}, "1", "no") {
			t.Fatal("not withdrawn")
		}
		v.touch("a", false)
		_, removed := brings(t, v, Cluster, l, "2")
		if listed {
			want(t, "removes", removed)
			l.remove(Key{Cluster, "a"})
			v.touch("a", false)
			_, removed = brings(t, v, Cluster, l, "3")
		}
		want(t, "removes", removed, "a")

		// Once removed it is like any other.
		l.remove(Key{Cluster, "a"})
		l.publish(Key{Cluster, "a"}, version("1"))
		v.touch("a", true)
		brings(t, v, Cluster, l, "4")
		v.settle("4")
		l.reject(Key{Cluster, "a"}, "1", "no")
		v.touch("a", false)
		_, removed = brings(t, v, Cluster, l, "5")
		want(t, "removes", removed, "a")
	}
}

// The bytes that Envoy has all along are sent when they are published at last:
// only its acknowledgement shows that all is well.
func TestWithdrawnResourceSetBackIsSent(t *testing.T) {
	l := offering(Cluster, "a")
	l.reject(Key{Cluster, "a"}, "1", "no")
	v := newView(Cluster, &discovery.DeltaDiscoveryRequest{InitialResourceVersions: map[string]string{"a": "0"}}, l)
	if f, _ := v.next(Cluster, l); !f.empty() {
		t.Fatalf("brings %v, removes %v", f.names(), f.removed)
	}
	l.publish(Key{Cluster, "a"}, version("0"))
	v.touch("a", true)
	names, _ := brings(t, v, Cluster, l, "1")
	want(t, "brings", names, "a")
}

func TestSearchHoldsTheOthers(t *testing.T) {
	l := offering(Cluster, "a", "b", "c", "d")
	v := wildcardView(l)
	brings(t, v, Cluster, l, "1")
	v.settle("1")
	// "other" has not been sent yet: it must not share a response with suspects.
	l.publish(Key{Cluster, "other"}, version("1"))
	v.touch("other", true)
	suspects := []string{"a", "b", "c", "d"}
	for _, name := range suspects {
		v.resend(name)
	}
	v.search.suspect(suspects)
	names, _ := brings(t, v, Cluster, l, "2")
	want(t, "on trial", names, "a", "b")
	// The second half goes: nothing is left to try.
	for _, name := range []string{"c", "d"} {
		l.remove(Key{Cluster, name})
		v.touch(name, false)
	}
	f, _ := v.settle("2")
	if v.search.judged(f.trial); v.search.active() {
		t.Errorf("the search goes on with %v", v.search.groups)
	}
	names, removed := brings(t, v, Cluster, l, "3")
	want(t, "afterwards brings", names, "other")
	want(t, "afterwards removes", removed, "c", "d")
}

func TestSearchGoesOnWhenTheGroupOnTrialGoes(t *testing.T) {
	for name, drop := range map[string]func(*view, ledger){
		"removed": func(v *view, l ledger) {
			l.remove(Key{Assignment, "a"})
			v.touch("a", false)
		},
		"unsubscribed": func(v *view, _ ledger) { v.unsubscribe([]string{"a"}) },
	} {
		t.Run(name, func(t *testing.T) {
			l := offering(Assignment, "a", "b")
			v := newView(Assignment, &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"a", "b"}}, l)
			brings(t, v, Assignment, l, "1")
			v.settle("1")
			v.resend("a")
			v.resend("b")
			v.search.suspect([]string{"a", "b"})
			drop(v, l)
			names, _ := brings(t, v, Assignment, l, "2")
			want(t, "on trial", names, "b")
		})
	}
}

// A second rejection during the search starts another one on top of it; both end.
func TestSearchWithinASearch(t *testing.T) {
	l := offering(Cluster, "a", "b", "x", "y")
	v := wildcardView(l)
	v.search.suspect([]string{"a", "b"})
	names, _ := brings(t, v, Cluster, l, "1")
	want(t, "on trial", names, "a")
	v.search.suspect([]string{"x", "y"})
	names, _ = brings(t, v, Cluster, l, "2")
	want(t, "on trial", names, "x")
	accepted := func(nonce string) {
		t.Helper()
		before := len(v.search.groups)
		f, _ := v.settle(nonce)
		if v.search.judged(f.trial); len(v.search.groups) != before-1 {
			t.Errorf("response %s did not decide a trial; groups %v", nonce, v.search.groups)
		}
	}
	accepted("1") // while x is on trial
	names, _ = brings(t, v, Cluster, l, "3")
	want(t, "while x is in flight brings", names)
	accepted("2")
	names, _ = brings(t, v, Cluster, l, "4")
	want(t, "on trial", names, "y")
	accepted("4")
	names, _ = brings(t, v, Cluster, l, "5")
	want(t, "on trial", names, "b")
	accepted("5")
	if v.search.active() {
		t.Errorf("the search goes on with %v", v.search.groups)
	}
}

// Whichever of the suspects are guilty, the search finds exactly them, and ends.
func TestSearchFindsTheGuilty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 64).Draw(t, "n")
		var names []string
		guilty, found := map[string]bool{}, map[string]bool{}
		for i := range n {
			name := string(rune('A' + i))
			names = append(names, name)
			if rapid.IntRange(0, 4).Draw(t, "guilty") == 0 {
				guilty[name] = true
			}
		}
		l := offering(Cluster, names...)
		v := wildcardView(l)
		v.search.suspect(names)
		for trials := 0; v.search.active(); trials++ {
			if trials > 4*n {
				t.Fatalf("no end: %v", v.search.groups)
			}
			group, _ := brings(t, v, Cluster, l, "n")
			f, _ := v.settle("n")
			before := len(v.search.groups)
			if v.search.judged(f.trial); len(group) == 0 || len(v.search.groups) != before-1 {
				t.Fatalf("%v is no trial; groups %v", group, v.search.groups)
			}
			if !slices.ContainsFunc(group, func(name string) bool { return guilty[name] }) {
				continue
			}
			if len(group) == 1 {
				found[group[0]] = true
				continue
			}
			for _, name := range group {
				v.resend(name)
			}
			v.search.suspect(group)
		}
		if diff := cmp.Diff(guilty, found); diff != "" {
			t.Fatal(diff)
		}
	})
}
