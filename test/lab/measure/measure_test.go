// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"aether.io/aether/test/bench/figure"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == argReader {
		os.Exit(readerMain(context.Background(), os.Args[2:], os.Stdin, os.Stdout))
	}
	goleak.VerifyTestMain(m)
}

// TestQuickRun runs the whole program on a real cluster, small. Its bounds are
// generous: a busy machine keeps them, a wrong design does not.
func TestQuickRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cluster.json")
	var stdout, stderr strings.Builder
	code := run(t.Context(), []string{"-quick", "-name", "measuretest", "-out", file}, &stdout, &stderr)
	t.Logf("\n%s", stdout.String())
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	r, err := figure.ReadJSON[Report](file)
	if err != nil {
		t.Fatal(err)
	}
	if missing := r.missing(); !r.Valid || r.Error != "" || len(missing) > 0 {
		t.Fatalf("valid %v (%s), missing %v", r.Valid, r.Error, missing)
	}
	for _, c := range r.Changes {
		checkTimes(t, c.Mode+", new Service", c.Appear, quick.Samples)
		if c.Leave != nil {
			checkTimes(t, c.Mode+", endpoint that leaves", *c.Leave, quick.Samples)
		}
	}
	for _, f := range r.First {
		if f.Cold.Min <= 0 || f.Over.Median > 1000 || len(f.Samples) == 0 {
			t.Errorf("first connections %+v, load %+v", f.Cold, f.Load)
		}
		if f.Load != nil && f.Load.Rolled < 1 {
			t.Errorf("nothing rolled: %+v", f.Load)
		}
	}
	for _, p := range r.Cost.Programs {
		if p.IdleMiB <= 0 || p.BusyMiB <= 0 || p.BusyCPU < 0 {
			t.Errorf("cost %+v", p)
		}
	}
	checkScopes(t, r.Scopes)
}

// checkTimes: both ways were timed, and what we do takes no kube-proxy.
func checkTimes(t *testing.T, what string, x Times, samples int) {
	t.Helper()
	if x.Ours.Count != samples || x.Theirs.Count != samples || x.Ours.Median > 10_000 {
		t.Errorf("%s: %+v, %+v; want %d samples", what, x.Ours, x.Theirs, samples)
	}
	if x.OursFailed["refused"] > 0 || x.OursFailed["other"] > 0 {
		t.Errorf("%s: the captured pod's connections failed otherwise than by reset or silence: %v", what, x.OursFailed)
	}
}

func checkScopes(t *testing.T, scopes []Scope) {
	t.Helper()
	for _, x := range scopes {
		if x.SyncMiB <= 0 || len(x.Levels) != len(quick.Demand) {
			t.Errorf("%s: %+v", x.Way, x)
		}
		for _, l := range x.Levels {
			want := 1
			if x.Way == scopeEach {
				want = l.Demand
				if l.Demand == quick.Demand[len(quick.Demand)-1] {
					want += busyAsks
				}
			}
			if l.Watches != want || l.MiB <= 0 || l.ServerGoroutines <= 0 {
				t.Errorf("%s, %d in demand: %d watches, want %d; %+v", x.Way, l.Demand, l.Watches, want, l)
			}
			if x.Way != scopeEach && l.BusyKiB <= 0 {
				t.Errorf("%s hears nothing of changes", x.Way)
			}
		}
	}
}

// TestPopulate: the Services are as many and have as many endpoints as was asked
// for, none shares an address or a name, and the small cluster is part of the large.
func TestPopulate(t *testing.T) {
	servers := far(0, 3)
	for _, s := range []Settings{defaults, quick} {
		small, large := populate(s.Small, 0, true, s, servers), populate(s.Large, s.Endpoints, false, s, servers)
		if n := len(small.all()); n != s.Small {
			t.Errorf("%d Services, want %d", n, s.Small)
		}
		if n, e := len(large.all()), large.endpoints(); n != s.Large || e != s.Endpoints {
			t.Errorf("%d Services with %d endpoints, want %d with %d", n, e, s.Large, s.Endpoints)
		}
		vips, names := map[netip.Addr]*service{}, map[string]bool{}
		for _, x := range large.all() {
			if vips[x.vip] != nil || names[x.name] {
				t.Fatalf("%s at %s is there twice", x.name, x.vip)
			}
			vips[x.vip], names[x.name] = x, true
			if len(x.endpoints) == 0 {
				t.Errorf("%s has no endpoints", x.name)
			}
		}
		for _, x := range small.all() {
			if diff := cmp.Diff(x.slice(0), vips[x.vip].slice(0)); diff != "" {
				t.Fatalf("%s is another one in the large cluster:\n%s", x.name, diff)
			}
		}
	}
	if v := vipOf(freshBlock, 1000); netip.MustParsePrefix("10.96.0.0/16").Contains(v) == false {
		t.Errorf("%s lies outside of the Service range", v)
	}
}

