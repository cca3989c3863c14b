// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aether.io/aether/internal/agent"
	"aether.io/aether/internal/capture"
	"aether.io/aether/internal/envoy"
	"aether.io/aether/test/markdown"
)

const architecture = "ARCHITECTURE.md"

// TestRoomsTable: the table of rooms in ARCHITECTURE.md is the table of imports
// that TestRoomsImportOnlyWhatTheyMay holds.
func TestRoomsTable(t *testing.T) {
	short := func(name string) string { return strings.TrimPrefix(name, "internal/") }
	documented := map[string][]string{}
	for _, row := range markdown.Rows(section(t, architecture, "Rooms")) {
		if len(row) != 3 {
			t.Fatalf("a row of the table of rooms has %d cells: %v", len(row), row)
		}
		names := markdown.Code(row[0])
		if len(names) != 1 || len(markdown.Links(row[0])) != 1 {
			t.Fatalf("a row of the table of rooms begins with %q, want a link with the room's name in backticks", row[0])
		}
		documented[names[0]] = slices.Sorted(slices.Values(markdown.Code(row[2])))
		folder := names[0]
		if !strings.HasPrefix(folder, "cmd/") {
			folder = "internal/" + folder
		}
		if to := markdown.Links(row[0])[0]; filepath.Dir(to) != folder {
			t.Errorf("the room %s links to %s, want a file of %s", names[0], to, folder)
		}
	}
	held := map[string][]string{}
	for name, r := range rooms {
		var ours []string
		for _, o := range r.ours {
			ours = append(ours, short(o))
		}
		held[short(name)] = slices.Sorted(slices.Values(ours))
	}
	if d := cmp.Diff(held, documented); d != "" {
		t.Errorf("the table of rooms (-test +document):\n%s", d)
	}
}

// stringConstants returns the values of a file's constants by name.
func stringConstants(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(repository(), path), nil, 0)
	if err != nil {
		t.Fatalf("parse %s: %v", path, err)
	}
	out := map[string]string{}
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, s := range g.Specs {
			v := s.(*ast.ValueSpec)
			for i, id := range v.Names {
				if i >= len(v.Values) {
					continue
				}
				if lit, ok := v.Values[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if out[id.Name], err = strconv.Unquote(lit.Value); err != nil {
						t.Fatalf("%s: %s: %v", path, id.Name, err)
					}
				}
			}
		}
	}
	return out
}

// typedConstants returns the values of a file's string constants of a type.
func typedConstants(t *testing.T, path, typ string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(repository(), path), nil, 0)
	if err != nil {
		t.Fatalf("parse %s: %v", path, err)
	}
	values := stringConstants(t, path)
	var out []string
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			if id, ok := v.Type.(*ast.Ident); ok && id.Name == typ && values[v.Names[0].Name] != "" {
				out = append(out, values[v.Names[0].Name])
			}
		}
		return true
	})
	if len(out) == 0 {
		t.Fatalf("%s declares no constants of type %s", path, typ)
	}
	return out
}

// TestPortsTable: every port, mark, table and path of the program, and no other,
// is in the table of ARCHITECTURE.md.
func TestPortsTable(t *testing.T) {
	if capture.ProxyMark != envoy.UpstreamMark {
		t.Errorf("capture lets mark %#x pass, Envoy sets %#x", capture.ProxyMark, envoy.UpstreamMark)
	}
	if a := fmt.Sprintf("%s:%d", envoy.CaptureAddress, envoy.CapturePort); a != capture.ListenerAddress().String() {
		t.Errorf("capture diverts to %s, Envoy listens on %s", capture.ListenerAddress(), a)
	}
	want := []string{
		capture.ListenerAddress().String(),
		fmt.Sprint(capture.MeshHTTPPort), fmt.Sprint(capture.MeshTCPPort),
		fmt.Sprintf("%#x", capture.DivertMark), fmt.Sprintf("%#x", capture.ProxyMark),
		fmt.Sprintf("table %d", capture.RouteTable), capture.TableName,
		agent.DefaultMetricsAddress,
	}
	for name, value := range stringConstants(t, "internal/agent/config.go") {
		if strings.HasSuffix(name, "Socket") || strings.HasSuffix(name, "File") {
			want = append(want, filepath.Join(agent.DefaultRunDir, value))
		}
		if name == "lockFile" {
			want = append(want, filepath.Join(agent.DefaultStateDir, value))
		}
	}
	for name, value := range stringConstants(t, "internal/proxy/config.go") {
		switch name {
		case "apiSocket", "lockFile":
			want = append(want, filepath.Join(agent.DefaultRunDir, value))
		case "hotPrefix":
			want = append(want, filepath.Join(agent.DefaultRunDir, value+"_*"))
		}
	}
	for name, value := range stringConstants(t, "internal/agent/persist.go") {
		if strings.HasSuffix(name, "File") {
			want = append(want, filepath.Join(agent.DefaultStateDir, value))
		}
		if name == "podsFile" { // there is a copy of it
			want = append(want, filepath.Join(agent.DefaultRunDir, value))
		}
	}
	sameSet(t, "ports, marks and paths", firstColumn(t, architecture, "Ports, marks, paths"), want)
}

// startsGoroutines reports whether a file starts one, with go or with Go of a
// group.
func startsGoroutines(t *testing.T, path string) bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(repository(), path), nil, 0)
	if err != nil {
		t.Fatalf("parse %s: %v", path, err)
	}
	found := false
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = true
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Go" {
				found = true
			}
		}
		return true
	})
	return found
}

// TestGoroutinesTable: every file that starts a goroutine is named in the
// section on goroutines, and so nobody starts one that is nowhere explained.
func TestGoroutinesTable(t *testing.T) {
	text := section(t, architecture, "Goroutines")
	for _, path := range textFiles(t, ".go") {
		ours := strings.HasPrefix(path, "internal/") || strings.HasPrefix(path, "cmd/")
		if !ours || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "test/") || strings.HasPrefix(path, "internal/sandbox/echo/") {
			continue // echo's programs are applications in pods
		}
		if startsGoroutines(t, path) && !strings.Contains(text, "`"+path) {
			t.Errorf("%s starts a goroutine that %s does not speak of", path, architecture)
		}
	}
}

// TestReadmesAreLinked: a folder with a README of its own is found from
// ARCHITECTURE.md.
func TestReadmesAreLinked(t *testing.T) {
	links := markdown.Links(document(t, architecture))
	for _, path := range textFiles(t, "/README.md") {
		if path != "README.md" && !slices.Contains(links, path) {
			t.Errorf("%s does not link to %s", architecture, path)
		}
	}
}
