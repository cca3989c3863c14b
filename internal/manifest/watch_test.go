// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"aether.io/aether/internal/model"
)

// patience is how long a test waits for what must happen.
const patience = 15 * time.Second

// watched runs a watcher and follows its batches.
type watched struct {
	t       *testing.T
	batches chan Batch
	seen    image
	last    Batch
	count   int
}

func startWatch(t *testing.T, o Options, paths ...string) *watched {
	t.Helper()
	return start(t, func(ctx context.Context, sink func(Batch)) { Watch(ctx, paths, o, sink) })
}

func start(t *testing.T, run func(context.Context, func(Batch))) *watched {
	t.Helper()
	w := &watched{t: t, batches: make(chan Batch, 1000), seen: image{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx, func(b Batch) { w.batches <- b })
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return w
}

// next waits for a batch and applies it.
func (w *watched) next() Batch {
	w.t.Helper()
	select {
	case b := <-w.batches:
		mustApply(w.t, w.seen, b.Changes)
		w.last = b
		w.count++
		return b
	case <-time.After(patience):
		w.t.Fatalf("no batch within %v; the last one: %+v", patience, w.last)
		return Batch{}
	}
}

// until waits for a batch after which ok holds.
func (w *watched) until(what string, ok func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			w.t.Fatalf("not seen within %v: %s", patience, what)
		}
		w.next()
	}
}

// vip returns the VIP that the followed changes give a Service, or "".
func (w *watched) vip(name string) string {
	c, ok := w.seen["service default/"+name].(model.SetService)
	if !ok {
		return ""
	}
	return c.Service.VIP.String()
}

