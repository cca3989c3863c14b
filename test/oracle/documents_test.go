// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestUsersAreTold: docs/answers.md names every difference of the list and no other.
func TestUsersAreTold(t *testing.T) {
	text, err := os.ReadFile("../../docs/answers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Where this differs from kube-proxy, on purpose\n")
	section, _, found := strings.Cut(section, "\n## ")
	if !found {
		t.Fatal("docs/answers.md has lost its section on what differs")
	}
	var told, listed []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z-]+)`|\\(`([a-z-]+)`\\)").FindAllStringSubmatch(section, -1) {
		told = append(told, m[1]+m[2])
	}
	for _, d := range differences {
		listed = append(listed, d.name)
	}
	slices.Sort(told)
	slices.Sort(listed)
	if diff := cmp.Diff(listed, told); diff != "" {
		t.Errorf("the list (-) and docs/answers.md (+):\n%s", diff)
	}
}
