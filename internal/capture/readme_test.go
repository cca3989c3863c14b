// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// block returns the fenced block of a language from the README.
func block(t *testing.T, readme, language string) string {
	t.Helper()
	_, rest, found := strings.Cut(readme, "```"+language+"\n")
	text, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatalf("the README has no block %q", language)
	}
	return text
}

// The README shows what the code does.
func TestReadme(t *testing.T) {
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	readme := string(b)
	var annotations map[string]string
	if err := yaml.Unmarshal([]byte(block(t, readme, "yaml")), &annotations); err != nil {
		t.Fatal(err)
	}
	c, err := ParseAnnotations(annotations, false)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(block(t, readme, "nft"), Rules(c).Text()); d != "" {
		t.Errorf("README and code differ (-README +code):\n%s", d)
	}
	for _, want := range []string{
		"`" + meshPorts().text(true) + "`",
		fmt.Sprintf("rule %d: fwmark %#x → table %d → local default dev lo", RulePriority, DivertMark, RouteTable),
		"tproxy to " + ListenerAddress().String(),
	} {
		if !strings.Contains(readme, want) {
			t.Errorf("the README does not say %q", want)
		}
	}
}
