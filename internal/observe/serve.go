// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	alsv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

const (
	// stopTimeout is how long streams may take to end before they are cut: Envoy
	// never ends one by itself.
	stopTimeout = 100 * time.Millisecond
	// An Envoy that does not answer a ping for keepaliveTimeout after
	// keepaliveTime without traffic is taken for dead.
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 20 * time.Second
)

// Serve takes Envoy's records on l until ctx ends or l fails, and closes l. It
// returns nil after ctx ended.
func (h *Hub) Serve(ctx context.Context, l net.Listener) error {
	g := grpc.NewServer(
		grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
	alsv3.RegisterAccessLogServiceServer(g, &service{hub: h})
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		cut := time.AfterFunc(stopTimeout, g.Stop)
		g.GracefulStop()
		cut.Stop()
	})
	err := g.Serve(l)
	if !stop() {
		<-stopped
		return nil
	}
	g.Stop()
	if err != nil {
		return fmt.Errorf("take connection records on %s: %w", l.Addr(), err)
	}
	return nil
}

// service is Envoy's access log service.
type service struct {
	alsv3.UnimplementedAccessLogServiceServer
	hub *Hub
}

// StreamAccessLogs takes one stream: each worker of an Envoy has its own.
func (s *service) StreamAccessLogs(stream alsv3.AccessLogService_StreamAccessLogsServer) error {
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return stream.SendAndClose(&alsv3.StreamAccessLogsResponse{})
		case err != nil:
			return err
		}
		s.hub.Take(m.GetTcpLogs().GetLogEntry())
	}
}
