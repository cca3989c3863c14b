// SPDX-License-Identifier: Apache-2.0

package xds_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"aether.io/aether/internal/xds"
	"aether.io/aether/internal/xds/xdstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// node is a server with everything it told.
type node struct {
	t       *testing.T
	server  *xds.Server
	metrics *xds.Metrics
	path    string
	stop    func()

	mu      sync.Mutex
	events  []xds.Event
	last    map[xds.Key]xds.Resource // published last
	changed chan struct{}
	// onFirst answers first requests; nil calls Done at once.
	onFirst func(xds.FirstRequest)
	onAsked func(xds.Asked)
}

// tester is what *testing.T and *rapid.T have in common.
type tester interface {
	Helper()
	Fatal(...any)
}

// socketDir is a directory with a name short enough for a Unix socket.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "xdstest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func newNode(t *testing.T, cfg xds.Config) *node {
	t.Helper()
	n := &node{t: t, path: filepath.Join(socketDir(t), "xds.sock"), changed: make(chan struct{}), metrics: xds.NewMetrics(), last: map[xds.Key]xds.Resource{}}
	cfg.Sink, cfg.Metrics = n.sink, n.metrics
	if cfg.Log == nil {
		cfg.Log = quiet()
	}
	n.server = xds.New(cfg)
	return n
}

// serve opens the socket; the returned stop is also called at the end of the test.
func (n *node) serve() {
	n.t.Helper()
	l, err := xds.Listen(n.path, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- n.server.Serve(ctx, l) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			n.t.Error(err)
		}
	})
	n.t.Cleanup(n.stop)
}

func (n *node) sink(e xds.Event) {
	n.mu.Lock()
	n.events = append(n.events, e)
	close(n.changed)
	n.changed = make(chan struct{})
	answer, asked := n.onFirst, n.onAsked
	n.mu.Unlock()
	if ask, ok := e.(xds.Asked); ok && asked != nil {
		asked(ask)
	}
	if first, ok := e.(xds.FirstRequest); ok {
		if answer == nil {
			first.Done()
		} else {
			go answer(first)
		}
	}
}

func (n *node) publish(rs ...xds.Resource) {
	n.t.Helper()
	n.mu.Lock()
	for _, r := range rs {
		n.last[xds.Key{Type: r.Type, Name: r.Name}] = r
	}
	n.mu.Unlock()
	if err := n.server.Publish(xds.Update{Set: rs}); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) remove(t xds.Type, names ...string) {
	n.t.Helper()
	var u xds.Update
	for _, name := range names {
		u.Remove = append(u.Remove, xds.Key{Type: t, Name: name})
	}
	if err := n.server.Publish(u); err != nil {
		n.t.Fatal(err)
	}
}

// event waits for an event that fits and returns it.
func event[E xds.Event](n *node, fits func(E) bool) E {
	n.t.Helper()
	timeout := time.After(patience)
	for {
		n.mu.Lock()
		changed := n.changed
		for _, e := range n.events {
			if e, ok := e.(E); ok && fits(e) {
				n.mu.Unlock()
				return e
			}
		}
		n.mu.Unlock()
		select {
		case <-changed:
		case <-timeout:
			var none E
			n.t.Fatalf("no such %T among %v", none, n.all())
		}
	}
}

func count[E xds.Event](n *node) (c int) {
	for _, e := range n.all() {
		if _, ok := e.(E); ok {
			c++
		}
	}
	return c
}

func (n *node) all() []xds.Event {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]xds.Event(nil), n.events...)
}

func (n *node) clear() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = nil
}

func (n *node) envoy(o xdstest.Options) *xdstest.Envoy {
	n.t.Helper()
	e, err := xdstest.New(xdstest.DialUnix(n.path), o)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(e.Close)
	return e
}

func connect(t *testing.T, e *xdstest.Envoy) {
	t.Helper()
	if err := e.Connect(); err != nil {
		t.Fatal(err)
	}
}

func wait(t *testing.T, e *xdstest.Envoy, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := e.Wait(ctx, cond); err != nil {
		t.Fatalf("waiting until %s: %v\nresponses: %+v", what, err, e.Responses())
	}
}

// holds waits until Envoy holds exactly these resources.
func holds(t *testing.T, e *xdstest.Envoy, rs ...xds.Resource) {
	t.Helper()
	for _, r := range rs {
		wait(t, e, fmt.Sprintf("envoy holds %s %s", r.Type, r.Name), func() bool {
			return e.Holds(string(r.Type), r.Name, raw(t, r.Message))
		})
	}
}

// brought are the responses that were not empty.
func brought(e *xdstest.Envoy) []xdstest.Response {
	return slices.DeleteFunc(e.Responses(), func(r xdstest.Response) bool { return len(r.Names)+len(r.Removed) == 0 })
}

func raw(t tester, m proto.Message) []byte {
	t.Helper()
	b, err := cache.MarshalResource(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// cluster is an EDS cluster; variant makes different bytes.
func cluster(name string, variant int) xds.Resource {
	return xds.Resource{Type: xds.Cluster, Name: name, Message: &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
			InitialFetchTimeout:   durationpb.New(time.Second),
			ResourceApiVersion:    corev3.ApiVersion_V3,
		}},
		ConnectTimeout: durationpb.New(time.Duration(variant+1) * time.Second),
	}}
}

// assignment has one endpoint with the given port.
func assignment(name string, port int) xds.Resource {
	return xds.Resource{Type: xds.Assignment, Name: name, Message: &endpointv3.ClusterLoadAssignment{
		ClusterName: name,
		Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
					Address:       "127.0.0.1",
					PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)},
				}}},
			}},
		}}}},
	}}
}

func listener(name string, variant int) xds.Resource {
	return xds.Resource{Type: xds.Listener, Name: name, Message: &listenerv3.Listener{
		Name: name, StatPrefix: fmt.Sprint(variant),
	}}
}

// refuse makes a judge that refuses what is in the set, by name and bytes.
type refuse struct {
	mu  sync.Mutex
	bad map[string]error
}

func (r *refuse) add(t *testing.T, res xds.Resource, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bad == nil {
		r.bad = map[string]error{}
	}
	r.bad[res.Name+string(raw(t, res.Message))] = err
}

func (r *refuse) judge(_, name string, value []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bad[name+string(value)]
}

var errBad = errors.New("this is not to be had")
