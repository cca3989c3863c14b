// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"aether.io/aether/internal/manifest"
	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/bench/figure"
)

func TestReadWrk(t *testing.T) {
	const good = `{"requests":10,"microseconds":2000000,"p50":100,"p99":300,"max":900,"errors":{"connect":0,"read":0,"write":0,"status":0,"timeout":0}}`
	cases := []struct{ name, out, want string }{
		{"good", "Running 1s test\n  1 threads\n\n" + good + "\n", ""},
		{"no result", "unable to connect to 10.96.0.10:80\n", "wrk printed no result: unable to connect"},
		{"nothing", "", "wrk printed no result"},
		{"no request", strings.Replace(good, `"requests":10`, `"requests":0`, 1), "no request"},
		{"broken", `{"requests":`, "read wrk's result"},
		{"connect error", strings.Replace(good, `"connect":0`, `"connect":2`, 1), "2 connect errors"},
		{"read error", strings.Replace(good, `"read":0`, `"read":1`, 1), "1 read errors"},
		{"status", strings.Replace(good, `"status":0`, `"status":10`, 1), "10 status errors"},
		{"timeout", strings.Replace(good, `"timeout":0`, `"timeout":1`, 1), "1 timeout errors"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r, err := readWrk([]byte(c.out))
			wantError(t, err, c.want)
			if err == nil && (r.Requests != 10 || r.P99 != 300) {
				t.Errorf("got %+v", r)
			}
		})
	}
}

// wantError checks an error by a part of its text; "" wants none.
func wantError(t *testing.T, err error, text string) {
	t.Helper()
	switch {
	case text == "" && err != nil:
		t.Errorf("error: %v", err)
	case text != "" && (err == nil || !strings.Contains(err.Error(), text)):
		t.Errorf("error %v, want one with %q", err, text)
	}
}

// TestCheckLog: a run is valid only if every connection is logged, on its way.
func TestCheckLog(t *testing.T) {
	line := func(cluster string, n int) string {
		return strings.Repeat(fmt.Sprintf("{\"cluster\":%q,\"outcome\":\"ok\"}\n", cluster), n)
	}
	const right = "svc:10.96.0.10:80"
	cases := []struct {
		name, kind, log string
		requests        int
		ok              bool
	}{
		{"one line per request", newConnections, line(right, 1000), 1000, true},
		{"some cut off at the end", newConnections, line(right, 1016), 1000, true},
		{"one is missing", newConnections, line(right, 999), 1000, false},
		{"far too many", newConnections, line(right, 1200), 1000, false},
		{"one went elsewhere", newConnections, line(right, 999) + line("passthrough_original_dst", 1), 1000, false},
		{"one line per kept connection", keptAlive, line(right, connections), 50_000, true},
		{"a kept connection was lost and made again", keptAlive, line(right, 6*connections), 50_000, false},
		{"kept connections are not logged", keptAlive, "", 50_000, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := lane{name: captureName, mark: onCluster(right), log: filepath.Join(t.TempDir(), "access.log")}
			if err := os.WriteFile(l.log, []byte(c.log), 0o644); err != nil {
				t.Fatal(err)
			}
			err := checkLog(t.Context(), l, c.kind, c.requests, 100*time.Millisecond)
			if (err == nil) != c.ok {
				t.Errorf("error %v, want ok %v", err, c.ok)
			}
		})
	}
}

func TestColdSamples(t *testing.T) {
	var targets []string
	for range warmUp {
		targets = append(targets, "10.96.0.10:80")
	}
	targets = append(targets, "10.96.16.1:80", "10.96.16.1:80", "10.96.16.1:80", "10.96.16.2:80", "10.96.16.2:80", "10.96.16.2:80")
	said := func(change func(i int, v *echo.Verdict)) []byte {
		var out strings.Builder
		for i, target := range targets {
			v := echo.Verdict{Target: target, Outcome: echo.OK, ConnectMS: 1, LatencyMS: float64(i - warmUp)}
			change(i, &v)
			if err := json.NewEncoder(&out).Encode(v); err != nil {
				t.Fatal(err)
			}
		}
		return []byte(out.String())
	}
	same := func(int, *echo.Verdict) {}

	samples, err := coldSamples(said(same), targets)
	if err != nil {
		t.Fatal(err)
	}
	f := FirstConnections{First: figure.First{Samples: samples}}
	f.Summarise()
	if len(samples) != 2 || samples[0].Cold != 1 || !slices.Equal(samples[0].Warm, []float64{2, 3}) || samples[1].Cold != 4 {
		t.Errorf("samples %+v", samples)
	}
	if f.Cold.Max != 4 || f.Warm.Count != 4 || f.Over.Min != -1.5 || f.Over.Max != -1.5 {
		t.Errorf("summary %+v", f)
	}

	_, err = coldSamples(said(func(i int, v *echo.Verdict) {
		if i == warmUp+1 {
			v.Outcome, v.Error = echo.Reset, "connection reset by peer"
		}
	}), targets)
	wantError(t, err, "ended as reset (connection reset by peer)")
	_, err = coldSamples(said(func(i int, v *echo.Verdict) {
		if i == warmUp {
			v.Target = "10.96.16.2:80"
		}
	}), targets)
	wantError(t, err, "want 10.96.16.1:80 and ok")
	_, err = coldSamples(said(same)[:1000], targets)
	wantError(t, err, "of 26")
}

func TestCalm(t *testing.T) {
	samples := []LoadSample{{Others: 0.05}, {Others: 0.2}}
	for c, want := range map[calm]bool{1: true, 0.2: true, 0.19: false, 0.01: false} {
		if got := c.holds(samples); got != want {
			t.Errorf("with %v allowed and %v used, calm is %v", c, samples[1].Others, got)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := calm(1).wait(ended); err != nil {
		t.Errorf("nothing to wait for: %v", err)
	}
	if err := calm(0.0001).wait(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

// TestManifests: what is measured is what is meant, for any number of names.
func TestManifests(t *testing.T) {
	for _, names := range []int{1, 40, 1000} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "bench.yaml"), []byte(manifests(names)), 0o644); err != nil {
			t.Fatal(err)
		}
		res, err := manifest.Load([]string{dir}, manifest.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(res.Problems) != 0 {
			t.Errorf("problems: %+v", res.Problems)
		}
		if n := len(res.Objects.Services); n != names+1 {
			t.Errorf("%d Services, want %d", n, names+1)
		}
		if n := len(res.Objects.Pods); n != 3+len(servers) {
			t.Errorf("%d Pods, want %d", n, 3+len(servers))
		}
	}
	all := coldVIPs(maxNames)
	last := all[len(all)-1].As4()
	if last[0] != 10 || last[1] != 96 || slices.Contains(all, webVIP) {
		t.Errorf("cold names end at %v, outside the default range, or hold the web Service", last)
	}
}
