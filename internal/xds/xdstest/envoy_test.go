// SPDX-License-Identifier: Apache-2.0

package xdstest_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"

	"aether.io/aether/internal/xds/xdstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is a server whose test plays its part by hand.
type script struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	t        *testing.T
	listener *bufconn.Listener
	streams  chan *scripted
}

type scripted struct {
	t    *testing.T
	str  discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	reqs chan *discovery.DeltaDiscoveryRequest
	end  chan struct{}
}

func newScript(t *testing.T) *script {
	t.Helper()
	s := &script{t: t, listener: bufconn.Listen(1 << 20), streams: make(chan *scripted, 1)}
	g := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(g, s)
	served := make(chan error, 1)
	go func() { served <- g.Serve(s.listener) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *script) DeltaAggregatedResources(str discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	x := &scripted{t: s.t, str: str, reqs: make(chan *discovery.DeltaDiscoveryRequest, 100), end: make(chan struct{})}
	s.streams <- x
	go func() {
		defer close(x.reqs)
		for {
			req, err := str.Recv()
			if err != nil {
				return
			}
			x.reqs <- req
		}
	}()
	select {
	case <-x.end:
	case <-str.Context().Done():
	}
	return nil
}

func (s *script) envoy(o xdstest.Options) *xdstest.Envoy {
	s.t.Helper()
	e, err := xdstest.New(func(ctx context.Context) (net.Conn, error) { return s.listener.DialContext(ctx) }, o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(e.Close)
	return e
}

func (s *script) connect(e *xdstest.Envoy) *scripted {
	s.t.Helper()
	if err := e.Connect(); err != nil {
		s.t.Fatal(err)
	}
	return <-s.streams
}

// expects takes the next request and compares it, its node aside.
func (x *scripted) expects(want *discovery.DeltaDiscoveryRequest) {
	x.t.Helper()
	select {
	case got := <-x.reqs:
		if got == nil {
			x.t.Fatalf("the stream has ended, want %v", want)
		}
		got.Node = nil
		if diff := cmp.Diff(want, got, protocmp.Transform(), protocmp.IgnoreFields(&discovery.DeltaDiscoveryRequest{}, "error_detail")); diff != "" {
			x.t.Errorf("request: %s", diff)
		}
		if (want.ErrorDetail == nil) != (got.ErrorDetail == nil) {
			x.t.Errorf("rejected with %v, want %v", got.ErrorDetail, want.ErrorDetail)
		} else if words := want.ErrorDetail.GetMessage(); !strings.Contains(got.ErrorDetail.GetMessage(), words) {
			x.t.Errorf("Envoy says %q, want %q", got.ErrorDetail.GetMessage(), words)
		}
	case <-time.After(20 * time.Second):
		x.t.Fatalf("no request came, want %v", want)
	}
}

func (x *scripted) sends(typeURL, nonce string, removed []string, rs ...*discovery.Resource) {
	x.t.Helper()
	if err := x.str.Send(&discovery.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, Resources: rs, RemovedResources: removed}); err != nil {
		x.t.Fatal(err)
	}
}

func pack(t *testing.T, name, version string, m proto.Message) *discovery.Resource {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return &discovery.Resource{Name: name, Version: version, Resource: a}
}

func eds(t *testing.T, name, version string) *discovery.Resource {
	return pack(t, name, version, &clusterv3.Cluster{
		Name: name, AltStatName: version, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
	})
}

type request = discovery.DeltaDiscoveryRequest

func TestFollowsClustersToTheirAssignments(t *testing.T) {
	s := newScript(t)
	e := s.envoy(xdstest.Options{})
	x := s.connect(e)
	x.expects(&request{TypeUrl: resource.ClusterType})
	static := pack(t, "static", "1", &clusterv3.Cluster{Name: "static"})
	named := pack(t, "named", "1", &clusterv3.Cluster{
		Name: "named", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{ServiceName: "other"},
	})
	x.sends(resource.ClusterType, "1", nil, eds(t, "a", "1"), static, named)
	x.expects(&request{TypeUrl: resource.ClusterType, ResponseNonce: "1"})
	x.expects(&request{TypeUrl: resource.EndpointType, ResourceNamesSubscribe: []string{"a", "other"}})
	x.expects(&request{TypeUrl: resource.ListenerType})

	// A cluster that changes asks for nothing; one that goes takes its assignment along.
	x.sends(resource.EndpointType, "2", nil, pack(t, "a", "1", &clusterv3.Cluster{}), pack(t, "stranger", "1", &clusterv3.Cluster{}))
	x.expects(&request{TypeUrl: resource.EndpointType, ResponseNonce: "2"})
	x.sends(resource.ClusterType, "3", nil, eds(t, "a", "2"))
	x.expects(&request{TypeUrl: resource.ClusterType, ResponseNonce: "3"})
	if got := e.Resources(resource.EndpointType); len(got) != 1 {
		t.Errorf("holds the assignments %v, want a", got)
	}
	x.sends(resource.ClusterType, "4", []string{"a"})
	x.expects(&request{TypeUrl: resource.ClusterType, ResponseNonce: "4"})
	x.expects(&request{TypeUrl: resource.EndpointType, ResourceNamesUnsubscribe: []string{"a"}})
	if got := e.Resources(resource.EndpointType); len(got) != 0 {
		t.Errorf("holds the assignments %v, want none", got)
	}
}

func TestReconnectSaysWhatIsHeld(t *testing.T) {
	s := newScript(t)
	e := s.envoy(xdstest.Options{})
	e.Ask("cold")
	x := s.connect(e)
	x.expects(&request{TypeUrl: resource.ClusterType, ResourceNamesSubscribe: []string{"*", "cold"}})
	x.sends(resource.ClusterType, "1", nil, eds(t, "a", "7"))
	x.expects(&request{TypeUrl: resource.ClusterType, ResponseNonce: "1"})
	x.expects(&request{TypeUrl: resource.EndpointType, ResourceNamesSubscribe: []string{"a"}})
	x.expects(&request{TypeUrl: resource.ListenerType})
	e.Ask("cold", "colder")
	x.expects(&request{TypeUrl: resource.ClusterType, ResourceNamesSubscribe: []string{"colder"}})
	close(x.end)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := e.Wait(ctx, func() bool { return !e.Connected() }); err != nil {
		t.Fatal(err)
	}
	x = s.connect(e)
	x.expects(&request{
		TypeUrl: resource.ClusterType, ResourceNamesSubscribe: []string{"*", "cold", "colder"},
		InitialResourceVersions: map[string]string{"a": "7"},
	})
	x.expects(&request{TypeUrl: resource.EndpointType, ResourceNamesSubscribe: []string{"a"}})
	x.expects(&request{TypeUrl: resource.ListenerType})
	if err := e.Connect(); err == nil {
		t.Error("a second stream was opened")
	}
}

func TestRejects(t *testing.T) {
	bad := errors.New("will not do")
	named := func(name string) *discovery.Resource {
		return pack(t, name, "1", &listenerv3.Listener{Name: name})
	}
	for _, test := range []struct {
		name, typeURL string
		err           error
		words         string
		held, misled  []string
	}{
		{"listeners by name", resource.ListenerType, bad, "Error adding/updating listener(s) b: will not do", []string{"a", "c"}, []string{"a", "c"}},
		{"clusters by name", resource.ClusterType, bad, "Error adding/updating cluster(s) b: will not do", []string{"a", "c"}, []string{"a", "c"}},
		{"assignments without a name", resource.EndpointType, bad, "will not do", []string{"a"}, []string{"a"}},
		{"all of what does not decode", resource.ListenerType, xdstest.Undecodable(bad), "will not do", nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newScript(t)
			e := s.envoy(xdstest.Options{Judge: func(_, name string, _ []byte) error {
				if name == "b" {
					return test.err
				}
				return nil
			}})
			x := s.connect(e)
			x.expects(&request{TypeUrl: resource.ClusterType})
			if test.typeURL == resource.EndpointType {
				e.Subscribe(resource.EndpointType, "a", "b", "c")
				x.expects(&request{TypeUrl: resource.EndpointType, ResourceNamesSubscribe: []string{"a", "b", "c"}})
			}
			x.sends(test.typeURL, "1", nil, named("a"), named("b"), named("c"))
			want := &request{TypeUrl: test.typeURL, ResponseNonce: "1"}
			select {
			case got := <-x.reqs:
				if got.GetTypeUrl() != want.TypeUrl || got.GetResponseNonce() != "1" || got.GetErrorDetail().GetMessage() != test.words {
					t.Errorf("answered %v, want the words %q", got, test.words)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("no answer")
			}
			var held []string
			for name := range e.Resources(test.typeURL) {
				held = append(held, name)
			}
			slices.Sort(held)
			if !slices.Equal(held, test.held) || !slices.Equal(e.Misled(test.typeURL), test.misled) {
				t.Errorf("holds %v, misleads about %v; want %v, %v", held, e.Misled(test.typeURL), test.held, test.misled)
			}
			if got := e.Responses(); len(got) != 1 || got[0].Nack != test.words || len(got[0].Names) != 3 {
				t.Errorf("responses %+v", got)
			}
		})
	}
}

func TestStallHoldsAcknowledgementsBack(t *testing.T) {
	s := newScript(t)
	e := s.envoy(xdstest.Options{})
	x := s.connect(e)
	x.expects(&request{TypeUrl: resource.ClusterType})
	e.Stall(resource.ClusterType, true)
	x.sends(resource.ClusterType, "1", nil, pack(t, "a", "1", &clusterv3.Cluster{}))
	x.expects(&request{TypeUrl: resource.ListenerType}) // it was applied all the same
	e.Stall(resource.ClusterType, false)
	x.expects(&request{TypeUrl: resource.ClusterType, ResponseNonce: "1"})
}
