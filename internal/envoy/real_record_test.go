// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	alsv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc"

	"aether.io/aether/internal/model"
)

// recorder takes Envoy's connection records.
type recorder struct {
	alsv3.UnimplementedAccessLogServiceServer
	mu     sync.Mutex
	open   []Record
	ended  []Record
	errs   []error
	server *grpc.Server
}

// record serves Envoy's connection records until the test ends or stop is called.
func (l *lab) record() *recorder {
	l.t.Helper()
	r := &recorder{server: grpc.NewServer()}
	alsv3.RegisterAccessLogServiceServer(r.server, r)
	ln, err := net.Listen("unix", l.boot.RecordSocket)
	l.must(err)
	go func() { _ = r.server.Serve(ln) }()
	l.t.Cleanup(r.server.Stop)
	return r
}

func (r *recorder) StreamAccessLogs(s alsv3.AccessLogService_StreamAccessLogsServer) error {
	for {
		m, err := s.Recv()
		if err != nil {
			return nil
		}
		for _, e := range m.GetTcpLogs().GetLogEntry() {
			rec, err := ReadRecord(e)
			r.mu.Lock()
			switch {
			case err != nil:
				r.errs = append(r.errs, err)
			case rec.Open:
				r.open = append(r.open, rec)
			default:
				r.ended = append(r.ended, rec)
			}
			r.mu.Unlock()
		}
	}
}

func (r *recorder) records() (open, ended []Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Record{}, r.open...), append([]Record{}, r.ended...)
}

// waitEnded waits until n connections have ended and returns their records.
func (l *lab) waitEnded(r *recorder, n int) []Record {
	l.t.Helper()
	l.eventually(fmt.Sprintf("%d end records", n), func() error {
		if _, ended := r.records(); len(ended) < n {
			return fmt.Errorf("%d records", len(ended))
		}
		return nil
	})
	_, ended := r.records()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, err := range r.errs {
		l.t.Error(err)
	}
	return ended
}

// TestRealRecords: what the agent is told of a connection is what happened, and
// the outcome that it reads is the one that is counted.
func TestRealRecords(t *testing.T) {
	l := startServing(t, PodSource)
	r := l.record()
	runInput(t, "table ip t { chain c { type filter hook input priority 0; ip daddr "+serverIP(8)+" drop; }; }", "ip", "netns", "exec", l.node, "nft", "-f", "-")
	at := netip.MustParseAddrPort
	for i, tc := range []struct {
		dialled string
		client  func(*net.TCPConn) (string, error)
		want    Record
	}{
		{"10.96.0.10:80", halfClosing, Record{Cluster: "svc:10.96.0.10:80", Endpoint: at(serverIP(1) + ":80"), Attempts: 1, BytesSent: 6, BytesReceived: 6, Outcome: OK}},
		{"10.96.0.10:80", resetting, Record{Cluster: "svc:10.96.0.10:80", Endpoint: at(serverIP(1) + ":80"), Attempts: 1, BytesSent: 6, BytesReceived: 6, Outcome: ClientReset}},
		{"10.96.0.10:83", talking, Record{Cluster: "svc:10.96.0.10:83", Endpoint: at(serverIP(1) + ":83"), Attempts: 1, BytesSent: 6, BytesReceived: 3, Outcome: ServerReset}},
		{"10.96.0.10:84", talking, Record{Cluster: "svc:10.96.0.10:84", Endpoint: at(serverIP(1) + ":84"), Attempts: 5, Outcome: ConnectFailed, Failure: "delayed connect error: Connection refused"}},
		{"10.96.0.10:85", silent, Record{Cluster: "svc:10.96.0.10:85", Endpoint: at(serverIP(8) + ":85"), Attempts: 5, Outcome: Timeout}},
		{"10.96.0.11:80", silent, Record{Cluster: "svc:10.96.0.11:80", Attempts: 1, Outcome: Refused, Reason: "no-endpoints"}},
		{"10.96.0.10:99", silent, Record{Cluster: "svc:10.96.0.10:99", Attempts: 1, Outcome: Refused, Reason: "port-not-declared"}},
		{"10.96.9.9:80", silent, Record{Cluster: "svc:10.96.9.9:80", Attempts: 1, Outcome: Refused, Reason: "no-service"}},
		{"169.254.169.254:80", silent, Record{Cluster: NotProxiedCluster, Attempts: 1, Outcome: Refused, Reason: "not-proxied"}},
		{"10.96.9.10:80", silent, Record{Outcome: Unanswered}},
		{serverIP(1) + ":81", silent, Record{Cluster: PassthroughCluster, Endpoint: at(serverIP(1) + ":81"), Attempts: 1, BytesReceived: 18, Outcome: OK}},
		// Nobody else has the address: it is not tried again.
		{serverIP(1) + ":9", talking, Record{Cluster: PassthroughCluster, Endpoint: at(serverIP(1) + ":9"), Attempts: 1, Outcome: ConnectFailed, Failure: "delayed connect error: Connection refused"}},
	} {
		before := time.Now()
		_, _ = l.exchange(tc.dialled, tc.client)
		got := l.waitEnded(r, i+1)[i]
		tc.want.Pod, tc.want.Dialled = model.Name{Namespace: "default", Name: "a"}, at(tc.dialled)
		if d := cmp.Diff(tc.want, got, cmpopts.EquateComparable(netip.AddrPort{}), cmpopts.IgnoreFields(Record{}, "Start", "Duration", "Client", "Wait", "BytesSent")); d != "" {
			t.Errorf("%s (-want +got):\n%s", tc.dialled, d)
		}
		if got.Client.Addr() != netip.MustParseAddr("10.244.0.2") || got.Start.Before(before.Add(-time.Second)) || got.Duration <= 0 || got.Duration > time.Since(before) {
			t.Errorf("%s: client %s, start %s, duration %s", tc.dialled, got.Client, got.Start, got.Duration)
		}
		if (got.Wait < 0) != (got.Outcome == Unanswered || got.Outcome == ConnectFailed || got.Outcome == Timeout) {
			t.Errorf("%s: wait %s", tc.dialled, got.Wait)
		}
	}
}

