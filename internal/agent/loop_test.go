// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"aether.io/aether/internal/daemon"
	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
	"aether.io/aether/internal/xds"
)

const second = time.Second

var (
	web     = netip.MustParseAddrPort("10.96.0.12:80")
	unknown = netip.MustParseAddrPort("10.96.9.9:80")
)

// loopTest is a loop without goroutines: the test takes its turns.
type loopTest struct {
	*loop
	clock     *fakeClock
	published map[xds.Key]bool
	sets      int // resources published since the last look
	log       bytes.Buffer
	registry  *prometheus.Registry
}

// Publish implements publisher.
func (n *loopTest) Publish(u xds.Update) error {
	for _, r := range u.Set {
		n.published[xds.Key{Type: r.Type, Name: r.Name}] = true
		n.sets++
	}
	for _, k := range u.Remove {
		delete(n.published, k)
	}
	return nil
}

// Nack and Accepted implement publisher: Envoy takes everything.
func (n *loopTest) Nack(xds.Type, string) (string, bool) { return "", false }

func (n *loopTest) Accepted(t xds.Type, name string) bool {
	return n.published[xds.Key{Type: t, Name: name}]
}

func newLoopTest(t testing.TB) *loopTest {
	n := &loopTest{clock: newFakeClock(), published: map[xds.Key]bool{}, registry: prometheus.NewRegistry()}
	log, err := daemon.NewLogger(&n.log, "info", "text")
	if err != nil {
		t.Fatal(err)
	}
	c := DefaultConfig()
	c.Node, c.Mode, c.RunDir, c.StateDir = "n1", plan.ModeEnforce, t.TempDir(), t.TempDir()
	a, err := New(c, Deps{Source: Manifests(nil), Log: log, Registry: n.registry, Clock: n.clock, CheckNetNS: checkFile})
	if err != nil {
		t.Fatal(err)
	}
	n.loop = a.newLoop(n, make(chan write, len(stateFiles)))
	return n
}

func (n *loopTest) batch(synced bool, cs ...model.Change) message {
	return sourceBatch{Batch{Changes: cs, Synced: synced}, n.clock.Now()}
}

func webService() model.Change {
	return model.SetService{Service: model.Service{
		Name: model.Name{Namespace: "default", Name: "web"}, VIP: web.Addr(),
		Ports: []model.ServicePort{{Name: "http", Port: 80, Protocol: model.TCP}},
	}}
}

func webSlice(endpoints ...string) model.Change {
	s := model.Slice{
		Name: model.Name{Namespace: "default", Name: "web-1"}, Service: "web",
		Ports: []model.SlicePort{{Name: "http", Port: 8080, Protocol: model.TCP}},
	}
	for _, e := range endpoints {
		a := netip.MustParseAddr(e)
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: a, Text: e, Ready: true, Serving: true})
	}
	return model.SetSlice{Slice: s}
}

// sync tells the range, the Service and its one endpoint, and that this is all.
func (n *loopTest) sync(t testing.TB) {
	t.Helper()
	n.turn([]message{n.batch(true,
		model.SetServiceCIDR{Name: "kubernetes", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}},
		webService(), webSlice("10.244.1.5"))})
	if !n.synced {
		t.Fatal("not synced")
	}
	n.heardEvent(xds.StreamOpened{Stream: xds.Stream{ID: 1, Epoch: 1}})
	n.heardEvent(xds.FirstRequest{Stream: xds.Stream{ID: 1, Epoch: 1}, Type: xds.Cluster, Fresh: true, Done: func() {}})
}

func (n *loopTest) heardEvent(ev xds.Event) { n.turn([]message{xdsEvent{ev, n.clock.Now()}}) }

func (n *loopTest) ask(t testing.TB, targets ...netip.AddrPort) {
	t.Helper()
	var names []string
	for _, a := range targets {
		names = append(names, envoy.ClusterName(a))
	}
	n.heardEvent(xds.Asked{Stream: xds.Stream{ID: 1, Epoch: 1}, Type: xds.Cluster, Names: names})
}

func (n *loopTest) has(target netip.AddrPort) bool {
	return n.published[xds.Key{Type: xds.Cluster, Name: envoy.ClusterName(target)}]
}

