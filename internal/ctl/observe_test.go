// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"aether.io/aether/internal/agent/api"
)

// Times of day are shown in the zone of the machine.
func init() { time.Local = time.UTC }

// buffer is a bytes.Buffer for two goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// watchedAgent answers about connections with what a test gives it.
type watchedAgent struct {
	lines   []api.ObserveLine
	preview api.Preview
	top     api.Top
	asked   chan string
	hold    bool // a follower is kept after the lines
	ends    bool // after the lines
}

func (w *watchedAgent) serve(t *testing.T) string {
	t.Helper()
	w.asked = make(chan string, 16)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/observe", func(rw http.ResponseWriter, r *http.Request) {
		w.asked <- r.URL.RawQuery
		if r.URL.RawQuery == "limit=0" {
			if w.ends && len(w.asked) > 1 {
				rw.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			if w.hold { // more of them each time it is asked
				w.lines[len(w.lines)-1].Missing.NotTold += 5
			}
			_ = json.NewEncoder(rw).Encode(w.lines[len(w.lines)-1])
			return
		}
		if strings.Contains(r.URL.RawQuery, "verdict=bad") {
			rw.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(rw).Encode(api.Error{Error: `verdict "bad": want one of balance`})
			return
		}
		for _, line := range w.lines {
			_ = json.NewEncoder(rw).Encode(line)
		}
		if w.hold {
			_ = http.NewResponseController(rw).Flush()
			<-r.Context().Done()
		}
	})
	mux.HandleFunc("GET /v1/preview", func(rw http.ResponseWriter, r *http.Request) {
		w.asked <- r.URL.RawQuery
		_ = json.NewEncoder(rw).Encode(w.preview)
	})
	mux.HandleFunc("GET /v1/top", func(rw http.ResponseWriter, r *http.Request) {
		w.asked <- r.URL.RawQuery
		_ = json.NewEncoder(rw).Encode(w.top)
	})
	return serveAgent(t, mux)
}

func watched() *watchedAgent {
	client := api.ConnectionSource{
		SPIFFE: "spiffe://aether.internal/ns/shop/sa/client", Namespace: "shop", Pod: "client-0", ServiceAccount: "client",
	}
	wait := int64(4856)
	ms := func(v float64) *float64 { return &v }
	missing := api.Missing{Since: "2026-08-30T11:00:00Z", Counted: true, Told: 14, NotTold: 12000, OpenNotTold: 1, Forgotten: 2}
	return &watchedAgent{
		lines: []api.ObserveLine{
			{Connection: &api.Connection{
				Time: "2026-08-30T12:00:00.125Z", State: "ended", Source: client, Client: "10.244.0.3:40000", Dialled: "10.96.0.10:80",
				Service:  &api.ServiceRef{Namespace: "shop", Name: "web", Port: "http"},
				Endpoint: "10.244.0.7:8080", Verdict: "balance", Outcome: "ok", Attempts: 1,
				BytesSent: 64, BytesReceived: 2816, DurationMs: 7.123, WaitUs: &wait,
			}},
			{Connection: &api.Connection{
				Time: "2026-08-30T12:00:01.5Z", State: "ended", Source: client, Client: "10.244.0.3:40001", Dialled: "10.96.0.30:80",
				Service: &api.ServiceRef{Namespace: "shop", Name: "orders", Port: "http"},
				Verdict: "refuse", Outcome: "refused", Reason: "no-endpoints", Attempts: 1, DurationMs: 8,
			}},
			{Connection: &api.Connection{
				Time: "2026-08-30T12:00:02Z", State: "ended", Client: "10.244.0.9:40001", Dialled: "203.0.113.9:443",
				Endpoint: "203.0.113.9:443", Verdict: "passthrough", Outcome: "connect-failed", Failure: "delayed connect error: \x1b[31mrefused", Attempts: 5, DurationMs: 12,
			}},
			{Connection: &api.Connection{
				Time: "2026-08-30T08:00:00Z", State: "open", Source: client, Client: "10.244.0.3:40002", Dialled: "10.96.0.20:5432",
				Service:  &api.ServiceRef{Namespace: "shop", Name: "ledger", Port: "sql"},
				Endpoint: "203.0.113.20:5432", Verdict: "balance", Attempts: 1, BytesSent: 5 << 20, BytesReceived: 7 << 30, DurationMs: 14_400_000,
			}},
			{Missing: &missing},
		},
		preview: api.Preview{
			Mode: "passthrough", Preview: "enforce", Unchanged: 3, Missing: missing,
			Changes: []api.PreviewRow{
				{
					Namespace: "shop", ServiceAccount: "client", Dialled: "10.96.0.30:80", Service: &api.ServiceRef{Namespace: "shop", Name: "orders", Port: "http"},
					Times: 2, Last: "2026-08-30T12:00:01Z", Now: "passthrough", Then: "refuse", Reason: "no-endpoints",
				},
				{
					Namespace: "shop", ServiceAccount: "client", Dialled: "10.96.0.10:80", Service: &api.ServiceRef{Namespace: "shop", Name: "web", Port: "http"},
					Times: 9, Last: "2026-08-30T12:00:00Z", Now: "passthrough", Then: "balance",
				},
			},
		},
		top: api.Top{By: "pod", WindowSeconds: 10, Missing: missing, Rows: []api.TopRow{
			{
				Name: "shop/client-0", Connections: 12.5, Failed: 0.25, Refused: 0.5, BytesPerSec: 4096, Open: 1,
				DurationP50Ms: ms(7.1), DurationP99Ms: ms(31), WaitP50Ms: ms(0.3), WaitP99Ms: ms(4.9),
			},
			{Name: "shop/idle", Open: 3},
		}},
	}
}

