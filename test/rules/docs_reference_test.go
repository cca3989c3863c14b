// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/manifest"
	"aether.io/aether/test/markdown"
)

const (
	logReference      = "docs/reference/access-log.md"
	apiReference      = "docs/reference/agent-api.md"
	manifestReference = "docs/reference/manifests.md"
	answers           = "docs/answers.md"
)

// TestAccessLogReference: keys, outcomes and reasons of docs/reference/access-log.md
// are those of the program, and its sample lines have them.
func TestAccessLogReference(t *testing.T) {
	types := map[string]string{}
	var rows [][]string
	for _, f := range envoy.LogSchema() {
		types[f.Key] = f.Type
		rows = append(rows, []string{"`" + f.Key + "`", f.Type, f.Doc})
	}
	generated(t, logReference, "log-schema", markdown.Table([]string{"key", "type", "value"}, rows))
	generated(t, logReference, "log-rates", markdown.Table([]string{"rate", "default", "flag of the agent", "of"}, logRates(t)))
	samples := 0
	for _, f := range markdown.Fences(document(t, logReference)) {
		if f.Info == "json access-log" {
			samples++
			checkLogLine(t, f.Text, types)
		}
	}
	if samples < 2 {
		t.Errorf("%s has %d sample lines, want a served connection and a refused one", logReference, samples)
	}
	var outcomes []string
	for _, o := range envoy.Outcomes() {
		outcomes = append(outcomes, string(o))
	}
	sameSet(t, "outcomes", firstColumn(t, logReference, "Outcomes"), outcomes)
	reasons := typedConstants(t, "internal/plan/answer.go", "Reason")
	sameSet(t, "reasons of the log", firstColumn(t, logReference, "Reasons"), reasons)
	sameSet(t, "reasons in answers.md", firstColumn(t, answers, "Refusals"), reasons)
}

// logRates are the rows of the table of rates.
func logRates(t *testing.T) [][]string {
	t.Helper()
	var rows [][]string
	settings := envoy.DefaultSettings()
	limits := envoy.RateLimits(settings)
	for _, r := range []struct {
		bucket, flag, of string
		perSecond        uint32
	}{
		{"aether_record_faults", "--record-rate", "connections that failed or were refused, to the agent", settings.RecordRate},
		{"aether_records", "--record-rate", "all others, and what the first rate leaves over, to the agent", settings.RecordRate},
		{"aether_log_faults", "--access-log-fault-rate", "connections that failed or were refused, to the file", settings.AccessLogFaultRate},
	} {
		name := fmt.Sprintf("%s_%d", r.bucket, r.perSecond)
		l := limits[name]
		if l == nil || l.GetFillInterval().AsDuration() != time.Second || l.GetMaxTokens() != l.GetTokensPerFill().GetValue() {
			t.Fatalf("there is no rate %s per second", r.bucket)
		}
		delete(limits, name)
		rows = append(rows, []string{"`" + r.bucket + "`", strconv.Itoa(int(l.GetMaxTokens())), "`" + r.flag + "`", r.of})
	}
	for name := range limits {
		t.Errorf("the documents do not speak of the rate %s", name)
	}
	return rows
}

// checkLogLine compares one line of the access log with the schema.
func checkLogLine(t *testing.T, text string, types map[string]string) {
	t.Helper()
	if strings.Count(text, "\n") != 1 {
		t.Errorf("a line of the access log is one line:\n%s", text)
	}
	var line map[string]any
	if err := json.Unmarshal([]byte(text), &line); err != nil {
		t.Fatalf("a sample line of the access log: %v", err)
	}
	for key, value := range line {
		kind := map[reflect.Kind]string{reflect.String: "string", reflect.Float64: "number"}[reflect.ValueOf(value).Kind()]
		if value != nil && kind != types[key] {
			t.Errorf("a sample line has %s: %v, want a %s", key, value, types[key])
		}
	}
	for key := range types {
		if _, ok := line[key]; !ok {
			t.Errorf("a sample line has no key %s", key)
		}
	}
	if _, err := time.Parse("2006-01-02T15:04:05.000Z", fmt.Sprint(line["time"])); err != nil {
		t.Error(err)
	}
	if o := envoy.Outcome(fmt.Sprint(line["outcome"])); !slices.Contains(envoy.Outcomes(), o) {
		t.Errorf("a sample line has outcome %s", o)
	}
}

