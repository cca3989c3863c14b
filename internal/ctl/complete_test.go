// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// complete returns what the shell is offered.
func complete(t *testing.T, args ...string) []string {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(ok(t, append([]string{"__complete"}, args...)...).out), "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, ":") {
		t.Fatalf("no directive at the end: %q", lines)
	}
	return lines[:len(lines)-1]
}

func TestCompletion(t *testing.T) {
	socket := (&fakeAgent{rows: liveRows()}).serve(t)
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"Services of manifests", []string{"explain", "-f", shop, ""}, []string{"cache.shop:6379", "idle.shop:http", "kubernetes.default:https", "queue.shop:amqp", "theirs.shop:http", "web.shop:http"}},
		{"Services of a node", []string{"explain", "--agent-socket", socket, ""}, []string{
			"10.96.0.99:80\tunknown", "cache.shop:6379\t10.96.0.11:6379", "kubernetes.default:https\t10.96.0.1:443", "web.shop:http\t10.96.0.10:80",
		}},
		{"no second address", []string{"explain", "-f", shop, "web.shop:http", ""}, []string{}},
		{"Nodes", []string{"explain", "-f", shop, "--node", ""}, []string{"n1", "n2"}},
		{"modes of a question", []string{"explain", "-f", shop, "--mode", ""}, modes},
		{"modes of a node", []string{"mode", ""}, modes},
		{"formats", []string{"svc", "list", "-o", ""}, formats},
		{"no pods without a sandbox", []string{"sandbox", "--sandbox-dir", t.TempDir(), "exec", ""}, []string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, complete(t, c.args...)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestCompletionScripts: each shell's script is one, as far as the shell is here.
func TestCompletionScripts(t *testing.T) {
	for shell, has := range map[string]string{"bash": "__start_aetherctl", "zsh": "#compdef aetherctl", "fish": "complete -c aetherctl"} {
		script := ok(t, "completion", shell).out
		if !strings.Contains(script, has) {
			t.Errorf("%s: no %q in the script", shell, has)
		}
		if shell != "bash" {
			continue
		}
		cmd := exec.Command("bash", "-n")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("bash does not read its script: %v\n%s", err, out)
		}
	}
}
