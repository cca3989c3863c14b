// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aether.io/aether/test/bench/figure"
)

// TestDocumentedFigures holds the documents against the run they are of, and that
// run against what a report makes of its own measurements.
func TestDocumentedFigures(t *testing.T) {
	root := filepath.Join("..", "..", "..")
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
	for document, figures := range r.documents() {
		text, err := os.ReadFile(filepath.Join(root, document))
		if err != nil {
			t.Fatal(err)
		}
		want, err := figure.Between(string(text), figuresBegin, figuresEnd, figures)
		if err != nil {
			t.Fatalf("%s: %v", document, err)
		}
		if diff := cmp.Diff(want, string(text)); diff != "" {
			t.Errorf("%s does not say what %s does (-figures +document):\n%s", document, docsFigures, diff)
		}
	}
}
