// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// history does to two directories what people do, scans them after each step as
// Watch does, and keeps what the changes say.
type history struct {
	dirs      []string
	arguments []*argument
	now       time.Time
	last      view
	seen      image
}

func newHistory(t *rapid.T, dirs ...string) *history {
	for _, d := range dirs {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h := &history{dirs: dirs, arguments: newArguments(dirs), now: time.Now(), seen: image{}}
	h.step(t)
	return h
}

// step scans until there is nothing to wait for.
func (h *history) step(t *rapid.T) {
	h.now = h.now.Add(3 * time.Second)
	recheck := h.scan(t)
	if recheck.IsZero() {
		return
	}
	if wait := recheck.Sub(h.now); wait != emptyGrace {
		t.Fatalf("recheck after %v, want %v", wait, emptyGrace)
	}
	h.now = recheck
	if again := h.scan(t); !again.IsZero() {
		t.Fatalf("still waiting at %v", again)
	}
}

func (h *history) scan(t *rapid.T) (recheck time.Time) {
	for _, a := range h.arguments {
		a.distrust("") // the clock is the test's, the files' is not
		_, r := a.scan(h.now)
		recheck = earlier(recheck, r)
	}
	v := look(h.arguments, Options{})
	b, _ := batch(h.last, v)
	mustApply(t, h.seen, b.Changes)
	h.last = v
	return recheck
}

// path draws a file of either directory, which need not exist.
func (h *history) path(t *rapid.T) string {
	name := rapid.SampledFrom([]string{"a.yaml", "b.yml", "c.yaml"}).Draw(t, "name")
	return filepath.Join(rapid.SampledFrom(h.dirs).Draw(t, "dir"), name)
}

func (h *history) write(t *rapid.T) {
	path := h.path(t)
	write(t, filepath.Dir(path), filepath.Base(path), genFile().Draw(t, "text"))
	h.step(t)
}

func (h *history) breakFile(t *rapid.T) {
	path := h.path(t)
	was := image{}
	mustApply(t, was, diff(nil, h.last.objects))
	_, statErr := os.Stat(path)
	write(t, filepath.Dir(path), filepath.Base(path), "---\n"+genObject().Draw(t, "object")+"---\nkind: [")
	h.step(t)
	if d := cmp.Diff(was, h.seen, cmpOpts); statErr == nil && d != "" {
		t.Fatalf("a broken file changed something (-before +after)\n%s", d)
	}
	if len(h.last.problems) == 0 {
		t.Fatal("a broken file is not reported")
	}
}

func (h *history) remove(t *rapid.T) {
	_ = os.Remove(h.path(t)) // it need not exist
	h.step(t)
}

func (h *history) rename(t *rapid.T) {
	_ = os.Rename(h.path(t), h.path(t)) // it need not exist
	h.step(t)
}

func (h *history) hideDirectory(t *rapid.T) {
	d := rapid.SampledFrom(h.dirs).Draw(t, "dir")
	was := len(h.seen)
	if err := os.Rename(d, d+".away"); err != nil {
		t.Fatal(err)
	}
	h.step(t)
	if len(h.seen) != was || len(h.last.problems) == 0 || !h.last.synced {
		t.Fatalf("after a directory went: %d objects, %d before; problems %v", len(h.seen), was, h.last.problems)
	}
	if err := os.Rename(d+".away", d); err != nil {
		t.Fatal(err)
	}
	h.step(t)
}

// mend writes every file anew.
func (h *history) mend(t *rapid.T) {
	for _, d := range h.dirs {
		files, err := os.ReadDir(d)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range files {
			write(t, d, e.Name(), genFile().Draw(t, "mended"))
		}
	}
	h.step(t)
}

// TestHistoriesEndAsAFreshLoad: whatever is written, broken, emptied, removed and
// renamed, once every file is in order again the state is that of a fresh start;
// and at no time does a broken file, or a directory that is away, lose what it
// last said.
func TestHistoriesEndAsAFreshLoad(t *testing.T) {
	root := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		h := newHistory(t, filepath.Join(root, fmt.Sprint(n), "1"), filepath.Join(root, fmt.Sprint(n), "2"))
		t.Repeat(map[string]func(*rapid.T){
			"write": h.write, "break": h.breakFile, "remove": h.remove, "rename": h.rename, "hide a directory": h.hideDirectory,
		})
		h.mend(t)
		if len(h.last.problems) > 0 {
			t.Fatalf("problems left: %v", h.last.problems)
		}
		fresh, err := Load(h.dirs, Options{})
		if err != nil {
			t.Fatal(err)
		}
		want := image{}
		mustApply(t, want, fresh.Changes)
		if d := cmp.Diff(want, h.seen, cmpOpts); d != "" {
			t.Fatalf("(-fresh +followed)\n%s", d)
		}
		if d := cmp.Diff(fresh.Objects, h.last.objects.byKind()); d != "" {
			t.Fatalf("objects (-fresh +followed)\n%s", d)
		}
	})
}
