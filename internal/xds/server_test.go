// SPDX-License-Identifier: Apache-2.0

package xds_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/test/bufconn"

	"aether.io/aether/internal/xds"
	"aether.io/aether/internal/xds/xdstest"
)

func TestEnvoyGetsWhatIsPublished(t *testing.T) {
	n := newNode(t, xds.Config{})
	c, a, l := cluster("svc:10.96.0.1:80", 0), assignment("svc:10.96.0.1:80", 8080), listener("capture:default/web", 0)
	n.publish(l, c, a)
	n.serve()
	e := n.envoy(xdstest.Options{Node: "n1"})
	connect(t, e)
	holds(t, e, c, a, l)

	opened := event(n, func(xds.StreamOpened) bool { return true }).Stream
	if opened.Node != "n1" || opened.Version != "1.40.0" || opened.PID == 0 || opened.ID != 1 || opened.Epoch != 1 {
		t.Errorf("opened by %+v", opened)
	}
	first := event(n, func(f xds.FirstRequest) bool { return f.Type == xds.Cluster })
	if !first.Fresh || len(first.Held)+len(first.Subscribed) > 0 {
		t.Errorf("first request %+v, want a fresh Envoy", first)
	}
	for _, r := range []xds.Resource{c, a, l} {
		event(n, func(a xds.Acked) bool {
			return a.Type == r.Type && len(a.Resources) == 1 && a.Resources[0].Name == r.Name && a.Resources[0].Newest
		})
		if !n.server.Accepted(r.Type, r.Name) {
			t.Errorf("%s %s does not count as accepted", r.Type, r.Name)
		}
	}
	n.remove(xds.Cluster, c.Name)
	n.remove(xds.Assignment, c.Name)
	n.remove(xds.Listener, l.Name)
	wait(t, e, "everything is gone", func() bool {
		return len(e.Resources(string(xds.Cluster)))+len(e.Resources(string(xds.Listener)))+len(e.Resources(string(xds.Assignment))) == 0
	})
	event(n, func(a xds.Acked) bool { return a.Type == xds.Listener && slices.Equal(a.Removed, []string{l.Name}) })
}

func TestAskedOnDemand(t *testing.T) {
	n := newNode(t, xds.Config{})
	n.serve()
	e := n.envoy(xdstest.Options{})
	connect(t, e)
	event(n, func(f xds.FirstRequest) bool { return f.Type == xds.Listener })
	e.Ask("svc:b", "svc:a")
	asked := event(n, func(a xds.Asked) bool { return a.Type == xds.Cluster })
	if !slices.Equal(asked.Names, []string{"svc:a", "svc:b"}) {
		t.Errorf("asked %v", asked.Names)
	}
	if got := e.Resources(string(xds.Cluster)); len(got) > 0 {
		t.Errorf("unpublished names were answered with %v", got)
	}
	n.publish(cluster("svc:a", 0), assignment("svc:a", 80))
	holds(t, e, cluster("svc:a", 0), assignment("svc:a", 80))

	n.clear()
	e.Disconnect()
	connect(t, e)
	first := event(n, func(f xds.FirstRequest) bool { return f.Type == xds.Cluster })
	if diff := cmp.Diff([]string{"svc:a", "svc:b"}, first.Subscribed); diff != "" || first.Fresh {
		t.Errorf("after the reconnect (fresh %v): %s", first.Fresh, diff)
	}
	if diff := cmp.Diff([]string{"svc:a"}, first.Held); diff != "" {
		t.Error(diff)
	}
	n.publish(cluster("svc:b", 0), assignment("svc:b", 80))
	holds(t, e, cluster("svc:b", 0), assignment("svc:b", 80))
	for _, ev := range n.all() {
		if a, ok := ev.(xds.Asked); ok && a.Type == xds.Cluster {
			t.Errorf("names of the first request came again as %+v", a)
		}
	}
}

