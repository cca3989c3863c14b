// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"aether.io/aether/internal/check"
	"aether.io/aether/test/markdown"
)

const checkDocument = "docs/check.md"

// TestCheckDocument: docs/check.md has a heading for every finding of a check, and
// no other but those of the sections.
func TestCheckDocument(t *testing.T) {
	var headings []string
	for _, h := range markdown.Headings(document(t, checkDocument)) {
		if strings.Contains(h, "-") || slices.Contains(check.IDs(), h) {
			headings = append(headings, h)
		}
	}
	sameSet(t, "findings", headings, check.IDs())
}

// TestFixesAreCommands: the commands of aetherctl that findings tell people to
// paste exist, and so do their flags.
func TestFixesAreCommands(t *testing.T) {
	seen := map[string]bool{}
	for _, path := range []string{
		"internal/check/envoy.go", "internal/check/finding.go", "internal/check/machine.go", "internal/check/sections.go", "cmd/aether-agent/look.go",
	} {
		for _, m := range fixCommand.FindAllStringSubmatch(strings.Join(literal.FindAllString(document(t, path), -1), "\n"), -1) {
			words := strings.Fields(m[1])
			command := slices.DeleteFunc(slices.Clone(words), func(w string) bool { return strings.HasPrefix(w, "-") })
			_, text, _ := strings.Cut(help(t, command), "Usage:\n")
			for len(command) > 1 && !strings.HasPrefix(text, "  aetherctl "+strings.Join(command, " ")) {
				command = command[:len(command)-1] // what follows are arguments
				_, text, _ = strings.Cut(help(t, command), "Usage:\n")
			}
			if !strings.HasPrefix(text, "  aetherctl "+strings.Join(command, " ")) {
				t.Errorf("%s: there is no command aetherctl %s", path, strings.Join(words, " "))
			}
			for _, w := range words {
				if strings.HasPrefix(w, "-") && !strings.Contains(text, w+" ") {
					t.Errorf("%s: aetherctl %s has no flag %s", path, strings.Join(command, " "), w)
				}
			}
			seen[strings.Join(command, " ")] = true
		}
	}
	for _, command := range []string{"status", "observe", "top", "proxy restart", "capture install", "metrics"} {
		if !seen[command] {
			t.Errorf("no fix tells to run aetherctl %s: this shows too little", command)
		}
	}
}

var (
	literal    = regexp.MustCompile(`"[^"\n]*"`)
	fixCommand = regexp.MustCompile(`\baetherctl ((?:-{0,2}[a-z][a-z-]*)(?: -{0,2}[a-z][a-z-]*)*)`)
)

// TestAgentWritesNoRules: the agent looks at capture rules to say whether they are
// right; who writes them is the CNI plugin, the sandbox and aetherctl.
func TestAgentWritesNoRules(t *testing.T) {
	looks := []string{"ParseAnnotations", "Check", "Drift", "See"}
	used := 0
	for _, path := range textFiles(t, ".go") {
		if !strings.HasPrefix(path, "cmd/aether-agent/") && !strings.HasPrefix(path, "internal/agent/") || strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(repository(), path), nil, 0)
		if err != nil {
			t.Fatalf("parse %s: %v", path, err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "capture" && x.Obj == nil {
				used++
				if !slices.Contains(looks, s.Sel.Name) {
					t.Errorf("%s uses capture.%s, and may only look: %s", path, s.Sel.Name, strings.Join(looks, ", "))
				}
			}
			return true
		})
	}
	if used == 0 {
		t.Error("the agent does not look at capture rules at all: this shows nothing")
	}
}
