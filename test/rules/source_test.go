// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	maxFileLines = 600
	maxFuncLines = 80
)

// root returns the folder of the module.
func root(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", strings.TrimSuffix(module, "/")).Output()
	if err != nil {
		t.Fatalf("find the module: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// goFiles returns every Go file of the repository, build output left out.
func goFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	top := root(t)
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != top && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".go") {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("walk the repository: %v", err)
	}
	return files
}

func TestFilesAndFunctionsAreShort(t *testing.T) {
	fset := token.NewFileSet()
	for _, path := range goFiles(t) {
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			t.Fatalf("parse %s: %v", path, err)
		}
		if n := fset.File(f.Pos()).LineCount(); n > maxFileLines {
			t.Errorf("%s has %d lines, the limit is %d", path, n, maxFileLines)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1; n > maxFuncLines {
				t.Errorf("%s: func %s has %d lines, the limit is %d", path, fn.Name.Name, n, maxFuncLines)
			}
		}
	}
}

func TestEveryGoFileNamesTheLicence(t *testing.T) {
	for _, path := range goFiles(t) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("read %s: %v", path, err)
		}
		if !strings.HasPrefix(string(b), "// SPDX-License-Identifier: Apache-2.0\n") {
			t.Errorf("%s does not begin with its licence line", path)
		}
	}
}

func TestEveryPackageSaysWhatItIsFor(t *testing.T) {
	for _, p := range listPackages(t, "./...") {
		if len(p.GoFiles) > 0 && len(strings.Fields(p.Doc)) < 6 {
			t.Errorf("package %s has no comment that says what it is for", p.ImportPath)
		}
	}
}

func TestNoRoomIsADrawer(t *testing.T) {
	bad := regexp.MustCompile(`/(utils?|common|helpers?|misc|managers?|base|types)$`)
	for _, p := range listPackages(t, "./...") {
		if bad.MatchString(p.ImportPath) {
			t.Errorf("package %s is named for nothing", p.ImportPath)
		}
	}
}

func TestNothingIsLeftToDo(t *testing.T) {
	bad := regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b|panic\("todo"\)`)
	for _, path := range goFiles(t) {
		if strings.Contains(path, "/test/rules/") {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("read %s: %v", path, err)
		}
		for i, line := range strings.Split(string(b), "\n") {
			if bad.MatchString(line) {
				t.Errorf("%s:%d: %s", path, i+1, strings.TrimSpace(line))
			}
		}
	}
}

// impureStatements finds goroutines, channels operations and clock reads.
func impureStatements(t *testing.T, p goPackage) []string {
	t.Helper()
	var bad []string
	fset := token.NewFileSet()
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
		if err != nil {
			t.Fatalf("parse %s: %v", name, err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			what := ""
			switch n := n.(type) {
			case *ast.GoStmt:
				what = "starts a goroutine"
			case *ast.SendStmt, *ast.SelectStmt, *ast.ChanType:
				what = "uses a channel"
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && (n.Sel.Name == "Now" || n.Sel.Name == "Since" || n.Sel.Name == "Sleep" || n.Sel.Name == "After") {
					what = "reads the clock"
				}
			}
			if what != "" {
				bad = append(bad, fmt.Sprintf("%s: %s", fset.Position(n.Pos()), what))
			}
			return true
		})
	}
	return bad
}
