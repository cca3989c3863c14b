// SPDX-License-Identifier: Apache-2.0

package refuse

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"golang.org/x/sys/unix"
)

// serve runs a refuser on a socket and returns its path.
func serve(t *testing.T, c Config) (*Server, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "refuse.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	s := New(c)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return s, path
}

// refused connects, sends what it is given, and returns the error of reading.
func refused(path string, send []byte) error {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write(send); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}

var header = []byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\x0a\xf4\x00\x02\x0a\x60\x00\x0a\x9c\x40\x00\x50")

func TestClosesUnreadSoThatThePeerSeesAReset(t *testing.T) {
	_, path := serve(t, Config{})
	for name, send := range map[string][]byte{
		"only the header, as of a silent client": header,
		"header and 27 bytes":                    append(header[:len(header):len(header)], make([]byte, 27)...),
		"header and 100,000 bytes":               append(header[:len(header):len(header)], make([]byte, 100_000)...),
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			if err := refused(path, send); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the peer saw %v, want ECONNRESET", err)
			}
			if took := time.Since(began); took < 5*time.Millisecond {
				t.Errorf("closed after %s, before Envoy could have finished connecting", took)
			}
		})
	}
}

func TestAPeerThatSendsNothingIsNotHeldForEver(t *testing.T) {
	s, path := serve(t, Config{HeaderTimeout: 30 * time.Millisecond})
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("something was written to the peer")
	}
	if n := testutil.ToFloat64(s.meter.silent); n != 1 {
		t.Errorf("%v connections counted as silent, want 1", n)
	}
}

func TestABurstIsSurvived(t *testing.T) {
	const burst, workers = 5000, 200
	s, path := serve(t, Config{MaxDelay: 20 * time.Millisecond})
	var wg sync.WaitGroup
	var resets, others atomic.Int64
	for range workers {
		wg.Go(func() {
			for range burst / workers {
				switch err := refused(path, header); {
				case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
					resets.Add(1)
				default:
					others.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if others.Load() > 0 {
		t.Errorf("%d of %d connections ended otherwise than by a reset", others.Load(), burst)
	}
	if n := testutil.ToFloat64(s.meter.connections); n != burst {
		t.Errorf("%v connections counted, want %d", n, burst)
	}
}

func TestPastTheBoundConnectionsAreClosedAtOnce(t *testing.T) {
	s, path := serve(t, Config{MaxHeld: 1, HeaderTimeout: 5 * time.Second})
	held, err := net.Dial("unix", path) // sends nothing: stays held
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	defer held.Close()
	for deadline := time.Now().Add(5 * time.Second); len(s.slots) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the first connection was never held")
		}
		time.Sleep(time.Millisecond)
	}
	next, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	defer next.Close()
	if err := next.SetReadDeadline(time.Now().Add(3 * time.Second)); err != nil {
		t.Fatalf("set deadline: %v", err)
	}
	if _, err := next.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the second connection was not closed: %v", err)
	}
	if n := testutil.ToFloat64(s.meter.unheld); n != 1 {
		t.Errorf("%v connections counted as not held, want 1", n)
	}
}

// starvedListener has no descriptors for a while, then works.
type starvedListener struct {
	net.Listener
	left atomic.Int32
}

func (l *starvedListener) Accept() (net.Conn, error) {
	if l.left.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", unix.EMFILE)}
	}
	return l.Listener.Accept()
}

func TestRunningOutOfDescriptorsIsSurvived(t *testing.T) {
	path := filepath.Join(t.TempDir(), "refuse.sock")
	inner, err := net.Listen("unix", path)
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	ln := &starvedListener{Listener: inner}
	ln.left.Store(3)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- New(Config{}).Serve(ctx, ln) }()
	if err := refused(path, header); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the peer saw %v, want ECONNRESET", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("serve: %v", err)
	}
}

func TestServeReportsAListenerThatBreaks(t *testing.T) {
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "refuse.sock"))
	if err != nil {
		t.Fatalf("listen: %v", err)
	}
	ln.Close()
	if err := New(Config{}).Serve(t.Context(), ln); err == nil {
		t.Error("a closed listener was served without an error")
	}
}

func TestMetricsAreWellNamed(t *testing.T) {
	r := prometheus.NewRegistry()
	New(Config{Registerer: r})
	families, err := r.Gather()
	if err != nil {
		t.Fatalf("gather: %v", err)
	}
	if len(families) != 4 {
		t.Errorf("%d metrics, want 4", len(families))
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatalf("lint: %v", err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
