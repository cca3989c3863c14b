// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func version(s string) blob { return blob{version: s, bytes: []byte(s)} }

func TestLedger(t *testing.T) {
	k := Key{Listener, "l"}
	type step struct {
		do   string // publish, accept, reject or remove
		what string
		want bool // something else is offered
	}
	for _, test := range []struct {
		name                   string
		steps                  []step
		offered, good, refused string
	}{
		{"published", []step{{"publish", "a", true}}, "a", "", ""},
		{"published twice", []step{{"publish", "a", true}, {"publish", "a", false}}, "a", "", ""},
		{"accepted", []step{{"publish", "a", true}, {"accept", "a", false}}, "a", "a", ""},
		{"rejected, nothing before", []step{{"publish", "a", true}, {"reject", "a", true}}, "", "", "a"},
		{"rejected, published again", []step{{"publish", "a", true}, {"reject", "a", true}, {"publish", "a", false}}, "", "", "a"},
		{"rejected, removed, published again", []step{{"publish", "a", true}, {"reject", "a", true}, {"remove", "", true}, {"publish", "a", true}}, "a", "", ""},
		{"falls back", []step{{"publish", "a", true}, {"accept", "a", false}, {"publish", "b", true}, {"reject", "b", true}}, "a", "a", "b"},
		{"mended", []step{{"publish", "a", true}, {"reject", "a", true}, {"publish", "b", true}, {"accept", "b", false}}, "b", "b", ""},
		{"not yet mended", []step{{"publish", "a", true}, {"reject", "a", true}, {"publish", "b", true}}, "b", "", "a"},
		{"back to the accepted", []step{{"publish", "a", true}, {"accept", "a", false}, {"publish", "b", true}, {"reject", "b", true}, {"publish", "a", false}}, "a", "a", ""},
		{"an old version is rejected late", []step{{"publish", "a", true}, {"publish", "b", true}, {"reject", "a", false}}, "b", "", "a"},
		{"words about the newest stay", []step{{"publish", "a", true}, {"publish", "b", true}, {"reject", "b", true}, {"reject", "a", false}}, "", "", "b"},
		{"an old version is accepted late", []step{{"publish", "a", true}, {"publish", "b", true}, {"reject", "b", true}, {"accept", "a", true}}, "a", "a", "b"},
		{"rejected by one, then accepted by another", []step{{"publish", "a", true}, {"reject", "a", true}, {"accept", "a", true}}, "a", "a", ""},
		{"accepted by one, then rejected by another", []step{{"publish", "a", true}, {"accept", "a", false}, {"reject", "a", false}}, "a", "a", "a"},
		{"verdicts on what is gone", []step{{"accept", "a", false}, {"reject", "a", false}, {"remove", "", false}}, "", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := ledger{}
			for i, s := range test.steps {
				var got bool
				switch s.do {
				case "publish":
					got = l.publish(k, version(s.what))
				case "accept":
					_, got = l.accept(k, version(s.what))
				case "reject":
					got = l.reject(k, s.what, "words")
				case "remove":
					got = l.remove(k)
				}
				if got != s.want {
					t.Errorf("step %d: %s %s: %v, want %v", i, s.do, s.what, got, s.want)
				}
			}
			var e entry
			if l[k] != nil {
				e = *l[k]
			}
			if e.offer.version != test.offered || e.good.version != test.good || e.nack.version != test.refused {
				t.Errorf("offers %q, accepted %q, rejected %q; want %q, %q, %q", e.offer.version, e.good.version, e.nack.version, test.offered, test.good, test.refused)
			}
		})
	}
}

func TestBlame(t *testing.T) {
	for _, test := range []struct {
		name    string
		names   []string
		message string
		guilty  []string
	}{
		{"listener", []string{"capture:x/a", "capture:x/a-1"}, "Error adding/updating listener(s) capture:x/a: failed to open netns file /var/run/netns/a: No such file or directory\n", []string{"capture:x/a"}},
		{"longer name", []string{"capture:x/a", "capture:x/a-1"}, "Error adding/updating listener(s) capture:x/a-1: failed\n", []string{"capture:x/a-1"}},
		{"port is part of the name", []string{"svc:10.0.0.1:8", "svc:10.0.0.1:80"}, "Error adding/updating cluster(s) svc:10.0.0.1:80: bad", []string{"svc:10.0.0.1:80"}},
		{"several", []string{"a", "b", "c"}, "Error adding/updating cluster(s) a: bad, c: worse", []string{"a", "c"}},
		{"an innocent is mentioned", []string{"l1", "l2"}, "Error adding/updating listener(s) l2: error adding listener: 'l2' has duplicate address as existing listener 'l1'", []string{"l2"}},
		{"quoted in a dump", []string{"l1", "l2"}, "\nname: \"l2\"\naddress {\n}\n: Proto constraint validation failed", []string{"l2"}},
		{"at the end", []string{"l1", "l2"}, "cannot have l1.", []string{"l1"}},
		{"nobody", []string{"svc:a", "svc:b"}, "malformed IP address: host.example. Consider setting resolver_name", nil},
		{"name inside another word", []string{"a", "on"}, "connection is bad", nil},
		{"empty", []string{"a"}, "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			guilty, innocent := blame(test.names, test.message)
			if !slices.Equal(guilty, test.guilty) {
				t.Errorf("guilty %v, want %v", guilty, test.guilty)
			}
			all := slices.Sorted(slices.Values(slices.Concat(guilty, innocent)))
			if !slices.Equal(all, test.names) {
				t.Errorf("guilty and innocent are %v, want %v", all, test.names)
			}
		})
	}
}

// Whatever names are guilty, Envoy's form of words gives exactly them.
func TestBlameFindsTheNamed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`svc:10\.0\.0\.[1-9]{1,2}:[1-9]{1,3}|capture:[a-c]{1,2}/[a-c]{1,2}(-[0-9])?`), 1, 8, rapid.ID).Draw(t, "names")
		slices.Sort(names)
		guilty := slices.DeleteFunc(slices.Clone(names), func(string) bool { return rapid.Bool().Draw(t, "innocent") })
		words := "Error adding/updating cluster(s) "
		for i, name := range guilty {
			if i > 0 {
				words += ", "
			}
			words += name + ": malformed IP address: 10.0.0.256"
		}
		got, _ := blame(names, words)
		if !slices.Equal(got, guilty) {
			t.Fatalf("%q: guilty %v, want %v", words, got, guilty)
		}
	})
}

func TestEpochs(t *testing.T) {
	var e epochs
	for i, step := range []struct {
		pid   int
		fresh bool
		want  uint64
	}{
		{10, false, 0}, // from before
		{10, false, 0},
		{11, true, 1},
		{11, false, 1}, // reconnects
		{12, true, 2},  // hot restart
		{11, false, 1}, // the older one reconnects
		{12, false, 2},
		{10, false, 0},
		{11, true, 3}, // the pid is used again
		{11, false, 3},
		{0, true, 4}, // the kernel does not tell
		{0, false, 0},
	} {
		if got := e.of(step.pid, step.fresh); got != step.want {
			t.Errorf("step %d: epoch %d, want %d", i, got, step.want)
		}
	}
	for pid := range 100 {
		e.of(1000+pid, true)
	}
	if len(e.known) > maxProcesses || e.of(1099, false) != e.last {
		t.Errorf("%d processes are remembered, the last as %d", len(e.known), e.of(1099, false))
	}
}
