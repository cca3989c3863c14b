// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const envoyStats = `{"stats":[
{"name":"cluster.svc.default.web.http.upstream_cx_active","value":2},
{"name":"cluster.svc.default.web.http.upstream_cx_total","value":17},
{"name":"cluster.svc.shop.db.5432.upstream_cx_total","value":1},
{"name":"server.uptime","value":9},
{"histograms":{"supported_quantiles":[]}}
]}`

func TestParseStats(t *testing.T) {
	got, err := parseStats(strings.NewReader(envoyStats))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]count{"svc.default.web.http": {17, 2}, "svc.shop.db.5432": {total: 1}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(count{})); d != "" {
		t.Errorf("counts (-want +got):\n%s", d)
	}
	for _, bad := range []string{``, `{}`, `{"stats":`, `{"stats":[{"name":"a","value":-1}]}`} {
		if _, err := parseStats(strings.NewReader(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestAdminScraper(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin.sock")
	read := adminScraper(path)
	if _, err := read(t.Context()); err == nil {
		t.Error("no error without a socket")
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	code, asked := http.StatusOK, ""
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Path + "?" + r.URL.Query().Get("format") + "&" + r.URL.Query().Get("filter")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, envoyStats)
	})}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	defer func() { s.Close(); <-done }()
	got, err := read(t.Context())
	if err != nil || got["svc.default.web.http"].total != 17 {
		t.Errorf("read %v, %v", got, err)
	}
	if want := "/stats?json&" + statFilter; asked != want {
		t.Errorf("asked for %q, want %q", asked, want)
	}
	code = http.StatusServiceUnavailable
	if _, err := read(t.Context()); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("error %v, want 503", err)
	}
}

// What Envoy counts becomes last dials: more connections than before, open ones,
// and counts that began anew. The first reading says nothing about when.
func TestScrapedDials(t *testing.T) {
	const name = "svc.default.web.http"
	for _, c := range []struct {
		what     string
		readings []count
		dialled  []bool
	}{
		{"more connections", []count{{5, 0}, {5, 0}, {6, 0}, {6, 0}}, []bool{false, false, true, false}},
		{"open connections", []count{{5, 1}, {5, 1}, {5, 0}}, []bool{true, true, false}},
		{"envoy restarted", []count{{5, 0}, {2, 0}, {2, 0}}, []bool{false, true, false}},
		{"envoy restarted, none yet", []count{{5, 0}, {0, 0}, {1, 0}}, []bool{false, false, true}},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := newLoopTest(t)
			n.sync(t)
			n.ask(t, web)
			for i, r := range c.readings {
				before := n.demand.Look(web).LastDial
				n.clock.Advance(second)
				n.turn([]message{scraped{counts: map[string]count{name: r, "svc.other.x.1": {9, 9}}}})
				after := n.demand.Look(web).LastDial
				if got := after.After(before); got != c.dialled[i] {
					t.Errorf("reading %d %v: dialled %t, want %t", i, r, got, c.dialled[i])
				}
				if k := n.know(web); k.live.Connections != r.total || k.live.Active != r.active {
					t.Errorf("reading %d: live %+v, want %v", i, k.live, r)
				}
			}
			n.turn([]message{scraped{err: errors.New("gone")}})
			if k := n.know(web); k.live.Connections != c.readings[len(c.readings)-1].total {
				t.Errorf("a reading that failed changed the counts to %+v", k.live)
			}
		})
	}
}

func TestServicePortFirstSeenBetweenReadingsWasDialled(t *testing.T) {
	n := newLoopTest(t)
	n.sync(t)
	n.ask(t, web)
	n.turn([]message{scraped{counts: map[string]count{}}})
	n.clock.Advance(second)
	n.turn([]message{scraped{counts: map[string]count{"svc.default.web.http": {1, 0}}}})
	if got := n.demand.Look(web).LastDial; !got.Equal(n.clock.Now()) {
		t.Errorf("last dial %v, want %v", got, n.clock.Now())
	}
}

// One reading that fails is nothing, two in a row are a problem until one succeeds.
func TestCountsThatAreNotRead(t *testing.T) {
	n := newLoopTest(t)
	n.sync(t)
	broken := scraped{err: errors.New("no such socket")}
	problems := func() int { return len(n.status().Problems) }
	for i, c := range []struct {
		m    scraped
		want int
	}{{broken, 0}, {scraped{}, 0}, {broken, 0}, {broken, 1}, {broken, 1}, {scraped{}, 0}, {broken, 0}} {
		n.turn([]message{c.m})
		if got := problems(); got != c.want {
			t.Errorf("reading %d: %d problems, want %d", i, got, c.want)
		}
	}
	if got := strings.Count(n.log.String(), "connection counts are not read"); got != 1 {
		t.Errorf("said %d times, want once:\n%s", got, n.log.String())
	}
}