// routes reads the patterns that a handler's files register.
func routes(t *testing.T, paths ...string) []string {
	t.Helper()
	var out []string
	for _, path := range paths {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(repository(), path), nil, 0)
		if err != nil {
			t.Fatalf("parse %s: %v", path, err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			s, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || s.Sel.Name != "HandleFunc" && s.Sel.Name != "Handle" {
				return true
			}
			if lit, ok := call.Args[0].(*ast.BasicLit); ok {
				if p, err := strconv.Unquote(lit.Value); err == nil {
					out = append(out, p)
				}
			}
			return true
		})
	}
	return out
}

// TestAgentAPIReference: docs/reference/agent-api.md has every endpoint and every
// key of the agent's API, and its examples are what the types take.
func TestAgentAPIReference(t *testing.T) {
	var documented []string
	text := document(t, apiReference)
	for _, h := range markdown.Headings(text) {
		if code := markdown.Code(h); len(code) == 1 && h == "`"+code[0]+"`" {
			documented = append(documented, code[0])
		}
	}
	served := append(routes(t, "internal/agent/http_cli.go", "internal/agent/http_check.go", "internal/agent/http_cni.go", "internal/agent/http_observe.go", "internal/proxy/http.go"), "GET /debug/pprof/")
	slices.Sort(served) // what both sockets and the metrics address have is there twice
	served = slices.DeleteFunc(slices.Compact(served), func(route string) bool { return route == "/" })
	sameSet(t, "endpoints of the agent", documented, served)

	examples := map[string]any{
		"api.ObserveLine": &api.ObserveLine{}, "api.Preview": &api.Preview{}, "api.Top": &api.Top{},
		"api.Error": &api.Error{}, "api.Explanation": &api.Explanation{}, "[]api.ServiceRow": &[]api.ServiceRow{},
		"api.Status": &api.Status{}, "api.Mode": &api.Mode{}, "api.Pod": &api.Pod{}, "api.PodStatus": &api.PodStatus{},
		"api.Check": &api.Check{}, "api.ProxyStatus": &api.ProxyStatus{},
		"api.ProxyRestartRequest": &api.ProxyRestartRequest{}, "api.ProxyRestart": &api.ProxyRestart{},
	}
	seen := map[string]bool{}
	for _, f := range markdown.Fences(text) {
		name, ok := strings.CutPrefix(f.Info, "json ")
		if !ok {
			continue
		}
		into := examples[name]
		if into == nil {
			t.Errorf("line %d: an example of %s, which this test does not know", f.Line, name)
			continue
		}
		seen[name] = true
		d := json.NewDecoder(strings.NewReader(f.Text))
		d.DisallowUnknownFields()
		if err := d.Decode(into); err != nil {
			t.Errorf("line %d: example of %s: %v", f.Line, name, err)
		}
	}
	for name, v := range examples {
		if !seen[name] {
			t.Errorf("there is no example of %s", name)
		}
		for _, key := range jsonKeys(reflect.TypeOf(v)) {
			if !strings.Contains(text, `"`+key+`"`) && !slices.Contains(markdown.Code(text), key) {
				t.Errorf("%s: the key %s is not documented", name, key)
			}
		}
	}
	sameExplanation(t, *examples["api.Explanation"].(*api.Explanation))
	rows := section(t, apiReference, "`GET /v1/explain`")
	for key, file := range map[string]string{"class": "Class", "answer": "Verdict", "reason": "Reason"} {
		for _, value := range typedConstants(t, "internal/plan/answer.go", file) {
			if !strings.Contains(rows, "`"+value+"`") {
				t.Errorf("%s %s is not documented", key, value)
			}
		}
	}
}

