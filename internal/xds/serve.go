// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"context"
	"fmt"
	"net"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
)

const (
	// maxRequest bounds one message from Envoy. After a scan of the Service range
	// Envoy lists every name that was ever dialled when it reconnects: 64 MiB hold
	// more than a million of them. gRPC's default of 4 MiB would be passed at some
	// 100,000, and the stream would never come back.
	maxRequest = 64 << 20

	// An Envoy that does not answer a ping for keepaliveTimeout after
	// keepaliveTime without traffic is taken for dead. Long, because an Envoy that
	// is being debugged or stopped for a moment must not lose its stream.
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 20 * time.Second
)

// Serve answers Envoys on l until ctx ends or l fails, and closes l. When ctx
// ends, streams are ended first, and cut after Config.StopTimeout. It returns nil
// after ctx ended, and no event comes after it has returned. A Server may serve
// several listeners.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	streams, endStreams := context.WithCancel(context.Background())
	defer endStreams()
	a := &ads{server: s, ctx: streams}
	g := grpc.NewServer(
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.WaitForHandlers(true), // no event after Serve
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
	discovery.RegisterAggregatedDiscoveryServiceServer(g, a)

	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		endStreams()
		cut := time.AfterFunc(s.cfg.StopTimeout, g.Stop)
		g.GracefulStop()
		cut.Stop()
	})
	err := g.Serve(l)
	if !stop() {
		<-stopped
		err = nil
	} else {
		endStreams()
		g.Stop()
	}
	if err != nil {
		return fmt.Errorf("serve xds on %s: %w", l.Addr(), err)
	}
	return nil
}

// ads is the gRPC service on one listener.
type ads struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	server *Server
	ctx    context.Context // ends all streams
}

// DeltaAggregatedResources runs one stream. Each gets a delta server of its own,
// so that what belongs to a stream needs no table of streams.
func (a *ads) DeltaAggregatedResources(str discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	ctx, cancel := context.WithCancel(str.Context())
	defer cancel()
	defer context.AfterFunc(a.ctx, cancel)()
	ses := &session{
		server:  a.server,
		ctx:     ctx,
		views:   map[Type]*view{},
		waiting: map[Type]request{},
		sentAt:  map[string]time.Time{},
	}
	if p, ok := peer.FromContext(ctx); ok {
		if addr, ok := p.Addr.(peerAddr); ok {
			ses.info.PID = addr.pid
		}
	}
	return delta.NewServer(ctx, ses, ses).DeltaStreamHandler(str, resource.AnyType)
}
