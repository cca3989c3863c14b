// SPDX-License-Identifier: Apache-2.0

// Package xdstest holds a delta xDS client that behaves as Envoy 1.40 does, for
// tests of what serves Envoy: it subscribes, follows the clusters it gets to their
// assignments, asks for clusters on demand, takes and refuses resources, and says
// what it holds when it reconnects.
//
// Like Envoy it
//   - asks for clusters first and for listeners once the clusters have come;
//   - names the guilty in its rejection of clusters and listeners and applies the
//     others, names nobody for assignments and leaves off at the first bad one, and
//     applies nothing of a response with a resource that it cannot decode;
//   - lists when it reconnects what came with accepted responses, even where it has
//     applied something else since from a response that it rejected in part;
//   - never takes back a name that was asked for on demand;
//   - subscribes to an assignment once, however often its cluster changes.
//
// It holds bytes and proxies nothing.
package xdstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Options of an Envoy.
type Options struct {
	// Node is the node id; default "xdstest".
	Node string
	// Judge returns why a resource is refused, or nil to take it. An error made by
	// Undecodable refuses the whole response. A nil Judge takes everything.
	Judge func(typeURL, name string, value []byte) error
}

// Undecodable makes the error of a resource that Envoy cannot even decode.
func Undecodable(err error) error { return undecodable{err} }

type undecodable struct{ error }

// Response is a response that came, with names sorted.
type Response struct {
	Type    string
	Names   []string
	Removed []string
	Nack    string // Envoy's words, if it refused something
}

// Envoy is a pretended Envoy process. All methods may be called concurrently.
type Envoy struct {
	opts Options
	conn *grpc.ClientConn

	mu      sync.Mutex
	changed chan struct{} // closed and replaced with every change
	types   map[string]*subscription
	// assignments are those that clusters need, by cluster
	assignments map[string]string
	order       []string // types in the order in which they were first asked for
	stream      *stream  // nil while disconnected
	stalled     map[string]bool
	responses   []Response
}

// New makes an Envoy that connects with dial. It is idle until Connect.
func New(dial func(context.Context) (net.Conn, error), o Options) (*Envoy, error) {
	if o.Node == "" {
		o.Node = "xdstest"
	}
	conn, err := grpc.NewClient("passthrough:///xdstest",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		return nil, fmt.Errorf("make the xds client: %w", err)
	}
	e := &Envoy{
		opts:    o,
		conn:    conn,
		changed: make(chan struct{}),
		types:   map[string]*subscription{},
		stalled: map[string]bool{},

		assignments: map[string]string{},
	}
	e.subscription(resource.ClusterType)
	return e, nil
}

// DialUnix dials a Unix socket.
func DialUnix(path string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
}

// stream is one connection's worth of client.
type stream struct {
	cancel context.CancelFunc
	out    chan struct{} // wakes the sender
	queue  []*discovery.DeltaDiscoveryRequest
	begun  map[string]bool // types whose first request was sent
	done   sync.WaitGroup
}

// Connect opens a stream, as Envoy does at its start and after a broken stream.
// It waits up to 10 s for the server.
func (e *Envoy) Connect() error {
	ctx, cancel := context.WithCancel(context.Background())
	give := time.AfterFunc(10*time.Second, cancel)
	str, err := discovery.NewAggregatedDiscoveryServiceClient(e.conn).DeltaAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		cancel()
		return fmt.Errorf("open an xds stream: %w", err)
	}
	give.Stop()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stream != nil {
		cancel()
		return errors.New("open an xds stream: there is one")
	}
	s := &stream{cancel: cancel, out: make(chan struct{}, 1), begun: map[string]bool{}}
	e.stream = s
	for _, t := range e.order {
		e.begin(s, t)
	}
	s.done.Add(2)
	go e.send(s, str)
	go e.receive(s, str)
	e.notify()
	return nil
}

