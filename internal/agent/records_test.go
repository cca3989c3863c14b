// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"testing"
	"time"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/observe"
)

// TestLastDialsFromRecords: a dial that Envoy's records tell of counts as one that
// its statistics show; a target nobody asked for is not remembered for it.
func TestLastDialsFromRecords(t *testing.T) {
	n := newLoopTest(t)
	n.sync(t)
	n.ask(t, web)
	at := n.clock.Now().Add(time.Hour)
	n.clock.Advance(2 * time.Hour)
	n.turn([]message{recordsDialled{map[netip.AddrPort]time.Time{web: at, netip.MustParseAddrPort("10.96.0.13:80"): at}}})
	if got := n.demand.Look(web).LastDial; !got.Equal(at) {
		t.Errorf("last dial %s, want %s", got, at)
	}
	if len(n.demand.Targets()) != 1 {
		t.Errorf("names: %v", n.demand.Targets())
	}
}

// TestDirectory: pods and Services by address, also of pods that are gone, up to a
// bound.
func TestDirectory(t *testing.T) {
	n := newLoopTest(t)
	d := n.directory
	if d.ServiceAt(web) != nil {
		t.Error("a Service before there was one")
	}
	n.sync(t)
	pod := func(name, ip string) model.Workload {
		return model.Workload{Name: model.Name{Namespace: "default", Name: name}, ServiceAccount: name + "-sa", IP: netip.MustParseAddr(ip), NetNS: "/run/netns/" + name}
	}
	apply := func(cs ...model.Change) {
		n.turn([]message{n.batch(true, cs...)})
		n.clock.Advance(second)
		n.turn(nil)
	}
	apply(model.SetWorkload{Workload: pod("a", "10.244.0.2")})
	want := observe.Source{Pod: model.Name{Namespace: "default", Name: "a"}, ServiceAccount: "a-sa"}
	apply(model.DeleteWorkload{Name: want.Pod})
	if got, ok := d.PodAt(netip.MustParseAddr("10.244.0.2")); !ok || got != want {
		t.Errorf("a pod that is gone is %+v, %v", got, ok)
	}
	if got, ok := d.Pod(want.Pod); !ok || got != want {
		t.Errorf("a pod that is gone is %+v, %v", got, ok)
	}
	apply(model.SetWorkload{Workload: pod("b", "10.244.0.2")})
	if got, _ := d.PodAt(netip.MustParseAddr("10.244.0.2")); got.Pod.Name != "b" {
		t.Errorf("an address that is another pod's now is %+v", got)
	}
	for address, port := range map[string]string{"10.96.0.12:80": "http", "10.96.0.12:81": "81"} {
		if got := d.ServiceAt(netip.MustParseAddrPort(address)); got == nil || got.Name != "web" || got.Port != port {
			t.Errorf("%s is of %+v, want port %s", address, got, port)
		}
	}
	if got := d.ServiceAt(unknown); got != nil {
		t.Errorf("nobody's address is of %+v", got)
	}
	for i := range maxFormerPods + 10 {
		name := model.Name{Namespace: "default", Name: "p" + string(rune('a'+i%26)) + time.Duration(i).String()}
		w := pod(name.Name, netip.AddrFrom4([4]byte{10, 245, byte(i >> 8), byte(i)}).String())
		state, _ := n.state.Apply([]model.Change{model.SetWorkload{Workload: w}})
		d.update(state, true)
	}
	if len(d.byName) > maxFormerPods+4 {
		t.Errorf("%d pods are known", len(d.byName))
	}
}
