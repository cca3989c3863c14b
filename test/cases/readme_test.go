// SPDX-License-Identifier: Apache-2.0

package cases

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	rowLine     = regexp.MustCompile(`(?m)^\| ([A-N]-\d+) \|.*\| ([^|]*) \| ([^|]*) \|$`)
	linkTo      = regexp.MustCompile(`\]\(([^)]*\.txtar)\)`)
	noFixture   = regexp.MustCompile(`^none: .+`)
	moduleRoot  = filepath.Join("..", "..")
	noOtherTest = "–"
)

// TestReadme: the list names every fixture and nothing else, gives a reason where
// a row has none, and says the truth about which other tests carry a row.
func TestReadme(t *testing.T) {
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	listed := map[string]bool{}
	for _, m := range linkTo.FindAllStringSubmatch(text, -1) {
		if listed[m[1]] {
			t.Errorf("%s is listed twice", m[1])
		}
		listed[m[1]] = true
		if _, err := os.Stat(m[1]); err != nil {
			t.Errorf("listed, but not here: %v", err)
		}
	}
	for _, f := range fixtureFiles(t) {
		if !listed[f] {
			t.Errorf("%s is not listed", f)
		}
	}
	rows := rowLine.FindAllStringSubmatch(text, -1)
	if len(rows) < 90 {
		t.Errorf("only %d rows are listed", len(rows))
	}
	for _, m := range rows {
		id, fixture, also := m[1], m[2], m[3]
		link := linkTo.FindStringSubmatch(fixture)
		if link == nil && !noFixture.MatchString(fixture) {
			t.Errorf("%s has neither a fixture nor a reason: %q", id, fixture)
		}
		if link != nil && !strings.HasPrefix(link[1], id+"-") {
			t.Errorf("%s is said to be in %s", id, link[1])
		}
		if also == noOtherTest {
			continue
		}
		for _, dir := range strings.Split(also, ", ") {
			if !testsName(t, dir, id) {
				t.Errorf("%s is said to be tested in %s too, but no test there names it", id, dir)
			}
		}
	}
}

// testsName reports whether a test file in dir holds the id.
func testsName(t *testing.T, dir, id string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(moduleRoot, dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	whole := regexp.MustCompile(`(^|[^A-Za-z0-9-])` + id + `($|[^0-9])`)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if whole.Match(b) {
			return true
		}
	}
	return false
}
