// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aether.io/aether/test/bench/figure"
)

const root = "../.."

// TestDocumentedFigures holds the document against the run it is of, and that run
// against what a report makes of its own measurements.
func TestDocumentedFigures(t *testing.T) {
	r, err := figure.ReadJSON[Report](filepath.Join(root, docsFigures))
	if err != nil {
		t.Fatal(err)
	}
	if !r.Valid || r.Error != "" {
		t.Errorf("%s is of a run that was not valid: %s", docsFigures, r.Error)
	}
	if missing := r.missing(); len(missing) > 0 {
		t.Errorf("%s is not of a whole run: it lacks %v", docsFigures, missing)
	}
	if diff := cmp.Diff(r.rows(), r.Rows); diff != "" {
		t.Errorf("%s: the rows are not those of its measurements (-measured +rows):\n%s", docsFigures, diff)
	}
	text, err := os.ReadFile(filepath.Join(root, docsText))
	if err != nil {
		t.Fatal(err)
	}
	want, err := figure.Between(string(text), figuresBegin, figuresEnd, r.markdown())
	if err != nil {
		t.Fatalf("%s: %v", docsText, err)
	}
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("%s does not say what %s does; run `go run ./test/bench -write-docs .build/bench.json` (-figures +document):\n%s", docsText, docsFigures, diff)
	}
}

func TestWriteDocs(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	reported := func(r Report) string {
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return write("bench.json", string(b))
	}
	whole := Report{Valid: true, Memory: &Memory{}, Neighbour: &Neighbour{}, Scale: make([]Scale, 2)}
	for _, source := range allSources {
		whole.First = append(whole.First, FirstConnections{Source: source, First: figure.First{Over: one(3), Samples: []figure.ColdSample{{Target: "x"}}}})
		whole.Rolling = append(whole.Rolling, Rolling{FirstConnections: FirstConnections{Source: source, First: figure.First{Over: one(5)}}})
		for _, kind := range []string{keptAlive, newConnections} {
			whole.Load = append(whole.Load, load(source, kind, 0.9, 1))
		}
	}
	page := write(docsText, "# Title\n"+figuresBegin+"stale figures\n"+figuresEnd+"the rest\n")

	if err := writeDocs(dir, reported(whole)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# Title\n", "\nthe rest\n", "| first over later, p50 | pod | 3.00 ms |", "| capture | node | new | 900 |"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the document lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "stale") {
		t.Error("the old figures are still there")
	}
	kept, err := figure.ReadJSON[Report](filepath.Join(dir, docsFigures))
	if err != nil || len(kept.First) != 2 || kept.First[0].Samples != nil || len(kept.Rows) == 0 {
		t.Errorf("the run beside the document: %+v, %v", kept, err)
	}

	bad := whole
	bad.Valid, bad.Error = false, "a reason"
	wantError(t, writeDocs(dir, reported(bad)), "not valid: a reason")
	part := whole
	part.Memory = nil
	wantError(t, writeDocs(dir, reported(part)), "it lacks memory")
	wantError(t, writeDocs(dir, filepath.Join(dir, "none.json")), "read the report")
	write(docsText, "# Title\n")
	wantError(t, writeDocs(dir, reported(whole)), "no lines for figures")
}