func TestRestartedServerSendsNothingAgain(t *testing.T) {
	rs := []xds.Resource{cluster("svc:a", 0), assignment("svc:a", 80), listener("capture:x/y", 0)}
	n := newNode(t, xds.Config{})
	n.publish(rs...)
	n.serve()
	e := n.envoy(xdstest.Options{})
	connect(t, e)
	holds(t, e, rs...)
	for _, r := range rs {
		event(n, func(a xds.Acked) bool { return a.Type == r.Type })
	}
	n.stop()
	wait(t, e, "the stream ends", func() bool { return !e.Connected() })
	e.Forget()

	again := newNode(t, xds.Config{})
	again.path = n.path
	again.publish(rs...)
	again.serve()
	connect(t, e)
	// What Envoy says it has counts as accepted.
	for _, r := range rs {
		event(again, func(a xds.Acked) bool {
			return a.Type == r.Type && len(a.Resources) == 1 && a.Resources[0].Name == r.Name && a.Resources[0].Newest
		})
		if !again.server.Accepted(r.Type, r.Name) {
			t.Errorf("%s %s does not count as accepted", r.Type, r.Name)
		}
	}
	if epoch := event(again, func(xds.StreamOpened) bool { return true }).Stream.Epoch; epoch != 0 {
		t.Errorf("an Envoy from before has epoch %d", epoch)
	}
	// A change of each type comes alone.
	changed := []xds.Resource{cluster("svc:b", 0), assignment("svc:a", 81), listener("capture:x/z", 0)}
	again.publish(changed...)
	holds(t, e, changed...)
	for _, r := range e.Responses() {
		if len(r.Names) > 1 || len(r.Removed) > 0 {
			t.Errorf("response %+v, want nothing but the change", r)
		}
	}
}

func TestFirstRequestIsHeldUntilDone(t *testing.T) {
	// The publisher knows nothing until it sees what Envoy holds.
	rs := []xds.Resource{cluster("svc:a", 0), assignment("svc:a", 80), listener("capture:x/y", 0)}
	n := newNode(t, xds.Config{})
	n.publish(rs...)
	n.serve()
	e := n.envoy(xdstest.Options{})
	connect(t, e)
	holds(t, e, rs...)
	for _, r := range rs {
		event(n, func(a xds.Acked) bool { return a.Type == r.Type })
	}
	n.stop()
	wait(t, e, "the stream ends", func() bool { return !e.Connected() })
	e.Forget()

	late := newNode(t, xds.Config{HoldTimeout: time.Hour})
	late.path = n.path
	late.onFirst = func(f xds.FirstRequest) {
		for _, r := range rs {
			if r.Type == f.Type && slices.Contains(f.Held, r.Name) {
				late.publish(r)
			}
		}
		f.Done()
		f.Done()
	}
	late.serve()
	connect(t, e)
	for _, r := range rs {
		event(late, func(a xds.Acked) bool { return a.Type == r.Type })
	}
	if got := brought(e); len(got) > 0 {
		t.Errorf("responses %+v, want none with content", got)
	}
	late.stop()
	wait(t, e, "the stream ends", func() bool { return !e.Connected() })

	// Without an answer the caches decide after the timeout: what they lack is gone.
	mute := newNode(t, xds.Config{HoldTimeout: 10 * time.Millisecond})
	mute.path = n.path
	mute.onFirst = func(xds.FirstRequest) {}
	mute.serve()
	connect(t, e)
	wait(t, e, "the listener is gone", func() bool { return len(e.Resources(string(xds.Listener))) == 0 })
	if m := metric(t, mute.metrics, "aether_xds_first_request_hold_seconds", "timeout"); m.GetHistogram().GetSampleCount() == 0 {
		t.Error("no timeout was counted")
	}
}

func TestHeldRequestEndsWithItsStream(t *testing.T) {
	n := newNode(t, xds.Config{HoldTimeout: time.Hour})
	n.onFirst = func(xds.FirstRequest) {}
	n.serve()
	e := n.envoy(xdstest.Options{})
	connect(t, e)
	event(n, func(xds.FirstRequest) bool { return true })
	e.Disconnect()
	event(n, func(xds.StreamClosed) bool { return true })
	connect(t, e)
	event(n, func(f xds.FirstRequest) bool { return f.Stream.ID == 2 })
	n.stop() // with a request held
	if c := count[xds.StreamClosed](n); c != 2 {
		t.Errorf("%d streams closed, want 2", c)
	}
}

