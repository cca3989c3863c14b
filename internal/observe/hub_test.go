// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	dataaccesslogv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	alsv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"aether.io/aether/internal/envoy"
)

// entry is what Envoy sends of a connection that ended well.
func entry(client string, start time.Time) *dataaccesslogv3.TCPAccessLogEntry {
	address := func(s string) *corev3.Address {
		p := netip.MustParseAddrPort(s)
		return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: p.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(p.Port())},
		}}}
	}
	return &dataaccesslogv3.TCPAccessLogEntry{
		CommonProperties: &dataaccesslogv3.AccessLogCommon{
			DownstreamRemoteAddress: address(client), DownstreamLocalAddress: address("10.96.0.10:80"),
			UpstreamRemoteAddress: address("10.244.0.7:8080"), UpstreamCluster: "svc:10.96.0.10:80", UpstreamRequestAttemptCount: 1,
			StartTime: timestamppb.New(start), Duration: durationpb.New(time.Millisecond),
			CustomTags: map[string]string{"aether": "capture:shop/client-0;;Normal;250"},
		},
		ConnectionProperties: &dataaccesslogv3.ConnectionProperties{ReceivedBytes: 6, SentBytes: 7},
	}
}

func message(es ...*dataaccesslogv3.TCPAccessLogEntry) *alsv3.StreamAccessLogsMessage {
	return &alsv3.StreamAccessLogsMessage{LogEntries: &alsv3.StreamAccessLogsMessage_TcpLogs{
		TcpLogs: &alsv3.StreamAccessLogsMessage_TCPAccessLogEntries{LogEntry: es},
	}}
}

// TestServe sends records as Envoy does, to a follower, and ends while the stream
// is open; a second stream to the next server goes on.
func TestServe(t *testing.T) {
	h := NewHub(Config{Names: book{}})
	f := NewFollower(Filter{}, 8, false)
	h.Connections(f)
	defer h.Leave(f)
	path := filepath.Join(t.TempDir(), "als.sock")
	for range 2 {
		ln, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- h.Serve(ctx, ln) }()
		conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		stream, err := alsv3.NewAccessLogServiceClient(conn).StreamAccessLogs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(message(entry("10.244.0.3:40000", time.Now()), &dataaccesslogv3.TCPAccessLogEntry{})); err != nil {
			t.Fatal(err)
		}
		select {
		case c := <-f.C:
			if c.Source != shop || c.Service != web || c.Outcome != envoy.OK || c.BytesSent != 6 || c.BytesReceived != 7 ||
				c.Wait != 250*time.Microsecond || c.Verdict() != VerdictBalance {
				t.Errorf("%+v", c)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("nothing came")
		}
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		conn.Close()
	}
	if m := h.Missing(); m.Unreadable != 2 || m.Told != 2 {
		t.Errorf("%+v", m)
	}
}

// TestSlowFollower: one that takes nothing loses connections and is told how
// many; the others and the Hub go on.
func TestSlowFollower(t *testing.T) {
	h := NewHub(Config{Names: book{}})
	slow, quick := NewFollower(Filter{}, 3, false), NewFollower(Filter{}, 100, false)
	none := NewFollower(Filter{Refused: true}, 1, false)
	for _, f := range []*Follower{slow, quick, none} {
		h.Connections(f)
		defer h.Leave(f)
	}
	for i := range 10 {
		h.Take([]*dataaccesslogv3.TCPAccessLogEntry{entry("10.244.0.3:40000", time.Now().Add(time.Duration(i)))})
	}
	if len(slow.C) != 3 || slow.Lost() != 7 || len(quick.C) != 10 || quick.Lost() != 0 || len(none.C) != 0 || none.Lost() != 0 {
		t.Errorf("slow has %d and lost %d, quick has %d", len(slow.C), slow.Lost(), len(quick.C))
	}
	h.Leave(quick)
	h.Take([]*dataaccesslogv3.TCPAccessLogEntry{entry("10.244.0.3:40001", time.Now())})
	if len(quick.C) != 10 {
		t.Error("one that left is told")
	}
}

// TestMissing: what Envoy counted and did not send is what is missing; what ended
// before the Hub began is not counted either way.
func TestMissing(t *testing.T) {
	now := epoch
	h := NewHub(Config{Names: book{}, Now: func() time.Time { return now }})
	if h.Missing().Counted {
		t.Error("counted without a count")
	}
	h.Count(105, 5)
	h.Take([]*dataaccesslogv3.TCPAccessLogEntry{
		entry("10.244.0.3:40000", epoch.Add(-time.Second)), // was on its way
		entry("10.244.0.3:40001", epoch.Add(time.Second)), entry("10.244.0.3:40002", epoch.Add(time.Second)),
	})
	h.Count(125, 10)
	if m := h.Missing(); !m.Counted || m.Told != 2 || m.NotTold != 13 || m.OpenNotTold != 10 {
		t.Errorf("%+v", m)
	}
	h.CountNone()
	h.Count(4, 0)
	if m := h.Missing(); m.NotTold != 17 || m.OpenNotTold != 0 {
		t.Errorf("after a new Envoy: %+v", m)
	}
}

// TestRun passes on once a second what was dialled.
func TestRun(t *testing.T) {
	got := make(chan map[netip.AddrPort]time.Time, 1)
	h := NewHub(Config{Names: book{}, Dialled: func(m map[netip.AddrPort]time.Time) { got <- m }})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.Run(ctx)
	}()
	h.Take([]*dataaccesslogv3.TCPAccessLogEntry{entry("10.244.0.3:40000", epoch)})
	select {
	case m := <-got:
		if !m[netip.MustParseAddrPort("10.96.0.10:80")].Equal(epoch) {
			t.Errorf("%v", m)
		}
	case <-time.After(10 * time.Second):
		t.Error("nothing was passed on")
	}
	stop()
	<-ended
}