// TestRealRecordBeyondTheLimit: a connection that the pod may not have is told
// of as refused.
func TestRealRecordBeyondTheLimit(t *testing.T) {
	l := newServing(t, PodSource)
	l.settings.PodConnectionLimit = 1
	l.start(testCapture())
	r := l.record()
	held := l.dial("a", "10.96.0.10:80")
	if _, err := io.WriteString(held, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := held.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	_, _ = l.exchange("10.96.0.10:80", silent)
	if got := l.waitEnded(r, 1)[0]; got.Outcome != Refused || got.Reason != "" || got.Pod.Name != "a" || got.Attempts != 0 {
		t.Errorf("%+v", got)
	}
}

// TestRealRecordsOfOpenConnections: a connection that stays open is told of at
// intervals with its bytes so far, and once when it ends.
func TestRealRecordsOfOpenConnections(t *testing.T) {
	l := newServing(t, PodSource)
	l.settings.RecordInterval = minRecordInterval
	l.start(testCapture())
	r := l.record()
	c := l.dial("a", "10.96.0.10:80")
	read := bufio.NewReader(c)
	for round := uint64(1); round <= 3; round++ {
		if _, err := io.WriteString(c, "hello\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := read.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		l.eventually("its bytes are told", func() error {
			open, ended := r.records()
			if len(ended) > 0 {
				t.Fatalf("an end is told: %+v", ended)
			}
			if n := len(open); n == 0 || open[n-1].BytesSent != 6*round || open[n-1].BytesReceived != 6*round {
				return fmt.Errorf("%+v", open)
			}
			return nil
		})
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	end := l.waitEnded(r, 1)[0]
	open, _ := r.records()
	for _, o := range open {
		if !o.Start.Equal(end.Start) || o.Client != end.Client || o.Dialled != end.Dialled || o.Endpoint != end.Endpoint {
			t.Errorf("not of one connection: %+v and %+v", o, end)
		}
	}
}

// TestRealRecordRate: what is beyond the rate is not sent, failures have a rate
// of their own, and Envoy lives without anybody who takes the records.
func TestRealRecordRate(t *testing.T) {
	l := newServing(t, PodSource)
	l.settings.RecordRate = 1 // the bucket is full again after a second
	l.start(testCapture())
	for range 20 {
		if _, err := l.exchange("10.96.0.10:80", halfClosing); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = l.exchange("10.96.0.11:80", silent)
	l.eventually("all have ended", func() error {
		if n, err := l.admin("/stats?filter=^listener.capture.downstream_cx_(total|active)$"); err != nil || n != "listener.capture.downstream_cx_active: 0\nlistener.capture.downstream_cx_total: 21\n" {
			return errors.Join(err, errors.New(n))
		}
		return nil
	})
	r := l.record()
	l.eventually("a failure is told of while others are too many", func() error {
		_, _ = l.exchange("10.96.0.10:80", halfClosing)
		_, _ = l.exchange("10.96.0.10:80", halfClosing)
		_, _ = l.exchange("10.96.0.11:80", silent)
		_, ended := r.records()
		failed := 0
		for _, e := range ended {
			if e.Outcome == Refused {
				failed++
			}
		}
		if failed == 0 || failed == len(ended) {
			return fmt.Errorf("%d of %d failed", failed, len(ended))
		}
		return nil
	})
}

// TestRealRecordsOfAnAgentThatHangs: records that nobody reads keep no connection
// waiting, and Envoy leaves the one who does not read, with what it held for it.
func TestRealRecordsOfAnAgentThatHangs(t *testing.T) {
	l := newServing(t, PodSource)
	l.start(testCapture())
	ln, err := net.Listen("unix", l.boot.RecordSocket) // connects, and never reads
	l.must(err)
	t.Cleanup(func() { _ = ln.Close() })
	stat := func(name string) (n int) { // 0 before there is a connection
		body, err := l.admin("/stats?filter=^cluster.aether_als.http2." + name + "$")
		l.must(err)
		_, _ = fmt.Sscanf(strings.TrimSpace(body), "cluster.aether_als.http2."+name+": %d", &n)
		return n
	}
	held := 0
	l.eventually("Envoy leaves it", func() error {
		for range 20 {
			if got, err := l.exchange("10.96.0.10:80", halfClosing); err != nil || got != "hello\n" {
				t.Errorf("%q, %v", got, err)
			}
		}
		held = max(held, stat("pending_send_bytes"))
		if stat("keepalive_timeout") == 0 {
			return fmt.Errorf("it holds %d bytes for it", held)
		}
		return nil
	})
	if held == 0 || held > 4<<20 {
		t.Errorf("Envoy held %d bytes for one who does not read", held)
	}
	if _, err := l.exchange("10.96.0.10:80", halfClosing); err != nil {
		t.Error(err)
	}
}