func TestTwoEnvoysAtOnce(t *testing.T) {
	n := newNode(t, xds.Config{})
	n.publish(listener("capture:x/y", 0))
	n.serve()
	older, newer := n.envoy(xdstest.Options{Node: "older"}), n.envoy(xdstest.Options{Node: "newer"})
	connect(t, older)
	holds(t, older, listener("capture:x/y", 0))
	connect(t, newer)
	holds(t, newer, listener("capture:x/y", 0))
	a := event(n, func(o xds.StreamOpened) bool { return o.Stream.Node == "older" }).Stream
	b := event(n, func(o xds.StreamOpened) bool { return o.Stream.Node == "newer" }).Stream
	if a.Epoch >= b.Epoch || a.ID == b.ID {
		t.Errorf("older %+v, newer %+v", a, b)
	}
	if got := len(n.server.Status().Streams); got != 2 {
		t.Errorf("%d streams in the status", got)
	}
	n.publish(listener("capture:x/y", 1))
	holds(t, older, listener("capture:x/y", 1))
	holds(t, newer, listener("capture:x/y", 1))
	older.Disconnect()
	if closed := event(n, func(xds.StreamClosed) bool { return true }).Stream; closed != a {
		t.Errorf("closed %+v, want %+v", closed, a)
	}
}

func TestClusterChangeBringsItsAssignment(t *testing.T) {
	n := newNode(t, xds.Config{})
	rs := []xds.Resource{cluster("svc:a", 0), assignment("svc:a", 80), cluster("svc:b", 0), assignment("svc:b", 80)}
	n.publish(rs...)
	n.serve()
	e := n.envoy(xdstest.Options{})
	connect(t, e)
	holds(t, e, rs...)
	event(n, func(a xds.Acked) bool { return a.Type == xds.Assignment })
	e.Forget()
	n.publish(cluster("svc:a", 1))
	wait(t, e, "the assignment comes after its cluster", func() bool {
		got := brought(e)
		return len(got) == 2 && got[0].Type == string(xds.Cluster) && got[1].Type == string(xds.Assignment)
	})
	// One without an assignment brings none, nor the news that it has none.
	n.publish(cluster("svc:none", 0))
	holds(t, e, cluster("svc:none", 0))
	n.publish(cluster("svc:none", 1))
	holds(t, e, cluster("svc:none", 1))
	n.publish(assignment("svc:b", 81))
	holds(t, e, assignment("svc:b", 81))
	if got := brought(e); len(got) != 5 || len(got[4].Removed) > 0 {
		t.Errorf("%+v came, want a cluster, its assignment, a cluster, again, and an assignment", got)
	}
	for _, r := range brought(e)[:2] {
		if !slices.Equal(r.Names, []string{"svc:a"}) {
			t.Errorf("%s %v came, want svc:a alone", r.Type, r.Names)
		}
	}
}

// One Publish is offered in the order in which Envoy can use it.
func TestOrderOfOnePublish(t *testing.T) {
	n := newNode(t, xds.Config{})
	before := []xds.Resource{listener("l", 0), cluster("svc:a", 0), assignment("svc:a", 80), cluster("svc:b", 0), assignment("svc:b", 80)}
	n.publish(before...)
	n.serve()
	e := n.envoy(xdstest.Options{})
	connect(t, e)
	holds(t, e, before...)
	for _, typ := range []xds.Type{xds.Cluster, xds.Assignment, xds.Listener} {
		event(n, func(a xds.Acked) bool { return a.Type == typ && len(a.Resources) > 0 })
	}
	e.Forget()
	after := []xds.Resource{listener("m", 0), cluster("svc:c", 0), assignment("svc:b", 81)}
	if err := n.server.Publish(xds.Update{Set: after, Remove: []xds.Key{{Type: xds.Assignment, Name: "svc:a"}, {Type: xds.Cluster, Name: "svc:a"}, {Type: xds.Listener, Name: "l"}}}); err != nil {
		t.Fatal(err)
	}
	holds(t, e, after...)
	wait(t, e, "the removals came", func() bool {
		return len(e.Resources(string(xds.Cluster))) == 2 && len(e.Resources(string(xds.Listener))) == 1
	})
	var order []xds.Type
	for _, r := range brought(e)[:3] {
		if len(r.Removed) > 0 {
			t.Errorf("%s were removed before all additions came", xds.Type(r.Type))
		}
		order = append(order, xds.Type(r.Type))
	}
	if diff := cmp.Diff([]xds.Type{xds.Assignment, xds.Cluster, xds.Listener}, order); diff != "" {
		t.Error(diff)
	}

	// Removals alone; what is both set and removed is removed.
	for _, typ := range []xds.Type{xds.Cluster, xds.Assignment, xds.Listener} {
		event(n, func(a xds.Acked) bool { return a.Type == typ && len(a.Removed) > 0 })
	}
	e.Forget()
	gone := []xds.Key{{Type: xds.Assignment, Name: "svc:b"}, {Type: xds.Listener, Name: "m"}, {Type: xds.Cluster, Name: "svc:b"}}
	if err := n.server.Publish(xds.Update{Set: []xds.Resource{listener("m", 1)}, Remove: gone}); err != nil {
		t.Fatal(err)
	}
	wait(t, e, "the removals came", func() bool { return len(brought(e)) >= 3 })
	order = nil
	for _, r := range brought(e) {
		if len(r.Names) > 0 {
			t.Errorf("%v came although it is removed", r.Names)
		}
		order = append(order, xds.Type(r.Type))
	}
	if diff := cmp.Diff([]xds.Type{xds.Listener, xds.Cluster, xds.Assignment}, order); diff != "" {
		t.Error(diff)
	}
}

