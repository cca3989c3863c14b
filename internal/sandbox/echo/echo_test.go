// SPDX-License-Identifier: Apache-2.0

package echo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve runs a server with one listener of each kind and returns their addresses.
func serve(t *testing.T) (http, tcp, first, sink string) {
	t.Helper()
	s := Server{
		HTTP: []string{"127.0.0.1:0"}, TCP: []string{"127.0.0.1:0"},
		ServerFirst: []string{"127.0.0.1:0"}, Sink: []string{"127.0.0.1:0"},
		Pod: "web-1", Node: "n1",
	}
	ctx, cancel := context.WithCancel(context.Background())
	addrs := make(chan string, 4)
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, func(a string) { addrs <- a }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("server: %v", err)
		}
	})
	return <-addrs, <-addrs, <-addrs, <-addrs
}

// raw runs handle for each connection to the returned address.
func raw(t *testing.T, handle func(*net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			handle(c.(*net.TCPConn))
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

func resetAfter(bytes int64) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		_, _ = io.CopyN(io.Discard, c, bytes)
		_ = c.SetLinger(0)
		time.Sleep(5 * time.Millisecond) // at once, and connect itself may report it
		c.Close()
	}
}

func TestConversations(t *testing.T) {
	http, tcp, first, sink := serve(t)
	cases := []struct {
		name   string
		client Client
		want   Outcome
		answer string
		check  func(Verdict) string
	}{
		{"talk", Client{Mode: "talk", Target: tcp, Exchanges: 3}, OK, "round 1 from", func(v Verdict) string {
			if v.Exchanges != 3 || v.Sent != v.Received {
				return "three rounds, all echoed"
			}
			return ""
		}},
		{"http kept alive", Client{Mode: "http", Target: http, Path: "/x?y=1", Exchanges: 3}, OK, `"path":"/x?y=1"`, nil},
		{"http names the server", Client{Mode: "http", Target: http}, OK, `{"pod":"web-1","node":"n1","remote":"127.0.0.1:`, nil},
		{"http status", Client{Mode: "http", Target: http, Path: "/status?code=503"}, Status, "", func(v Verdict) string {
			if v.Code != 503 {
				return "status 503"
			}
			return ""
		}},
		{"http bytes", Client{Mode: "http", Target: http, Path: "/bytes?n=200000"}, OK, "0123456789abc", func(v Verdict) string {
			if v.Received < 200000 {
				return "the whole body"
			}
			return ""
		}},
		{"http sleep", Client{Mode: "http", Target: http, Path: "/sleep?d=20ms"}, OK, "slept 20ms", func(v Verdict) string {
			if v.LatencyMS < 20 {
				return "at least 20 ms"
			}
			return ""
		}},
		{"server first", Client{Mode: "server-first", Target: first}, OK, `{"pod":"web-1"`, nil},
		{"half-close", Client{Mode: "half-close", Target: tcp, Bytes: 100_000}, OK, "", func(v Verdict) string {
			if v.Sent != 100_000 || v.Received != 100_000 {
				return "100,000 bytes each way"
			}
			return ""
		}},
		{"transfer", Client{Mode: "transfer", Target: tcp, Bytes: 20 << 20}, OK, "", func(v Verdict) string {
			if v.Sent != 20<<20 || v.Received != 20<<20 {
				return "20 MiB each way"
			}
			return ""
		}},
		{"half-close against a server that does not echo", Client{Mode: "half-close", Target: sink}, Mismatch, "", nil},
		{"silent stays open", Client{Mode: "silent", Target: tcp, Timeout: 50 * time.Millisecond}, Open, "", nil},
		{"silent hears a greeting", Client{Mode: "silent", Target: first}, OK, `{"pod":"web-1"`, nil},
		{"unknown mode", Client{Mode: "shout", Target: tcp}, Failed, "", nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			v := c.client.Do(t.Context())
			if v.Outcome != c.want || !strings.Contains(v.Answer, c.answer) {
				t.Fatalf("got %+v, want outcome %s and an answer with %q", v, c.want, c.answer)
			}
			if c.check != nil {
				if want := c.check(v); want != "" {
					t.Errorf("got %+v, want %s", v, want)
				}
			}
		})
	}
}

