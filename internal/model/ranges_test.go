// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func cidr(name string, list ...string) Change { return SetServiceCIDR{name, prefixes(list...)} }

func imported(name string, vips ...string) Change {
	return SetImport{Import{Name: named(name), VIPs: addrs(vips...)}}
}

var comparePrefixes = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

func TestRange(t *testing.T) {
	for _, c := range []struct {
		name     string
		override []netip.Prefix
		changes  []Change
		want     []string
		known    bool
		in, out  []string
	}{
		{name: "nothing", out: []string{"10.96.0.1"}},
		{"one", nil, []Change{cidr("a", "10.96.0.0/16")}, []string{"10.96.0.0/16"}, true, []string{"10.96.0.1", "10.96.255.255"}, []string{"10.97.0.0"}},
		{"host bits", nil, []Change{cidr("a", "10.96.0.1/16")}, []string{"10.96.0.0/16"}, true, []string{"10.96.0.0"}, nil},
		{"both families", nil, []Change{cidr("a", "fd00::/108", "10.96.0.0/16")}, []string{"10.96.0.0/16"}, true, []string{"10.96.0.1"}, []string{"fd00::1"}},
		{"IPv6 only is unknown", nil, []Change{cidr("a", "fd00::/108")}, nil, false, nil, []string{"fd00::1"}},
		{"no prefix at all is unknown", nil, []Change{cidr("a")}, nil, false, nil, nil},
		{"the same twice", nil, []Change{cidr("a", "10.96.0.0/16"), cidr("b", "10.96.0.0/16")}, []string{"10.96.0.0/16"}, true, nil, nil},
		{"nested", nil, []Change{cidr("a", "10.96.7.0/24"), cidr("b", "10.96.0.0/16")}, []string{"10.96.0.0/16"}, true, nil, nil},
		{"neighbours are merged", nil, []Change{cidr("a", "10.97.0.0/16"), cidr("b", "10.96.0.0/16")}, []string{"10.96.0.0/15"}, true, nil, nil},
		{"apart, sorted", nil, []Change{cidr("a", "203.0.113.0/24"), cidr("b", "10.96.0.0/16")}, []string{"10.96.0.0/16", "203.0.113.0/24"}, true, nil, nil},
		{
			"one of two that share a CIDR is deleted", nil,
			[]Change{cidr("a", "10.96.0.0/16"), cidr("b", "10.96.0.0/16"), DeleteServiceCIDR{"a"}},
			[]string{"10.96.0.0/16"},
			true, nil, nil,
		},
		{
			"both are deleted", nil,
			[]Change{cidr("a", "10.96.0.0/16"), cidr("b", "10.96.0.0/16"), DeleteServiceCIDR{"a"}, DeleteServiceCIDR{"b"}},
			nil, false, nil,
			[]string{"10.96.0.1"},
		},
		{"replaced", nil, []Change{cidr("a", "10.96.0.0/16"), cidr("a", "10.97.0.0/16")}, []string{"10.97.0.0/16"}, true, nil, []string{"10.96.0.1"}},
		{"override", prefixes("10.50.0.9/16"), []Change{cidr("a", "10.96.0.0/16")}, []string{"10.50.0.0/16"}, true, []string{"10.50.0.1"}, []string{"10.96.0.1"}},
		{"override of IPv6 only is unknown", prefixes("fd00::/108"), []Change{cidr("a", "10.96.0.0/16")}, nil, false, nil, []string{"10.96.0.1"}},
		{"override keeps ClusterSetIPs", prefixes("10.50.0.0/16"), []Change{imported("i", "243.0.0.5")}, []string{"10.50.0.0/16", "243.0.0.5/32"}, true, []string{"243.0.0.5"}, nil},
		{"ClusterSetIP outside, unknown range", nil, []Change{imported("i", "243.0.0.5")}, []string{"243.0.0.5/32"}, false, []string{"243.0.0.5"}, []string{"10.96.0.1"}},
		{"ClusterSetIP inside adds nothing", nil, []Change{cidr("a", "10.96.0.0/16"), imported("i", "10.96.0.5")}, []string{"10.96.0.0/16"}, true, []string{"10.96.0.5"}, nil},
		{
			"ClusterSetIPs stay /32s, sorted", nil,
			[]Change{cidr("a", "10.96.0.0/16"), imported("i", "243.0.0.5", "243.0.0.4"), imported("j", "10.0.0.1", "243.0.0.4")},
			[]string{"10.0.0.1/32", "10.96.0.0/16", "243.0.0.4/32", "243.0.0.5/32"},
			true, nil, nil,
		},
		{
			"import deleted, another holds the same VIP", nil,
			[]Change{imported("i", "243.0.0.5"), imported("j", "243.0.0.5"), DeleteImport{named("i")}},
			[]string{"243.0.0.5/32"},
			false,
			[]string{"243.0.0.5"},
			nil,
		},
		{"N-1 import without an address", nil, []Change{imported("i")}, nil, false, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			st, _ := New(Options{RangeOverride: c.override}).Apply(c.changes)
			if diff := cmp.Diff(prefixes(c.want...), st.Range(), comparePrefixes); diff != "" {
				t.Error(diff)
			}
			if st.RangeKnown() != c.known {
				t.Errorf("known: %t, want %t", st.RangeKnown(), c.known)
			}
			for _, a := range c.in {
				if !st.InRange(addr(a)) {
					t.Errorf("%s is not in the range", a)
				}
			}
			for _, a := range c.out {
				if st.InRange(addr(a)) {
					t.Errorf("%s is in the range", a)
				}
			}
			if st.InRange(netip.Addr{}) {
				t.Error("no address is in the range")
			}
		})
	}
}