func TestNameAskedAgainIsSentAgain(t *testing.T) {
	n := newNode(t, xds.Config{})
	n.publish(cluster("svc:a", 0), assignment("svc:a", 80))
	n.serve()
	e := n.envoy(xdstest.Options{})
	connect(t, e)
	holds(t, e, assignment("svc:a", 80))
	e.Resubscribe(string(xds.Assignment), "svc:a")
	holds(t, e, assignment("svc:a", 80))
}

// A large assignment that changes all the time must not delay a first dial.
func TestOneUpdatePerNameInFlight(t *testing.T) {
	n := newNode(t, xds.Config{})
	n.publish(cluster("svc:big", 0), assignment("svc:big", 1))
	n.serve()
	e := n.envoy(xdstest.Options{})
	connect(t, e)
	holds(t, e, assignment("svc:big", 1))
	event(n, func(a xds.Acked) bool { return a.Type == xds.Assignment })
	e.Forget()

	e.Stall(string(xds.Assignment), true)
	n.publish(assignment("svc:big", 2))
	holds(t, e, assignment("svc:big", 2))
	for port := 3; port <= 100; port++ {
		n.publish(assignment("svc:big", port))
	}
	for i := range 5 { // first dials, each of which has the cache look again
		name := fmt.Sprintf("svc:%d", i)
		n.publish(cluster(name, 0), assignment(name, 80))
		holds(t, e, cluster(name, 0), assignment(name, 80))
	}
	if !e.Holds(string(xds.Assignment), "svc:big", raw(t, assignment("svc:big", 2).Message)) {
		t.Error("another update of svc:big came before the first was acknowledged")
	}
	e.Stall(string(xds.Assignment), false)
	holds(t, e, assignment("svc:big", 100))
	updates := 0
	for _, r := range e.Responses() {
		if r.Type == string(xds.Assignment) && slices.Contains(r.Names, "svc:big") {
			updates++
		}
	}
	if updates != 2 {
		t.Errorf("%d updates of svc:big were sent, want the first and the newest", updates)
	}
}

func TestUnservedTypeDoesNotEndTheStream(t *testing.T) {
	n := newNode(t, xds.Config{})
	n.serve()
	e := n.envoy(xdstest.Options{})
	connect(t, e)
	const runtime = "type.googleapis.com/envoy.service.runtime.v3.Runtime"
	e.Subscribe(runtime, "x")
	n.publish(listener("capture:x/y", 0))
	holds(t, e, listener("capture:x/y", 0))
	e.Unsubscribe(runtime, "x")
	n.publish(listener("capture:x/y", 1))
	holds(t, e, listener("capture:x/y", 1))
	if c := count[xds.StreamOpened](n); c != 1 {
		t.Errorf("%d streams, want 1", c)
	}
}