// TestEndings: a reset, a close, silence and a refusal are told apart in every
// mode, whether or not the client has sent something.
func TestEndings(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.Addr().String()
	l.Close()
	reset := raw(t, resetAfter(0))
	resetLater := raw(t, resetAfter(5))
	closed := raw(t, func(c *net.TCPConn) { _, _ = io.CopyN(io.Discard, c, 1); drainClose(c) })
	closedAtOnce := raw(t, func(c *net.TCPConn) { c.Close() })
	held := make(chan *net.TCPConn, 8)
	mute := raw(t, func(c *net.TCPConn) { held <- c })
	t.Cleanup(func() {
		for len(held) > 0 {
			(<-held).Close()
		}
	})
	cases := []struct {
		mode, target string
		want         Outcome
		phase, errno string
	}{
		{"silent", reset, Reset, PhaseRead, "ECONNRESET"},
		{"server-first", reset, Reset, PhaseRead, "ECONNRESET"},
		{"talk", resetLater, Reset, PhaseRead, "ECONNRESET"},
		{"http", resetLater, Reset, PhaseRead, "ECONNRESET"},
		{"silent", closedAtOnce, Closed, PhaseRead, ""},
		{"server-first", closedAtOnce, Closed, PhaseRead, ""},
		{"talk", closed, Closed, PhaseRead, ""},
		{"http", closed, Closed, PhaseRead, ""},
		{"talk", mute, Timeout, PhaseRead, ""},
		{"server-first", mute, Timeout, PhaseRead, ""},
		{"silent", mute, Open, "", ""},
		{"talk", nobody, Refused, PhaseConnect, "ECONNREFUSED"},
		{"silent", nobody, Refused, PhaseConnect, "ECONNREFUSED"},
		{"talk", "nosuchname.invalid:1", Failed, PhaseResolve, ""},
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%s is %s", c.mode, c.want), func(t *testing.T) {
			v := Client{Mode: c.mode, Target: c.target, Timeout: 200 * time.Millisecond}.Do(t.Context())
			if v.TotalMS < v.ConnectMS+v.LatencyMS || v.TotalMS == 0 {
				t.Errorf("times are wrong: %+v", v)
			}
			if v.Outcome != c.want || v.Phase != c.phase || c.errno != "" && v.Errno != c.errno {
				t.Errorf("got %+v, want %s in %s (%s)", v, c.want, c.phase, c.errno)
			}
		})
	}
	t.Run("large talker against a reset", func(t *testing.T) {
		v := Client{Mode: "transfer", Target: resetLater, Bytes: 50 << 20, Timeout: time.Second}.Do(t.Context())
		if v.Outcome != Reset {
			t.Errorf("got %+v, want a reset", v)
		}
	})
}

// drainClose closes with a FIN: nothing may be left unread.
func drainClose(c *net.TCPConn) {
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	_, _ = io.Copy(io.Discard, c)
	c.Close()
}

func TestWaitCloseTellsHow(t *testing.T) {
	after := func(end func(*net.TCPConn)) func(*net.TCPConn) {
		return func(c *net.TCPConn) {
			buf := make([]byte, 100)
			n, _ := c.Read(buf)
			_, _ = c.Write(buf[:n])
			end(c)
		}
	}
	for want, end := range map[string]func(*net.TCPConn){
		"fin": func(c *net.TCPConn) { c.Close() },
		"rst": func(c *net.TCPConn) { _ = c.SetLinger(0); time.AfterFunc(20*time.Millisecond, func() { c.Close() }) },
	} {
		v := Client{Mode: "talk", Target: raw(t, after(end)), WaitClose: true}.Do(t.Context())
		if v.Outcome != OK || v.Close != want {
			t.Errorf("got %+v, want ok and then %s", v, want)
		}
	}
	_, tcp, _, _ := serve(t)
	if v := (Client{Mode: "talk", Target: tcp, WaitClose: true, Timeout: 50 * time.Millisecond}).Do(t.Context()); v.Close != "none" {
		t.Errorf("got %+v, want the connection still open", v)
	}
}

