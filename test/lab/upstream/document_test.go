// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the table in docs/upstream-tests.md")

// document is where users find the table; it lies between the marks.
var document = filepath.Join("..", "..", "..", "docs", "upstream-tests.md")

const (
	tableBegins = "<!-- The table is written by: cd test/lab && go test ./upstream -run TestDocument -update -->\n"
	tableEnds   = "<!-- end of the table -->\n"
)

// TestDocument holds the document against the rows.
func TestDocument(t *testing.T) {
	b, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(b), tableBegins)
	_, after, ok2 := strings.Cut(rest, tableEnds)
	if !ok || !ok2 {
		t.Fatalf("%s has no marks for the table", document)
	}
	want := before + tableBegins + table() + tableEnds + after
	if *update {
		if err := os.WriteFile(document, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := gocmp.Diff(want, string(b)); diff != "" {
		t.Errorf("%s is not as the rows are, run with -update (-want +got):\n%s", document, diff)
	}
}

// TestRows holds the rows to what the document promises of them.
func TestRows(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rows {
		name := r.group + ": " + r.name
		if seen[name] {
			t.Errorf("%s is there twice", name)
		}
		seen[name] = true
		switch {
		case r.applies == no && (r.run != nil || r.predicted != none || r.seen != none):
			t.Errorf("%s does not apply, and has results", name)
		case r.applies != no && (r.run == nil || r.predicted == none || r.seen == none):
			t.Errorf("%s applies, and is not run", name)
		case r.why == "" && (r.applies != yes || r.seen == fail || r.seen != r.predicted):
			t.Errorf("%s is not explained", name)
		case (r.seen == fail) != (r.fails != nil):
			t.Errorf("%s: it fails with %v, and the result is %s", name, r.fails, r.seen)
		case r.seen == fail && r.conformance:
			t.Errorf("%s is a Conformance test, and fails", name)
		}
	}
}

// table writes the rows, group by group, as Markdown. It begins with their sum.
func table() string {
	var b strings.Builder
	count := map[applies]int{}
	results := map[result]int{}
	conformance := map[result]int{}
	for _, r := range rows {
		count[r.applies]++
		results[r.seen]++
		if r.conformance {
			conformance[r.seen]++
		}
	}
	fmt.Fprintf(&b, "\n%d tests apply, %d of them partly: %d pass, %d fail by design, none otherwise. Of the Conformance tests %d apply, and all of them pass.\n",
		count[yes]+count[partly], count[partly], results[pass], results[fail], conformance[pass]+conformance[fail])
	group := ""
	for _, r := range rows {
		if r.group != group {
			group = r.group
			fmt.Fprintf(&b, "\n### %s\n\n| test | applies | predicted | seen | why |\n|---|---|---|---|---|\n", group)
		}
		name := r.name
		if r.conformance {
			name += " **[C]**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", name, r.applies,
			cmp.Or(string(r.predicted), "–"), cmp.Or(string(r.seen), "–"), r.why)
	}
	b.WriteString("\n")
	return b.String()
}
