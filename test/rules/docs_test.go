// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aether.io/aether/test/markdown"
)

var update = flag.Bool("update", false, "rewrite the generated parts of the documents")

// repository is the folder of the module.
var repository = sync.OnceValue(func() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	return filepath.Dir(filepath.Dir(dir)) // of test/rules
})

// document reads a file of the repository.
func document(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(repository(), path))
	if err != nil {
		t.Fatalf("read document: %v", err)
	}
	return string(b)
}

// section reads what stands under a heading of a document.
func section(t *testing.T, path, heading string) string {
	t.Helper()
	s, ok := markdown.Section(document(t, path), heading)
	if !ok {
		t.Fatalf("%s has no heading %q", path, heading)
	}
	return s
}

// firstColumn reads the code spans in the first column of a section's table.
func firstColumn(t *testing.T, path, heading string) []string {
	t.Helper()
	var out []string
	for _, r := range markdown.Rows(section(t, path, heading)) {
		out = append(out, markdown.Code(r[0])...)
	}
	if len(out) == 0 {
		t.Fatalf("%s: %s: there is no table with code in its first column", path, heading)
	}
	return out
}

// sameSet compares what a document lists with what the program has.
func sameSet(t *testing.T, what string, listed, has []string) {
	t.Helper()
	listed, has = slices.Sorted(slices.Values(listed)), slices.Sorted(slices.Values(has))
	if d := cmp.Diff(has, listed); d != "" {
		t.Errorf("%s (-program +document):\n%s", what, d)
	}
}

// generated compares the part of a document between two markers with what the
// program says, or rewrites it.
func generated(t *testing.T, path, name, want string) {
	t.Helper()
	begin := "<!-- " + name + ": written by `go test ./test/rules -update` -->\n"
	end := "<!-- end of " + name + " -->\n"
	text := document(t, path)
	before, rest, found := strings.Cut(text, begin)
	got, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no lines %q and %q", path, strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	want = "\n" + want + "\n"
	if *update && got != want {
		if err := os.WriteFile(filepath.Join(repository(), path), []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatalf("rewrite %s: %v", path, err)
		}
		return
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s: %s is not what the program says; run `go test ./test/rules -update` (-program +document):\n%s", path, name, d)
	}
}

// textFiles returns the paths of every text file of the repository whose name has
// one of the suffixes, build output left out. No suffix: all of them.
func textFiles(t *testing.T, suffixes ...string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(repository(), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == ".build") {
			return filepath.SkipDir
		}
		if d.Name() == ".git" { // in a worktree it is a file
			return nil
		}
		rel, err := filepath.Rel(repository(), path)
		named := len(suffixes) == 0 || slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(path, s) })
		if d.Type().IsRegular() && named {
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		t.Fatalf("walk the repository: %v", err)
	}
	return out
}

// declared returns every name that a Go file declares at its top level, methods
// and fields of structs among them.
func declared(t *testing.T, path string) map[string]bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(repository(), path), nil, 0)
	if err != nil {
		t.Fatalf("parse %s: %v", path, err)
	}
	names := map[string]bool{}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			names[d.Name.Name] = true
		case *ast.GenDecl:
			for _, s := range d.Specs {
				ast.Inspect(s, func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.TypeSpec:
						names[n.Name.Name] = true
					case *ast.ValueSpec:
						for _, id := range n.Names {
							names[id.Name] = true
						}
					case *ast.Field:
						for _, id := range n.Names {
							names[id.Name] = true
						}
					}
					return true
				})
			}
		}
	}
	return names
}

var (
	namesCode = regexp.MustCompile(`^([\w./-]+\.go): (.+)$`)
	namesPath = regexp.MustCompile(`^(?:\./)?(?:internal|cmd|test|docs|examples|tools)(?:/[\w.-]+)*(?:/\.\.\.|/)?$`)
)