// sameExplanation: the example of an explanation is what the tool says of the
// example shop.
func sameExplanation(t *testing.T, shown api.Explanation) {
	t.Helper()
	shown.Live = nil
	out := offline(t, "explain", shown.Address, "-f", "examples/shop", "--node", "n1", "-o", "json")
	var got api.Explanation
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(got, shown); d != "" {
		t.Errorf("the example of an explanation (-program +document):\n%s", d)
	}
}

// jsonKeys returns the keys of a type and of all types in it.
func jsonKeys(typ reflect.Type) []string {
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice:
		return jsonKeys(typ.Elem())
	case reflect.Struct:
	default:
		return nil
	}
	var out []string
	for _, f := range reflect.VisibleFields(typ) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		out = append(append(out, name), jsonKeys(f.Type)...)
	}
	return out
}

// TestManifestReference: the kinds of docs/reference/manifests.md are those that
// are read, under those versions and no others.
func TestManifestReference(t *testing.T) {
	var kinds, has []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[manifest.Objects]()) {
		has = append(has, strings.TrimSuffix(f.Name, "s"))
	}
	for _, row := range markdown.Rows(section(t, manifestReference, "Kinds")) {
		kind := markdown.Code(row[0])[0]
		kinds = append(kinds, kind)
		for _, version := range markdown.Code(row[1]) {
			if n := manifestsOf(t, kind, version); n != 1 {
				t.Errorf("%d objects of kind %s %s are read, want 1", n, version, kind)
			}
		}
		if n := manifestsOf(t, kind, "example.org/v1"); n != 0 {
			t.Errorf("an object of kind %s example.org/v1 is read", kind)
		}
	}
	sameSet(t, "kinds", kinds, has)
}

// manifestsOf counts how many objects are read of a file with one of that kind.
func manifestsOf(t *testing.T, kind, version string) int {
	t.Helper()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "one.yaml"), fmt.Sprintf(
		"apiVersion: %s\nkind: %s\nmetadata: {name: x}\nspec: {cidrs: [10.96.0.0/16]}\n", version, kind))
	r, err := manifest.Load([]string{dir}, manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Problems {
		t.Errorf("%s %s: %s", version, kind, p)
	}
	v := reflect.ValueOf(r.Objects)
	n := 0
	for i := range v.NumField() {
		n += v.Field(i).Len()
	}
	return n
}

var (
	// keyText is a label or an annotation in a string of the program.
	keyText = regexp.MustCompile(`^((?:[a-z]+\.)*aether\.io/[a-z-]+|service\.(?:kubernetes|cilium)\.io/[a-z-]+)$`)
	ourKey  = regexp.MustCompile(`^(?:[a-z]+\.)*aether\.io/[a-z-]+$`)
)

// TestLabelsAndAnnotations: every label and annotation that the program reads is
// in docs/reference/manifests.md, and every one of ours there is read.
func TestLabelsAndAnnotations(t *testing.T) {
	read := map[string]bool{}
	for _, path := range textFiles(t, ".go") {
		if strings.HasSuffix(path, "_test.go") || !strings.HasPrefix(path, "internal/") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(repository(), path), nil, 0)
		if err != nil {
			t.Fatalf("parse %s: %v", path, err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			if s, err := strconv.Unquote(lit.Value); err == nil && keyText.MatchString(s) {
				read[s] = true
			}
			return true
		})
	}
	var documented []string
	for _, row := range markdown.Rows(section(t, manifestReference, "Labels and annotations")) {
		documented = append(documented, markdown.Code(row[1])...)
	}
	for key := range read {
		if !slices.Contains(documented, key) && !strings.Contains(key, "topology-") {
			t.Errorf("%s does not say what %s does", manifestReference, key)
		}
	}
	for _, key := range documented {
		if ourKey.MatchString(key) && !read[key] {
			t.Errorf("%s speaks of %s, which nobody reads", manifestReference, key)
		}
	}
}
