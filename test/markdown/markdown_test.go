// SPDX-License-Identifier: Apache-2.0

package markdown

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

const sample = "# One\n\nSee [two](#two-is-here) and `a/b.go: f, g`.\n\n" +
	"| head | x |\n|---|---|\n| a \\| b | [c](d.md) |\n| e | |\n\nnot | a row\n\n" +
	"## Two: is here\n\n```console\n$ sudo run -f x # why\nout …\n$ two\n```\n\n```sh\nmake it   # so\n# only words\nsudo do\n```\n\n# Three\n\nend\n"

func TestReadsADocument(t *testing.T) {
	equal := func(what string, got, want any) {
		t.Helper()
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	equal("headings", Headings(sample), []string{"One", "Two: is here", "Three"})
	equal("anchor", Anchor("Two: is here"), "two-is-here")
	equal("links", Links(sample), []string{"#two-is-here", "d.md"})
	equal("code", Code(sample), []string{"a/b.go: f, g"})
	equal("rows", Rows(sample), [][]string{{"a | b", "[c](d.md)"}, {"e", ""}})
	equal("rows of a table written", Rows(Table([]string{"h", "i"}, [][]string{{"a|b", "c"}})), [][]string{{"a|b", "c"}})
	fs := Fences(sample)
	if len(fs) != 2 {
		t.Fatalf("%d fences, want 2: %+v", len(fs), fs)
	}
	equal("line", fs[0].Line, 14)
	equal("console", fs[0].Commands(), []Command{{"run -f x", "out …\n"}, {"two", ""}})
	equal("sh", fs[1].Commands(), []Command{{Line: "make it"}, {Line: "do"}})
	one, ok := Section(sample, "One")
	if two, found := Section(one, "Two: is here"); !ok || !found || len(Fences(two)) != 2 {
		t.Errorf("the section One holds %q", one)
	}
	if s, ok := Section(sample, "Three"); !ok || s != "\nend\n" {
		t.Errorf("the last section is %q", s)
	}
	if _, ok := Section(sample, "Four"); ok {
		t.Error("there is a section that is not there")
	}
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		sample, output string
		match          bool
	}{
		{"a\nb\n", "a\nb\n", true},
		{"a\nb\n", "a\nb", true},
		{"a\nb", "a\n", false},
		{"a\n", "a\nb\n", false},
		{"a … c\n", "a b c\n", true},
		{"a … c\n", "a b\nc\n", false},
		{"a\n…\nd\n", "a\nb\nc\nd\n", true},
		{"a\n…\n", "a\n", true},
		{"a\n…\nd\n", "a\nb\n", false},
		{"a.c\n", "abc\n", false},
		{"a  \n", "a\n", true},
	} {
		if err := Match(c.sample, c.output); (err == nil) != c.match {
			t.Errorf("Match(%q, %q) = %v", c.sample, c.output, err)
		}
	}
}