func TestLoadMakesEveryConnectionOnce(t *testing.T) {
	_, tcp, first, _ := serve(t)
	seen := map[string]int{}
	sum := Load{Client: Client{Mode: "silent", Timeout: 300 * time.Millisecond}, Targets: []string{tcp, first}, Count: 20, Concurrency: 8}.
		Run(t.Context(), func(v Verdict) { seen[v.Target]++ })
	if sum.Connections != 40 || sum.Outcomes[OK] != 20 || sum.Outcomes[Open] != 20 || seen[tcp] != 20 || seen[first] != 20 {
		t.Errorf("got %+v and %v, want 20 connections to each", sum, seen)
	}
}

func TestLoadForATime(t *testing.T) {
	_, tcp, _, _ := serve(t)
	sum := Load{Client: Client{Mode: "talk"}, Targets: []string{tcp}, Duration: 50 * time.Millisecond, Concurrency: 2}.
		Run(t.Context(), func(Verdict) {})
	if sum.Connections < 2 || sum.Outcomes[OK] != sum.Connections {
		t.Errorf("got %+v, want several connections, all ok", sum)
	}
}

func TestPercentileIsNearestRank(t *testing.T) {
	v := []float64{1, 2, 3, 4}
	for p, want := range map[float64]float64{50: 2, 90: 4, 99: 4, 100: 4, 25: 1} {
		if got := percentile(v, p); got != want {
			t.Errorf("percentile %v: got %v, want %v", p, got, want)
		}
	}
	if percentile(nil, 50) != 0 {
		t.Error("percentile of nothing is not 0")
	}
}

func TestClientMainPrintsOneLinePerVerdict(t *testing.T) {
	_, tcp, _, _ := serve(t)
	var out, errs bytes.Buffer
	if code := ClientMain([]string{"--mode", "talk", "--count", "3", tcp}, &out, &errs); code != 0 {
		t.Fatalf("exit %d: %s", code, errs.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("got %d lines, want 3: %s", len(lines), out.String())
	}
	var v Verdict
	if err := json.Unmarshal([]byte(lines[0]), &v); err != nil || v.Outcome != OK || v.Target != tcp {
		t.Errorf("got %s (%v), want an ok verdict on %s", lines[0], err, tcp)
	}
	out.Reset()
	if code := ClientMain([]string{"--timeout", "30ms", "silent", tcp}, &out, &errs); code != 0 || !strings.Contains(out.String(), `"outcome":"open"`) {
		t.Errorf("exit %d for a mode by its name: %s", code, out.String())
	}
	out.Reset()
	out.Reset()
	if code := ClientMain([]string{"silent", "--timeout", "30ms", tcp}, &out, &errs); code != 0 || strings.Count(out.String(), `"outcome":"open"`) != 1 {
		t.Errorf("flags after the mode: exit code %d, %s", code, out.String())
	}
	if code := ClientMain([]string{"--summary", "127.0.0.1:1"}, &out, &errs); code != 1 {
		t.Errorf("exit %d for a refused connection, want 1", code)
	}
	for _, bad := range [][]string{{"--mode"}, {"--count", "2"}, {"--mark", "x", tcp}, {"talk"}} {
		if code := ClientMain(bad, io.Discard, io.Discard); code != 2 {
			t.Errorf("exit %d for %v, want 2", code, bad)
		}
	}
}

func TestServerMainRefusesBadFlags(t *testing.T) {
	for _, bad := range [][]string{{"--http", "8080"}, {"stray"}, {"--what"}} {
		if code := ServerMain(bad, io.Discard, io.Discard); code != 2 {
			t.Errorf("exit %d for %v, want 2", code, bad)
		}
	}
	if code := ServerMain(nil, io.Discard, io.Discard); code != 1 {
		t.Errorf("exit %d without a listener, want 1", code)
	}
}

func TestMarkIsSet(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("run as root: SO_MARK needs it")
	}
	_, tcp, _, _ := serve(t)
	if v := (Client{Mode: "talk", Target: tcp, Mark: 0xae71, Bind: "127.0.0.2"}).Do(t.Context()); v.Outcome != OK || !strings.HasPrefix(v.Local, "127.0.0.2:") {
		t.Errorf("got %+v, want ok from 127.0.0.2", v)
	}
}