// A storm of changes costs one turn per gap, and an ask does not wait for it.
func TestChangesAreBatchedAndAsksAreNot(t *testing.T) {
	n := newLoopTest(t)
	n.sync(t)
	n.clock.Advance(second)
	n.ask(t, web)
	if !n.has(web) {
		t.Fatal("the ask is not answered")
	}
	n.turn([]message{n.batch(true, webSlice("10.244.1.6"))})
	n.sets = 0
	for range 10 {
		n.turn([]message{n.batch(true, webSlice("10.244.1.7"))})
	}
	if n.sets != 0 || len(n.pending) != 10 {
		t.Errorf("%d resources published within the gap, %d changes wait; want 0 and 10", n.sets, len(n.pending))
	}
	if at, ok := n.wake(); !ok || at.Sub(n.clock.Now()) > sourceGap {
		t.Errorf("wakes at %v %t, want within the gap", at, ok)
	}
	n.ask(t, unknown)
	if len(n.pending) != 0 || n.sets == 0 {
		t.Errorf("%d changes wait after an ask, %d published", len(n.pending), n.sets)
	}
	n.turn([]message{n.batch(true, webSlice("10.244.1.8"))})
	n.sets = 0
	n.clock.Advance(sourceGap)
	n.turn(nil)
	if n.sets == 0 {
		t.Error("nothing is published when the gap is over")
	}
}

func TestFirstRequestsWaitForTheSync(t *testing.T) {
	n := newLoopTest(t)
	done := 0
	first := xds.FirstRequest{
		Stream: xds.Stream{ID: 1}, Type: xds.Cluster,
		Held: []string{envoy.ClusterName(web), envoy.PassthroughCluster}, Done: func() {
			done++
			if !n.has(web) {
				t.Error("let go before what Envoy holds is published")
			}
		},
	}
	n.heardEvent(first)
	if done != 0 || len(n.published) != 0 {
		t.Fatalf("let go %d times, published %v before the sync", done, n.published)
	}
	n.sync(t)
	if done != 1 {
		t.Errorf("let go %d times, want 1", done)
	}
	select {
	case <-n.ready:
	default:
		t.Error("not ready")
	}
}

// A name that is turned away is published empty, and withdrawn when Envoy has it
// or after a second.
func TestTurnAway(t *testing.T) {
	for _, acked := range []bool{true, false} {
		n := newLoopTest(t)
		n.sync(t)
		var ts []netip.AddrPort
		for i := range n.cfg.NameBudget + 1 {
			ts = append(ts, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(100 + i>>8), byte(i)}), 80))
		}
		n.ask(t, ts...)
		last := ts[len(ts)-1]
		if !n.has(last) || n.demand.OverLimit() != 1 {
			t.Fatalf("published %t, over limit %d", n.has(last), n.demand.OverLimit())
		}
		if acked {
			n.heardEvent(xds.Acked{Type: xds.Cluster, Resources: []xds.Accepted{{Name: envoy.ClusterName(last), Newest: true}}})
		} else {
			n.clock.Advance(turnAwayTime - 1)
			n.turn(nil)
			if !n.has(last) {
				t.Fatal("withdrawn before its time")
			}
			n.clock.Advance(1)
			n.turn(nil)
		}
		if n.has(last) {
			t.Errorf("acknowledged %t: not withdrawn", acked)
		}
	}
}

// A Service takes over a name in the very turn in which it would be withdrawn.
func TestServiceTakesOverWhileNameIsTurnedAway(t *testing.T) {
	n := newLoopTest(t)
	n.sync(t)
	var ts []netip.AddrPort
	for i := range n.cfg.NameBudget + 1 {
		ts = append(ts, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(100 + i>>8), byte(i)}), 80))
	}
	n.ask(t, ts...)
	last := ts[len(ts)-1]
	svc := webService().(model.SetService)
	svc.Service.Name.Name, svc.Service.VIP = "late", last.Addr()
	n.turn([]message{
		xdsEvent{xds.Acked{Type: xds.Cluster, Resources: []xds.Accepted{{Name: envoy.ClusterName(last)}}}, n.clock.Now()},
		n.batch(true, svc),
	})
	if !n.has(last) {
		t.Error("the Service's cluster is not published")
	}
	n.clock.Advance(2 * turnAwayTime)
	n.turn(nil)
	if !n.has(last) {
		t.Error("the Service's cluster was withdrawn later")
	}
}
