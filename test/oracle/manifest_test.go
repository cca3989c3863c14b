// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"aether.io/aether/internal/manifest"
	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
)

// TestManifestsReadBack: what a finding prints is a file that `aetherctl explain
// -f` reads, and its answers from it are those that were compared. So the reader of
// manifests fills in the same defaults as the API server, too.
func TestManifestsReadBack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "finding.yaml")
	rapid.Check(t, func(t *rapid.T) {
		p := newPair("n1", targets())
		drawStart(t, p.world, func(e event) { p.apply(e) })
		for range rapid.IntRange(0, 8).Draw(t, "events") {
			p.apply(drawEvents(t, p.world)...)
		}
		p.sync()
		text := (&finding{world: p.world, target: dialWeb}).String()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		read, err := manifest.Load([]string{file}, manifest.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(read.Problems) > 0 {
			t.Fatalf("%v\n%s", read.Problems, text)
		}
		st, _ := model.New(model.Options{}).Apply(read.Changes)
		for _, target := range p.targets {
			if got, want := outcomeOf(plan.Decide(st, p.aether.settings, target)), p.aether.dial(target); !got.equal(want) {
				t.Fatalf("%s: %v from the manifests, %v before\n%s", target, got, want, text)
			}
		}
	})
}