// TestRangeDirty: the range is touched when what is in it changes, or its being
// known, and not otherwise.
func TestRangeDirty(t *testing.T) {
	base := []Change{cidr("a", "10.96.0.0/16"), imported("i", "243.0.0.5")}
	for _, c := range []struct {
		name    string
		start   []Change
		changes []Change
		want    bool
		addrs   []string
	}{
		{"the same again", base, []Change{cidr("a", "10.96.0.0/16"), imported("i", "243.0.0.5")}, false, nil},
		{"the same under another name", base, []Change{cidr("b", "10.96.1.0/24")}, false, nil},
		{"an IPv6 one", base, []Change{cidr("b", "fd00::/108")}, false, nil},
		{"deleted, but never there", base, []Change{DeleteServiceCIDR{"x"}, DeleteImport{named("x")}}, false, nil},
		{"wider", base, []Change{cidr("b", "10.97.0.0/16")}, true, nil},
		{"gone", base, []Change{DeleteServiceCIDR{"a"}}, true, nil},
		{"set and deleted in one batch", base, []Change{cidr("b", "10.97.0.0/16"), DeleteServiceCIDR{"b"}}, false, nil},
		{"import inside the range", base, []Change{imported("j", "10.96.0.7")}, false, []string{"10.96.0.7"}},
		{"import outside the range", base, []Change{imported("j", "243.0.0.6")}, true, []string{"243.0.0.6"}},
		{"second import of one VIP", base, []Change{imported("j", "243.0.0.5")}, false, []string{"243.0.0.5"}},
		{"import moves", base, []Change{imported("i", "243.0.0.6")}, true, []string{"243.0.0.5", "243.0.0.6"}},
		{"import deleted", base, []Change{DeleteImport{named("i")}}, true, []string{"243.0.0.5"}},
		{"a ClusterSetIP becomes the Service range", []Change{imported("i", "243.0.0.5")}, []Change{cidr("a", "243.0.0.5/32")}, true, nil},
		{"a ClusterSetIP among others becomes part of it", base, []Change{cidr("b", "243.0.0.5/32")}, true, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			st, _ := New(Options{}).Apply(c.start)
			_, d := st.Apply(c.changes)
			checkDirty(t, d, c.want, c.addrs...)
		})
	}
}

func TestImportByVIP(t *testing.T) {
	st, _ := New(Options{}).Apply([]Change{imported("j", "243.0.0.5"), imported("i", "243.0.0.5")})
	if got, ok := st.ImportByVIP(addr("243.0.0.5")); !ok || got.Name != named("i") {
		t.Errorf("%+v, want i", got)
	}
	st, _ = st.Apply([]Change{DeleteImport{named("i")}})
	if got, ok := st.ImportByVIP(addr("243.0.0.5")); !ok || got.Name != named("j") {
		t.Errorf("%+v, want j", got)
	}
	if _, ok := st.ImportByVIP(addr("243.0.0.6")); ok {
		t.Error("an import of nobody's address")
	}
}

// TestManyClusterSetIPs: with many of them the range stays sorted, and one more
// inside the Service range does not touch it.
func TestManyClusterSetIPs(t *testing.T) {
	changes := []Change{cidr("a", "10.96.0.0/16")}
	for i := range 2 * shardCount {
		changes = append(changes, SetImport{Import{
			Name: named(fmt.Sprint("i", i)),
			VIPs: []netip.Addr{netip.AddrFrom4([4]byte{243, 0, byte(i >> 8), byte(i)})},
		}})
	}
	st, _ := New(Options{}).Apply(changes)
	list := st.Range()
	if len(list) != 2*shardCount+1 || !slices.IsSortedFunc(list, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) }) {
		t.Errorf("%d prefixes: %v", len(list), list)
	}
	for range 20 {
		next, d := st.Apply([]Change{imported("inside", "10.96.0.5")})
		checkDirty(t, d, false, "10.96.0.5")
		st, d = next.Apply([]Change{DeleteImport{named("inside")}})
		checkDirty(t, d, false, "10.96.0.5")
	}
}