// TestDocumentsNameCodeThatExists: `file.go: name, name` in a document is a file
// and what it declares, `internal/…` and the like are files or folders.
func TestDocumentsNameCodeThatExists(t *testing.T) {
	seen := 0
	for _, doc := range textFiles(t, ".md") {
		dir := filepath.Dir(doc)
		for _, code := range markdown.Code(document(t, doc)) {
			if m := namesCode.FindStringSubmatch(code); m != nil {
				path := m[1]
				if !strings.Contains(path, "/") {
					path = filepath.Join(dir, path)
				}
				if _, err := os.Stat(filepath.Join(repository(), path)); err != nil {
					t.Errorf("%s: `%s`: there is no such file", doc, code)
					continue
				}
				seen++
				names := declared(t, path)
				for name := range strings.SplitSeq(m[2], ", ") {
					if !names[name] {
						t.Errorf("%s: `%s`: the file declares no %s", doc, code, name)
					}
				}
				continue
			}
			if !namesPath.MatchString(code) {
				continue
			}
			path := strings.TrimSuffix(strings.TrimSuffix(code, "..."), "/")
			if _, err := os.Stat(filepath.Join(repository(), path)); err != nil {
				t.Errorf("%s: `%s` does not exist", doc, code)
			}
		}
	}
	if seen < 20 {
		t.Errorf("the documents name code %d times: that is too seldom to be true", seen)
	}
}

// TestLinksLead: every link of a document to a file, and to a heading, leads there.
func TestLinksLead(t *testing.T) {
	for _, doc := range textFiles(t, ".md") {
		for _, target := range markdown.Links(document(t, doc)) {
			if strings.Contains(target, "://") {
				continue
			}
			path, fragment, _ := strings.Cut(target, "#")
			to := doc
			if path != "" {
				to = filepath.Join(filepath.Dir(doc), path)
			}
			info, err := os.Stat(filepath.Join(repository(), to))
			if err != nil {
				t.Errorf("%s: the link to %s leads nowhere", doc, target)
				continue
			}
			if fragment == "" {
				continue
			}
			var anchors []string
			if !info.IsDir() {
				for _, h := range markdown.Headings(document(t, to)) {
					anchors = append(anchors, markdown.Anchor(h))
				}
			}
			if !slices.Contains(anchors, fragment) {
				t.Errorf("%s: the link to %s: there is no heading of that name", doc, target)
			}
		}
	}
}

// What a text of this repository must not hold: paths of the machine it was
// written on, and documents that are not in it. The patterns are put together so
// that this file does not match them.
var (
	machinePath = regexp.MustCompile(`(?:/home/|/Users/|/root/\w|/workspaces?/|/mnt/)`)
	mentionsDoc = regexp.MustCompile(`\b(\w[\w-]*\.md)\b`)
)

func TestNothingNamesTheMachineItWasWrittenOn(t *testing.T) {
	docs := map[string]bool{}
	for _, doc := range textFiles(t, ".md") {
		docs[filepath.Base(doc)] = true
	}
	for _, path := range textFiles(t) {
		text := []byte(document(t, path))
		if bytes.IndexByte(text, 0) >= 0 {
			continue
		}
		if path != "test/rules/docs_test.go" {
			for _, at := range machinePath.FindAllIndex(text, -1) {
				t.Errorf("%s:%d names a path of somebody's machine: %s", path, 1+bytes.Count(text[:at[0]], []byte("\n")), text[at[0]:at[1]])
			}
		}
		if strings.HasPrefix(path, "test/rules/") || strings.HasPrefix(path, "test/markdown/") || !bytes.Contains(text, []byte(".md")) {
			continue // they hold samples and patterns
		}
		for _, m := range mentionsDoc.FindAllSubmatchIndex(text, -1) {
			if name := string(text[m[2]:m[3]]); !docs[name] {
				t.Errorf("%s:%d mentions %s, which is not in the repository", path, 1+bytes.Count(text[:m[0]], []byte("\n")), name)
			}
		}
	}
}

// The patterns themselves must be able to find something.
func TestMachinePathsAreNoticed(t *testing.T) {
	for text, want := range map[string]bool{
		"see /home/" + "jo/x": true, "/Users/" + "jo/x.go": true, "/root/" + "x": true,
		"/run/aether/x": false, "HOME=/root": false, "/tmp/aether-x": false,
	} {
		if got := machinePath.MatchString(text); got != want {
			t.Errorf("%q: noticed %t, want %t", text, got, want)
		}
	}
}
