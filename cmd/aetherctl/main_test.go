// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"aether.io/aether/internal/sandbox"
)

func TestMain(m *testing.M) {
	// Pods run this binary under the names of the built-in programs.
	if handled, code := sandbox.BuiltinMain(os.Args); handled {
		os.Exit(code)
	}
	testscript.Main(m, map[string]func(){"aetherctl": main})
}

// TestScripts runs the real program: what it prints where, its exit codes, pipes
// and terminals, and a sandbox with the real agent and the real Envoy.
func TestScripts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("run as root: the sandbox makes network namespaces")
	}
	envoy, err := sandbox.FindEnvoy("")
	if err != nil {
		t.Fatal(err)
	}
	agent := filepath.Join(t.TempDir(), "aether-agent")
	if out, err := exec.Command("go", "build", "-o", agent, "../aether-agent").CombinedOutput(); err != nil {
		t.Fatalf("build the agent: %v\n%s", err, out)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("TERM", "xterm-256color") // a terminal that has colours
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("AETHER_ENVOY", envoy)
			e.Setenv("AGENT", agent)
			e.Defer(func() { endSandboxes(t, filepath.Join(e.WorkDir, "s")) })
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "until": until},
		Condition: func(name string) (bool, error) {
			if name != "agent" { // an agent of this machine itself
				return false, errors.New("unknown condition")
			}
			_, err := os.Stat("/run/aether/agent.sock")
			return err == nil, nil
		},
	})
}

// endSandboxes ends what a script that failed has left running.
func endSandboxes(t *testing.T, dir string) {
	ctx := context.Background()
	for _, name := range []string{"ctlscript", "ctllive"} {
		c, err := sandbox.Dial(ctx, dir, name)
		if errors.Is(err, sandbox.ErrNotRunning) {
			continue
		}
		if err == nil {
			err = c.Down(ctx)
		}
		if err != nil {
			t.Errorf("end the sandbox %s in %s: %v", name, dir, err)
		}
	}
}