// Disconnect breaks the stream. What Envoy holds stays.
func (e *Envoy) Disconnect() {
	e.mu.Lock()
	s := e.stream
	e.stream = nil
	e.notify()
	e.mu.Unlock()
	if s != nil {
		s.cancel()
		s.done.Wait()
	}
}

// Close ends the process.
func (e *Envoy) Close() {
	e.Disconnect()
	_ = e.conn.Close() // nothing is left to lose
}

// Ask asks for clusters on demand. Names that were asked for are not asked again.
func (e *Envoy) Ask(names ...string) { e.Subscribe(resource.ClusterType, names...) }

// Subscribe adds names to what is asked for.
func (e *Envoy) Subscribe(typeURL string, names ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.interest(typeURL, names, nil)
}

// Unsubscribe drops names and what is held under them.
func (e *Envoy) Unsubscribe(typeURL string, names ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.interest(typeURL, nil, names)
}

// Resubscribe drops names and asks for them again in one request, as Envoy does
// for a cluster that was removed and came back.
func (e *Envoy) Resubscribe(typeURL string, names ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.subscription(typeURL)
	for _, name := range names {
		s.drop(name)
	}
	e.request(&discovery.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names})
	e.notify()
}

// Stall holds back the acknowledgements of a type, or with false sends those that
// were held back.
func (e *Envoy) Stall(typeURL string, on bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stalled[typeURL] = on
	if on {
		return
	}
	s := e.subscription(typeURL)
	for _, req := range s.owed {
		e.request(req)
	}
	s.owed = nil
}

// Resources returns what Envoy has applied, by name.
func (e *Envoy) Resources(typeURL string) map[string][]byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.subscription(typeURL).resources)
}

// Misled returns the names of resources of which Envoy holds something else than
// what it would list if it reconnected now: they came with others that it refused.
// Nobody who serves it can know of them.
func (e *Envoy) Misled(typeURL string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.subscription(typeURL)
	var names []string
	for name, value := range s.resources {
		if listed, ok := s.listed[name]; !ok || !bytes.Equal(listed, value) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Connected reports whether there is a stream.
func (e *Envoy) Connected() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stream != nil
}

// Responses returns all responses since the start or the last Forget.
func (e *Envoy) Responses() []Response {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.responses)
}

// Forget empties the list of responses.
func (e *Envoy) Forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.responses = nil
}

// Wait waits until cond holds; cond is called after every change, without locks.
func (e *Envoy) Wait(ctx context.Context, cond func() bool) error {
	for {
		e.mu.Lock()
		changed := e.changed
		e.mu.Unlock()
		if cond() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if cond() {
				return nil
			}
			return ctx.Err()
		}
	}
}

// Holds reports whether the resource is applied with exactly these bytes.
func (e *Envoy) Holds(typeURL, name string, value []byte) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	got, ok := e.subscription(typeURL).resources[name]
	return ok && bytes.Equal(got, value)
}

func (e *Envoy) notify() {
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *Envoy) node() *corev3.Node {
	return &corev3.Node{
		Id:            e.opts.Node,
		UserAgentName: "envoy",
		UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
			Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: 40},
		}},
	}
}

func (e *Envoy) send(s *stream, str discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient) {
	defer s.done.Done()
	for {
		e.mu.Lock()
		queue := s.queue
		s.queue = nil
		e.mu.Unlock()
		for _, req := range queue {
			if str.Send(req) != nil {
				return // the receiver learns why
			}
		}
		select {
		case <-s.out:
		case <-str.Context().Done():
			return
		}
	}
}

func (e *Envoy) receive(s *stream, str discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient) {
	defer s.done.Done()
	defer s.cancel()
	for {
		resp, err := str.Recv()
		e.mu.Lock()
		if err != nil || e.stream != s {
			if e.stream == s {
				e.stream = nil
				e.notify()
			}
			e.mu.Unlock()
			return
		}
		e.handle(resp)
		e.notify()
		e.mu.Unlock()
	}
}
