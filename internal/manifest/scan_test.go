// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func mustLoad(t *testing.T, dirs ...string) Result {
	t.Helper()
	r, err := Load(dirs, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func serviceNames(o Objects) (out []string) {
	for _, s := range o.Services {
		out = append(out, s.Name)
	}
	return out
}

func TestLoadWhichFilesCount(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{
		"a.yaml", "b.yml", "c.json", // read
		".hidden.yaml", ".#lock.yaml", "d.yaml~", "#e.yaml#", "f.yaml.swp", "4913", "g.txt", "README.md", "h.yaml.bak", "yaml",
	} {
		text := service(fmt.Sprintf("s%d", i), "None")
		if strings.HasSuffix(name, ".json") {
			text = `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s2"}, "spec": {"clusterIP": "None"}}`
		}
		write(t, dir, name, text)
	}
	if err := os.MkdirAll(filepath.Join(dir, "sub.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "sub.yaml"), "x.yaml", service("sub", "None"))
	r := mustLoad(t, dir)
	if d := cmp.Diff([]string{"s0", "s1", "s2"}, serviceNames(r.Objects)); d != "" || len(r.Problems) > 0 {
		t.Errorf("problems %v (-want +got)\n%s", r.Problems, d)
	}
	// A file given by name is read whatever its name.
	if got := serviceNames(mustLoad(t, filepath.Join(dir, "g.txt")).Objects); len(got) != 1 || got[0] != "s9" {
		t.Errorf("single file: %v", got)
	}
}

func TestLoadReportsAndLeavesOutBrokenFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", service("a", "10.96.0.1"))
	write(t, dir, "b.yaml", service("b", "10.96.0.2")+"---\n"+service("c", "10.96.0.999"))
	write(t, dir, "d.yaml", "a: [")
	if err := os.Symlink(filepath.Join(dir, "nowhere"), filepath.Join(dir, "e.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "f.yaml"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := mustLoad(t, dir)
	if got := serviceNames(r.Objects); len(got) != 1 || got[0] != "a" {
		t.Errorf("services %v, want a", got)
	}
	want := []Problem{
		{filepath.Join(dir, "b.yaml"), "Service default/c", "spec.clusterIP", `"10.96.0.999" is not an IP address`},
		{filepath.Join(dir, "d.yaml"), "document 1", "", "read YAML: line 1: did not find expected node content"},
		{filepath.Join(dir, "e.yaml"), "", "", "cannot be read: no such file or directory"},
		{filepath.Join(dir, "f.yaml"), "", "", "cannot be read: it is not a regular file"},
	}
	if d := cmp.Diff(want, r.Problems); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if got, want := r.Problems[0].String(), filepath.Join(dir, "b.yaml")+`: Service default/c: spec.clusterIP: "10.96.0.999" is not an IP address`; got != want {
		t.Errorf("String() = %s, want %s", got, want)
	}
}

func TestLoadRefusesWhatIsNotThere(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	_, err := Load([]string{t.TempDir(), missing}, Options{})
	if err == nil || err.Error() != "read manifests: "+missing+" cannot be read: no such file or directory" {
		t.Errorf("error = %v", err)
	}
}

func TestLoadNothing(t *testing.T) {
	if d := cmp.Diff(Result{}, mustLoad(t)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestLaterDirectoryWins(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	write(t, first, "z.yaml", service("web", "10.96.0.1"))
	write(t, second, "a.yaml", service("web", "10.96.0.2"))
	for _, tt := range []struct {
		dirs []string
		want string
	}{{[]string{first, second}, "10.96.0.2"}, {[]string{second, first}, "10.96.0.1"}} {
		r := mustLoad(t, tt.dirs...)
		if got := r.Objects.Services[0].Spec.ClusterIP; got != tt.want || len(r.Notes) > 0 {
			t.Errorf("%s wins, notes %v; want %s and none", got, r.Notes, tt.want)
		}
	}
}

// TestOrderOfWritingMeansNothing: files give one result in whatever order they
// were written, and so were listed.
func TestOrderOfWritingMeansNothing(t *testing.T) {
	root := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		files := rapid.SliceOfN(genFile(), 1, 5).Draw(t, "files")
		var want *Result
		for _, order := range [][]int{rapid.Permutation(indexes(len(files))).Draw(t, "one"), rapid.Permutation(indexes(len(files))).Draw(t, "two")} {
			n++
			dir := filepath.Join(root, fmt.Sprint(n))
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, i := range order {
				write(t, dir, fmt.Sprintf("%d.yaml", i), files[i])
			}
			got, err := Load([]string{dir}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			for i := range got.Notes { // the directories differ, nothing else may
				got.Notes[i].File = strings.ReplaceAll(got.Notes[i].File, dir, "")
				got.Notes[i].Text = strings.ReplaceAll(got.Notes[i].Text, dir, "")
			}
			if want == nil {
				want = &got
				continue
			}
			if d := cmp.Diff(*want, got, cmpOpts); d != "" {
				t.Fatalf("(-one order +another)\n%s", d)
			}
		}
	})
}

func indexes(n int) (out []int) {
	for i := range n {
		out = append(out, i)
	}
	return out
}

func TestUnchangedFilesAreNotReadAgain(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", service("a", "10.96.0.1"))
	path := filepath.Join(dir, "a.yaml")
	mtime := time.Now().Add(-time.Hour)
	if err := os.Chtimes(path, mtime, mtime); err != nil {
		t.Fatal(err)
	}
	a := newArguments([]string{dir})[0]
	if changed, _ := a.scan(time.Now()); !changed {
		t.Fatal("the first scan found nothing")
	}
	// Same size, time and inode: only a report of the system tells.
	write(t, dir, "a.yaml", service("a", "10.96.0.2"))
	if err := os.Chtimes(path, mtime, mtime); err != nil {
		t.Fatal(err)
	}
	if changed, _ := a.scan(time.Now()); changed {
		t.Error("a file whose stamp is unchanged was read again")
	}
	a.distrust(path)
	if changed, _ := a.scan(time.Now()); !changed {
		t.Error("a reported change was not read")
	}
	// A file changed within stampAge before it was read is never trusted.
	now := time.Now()
	if err := os.Chtimes(path, now, now); err != nil {
		t.Fatal(err)
	}
	a.scan(now)
	write(t, dir, "a.yaml", service("a", "10.96.0.3"))
	if err := os.Chtimes(path, now, now); err != nil {
		t.Fatal(err)
	}
	if changed, _ := a.scan(now.Add(time.Second)); !changed {
		t.Error("a young file was trusted")
	}
}

func TestUnreadableFileKeepsItsContent(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "real")
	write(t, dir, "real", service("a", "10.96.0.1"))
	link := filepath.Join(dir, "a.yaml")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	a := newArguments([]string{dir})
	scan := func() view {
		a[0].scan(time.Now())
		return look(a, Options{})
	}
	scan()
	if err := os.Remove(target); err != nil {
		t.Fatal(err)
	}
	v := scan()
	want := []Problem{{File: link, Err: "cannot be read: no such file or directory"}}
	if d := cmp.Diff(want, v.problems); d != "" || len(v.objects) != 1 {
		t.Errorf("%d objects, problems (-want +got)\n%s", len(v.objects), d)
	}
	if changed, _ := a[0].scan(time.Now()); changed {
		t.Error("the same problem is a change")
	}
	write(t, dir, "real", service("a", "10.96.0.1"))
	if v := scan(); len(v.problems) > 0 || len(v.objects) != 1 {
		t.Errorf("after mending: %d objects, problems %v", len(v.objects), v.problems)
	}
}

func TestLargeFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "a.yaml"))
	if err == nil {
		err = f.Truncate(maxFileBytes + 1)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	r := mustLoad(t, dir)
	if len(r.Problems) != 1 || r.Problems[0].Err != "cannot be read: it is larger than 64 MiB" {
		t.Errorf("problems %v", r.Problems)
	}
}

func TestEarlier(t *testing.T) {
	a, b := time.Unix(1, 0), time.Unix(2, 0)
	for _, tt := range [][3]time.Time{{a, b, a}, {b, a, a}, {a, {}, a}, {{}, a, a}, {{}, {}, {}}} {
		if got := earlier(tt[0], tt[1]); !got.Equal(tt[2]) {
			t.Errorf("earlier(%v, %v) = %v, want %v", tt[0], tt[1], got, tt[2])
		}
	}
}
