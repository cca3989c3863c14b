// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"aether.io/aether/internal/model"
	"aether.io/aether/internal/xds"
)

// bigNode knows so many Services with 10 endpoints each, and one with 5,000 in 50
// slices under the address of web. It publishes to a real xDS server.
func bigNode(b testing.TB, services int) *loopTest {
	n := newLoopTest(b)
	n.xds = xds.New(xds.Config{})
	cs := []model.Change{
		model.SetServiceCIDR{Name: "kubernetes", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}},
		webService(),
	}
	for i := range services {
		name := model.Name{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}
		cs = append(cs, model.SetService{Service: model.Service{
			Name: name, VIP: bigTarget(i).Addr(),
			Ports: []model.ServicePort{{Name: "http", Port: 80, Protocol: model.TCP}},
		}}, slice(name.Name, name.Name, i, 10))
	}
	for i := range 50 {
		cs = append(cs, slice("web", fmt.Sprintf("web-%d", i), 20_000+i*10, 100))
	}
	n.turn([]message{n.batch(true, cs...)})
	n.heardEvent(xds.StreamOpened{Stream: xds.Stream{ID: 1, Epoch: 1}})
	n.heardEvent(xds.FirstRequest{Stream: xds.Stream{ID: 1, Epoch: 1}, Type: xds.Cluster, Fresh: true, Done: func() {}})
	return n
}

func bigTarget(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)}), 80)
}

// slice is an EndpointSlice with so many ready endpoints, numbered from 10 first.
func slice(service, name string, first, endpoints int) model.SetSlice {
	s := model.Slice{
		Name: model.Name{Namespace: "default", Name: name}, Service: service,
		Ports: []model.SlicePort{{Name: "http", Port: 8080, Protocol: model.TCP}},
	}
	for i := range endpoints {
		k := first*10 + i
		a := netip.AddrFrom4([4]byte{10, 128 + byte(k>>16), byte(k >> 8), byte(k)})
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: a, Text: a.String(), Node: "n2", Ready: true, Serving: true})
	}
	return model.SetSlice{Slice: s}
}

// BenchmarkAsk is a turn that answers one first dial.
func BenchmarkAsk(b *testing.B) {
	n := bigNode(b, 10_000)
	b.ResetTimer()
	for i := range b.N {
		n.ask(b, bigTarget(i%10_000))
		if i%10_000 == 9_999 {
			b.StopTimer()
			n = bigNode(b, 10_000)
			b.StartTimer()
		}
	}
}

// BenchmarkChange is a turn for one endpoint of a Service of ten, of 2,000 that
// were asked for.
func BenchmarkChange(b *testing.B) {
	n := bigNode(b, 10_000)
	for i := range 2000 {
		n.ask(b, bigTarget(i))
	}
	b.ResetTimer()
	for i := range b.N {
		k := i % 2000
		name := fmt.Sprintf("svc-%d", k)
		n.clock.Advance(second)
		n.turn([]message{n.batch(true, slice(name, name, k+i%2, 10))})
	}
}

// BenchmarkRollout is a turn for one endpoint of the Service of 5,000.
func BenchmarkRollout(b *testing.B) {
	n := bigNode(b, 10_000)
	n.ask(b, web)
	b.ResetTimer()
	for i := range b.N {
		n.clock.Advance(second)
		n.turn([]message{n.batch(true, slice("web", "web-7", 20_070+i%2, 100))})
	}
}

// BenchmarkRange is a turn for a new ServiceCIDR with 2,000 names and 100 pods.
func BenchmarkRange(b *testing.B) {
	n := bigNode(b, 10_000)
	for i := range 2000 {
		n.ask(b, bigTarget(i))
	}
	for i := range 100 {
		n.turn([]message{podAdd{workload: model.Workload{
			Name: model.Name{Namespace: "default", Name: fmt.Sprintf("pod-%d", i)}, ServiceAccount: "default",
			IP: netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}), NetNS: fmt.Sprintf("/var/run/netns/%d", i),
		}, reply: make(chan podReply, 1)}})
	}
	b.ResetTimer()
	for i := range b.N {
		n.clock.Advance(second)
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, byte(i), 0}), 24)
		n.turn([]message{n.batch(true, model.SetServiceCIDR{Name: "second", Prefixes: []netip.Prefix{p}})})
	}
}

// A turn costs the same among 100 Services and among 10,000. Medians of turns
// taken alternately are compared, with room for the caches of the machine; a
// design that looks at every Service in every turn would be off by a hundred.
func TestTurnsDoNotGrowWithTheCluster(t *testing.T) {
	small, big := bigNode(t, 100), bigNode(t, 10_000)
	var took [2][]time.Duration
	for i := range 100 {
		for k, n := range []*loopTest{small, big} {
			begun := time.Now()
			n.ask(t, bigTarget(i))
			took[k] = append(took[k], time.Since(begun))
		}
	}
	slices.Sort(took[0])
	slices.Sort(took[1])
	few, many := took[0][50], took[1][50]
	t.Logf("an ask takes %v among 100 Services, %v among 10,000", few, many)
	if many > 10*few {
		t.Errorf("an ask takes %v among 100 Services and %v among 10,000", few, many)
	}
}
