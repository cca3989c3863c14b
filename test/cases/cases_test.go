// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"aether.io/aether/internal/ctl"
)

// fixture is one file of this directory.
type fixture struct {
	id, sentence string
	asks         []ask
	archive      *txtar.Archive
}

// ask is one question and the answer it must get.
type ask struct {
	args []string
	want map[string]any
}

// TestCases asks each question of each fixture through the tool's own code.
func TestCases(t *testing.T) {
	for _, file := range fixtureFiles(t) {
		t.Run(strings.TrimSuffix(file, ".txtar"), func(t *testing.T) {
			fx := readFixture(t, file)
			t.Chdir(t.TempDir())
			unpack(t, fx.archive)
			for i, q := range fx.asks {
				t.Run(fmt.Sprint(i+1), func(t *testing.T) {
					got := run(t, q.args)
					if diff := gocmp.Diff(q.want, subset(q.want, got)); diff != "" {
						t.Errorf("%s\naetherctl %s\n(-want +got)\n%s", fx.sentence, strings.Join(q.args, " "), diff)
					}
				})
			}
		})
	}
}

// run returns the JSON that the tool prints.
func run(t *testing.T, args []string) map[string]any {
	t.Helper()
	var out, errs bytes.Buffer
	code := ctl.Main(t.Context(), args, ctl.IO{In: strings.NewReader(""), Out: &out, Err: &errs})
	if code != 0 {
		t.Fatalf("aetherctl %s: exit code %d, want 0\n%s", strings.Join(args, " "), code, errs.String())
	}
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("aetherctl %s: decode the answer: %v\n%s", strings.Join(args, " "), err, out.String())
	}
	return got
}

// subset returns of got what want has a word on: the fields that want has, and
// all elements of a list, so that one too many shows.
func subset(want, got any) any {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return got
		}
		out := map[string]any{}
		for k, v := range w {
			if gv, ok := g[k]; ok {
				out[k] = subset(v, gv)
			}
		}
		return out
	case []any:
		g, ok := got.([]any)
		if !ok {
			return got
		}
		out := align(w, g)
		for i := range min(len(w), len(g)) {
			out[i] = subset(w[i], out[i])
		}
		return out
	default:
		return got
	}
}

// align puts the elements of got in the order of the elements of want that they
// satisfy; the order of endpoints is no part of an answer.
func align(want, got []any) []any {
	rest := slices.Clone(got)
	out := make([]any, 0, len(got))
	for _, w := range want {
		i := slices.IndexFunc(rest, func(g any) bool { return reflect.DeepEqual(w, subset(w, g)) })
		if i < 0 {
			continue
		}
		out = append(out, rest[i])
		rest = slices.Delete(rest, i, i+1)
	}
	return append(out, rest...)
}

// TestFixturesAreComplete holds the corpus to its form: an id, one sentence,
// manifests that are asked about, and answers that leave nothing important open.
func TestFixturesAreComplete(t *testing.T) {
	for _, file := range fixtureFiles(t) {
		t.Run(strings.TrimSuffix(file, ".txtar"), func(t *testing.T) {
			fx := readFixture(t, file)
			if id := strings.TrimSuffix(file, ".txtar"); id != fx.id && !strings.HasPrefix(id, fx.id+"-") {
				t.Errorf("the file of %s is named %s", fx.id, file)
			}
			if !oneSentence.MatchString(fx.sentence) {
				t.Errorf("%q is not one sentence", fx.sentence)
			}
			asked := map[string]bool{}
			for _, q := range fx.asks {
				for i, a := range q.args {
					if a == "-f" {
						asked[q.args[i+1]] = true
					}
				}
				checkWant(t, q.want)
			}
			for _, f := range fx.archive.Files {
				if dir := filepath.Dir(f.Name); dir != "." && !asked[dir] {
					t.Errorf("nothing is asked about %s", dir)
				}
			}
		})
	}
}

// oneSentence: a capital or an API's word first, one full stop, at the end.
var oneSentence = regexp.MustCompile(`^[A-Za-z][^\n]*\.$`)

