// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"net/netip"
	"slices"
	"testing"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

// TestAffected: which targets a change makes stale.
func TestAffected(t *testing.T) {
	all := []netip.AddrPort{target("10.96.0.2:80"), target("10.96.0.1:80"), target("[::ffff:10.96.0.1]:81"), target("1.1.1.1:80")}
	dirtyAddr := model.Dirty{Addrs: map[netip.Addr]struct{}{addr("10.96.0.1"): {}}}
	node := func(n string) model.Dirty { return model.Dirty{Nodes: map[string]struct{}{n: {}}} }
	for _, c := range []struct {
		name     string
		dirty    model.Dirty
		settings plan.Settings
		want     []netip.AddrPort
	}{
		{"nothing", model.Dirty{}, plan.Settings{Node: "n1"}, nil},
		{"an address, IPv4-mapped too", dirtyAddr, plan.Settings{Node: "n1"}, all[1:3]},
		{"the range", model.Dirty{Range: true}, plan.Settings{Node: "n1"}, all},
		{"this node", node("n1"), plan.Settings{Node: "n1"}, all},
		{"this node, its zone is set", node("n1"), plan.Settings{Node: "n1", Zone: "za"}, nil},
		{"another node", node("n2"), plan.Settings{Node: "n1"}, nil},
		{"a pod", model.Dirty{Workloads: map[model.Name]struct{}{name("a/b"): {}}}, plan.Settings{Node: "n1"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := plan.Affected(c.dirty, c.settings, all); !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// TestBuild: a full rebuild is one decision for each target.
func TestBuild(t *testing.T) {
	st := everyClass()
	targets := []netip.AddrPort{target(vip + ":80"), target("10.96.0.99:80")}
	answers := plan.Build(st, enforce(), targets)
	if len(answers) != len(targets) {
		t.Fatalf("%d answers, want %d", len(answers), len(targets))
	}
	expect(t, answers[targets[0]], "10.1.1.1:8080")
	expect(t, answers[targets[1]], "no-service")
}
