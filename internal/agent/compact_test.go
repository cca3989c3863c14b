// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/plan/demand"
	"aether.io/aether/internal/xds"
)

func TestCompactionIsDue(t *testing.T) {
	now := newFakeClock().Now()
	for _, c := range []struct {
		what   string
		c      compaction
		stream demand.StreamID
		names  int
		want   bool
	}{
		{"at the limit", compaction{limit: 10}, 1, 10, false},
		{"past it", compaction{limit: 10}, 1, 11, true},
		{"never", compaction{}, 1, 1 << 20, false},
		{"one is asked for", compaction{limit: 10, busy: true}, 1, 11, false},
		{"done for this stream", compaction{limit: 10, taken: 1}, 1, 11, false},
		{"another stream, too soon", compaction{limit: 10, taken: 1, tried: now.Add(1 - compactInterval)}, 2, 11, false},
		{"another stream", compaction{limit: 10, taken: 1, tried: now.Add(-compactInterval)}, 2, 11, true},
		{"failed, too soon", compaction{limit: 10, tried: now.Add(-time.Second), failed: errors.New("x")}, 1, 11, false},
		{"failed a while ago", compaction{limit: 10, tried: now.Add(-compactInterval), failed: errors.New("x")}, 1, 11, true},
	} {
		if got := c.c.due(now, c.stream, c.names); got != c.want || got && (!c.c.busy || c.c.tried != now) {
			t.Errorf("%s: %t, %+v", c.what, got, c.c)
		}
	}
}

// No history asks twice for a stream whose question was taken, nor twice within the
// interval; and whoever sleeps until wake does not miss it.
func TestCompactionHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := compaction{limit: 10}
		now := newFakeClock().Now()
		var last time.Time
		taken := map[demand.StreamID]bool{}
		stream := demand.StreamID(1)
		var asked demand.StreamID
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(compactInterval)).Draw(t, "pause")))
			names := rapid.IntRange(8, 13).Draw(t, "names")
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				stream++
			case 1:
				if c.busy {
					var err error
					if rapid.Bool().Draw(t, "fails") {
						err = errors.New("no")
					}
					c.over(asked, err)
					taken[asked] = taken[asked] || err == nil
				}
			default:
				at, wakes := c.wake(stream, names)
				due := c.due(now, stream, names)
				if due && !last.IsZero() && !wakes || wakes && !due && !now.Before(at) {
					t.Fatalf("due %t at %v, wake %v %t", due, now, at, wakes)
				}
				if !due {
					continue
				}
				if taken[stream] || names <= 10 || !last.IsZero() && now.Sub(last) < compactInterval {
					t.Fatalf("asked for stream %d with %d names, %v after the last time", stream, names, now.Sub(last))
				}
				last, asked = now, stream
			}
		}
	})
}

// TestCompaction: past the limit the supervisor is asked once; that there is none is
// a problem until a younger Envoy has fewer names.
func TestCompaction(t *testing.T) {
	n := newLoopTest(t)
	n.compaction.limit = 5
	n.sync(t)
	for i := range 6 {
		select {
		case s := <-n.compacts:
			t.Fatalf("asked for stream %d after %d names", s, i)
		default:
		}
		n.ask(t, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 7, byte(i)}), 80))
	}
	if len(n.compacts) != 1 || <-n.compacts != 1 {
		t.Fatal("not asked once after 6 names")
	}
	n.ask(t, unknown)
	if len(n.compacts) != 0 {
		t.Error("asked again while the first is asked")
	}
	n.turn([]message{compacted{stream: 1, err: errors.New("no such file")}})
	s := n.status()
	if len(s.Problems) != 1 || !strings.Contains(s.Problems[0].Text, "asked for 7 names and is not restarted to forget them: no such file") || s.Names.Asked != 7 {
		t.Errorf("problems %+v, names %+v", s.Problems, s.Names)
	}
	n.clock.Advance(compactInterval)
	n.turn(nil)
	if len(n.compacts) != 1 || <-n.compacts != 1 {
		t.Fatal("not tried again after the interval")
	}
	n.turn([]message{compacted{stream: 1}})
	n.clock.Advance(2 * compactInterval)
	n.turn(nil)
	if len(n.compacts) != 0 {
		t.Error("asked twice for one stream")
	}
	if p := n.status().Problems; len(p) != 0 {
		t.Errorf("problems after a restart: %+v", p)
	}
	n.heardEvent(xds.StreamOpened{Stream: xds.Stream{ID: 2, Epoch: 2}})
	n.heardEvent(xds.FirstRequest{Stream: xds.Stream{ID: 2, Epoch: 2}, Type: xds.Cluster, Fresh: true, Done: func() {}})
	if s := n.status(); s.Names.Asked != 0 || s.Names.Other != 7 {
		t.Errorf("with two Envoys: %+v, want nothing asked of the younger", s.Names)
	}
	n.heardEvent(xds.StreamClosed{Stream: xds.Stream{ID: 1, Epoch: 1}})
	if s := n.status(); s.Names.Other != 0 {
		t.Errorf("with the younger alone: %+v, want what only the older asked for forgotten", s.Names)
	}
}

func TestSupervisorOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "proxy.sock")
	restart := supervisorOf(path)
	if _, err := restart(t.Context(), "x"); err == nil {
		t.Error("no error without a supervisor")
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	code, body := http.StatusOK, `{"state":"done"}`
	var asked api.ProxyRestartRequest
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = api.ProxyRestartRequest{}
		_ = json.NewDecoder(r.Body).Decode(&asked)
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	})}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	defer func() { s.Close(); <-done }()
	for _, c := range []struct {
		code      int
		body      string
		scheduled bool
		err       string
	}{
		{200, `{"state":"done"}`, false, ""},
		{202, `{"state":"scheduled"}`, true, ""},
		{502, `{"error":"the new Envoy did not work"}`, false, "ask for a hot restart: the new Envoy did not work"},
		{503, `nonsense`, false, "503"},
	} {
		code, body = c.code, c.body
		scheduled, err := restart(context.Background(), "many names")
		if scheduled != c.scheduled || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%d: scheduled %t, %v", c.code, scheduled, err)
		}
		if asked != (api.ProxyRestartRequest{Reason: "many names"}) {
			t.Errorf("asked %+v", asked)
		}
	}
}
