// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"aether.io/aether/internal/sandbox"
)

func TestMain(m *testing.M) {
	if handled, code := sandbox.BuiltinMain(os.Args); handled {
		os.Exit(code)
	}
	goleak.VerifyTestMain(m)
}

// programs returns the folder with aether-agent and aetherctl: $AETHER_BIN, or
// one they are built into.
func programs(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("AETHER_BIN"); dir != "" {
		return dir
	}
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", dir+"/",
		"aether.io/aether/cmd/aether-agent", "aether.io/aether/cmd/aetherctl")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the programs: %v\n%s", err, out)
	}
	return dir
}

// TestQuickRun runs the whole program on the real kernel with the real Envoy. Its
// bounds are generous: a busy machine keeps them, a wrong design does not.
func TestQuickRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("run as root: this test makes network namespaces")
	}
	envoy, err := sandbox.FindEnvoy("")
	if err != nil {
		t.Fatal(err) // says how to get one
	}
	file := filepath.Join(t.TempDir(), "bench.json")
	var stdout, stderr strings.Builder
	code := run(t.Context(), []string{"-quick", "-bin", programs(t), "-envoy", envoy, "-out", file}, &stdout, &stderr)
	t.Logf("\n%s", stdout.String())
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if missing := r.missing(); !r.Valid || r.Error != "" || len(missing) > 0 {
		t.Fatalf("valid %v (%s), missing %v", r.Valid, r.Error, missing)
	}
	if m := r.Machine; m.Cores == 0 || m.Kernel == "" || m.Wrk == "" || m.HAProxy == "" || !strings.HasPrefix(m.Envoy, "1.") {
		t.Errorf("machine %+v", m)
	}
	for _, f := range r.First {
		checkFirst(t, f.Source, f, quick.Names, 100)
	}
	for _, f := range r.Rolling {
		checkFirst(t, f.Source+", rolling", f.FirstConnections, quick.Rolling.Names, 300)
		if f.Replaced < 10 || f.Sent < 2 {
			t.Errorf("%s: %.0f slices replaced per second, of which Envoy saw %.0f: nothing rolled", f.Source, f.Replaced, f.Sent)
		}
	}
	for _, l := range r.Load {
		checkLoad(t, l)
	}
	for _, s := range r.Scale {
		checkScale(t, s)
	}
	checkMemory(t, *r.Memory)
	for _, k := range r.Neighbour.Kinds {
		if k.P99.Count != quick.Neighbour.Rounds || k.P99.Median <= 0 || (k.PerSecond.Median <= 0) != (k.Name == quietName) {
			t.Errorf("neighbour, %s: no sensible figures: %+v", k.Name, k)
		}
		if k.P99.Median > 2000 {
			t.Errorf("neighbour, %s: p99 %.0f ms", k.Name, k.P99.Median)
		}
	}
	if left, err := os.ReadDir("/run/aether-sandbox/bench"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the node left files behind: %v, %v", left, err)
	}
}

// TestInvalidRun: a run that cannot be is no success, and says so in its report.
func TestInvalidRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("run as root: this test makes network namespaces")
	}
	envoy, err := sandbox.FindEnvoy("")
	if err != nil {
		t.Fatal(err) // says how to get one
	}
	file := filepath.Join(t.TempDir(), "bench.json")
	var stdout, stderr strings.Builder
	if code := run(t.Context(), []string{"-quick", "-bin", t.TempDir(), "-envoy", envoy, "-out", file}, &stdout, &stderr); code != 1 {
		t.Errorf("exit code %d without an agent, want 1", code)
	}
	var r Report
	if b, err := os.ReadFile(file); err != nil || json.Unmarshal(b, &r) != nil {
		t.Fatalf("no report: %v", err)
	}
	if r.Valid || !strings.Contains(r.Error, "pod-sourced: start the node: agent") {
		t.Errorf("report says valid %v, error %q", r.Valid, r.Error)
	}
	if code := run(t.Context(), []string{"-pairs", "0"}, &stdout, &stderr); code != 2 {
		t.Errorf("exit code %d for bad flags, want 2", code)
	}
}

func checkFirst(t *testing.T, what string, f FirstConnections, names int, most float64) {
	t.Helper()
	if len(f.Samples) != names || f.Warm.Count != names*warmPerName {
		t.Errorf("%s: %d names, %d later connections", what, len(f.Samples), f.Warm.Count)
	}
	if f.Over.Median >= most {
		t.Errorf("%s: a first connection takes %.1f ms over a later one, want less than %.0f", what, f.Over.Median, most)
	}
}

func checkLoad(t *testing.T, l Load) {
	t.Helper()
	lanes := 4
	if l.Source == "pod" {
		lanes = 5 // and the bare listener that dials from the pod's namespace
	}
	if n := len(l.Samples); n != lanes*quick.Pairs {
		t.Errorf("%s %s: %d samples, want %d", l.Source, l.Kind, n, lanes*quick.Pairs)
	}
	if got := l.Ratios[captureName].PerSecond.Median; got <= 0.2 {
		t.Errorf("%s %s: capture reaches %.2f of the bare listener, want more than 0.2", l.Source, l.Kind, got)
	}
	for name, lane := range l.Lanes {
		if (lane.CPU.Min <= 0) != (name == dnatName) || lane.All.Min <= lane.CPU.Min || lane.P50.Min <= 0 || lane.P99.Min < lane.P50.Min {
			t.Errorf("%s %s: lane %s has no sensible figures: %+v", l.Source, l.Kind, name, lane)
		}
	}
}

func checkScale(t *testing.T, s Scale) {
	t.Helper()
	if s.Told.Median <= 0 || s.Told.Median > 100 || s.Renamed.Median < s.Told.Median || s.Renamed.Median > 2000 {
		t.Errorf("%d Services: a change takes %.1f ms from the source, %.1f ms from the file", s.Services, s.Told.Median, s.Renamed.Median)
	}
	if s.IdleMiB <= 0 || s.IdleMiB > 200 || s.IdleCPU > 0.3 {
		t.Errorf("%d Services: the agent has %.0f MiB and uses %.2f of a core idle", s.Services, s.IdleMiB, s.IdleCPU)
	}
	if s.BusyCPU <= s.IdleCPU || s.Replaced < 10 {
		t.Errorf("%d Services: %.0f changes per second use %.2f of a core, none %.2f", s.Services, s.Replaced, s.BusyCPU, s.IdleCPU)
	}
}

// checkMemory has bounds of one and a half times the bars: of few things the cost
// of one is coarse.
func checkMemory(t *testing.T, m Memory) {
	t.Helper()
	if len(m.Costs) != 7 {
		t.Errorf("memory of %d things, want 7", len(m.Costs))
	}
	for _, c := range m.Costs {
		if limit, ok := memoryBars[c.What]; c.Allocated <= 0 || (ok && c.Allocated > 1.5*limit) {
			t.Errorf("%s costs Envoy %.1f KiB, the bar is %.0f", c.What, c.Allocated, limit)
		}
	}
}