// After a scan of the Service range Envoy's first request exceeds gRPC's default
// limit of 4 MiB.
func TestFirstRequestWithManyNames(t *testing.T) {
	n := newNode(t, xds.Config{})
	n.serve()
	e := n.envoy(xdstest.Options{})
	var names []string
	for i := range 210_000 {
		names = append(names, fmt.Sprintf("svc:10.%d.%d.%d:%d", i>>16, i>>8&255, i&255, 30_000))
	}
	e.Ask(names...)
	connect(t, e)
	first := event(n, func(f xds.FirstRequest) bool { return f.Type == xds.Cluster })
	if len(first.Subscribed) != len(names) || first.Fresh {
		t.Errorf("%d names came, want %d", len(first.Subscribed), len(names))
	}
}

func TestBlockedSinkDoesNotBlockPublish(t *testing.T) {
	release := make(chan struct{})
	server := xds.New(xds.Config{Log: quiet(), Sink: func(e xds.Event) {
		if _, ok := e.(xds.Acked); ok {
			<-release
		}
		if f, ok := e.(xds.FirstRequest); ok {
			f.Done()
		}
	}})
	l := bufconn.Listen(1 << 20)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, l) }()
	e, err := xdstest.New(func(ctx context.Context) (net.Conn, error) { return l.DialContext(ctx) }, xdstest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	set := func(rs ...xds.Resource) {
		if err := server.Publish(xds.Update{Set: rs}); err != nil {
			t.Fatal(err)
		}
	}
	set(cluster("svc:a", 0), assignment("svc:a", 1), listener("l", 0))
	connect(t, e)
	holds(t, e, cluster("svc:a", 0))
	for i := range 1000 {
		set(cluster("svc:a", i), assignment("svc:a", i), listener("l", i), cluster(fmt.Sprint("svc:", i), 0))
	}
	close(release)
	holds(t, e, cluster("svc:a", 999), assignment("svc:a", 999), listener("l", 999))
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestPublishRefusesWhatItCannotServe(t *testing.T) {
	n := newNode(t, xds.Config{})
	good := cluster("svc:good", 0)
	err := n.server.Publish(xds.Update{Set: []xds.Resource{
		{Type: "type.googleapis.com/x", Name: "x", Message: good.Message},
		{Type: xds.Cluster, Name: "", Message: good.Message},
		{Type: xds.Cluster, Name: "*", Message: good.Message},
		{Type: xds.Cluster, Name: "nil"},
		{Type: xds.Cluster, Name: "utf8", Message: &clusterv3.Cluster{Name: "\xff"}},
		good,
	}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`type "type.googleapis.com/x" is not served`, `"" is no cluster name`, `"*" is no cluster name`, `cluster "nil" has no message`, `publish cluster "utf8": `} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
	rs := n.server.Status().Resources
	if len(rs) != 1 || rs[0].Name != "svc:good" || rs[0].Offered != rs[0].Published {
		t.Errorf("published %+v, want svc:good alone", rs)
	}
}

func TestMetricsAreWellFormed(t *testing.T) {
	n := newNode(t, xds.Config{})
	n.publish(cluster("svc:a", 0), assignment("svc:a", 80), listener("l", 0))
	n.serve()
	e := n.envoy(xdstest.Options{})
	connect(t, e)
	holds(t, e, assignment("svc:a", 80), listener("l", 0))
	event(n, func(a xds.Acked) bool { return a.Type == xds.Listener })
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(n.metrics); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	for _, want := range []struct {
		name, label string
		value       float64
	}{
		{"aether_xds_streams", "", 1},
		{"aether_xds_resources", "cluster", 1},
		{"aether_xds_resources", "listener", 1},
		{"aether_xds_resources_rejected", "listener", 0},
	} {
		if m := metric(t, n.metrics, want.name, want.label); m.GetGauge().GetValue() != want.value {
			t.Errorf("%s{%s} = %v, want %v", want.name, want.label, m, want.value)
		}
	}
}

// metric returns the metric of a collector with the given name and label value.
func metric(t *testing.T, c prometheus.Collector, name, label string) *dto.Metric {
	t.Helper()
	registry := prometheus.NewRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			has := func(l *dto.LabelPair) bool { return l.GetValue() == label }
			if f.GetName() == name && (label == "" || slices.ContainsFunc(m.GetLabel(), has)) {
				return m
			}
		}
	}
	t.Fatalf("no metric %s{%s}", name, label)
	return nil
}