// replace writes a file the way it should be done.
func replace(t *testing.T, dir, name, text string) {
	t.Helper()
	write(t, dir, ".tmp-"+name, text)
	if err := os.Rename(filepath.Join(dir, ".tmp-"+name), filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWatchFollowsADirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.yaml", service("a", "10.96.0.1"))
	w := startWatch(t, Options{}, dir)
	if b := w.next(); !b.Synced || len(b.Changes) != 1 || len(b.Objects().Services) != 1 {
		t.Fatalf("first batch %+v", b)
	}
	write(t, dir, "b.yaml", service("b", "10.96.0.2"))
	w.until("a new file", func() bool { return w.vip("b") == "10.96.0.2" })
	replace(t, dir, "a.yaml", service("a", "10.96.0.3"))
	w.until("a file replaced by renaming", func() bool { return w.vip("a") == "10.96.0.3" })
	must(t, os.Rename(filepath.Join(dir, "b.yaml"), filepath.Join(dir, "c.txt")))
	w.until("a file renamed to what is not read", func() bool { return w.vip("b") == "" })

	// A broken file keeps its content; only the problem is told.
	replace(t, dir, "a.yaml", service("a", "10.96.0.300"))
	w.until("the problem", func() bool { return len(w.last.Problems) == 1 })
	if p := w.last.Problems[0]; p.Object != "Service default/a" || p.Field != "spec.clusterIP" || w.vip("a") != "10.96.0.3" ||
		len(w.last.Changes) > 0 || len(w.last.Objects().Services) != 1 || !w.last.Synced {
		t.Errorf("after breaking a file: VIP %s, batch %+v", w.vip("a"), w.last)
	}
	// Another file's change still comes, and the problem is still told.
	write(t, dir, "d.yaml", service("d", "10.96.0.4"))
	w.until("a change beside a broken file", func() bool { return w.vip("d") == "10.96.0.4" })
	if len(w.last.Problems) != 1 {
		t.Errorf("problems %v, want one", w.last.Problems)
	}
	replace(t, dir, "a.yaml", service("a", "10.96.0.5"))
	w.until("the mended file", func() bool { return w.vip("a") == "10.96.0.5" && len(w.last.Problems) == 0 })

	// What only the objects show is delivered too.
	write(t, dir, "p.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}")
	w.until("a pod", func() bool { return len(w.last.Objects().Pods) == 1 })
	if len(w.last.Changes) > 0 {
		t.Errorf("changes %v, want none", w.last.Changes)
	}
}

func TestWatchFollowsAConfigMap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	version := func(name, vip string) {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		write(t, filepath.Join(dir, name), "a.yaml", service("a", vip))
		must(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		must(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	version("..v1", "10.96.0.1")
	must(t, os.Symlink(filepath.Join("..data", "a.yaml"), filepath.Join(dir, "a.yaml")))
	w := startWatch(t, Options{}, dir)
	w.until("the first version", func() bool { return w.vip("a") == "10.96.0.1" })
	begin := time.Now()
	version("..v2", "10.96.0.2")
	w.until("the second version", func() bool { return w.vip("a") == "10.96.0.2" })
	if took := time.Since(begin); took >= rescan {
		t.Errorf("seen only after %v", took)
	}
}

func TestWatchADirectoryThatComesAndGoes(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "manifests")
	w := startWatch(t, Options{}, dir)
	if b := w.next(); b.Synced || len(b.Problems) != 1 || b.Problems[0].String() != dir+": cannot be read: no such file or directory" {
		t.Fatalf("first batch, without the directory: %+v", b)
	}
	must(t, os.Mkdir(dir, 0o755))
	w.until("the directory", func() bool { return w.last.Synced && len(w.last.Problems) == 0 })
	write(t, dir, "a.yaml", service("a", "10.96.0.1"))
	w.until("a file in it", func() bool { return w.vip("a") == "10.96.0.1" })

	must(t, os.Rename(dir, dir+".away"))
	w.until("the problem", func() bool { return len(w.last.Problems) == 1 })
	if want := dir + ": cannot be read: no such file or directory; its last content stays in use"; w.last.Problems[0].String() != want || w.vip("a") == "" || !w.last.Synced {
		t.Fatalf("VIP %q, batch %+v", w.vip("a"), w.last)
	}
	// Another directory takes its name; the old one no longer counts.
	must(t, os.Mkdir(dir, 0o755))
	w.until("an empty directory", func() bool { return w.vip("a") == "" && len(w.last.Problems) == 0 })
	begin := time.Now()
	for i := range 3 {
		want := fmt.Sprintf("10.96.0.%d", 10+i)
		replace(t, dir, "b.yaml", service("b", want))
		w.until("a file in the new directory", func() bool { return w.vip("b") == want })
	}
	if took := time.Since(begin); took >= rescan {
		t.Errorf("changes in the new directory took %v: they were not notified", took)
	}
	write(t, dir+".away", "c.yaml", service("c", "10.96.0.9"))
	// Removed with all that is in it, and made again at once.
	must(t, os.RemoveAll(dir))
	must(t, os.Mkdir(dir, 0o755))
	write(t, dir, "d.yaml", service("d", "10.96.0.4"))
	w.until("the directory made anew", func() bool { return w.vip("d") == "10.96.0.4" && w.vip("b") == "" })
	if w.vip("c") != "" {
		t.Error("a directory that was renamed away is still read")
	}
}

func TestWatchASingleFileAndLinks(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, d := range []string{"files", "one", "two"} {
		must(t, os.Mkdir(filepath.Join(root, d), 0o755))
	}
	files := filepath.Join(root, "files")
	write(t, files, "a.manifest", service("a", "10.96.0.1"))
	write(t, filepath.Join(root, "one"), "b.yaml", service("b", "10.96.0.1"))
	write(t, filepath.Join(root, "two"), "b.yaml", service("b", "10.96.0.2"))
	link := filepath.Join(root, "current")
	must(t, os.Symlink("one", link))
	w := startWatch(t, Options{}, filepath.Join(files, "a.manifest"), link)
	w.until("both", func() bool { return w.vip("a") == "10.96.0.1" && w.vip("b") == "10.96.0.1" })
	begin := time.Now()
	replace(t, files, "a.manifest", service("a", "10.96.0.2"))
	w.until("the file replaced", func() bool { return w.vip("a") == "10.96.0.2" })
	write(t, files, "other.yaml", service("other", "10.96.0.9"))
	must(t, os.Symlink("two", link+".tmp"))
	must(t, os.Rename(link+".tmp", link))
	w.until("the link replaced", func() bool { return w.vip("b") == "10.96.0.2" })
	replace(t, filepath.Join(root, "two"), "b.yaml", service("b", "10.96.0.3"))
	w.until("a file behind the new link", func() bool { return w.vip("b") == "10.96.0.3" })
	if took := time.Since(begin); took >= rescan {
		t.Errorf("took %v: something was not notified", took)
	}
	if w.vip("other") != "" {
		t.Error("a neighbour of the file is read")
	}
}

// TestWatchDoesNotBelieveAnEmptiedFile: "command > file" empties a file first.
func TestWatchDoesNotBelieveAnEmptiedFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.yaml", service("a", "10.96.0.1"))
	w := startWatch(t, Options{}, dir)
	w.next()
	begin := time.Now()
	write(t, dir, "a.yaml", "")
	write(t, dir, "b.yaml", service("b", "10.96.0.2")) // makes it look at both
	w.until("the other file", func() bool { return w.vip("b") == "10.96.0.2" })
	if took := time.Since(begin); took < emptyGrace && w.vip("a") != "10.96.0.1" {
		t.Errorf("an empty file was believed after %v", took)
	}
	write(t, dir, "a.yaml", service("a", "10.96.0.3"))
	w.until("the file written", func() bool { return w.vip("a") == "10.96.0.3" })
	begin = time.Now()
	write(t, dir, "a.yaml", "")
	w.until("the file left empty", func() bool { return w.vip("a") == "" })
	if took := time.Since(begin); took < emptyGrace || took >= rescan {
		t.Errorf("an empty file was believed after %v, want %v", took, emptyGrace)
	}
}

// TestWatchIsNotStarved: a directory rewritten all the time is read all the same,
// but not once per write.
func TestWatchIsNotStarved(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := startWatch(t, Options{}, dir)
	w.next()
	const writes = 400
	go func() {
		// One write each 5 ms: less than the quiet time of 20 ms.
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for i := range writes {
			<-tick.C
			name := filepath.Join(dir, "a.yaml")
			text := service("a", fmt.Sprintf("10.96.%d.%d", (i+1)/250, (i+1)%250))
			if errors.Join(os.WriteFile(name+".tmp", []byte(text), 0o644), os.Rename(name+".tmp", name)) != nil {
				return
			}
		}
	}()
	last := fmt.Sprintf("10.96.%d.%d", writes/250, writes%250)
	begin := time.Now()
	w.until("something", func() bool { return w.vip("a") != "" })
	if w.vip("a") == last {
		t.Errorf("nothing was seen for %v while the directory was rewritten", time.Since(begin))
	}
	w.until("the last write", func() bool { return w.vip("a") == last })
	if most := int(time.Since(begin)/settle) + 2; w.count > most {
		t.Errorf("%d batches for %d writes, want at most %d", w.count, writes, most)
	}
}

func TestWatchUsesTheDefaultRangeUntilThereIsOne(t *testing.T) {
	t.Parallel()
	first, second := t.TempDir(), t.TempDir()
	w := startWatch(t, Options{DefaultServiceCIDR: mustPrefix("10.96.0.0/16")}, first, second)
	w.until("the default", func() bool { return w.seen["cidr kubernetes"] != nil })
	write(t, second, "cidr.yaml", "apiVersion: networking.k8s.io/v1\nkind: ServiceCIDR\nmetadata: {name: mine}\nspec: {cidrs: [10.97.0.0/16]}")
	w.until("the declared one", func() bool { return w.seen["cidr mine"] != nil && w.seen["cidr kubernetes"] == nil })
	must(t, os.Remove(filepath.Join(second, "cidr.yaml")))
	w.until("the default again", func() bool { return w.seen["cidr kubernetes"] != nil && w.seen["cidr mine"] == nil })
}

// TestWatchWithoutNotification: when the system gives no notification, changes
// come all the same, later, and a note says why.
func TestWatchWithoutNotification(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := start(t, func(ctx context.Context, sink func(Batch)) {
		x := &watcher{arguments: newArguments([]string{dir}), notifyErr: errors.New("too many open files")}
		x.run(ctx, Options{}, sink)
	})
	want := []Note{{File: dir, Text: "is not watched: too many open files; changes are seen within 5s"}}
	if d := cmp.Diff(want, w.next().Notes); d != "" {
		t.Errorf("notes (-want +got)\n%s", d)
	}
	write(t, dir, "a.yaml", service("a", "10.96.0.1"))
	w.until("a change", func() bool { return w.vip("a") == "10.96.0.1" })
}

func TestWatchEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	n := 0
	Watch(ctx, []string{t.TempDir()}, Options{}, func(Batch) {
		n++
		cancel()
	})
	if n != 1 {
		t.Errorf("%d batches, want 1", n)
	}
}

func TestDebounce(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(100, 0).Add(time.Duration(ms) * time.Millisecond) }
	tests := []struct {
		name string
		hits []int // ms
		due  int
	}{
		{"one", []int{0}, 20},
		{"two close together", []int{0, 15}, 35},
		{"on and on", []int{0, 15, 30, 45, 60, 75, 90, 105, 120, 135, 150, 165, 180, 195}, 200},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var d debounce
			for _, ms := range tt.hits {
				d = d.hit(at(ms))
			}
			if got := d.due(); !got.Equal(at(tt.due)) {
				t.Errorf("due after %v, want %d ms", got.Sub(at(0)), tt.due)
			}
		})
	}
}