func checkWant(t *testing.T, want map[string]any) {
	t.Helper()
	fields := []string{"address", "class", "answer", "reason"}
	if want["class"] == "service" {
		fields = append(fields, "service", "policy", "endpoints")
	}
	for _, f := range fields {
		if _, ok := want[f]; !ok {
			t.Errorf("the answer about %v leaves %s open", want["address"], f)
		}
	}
	if (want["answer"] == "refuse") != (want["reason"] != "") {
		t.Errorf("the answer about %v is %v with reason %q", want["address"], want["answer"], want["reason"])
	}
	eps, _ := want["endpoints"].([]any)
	for _, e := range eps {
		m, _ := e.(map[string]any)
		for _, f := range []string{"address", "used"} {
			if _, ok := m[f]; !ok {
				t.Errorf("an endpoint of the answer about %v leaves %s open", want["address"], f)
			}
		}
		if m["used"] == true && want["answer"] != "balance" {
			t.Errorf("the answer about %v is %v and uses endpoint %v", want["address"], want["answer"], m["address"])
		}
	}
}

// The lines of a fixture before its files.
const (
	prompt   = "aetherctl "
	reported = "Reported as: "
)

func readFixture(t *testing.T, file string) fixture {
	t.Helper()
	ar, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	fx := fixture{archive: ar}
	for _, line := range strings.Split(strings.TrimSpace(string(ar.Comment)), "\n") {
		switch {
		case strings.HasPrefix(line, prompt):
			fx.asks = append(fx.asks, ask{args: strings.Fields(strings.TrimPrefix(line, prompt))})
		case line == "" || strings.HasPrefix(line, reported):
		case fx.id == "":
			fx.id, fx.sentence, _ = strings.Cut(line, ": ")
		default:
			t.Fatalf("%s: a second sentence: %q", file, line)
		}
	}
	if len(fx.asks) == 0 {
		t.Fatalf("%s: no question", file)
	}
	for i := range fx.asks {
		name := "want.json"
		if len(fx.asks) > 1 {
			name = fmt.Sprintf("want-%d.json", i+1)
		}
		fx.asks[i].want = readWant(t, ar, name)
	}
	return fx
}

func readWant(t *testing.T, ar *txtar.Archive, name string) map[string]any {
	t.Helper()
	for _, f := range ar.Files {
		if f.Name != name {
			continue
		}
		var want map[string]any
		if err := json.Unmarshal(f.Data, &want); err != nil {
			t.Fatalf("decode %s: %v", name, err)
		}
		return want
	}
	t.Fatalf("no %s", name)
	return nil
}

func unpack(t *testing.T, ar *txtar.Archive) {
	t.Helper()
	for _, f := range ar.Files {
		if err := os.MkdirAll(filepath.Dir(f.Name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f.Name, f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func fixtureFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("no fixtures")
	}
	return files
}

// TestSubset: the comparison itself must be able to fail.
func TestSubset(t *testing.T) {
	got := map[string]any{"a": "x", "b": nil, "list": []any{map[string]any{"k": "1", "other": true}, "extra"}}
	for _, c := range []struct {
		name string
		want map[string]any
		same bool
	}{
		{"fewer fields", map[string]any{"a": "x"}, true},
		{"another value", map[string]any{"a": "y"}, false},
		{"a missing field", map[string]any{"c": nil}, false},
		{"a null field", map[string]any{"b": nil}, true},
		{"an element too many", map[string]any{"list": []any{map[string]any{"k": "1"}}}, false},
		{"an element too few", map[string]any{"list": []any{map[string]any{"k": "1"}, "extra", "more"}}, false},
		{"an element of another value", map[string]any{"list": []any{map[string]any{"k": "2"}, "extra"}}, false},
		{"the same elements in another order", map[string]any{"list": []any{"extra", map[string]any{"k": "1"}}}, true},
		{"the same elements", map[string]any{"list": []any{map[string]any{"k": "1"}, "extra"}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if same := reflect.DeepEqual(c.want, subset(c.want, got)); same != c.same {
				t.Errorf("equal: %v, want %v", same, c.same)
			}
		})
	}
}
