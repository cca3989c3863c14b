// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// nested are the modules inside the repository, each with the reason why it is no
// part of the product's. Those with Go code of their own are linted.
var nested = map[string]struct {
	reason string
	linted bool
}{
	"tools":          {"the linter's dependencies are nobody else's", false},
	"test/dashboard": {"Prometheus' engine and a dashboard SDK are no dependencies of the product", true},
	"test/oracle":    {"kube-proxy's own code is no dependency of the product", true},
	"test/lab":       {"Kubernetes' typed clients are no dependency of the product", true},
	"test/lab/kube":  {"the cluster's programs are built with the versions Kubernetes asks for", false},
}

// modules lists the folders below the repository that have a go.mod.
func modules(t *testing.T) []string {
	t.Helper()
	var out []string
	top := root(t)
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != top && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if dir := filepath.Dir(path); d.Name() == "go.mod" && dir != top {
			rel, err := filepath.Rel(top, dir)
			if err != nil {
				return err
			}
			out = append(out, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatalf("walk the repository: %v", err)
	}
	return out
}

// A module of its own escapes `go test ./...` and the linter: it is in the table,
// somebody runs it, and the map of the code knows it.
func TestNestedModulesAreKnown(t *testing.T) {
	makefile, architecture := document(t, "Makefile"), document(t, "ARCHITECTURE.md")
	found := modules(t)
	for _, dir := range found {
		m, ok := nested[dir]
		if !ok {
			t.Errorf("module %s is not in the table: add it with a reason", dir)
			continue
		}
		if m.linted && !strings.Contains(makefile, "cd "+dir+" && go tool -modfile=../../tools/go.mod golangci-lint run") {
			t.Errorf("the Makefile does not lint module %s", dir)
		}
		if m.linted && !strings.Contains(makefile, "cd "+dir+" && go vet") && !strings.Contains(makefile, "cd "+dir+" && AETHER_ENVOY=") {
			t.Errorf("the Makefile does not run the tests of module %s", dir)
		}
		if m.linted && !strings.Contains(architecture, "`"+dir+"`") {
			t.Errorf("ARCHITECTURE.md does not name %s", dir)
		}
	}
	for dir := range nested {
		if !slices.Contains(found, dir) {
			t.Errorf("the table names module %s, which does not exist", dir)
		}
	}
}

// Go's list of packages does not reach into nested modules: their package comments
// are looked for in the files.
func TestEveryNestedPackageSaysWhatItIsFor(t *testing.T) {
	all := modules(t)
	said := map[string]bool{} // by folder
	fset := token.NewFileSet()
	for _, path := range goFiles(t) {
		rel, err := filepath.Rel(root(t), path)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.ToSlash(filepath.Dir(rel))
		in := slices.ContainsFunc(all, func(m string) bool { return dir == m || strings.HasPrefix(dir, m+"/") })
		if !in || strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, path, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatalf("parse %s: %v", path, err)
		}
		said[dir] = said[dir] || isPackageComment(f)
	}
	for dir, ok := range said {
		if !ok {
			t.Errorf("package %s has no comment that says what it is for", dir)
		}
	}
}

func isPackageComment(f *ast.File) bool {
	return f.Doc != nil && len(strings.Fields(f.Doc.Text())) >= 6
}
