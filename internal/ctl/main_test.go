// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"aether.io/aether/internal/sandbox"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) {
	if handled, code := sandbox.BuiltinMain(os.Args); handled {
		os.Exit(code)
	}
	goleak.VerifyTestMain(m)
}

// result is what one run of the tool left behind.
type result struct {
	code     int
	out, err string
}

func run(t *testing.T, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	code := Main(t.Context(), args, IO{In: strings.NewReader(""), Out: &out, Err: &errs})
	return result{code, out.String(), errs.String()}
}

// ok runs the tool and wants an answer.
func ok(t *testing.T, args ...string) result {
	t.Helper()
	r := run(t, args...)
	if r.code != exitOK {
		t.Fatalf("aetherctl %s: exit code %d\n%s", strings.Join(args, " "), r.code, r.err)
	}
	return r
}

// golden compares with a file that -update rewrites.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "golden", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got, rewrite with -update)\n%s", file, diff)
	}
}