func TestObserveText(t *testing.T) {
	w := watched()
	socket := w.serve(t)
	r := ok(t, "observe", "--agent-socket", socket, "--open", "--refused", "--pod", "client-0", "--service", "web.shop.svc:http", "--to", "10.96.0.10", "--since", "5m")
	golden(t, "observe.txt", r.out)
	golden(t, "observe-notes.txt", r.err)
	if got, want := <-w.asked, "dialled=10.96.0.10&limit=50&open=true&pod=default%2Fclient-0&refused=true&service=shop%2Fweb%3Ahttp&since=5m"; got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
	golden(t, "observe-wide.txt", ok(t, "observe", "--agent-socket", socket, "-o", "wide").out)
	golden(t, "observe.json", ok(t, "observe", "--agent-socket", socket, "-o", "json").out)
	if got := serviceQuery("web"); got != "default/web" {
		t.Errorf("service web is %s", got)
	}
}

// TestObserveFollow: lines come as they are made; an interrupt ends it well, with
// what was not shown.
func TestObserveFollow(t *testing.T) {
	for _, out := range []string{"", "json", "yaml"} {
		w := watched()
		w.hold = true
		socket := w.serve(t)
		ctx, stop := context.WithCancel(t.Context())
		var stdout, stderr buffer
		code := make(chan int, 1)
		args := []string{"observe", "-f", "--agent-socket", socket}
		if out != "" {
			args = append(args, "-o", out)
		}
		go func() { code <- Main(ctx, args, IO{Out: &stdout, Err: &stderr}) }()
		for deadline := time.Now().Add(10 * time.Second); !strings.Contains(stdout.String(), "10.96.0.20:5432"); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the last line does not come: %s", stdout.String())
			}
		}
		stop()
		if c := <-code; c != 0 {
			t.Errorf("interrupted: exit code %d, %s", c, stderr.String())
		}
		name := "observe-follow." + map[string]string{"": "txt", "json": "json", "yaml": "yaml"}[out]
		golden(t, name, stdout.String())
		if out == "" && !strings.Contains(stderr.String(), "5 connections not shown: ended since") {
			t.Errorf("what was not shown is told as %q", stderr.String())
		}
	}
}

// TestObserveEndOfTheAgent: a stream that the agent ends is a failure.
func TestObserveEndOfTheAgent(t *testing.T) {
	w := watched()
	w.ends = true
	socket := w.serve(t)
	var stdout, stderr bytes.Buffer
	if code := Main(t.Context(), []string{"observe", "-f", "--agent-socket", socket}, IO{Out: &stdout, Err: &stderr}); code != exitFailed ||
		!strings.Contains(stderr.String(), "has ended") {
		t.Errorf("exit code %d: %s", code, &stderr)
	}
}

func TestObserveBadInput(t *testing.T) {
	w := watched()
	socket := w.serve(t)
	for _, args := range [][]string{{"observe", "-n", "-1"}, {"observe", "--verdict", "bad"}, {"preview", "--mode", "none"}, {"top", "--rows", "-1"}} {
		var stdout, stderr bytes.Buffer
		if code := Main(t.Context(), append(args, "--agent-socket", socket), IO{Out: &stdout, Err: &stderr}); code != exitInput {
			t.Errorf("%v: exit code %d: %s", args, code, &stderr)
		}
	}
}

func TestPreviewText(t *testing.T) {
	w := watched()
	socket := w.serve(t)
	text := ok(t, "preview", "--agent-socket", socket).out
	golden(t, "preview.txt", strings.ReplaceAll(text, socket, "SOCKET"))
	golden(t, "preview.json", ok(t, "preview", "--agent-socket", socket, "-o", "json").out)
	w.preview = api.Preview{Mode: "balance", Preview: "enforce", Missing: api.Missing{Since: "2026-08-30T11:00:00Z"}, ForgottenDestinations: 12}
	nothing := ok(t, "preview", "--agent-socket", socket).out
	w.preview.Unchanged = 2
	w.preview.Missing.Counted = true
	unchanged := ok(t, "preview", "--agent-socket", socket).out
	w.preview.Mode = "enforce"
	golden(t, "preview-nothing.txt", fmt.Sprint(nothing, "\n", unchanged, "\n", ok(t, "preview", "--agent-socket", socket).out))
}

func TestTopText(t *testing.T) {
	w := watched()
	socket := w.serve(t)
	golden(t, "top.txt", ok(t, "top", "--agent-socket", socket).out)
	if got := <-w.asked; got != "by=pod&window=10s" {
		t.Errorf("asked %s", got)
	}
	if out := ok(t, "top", "--agent-socket", socket, "-n", "2", "--interval", "100ms", "--rows", "1", "--by", "sa").out; strings.Count(out, "shop/client-0") != 2 ||
		strings.Contains(out, "shop/idle") || strings.Contains(out, "\x1b") {
		t.Errorf("two rounds of one row:\n%s", out)
	}
	w.top.Rows = nil
	golden(t, "top-nothing.txt", ok(t, "top", "--agent-socket", socket).out)
}