func TestSlicesOfALargeService(t *testing.T) {
	s := &service{namespace: "a", name: "large", vip: vipOf(firstBlock, 0), port: 80, endpoints: far(0, 2*perSlice+1)}
	if s.slices() != 3 {
		t.Fatalf("%d slices", s.slices())
	}
	var sizes []int
	names := map[string]bool{}
	for i := range s.slices() {
		x := s.slice(i)
		sizes = append(sizes, len(x.Endpoints))
		names[x.Name] = true
	}
	if !slices.Equal(sizes, []int{perSlice, perSlice, 1}) || len(names) != 3 {
		t.Errorf("slices of %v endpoints, names %v", sizes, names)
	}
}

// TestRows: bars are met and missed where they should be.
func TestRows(t *testing.T) {
	one := func(v float64) figure.Distribution { return figure.Of([]float64{v}) }
	at := func(services int, ours, theirs float64) Changes {
		return Changes{Services: services, Mode: "enforce", Appear: Times{Ours: one(ours), Theirs: one(theirs)}}
	}
	r := Report{
		Changes: []Changes{at(100, 20, 500), at(10_000, 41, 100)},
		Cost: &Cost{Programs: []ProgramCost{
			{Program: agentName, IdleMiB: 90, BusyMiB: 110, IdleCPU: 0.01, BusyCPU: 0.02},
			{Program: kubeProxyName, IdleMiB: 100, BusyMiB: 100, IdleCPU: 0.02, BusyCPU: 0.01},
		}},
		First: []First{{First: figure.First{Over: one(10)}}, {First: figure.First{Over: one(26)}, Load: &FirstLoad{KubeProxy: true}}},
	}
	got := map[string]bool{}
	for _, row := range r.rows() {
		if row.Bar != nil {
			got[row.Measure] = row.Bar.Met
		}
	}
	const size = " with 0 Services, 0 endpoints: agent over kube-proxy"
	want := map[string]bool{
		"new Service → first answer at 100 Services, p99":                                     true,
		"new Service → first answer at 100 Services: kube-proxy's median over the agent's":    true,
		"new Service → first answer at 10,000 Services, p99":                                  true,
		"new Service → first answer at 10,000 Services: kube-proxy's median over the agent's": false,
		"new Service → first answer, p50 at 10,000 over at 100 Services":                      false,
		"memory, idle" + size: true, "memory while 0 slices a second change" + size: false,
		"CPU, idle" + size: true, "CPU while 0 slices a second change" + size: false,
		"first over later connection, p99":             true,
		"first over later connection, under load, p99": false,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("bars met (-want +got):\n%s", diff)
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct{ args, err string }{
		{"", ""}, {"-quick", ""}, {"-only scope,cost", ""}, {"-only speed", `part "speed"`}, {"more", "unexpected argument"},
	} {
		p, err := parse(strings.Fields(c.args), &strings.Builder{})
		if c.err == "" && (err != nil || p.settings.Large == 0) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%q: %+v, %v; want error %q", c.args, p, err, c.err)
		}
	}
}

// TestWriteDocs: a run that is not whole, or not valid, does not come into the
// documents.
func TestWriteDocs(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.json")
	for want, r := range map[string]Report{
		"was not valid: broken": {Error: "broken"},
		"lacks":                 {Valid: true},
	} {
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := writeDocs(t.TempDir(), file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
