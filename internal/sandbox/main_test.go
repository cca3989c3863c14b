// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if handled, code := BuiltinMain(os.Args); handled {
		os.Exit(code)
	}
	if handled, code := fakeMain(os.Args); handled {
		os.Exit(code)
	}
	if len(os.Args) == 3 && os.Args[1] == argForbid {
		os.Exit(forbidMain(os.Args[2]))
	}
	if len(os.Args) == 3 && os.Args[1] == argStart {
		os.Exit(startMain(os.Args[2]))
	}
	goleak.VerifyTestMain(m)
}

// needRoot fails, and does not skip: these tests are about the real kernel.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("run as root: this test makes network namespaces")
	}
}

// writeManifests replaces the content of a directory by one file.
func writeManifests(t *testing.T, dir, yaml string) {
	t.Helper()
	early := filepath.Join(dir, ".new")
	if err := os.WriteFile(early, []byte(yaml), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(early, filepath.Join(dir, "all.yaml")); err != nil {
		t.Fatal(err)
	}
}

// plain brings up a sandbox without agent and Envoy and takes it down at the end.
func plain(t *testing.T, name, yaml string, change ...func(*Config)) (*Node, string) {
	t.Helper()
	needRoot(t)
	dir := t.TempDir()
	writeManifests(t, dir, yaml)
	c := Config{
		Name: name, Dirs: []string{dir}, StateDir: t.TempDir(), NoProxy: true,
		Log: slog.New(slog.NewTextHandler(testLog{t}, nil)), Progress: func(s string) { t.Log(s) },
	}
	for _, f := range change {
		f(&c)
	}
	n, err := Up(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Down(context.Background()); err != nil {
			t.Errorf("down: %v", err)
		}
	})
	return n, dir
}

type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// eventually waits for a condition that need not take long.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
