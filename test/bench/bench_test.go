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
	if !r.Valid || r.Error != "" || len(r.First) != 2 || len(r.Load) != 4 {
		t.Errorf("valid %v (%s), %d first connections, %d loads", r.Valid, r.Error, len(r.First), len(r.Load))
	}
	if m := r.Machine; m.Cores == 0 || m.Kernel == "" || m.Wrk == "" || !strings.HasPrefix(m.Envoy, "1.") {
		t.Errorf("machine %+v", m)
	}
	for _, f := range r.First {
		if len(f.Samples) != quick.Names || f.Warm.Count != quick.Names*warmPerName {
			t.Errorf("%s: %d names, %d later connections", f.Source, len(f.Samples), f.Warm.Count)
		}
		if f.Over.Median >= 100 {
			t.Errorf("%s: a first connection takes %.1f ms over a later one, want less than 100", f.Source, f.Over.Median)
		}
	}
	for _, l := range r.Load {
		if n := len(l.Samples); n != 2*quick.Pairs {
			t.Errorf("%s %s: %d samples, want %d", l.Source, l.Kind, n, 2*quick.Pairs)
		}
		if got := l.Ratios["capture"].PerSecond.Median; got <= 0.3 {
			t.Errorf("%s %s: capture reaches %.2f of the bare listener, want more than 0.3", l.Source, l.Kind, got)
		}
		for name, lane := range l.Lanes {
			if lane.CPU.Min <= 0 || lane.All.Min < lane.CPU.Min || lane.P50.Min <= 0 || lane.P99.Min < lane.P50.Min {
				t.Errorf("%s %s: lane %s has no sensible figures: %+v", l.Source, l.Kind, name, lane)
			}
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
