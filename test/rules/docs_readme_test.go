// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"aether.io/aether/internal/ctl"
	"aether.io/aether/test/markdown"
)

// writeFile writes a file of a test's own.
func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// offline runs aetherctl in the repository's folder and returns what it answers.
func offline(t *testing.T, args ...string) string {
	t.Helper()
	t.Chdir(repository())
	var out, errs bytes.Buffer
	if code := ctl.Main(t.Context(), args, ctl.IO{In: strings.NewReader(""), Out: &out, Err: &errs}); code != 0 {
		t.Errorf("aetherctl %v: exit code %d\n%s", args, code, errs.String())
	}
	return out.String()
}

// command is a line that a document tells people to type.
type command struct {
	doc  string
	line int
	markdown.Command
}

// typed returns every command of every document.
func typed(t *testing.T) []command {
	t.Helper()
	var out []command
	for _, doc := range textFiles(t, ".md") {
		for _, f := range markdown.Fences(document(t, doc)) {
			for _, c := range f.Commands() {
				out = append(out, command{doc, f.Line, c})
			}
		}
	}
	return out
}

var (
	makeTarget = regexp.MustCompile(`(?m)^([a-z-]+):.*## `)
	makeLine   = regexp.MustCompile(`(?:^|\s)make ((?:[a-z-]+ ?)+)$`)
	ctlLine    = regexp.MustCompile(`^(?:\.build/bin/)?aetherctl (.*)$`)
	testLine   = regexp.MustCompile(`^go test (\./\S+)(?: -run '?([\w|]+))?`)
)

// TestCommandsOfDocumentsExist: the make targets, tests, commands and flags that
// the documents tell people to type are there.
func TestCommandsOfDocumentsExist(t *testing.T) {
	var targets []string
	for _, m := range makeTarget.FindAllStringSubmatch(document(t, "Makefile"), -1) {
		targets = append(targets, m[1])
	}
	seen := map[string]int{}
	for _, c := range typed(t) {
		switch {
		case makeLine.MatchString(c.Line):
			seen["make"]++
			for _, target := range strings.Fields(makeLine.FindStringSubmatch(c.Line)[1]) {
				if !slices.Contains(targets, target) {
					t.Errorf("%s:%d: `%s`: there is no target %s", c.doc, c.line, c.Line, target)
				}
			}
		case ctlLine.MatchString(c.Line):
			seen["aetherctl"]++
			checkUnderstood(t, c, ctlLine.FindStringSubmatch(c.Line)[1])
		case testLine.MatchString(c.Line):
			seen["go test"]++
			m := testLine.FindStringSubmatch(c.Line)
			checkTest(t, c, m[1], m[2])
		}
	}
	for _, what := range []string{"make", "aetherctl", "go test"} {
		if seen[what] < 3 {
			t.Errorf("the documents tell people to type %s %d times: that is too seldom to be true", what, seen[what])
		}
	}
	for _, m := range regexp.MustCompile("`make ([a-z-]+)`").FindAllStringSubmatch(document(t, "README.md"), -1) {
		if !slices.Contains(targets, m[1]) {
			t.Errorf("README.md: there is no target %s", m[1])
		}
	}
}

// checkUnderstood has aetherctl read a command line: that it asks for help too
// keeps it from being carried out.
func checkUnderstood(t *testing.T, c command, line string) {
	t.Helper()
	args, _, _ := strings.Cut(line, " -- ") // what follows is a pod's command
	args, _, _ = strings.Cut(args, " | ")
	words := strings.Fields(args)
	if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(w, markdown.Ellipsis) }) {
		return
	}
	var out bytes.Buffer
	at := len(words)
	if i := slices.Index(words, "exec"); i >= 0 {
		at = i + 1 // the pod's name ends the flags
	}
	words = slices.Insert(words, at, "--help")
	if code := ctl.Main(t.Context(), words, ctl.IO{In: strings.NewReader(""), Out: &out, Err: &out}); code != 0 {
		t.Errorf("%s:%d: `%s` is not understood:\n%s", c.doc, c.line, c.Line, out.String())
	}
	if path, _, _ := strings.Cut(line, " -"); strings.Contains(out.String(), "Available Commands:") && strings.Contains(path, " ") {
		t.Errorf("%s:%d: `%s`: there is no such command", c.doc, c.line, c.Line)
	}
}

// checkTest reports a package or a test function that is not there.
func checkTest(t *testing.T, c command, pattern, run string) {
	t.Helper()
	dir := strings.TrimSuffix(pattern, "/...")
	if _, err := os.Stat(filepath.Join(repository(), dir)); err != nil {
		t.Errorf("%s:%d: `%s`: there is no package %s", c.doc, c.line, c.Line, dir)
		return
	}
	if run == "" {
		return
	}
	files, err := filepath.Glob(filepath.Join(repository(), dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && strings.HasPrefix(fn.Name.Name, run) {
				return
			}
		}
	}
	t.Errorf("%s:%d: `%s`: there is no test %s", c.doc, c.line, c.Line, run)
}

// TestOfflineSamples: the answers that documents show for manifests are the
// program's own.
func TestOfflineSamples(t *testing.T) {
	seen := 0
	for _, c := range typed(t) {
		m := ctlLine.FindStringSubmatch(c.Line)
		if m == nil || !strings.Contains(c.Line, " explain ") || !strings.Contains(c.Line, " -f ") || c.Output == "" {
			continue
		}
		seen++
		if err := markdown.Match(c.Output, offline(t, strings.Fields(m[1])...)); err != nil {
			t.Errorf("%s:%d: `%s`: %v", c.doc, c.line, c.Line, err)
		}
	}
	if seen == 0 {
		t.Error("no document shows an answer for manifests")
	}
}
