// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"aether.io/aether/internal/sandbox"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"aetherctl": main})
}

// TestScripts runs the real program: what it prints where, its exit codes, pipes
// and terminals.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("TERM", "xterm-256color") // a terminal that has colours
			e.Setenv("HOME", e.WorkDir)
			e.Defer(func() { endSandbox(t, filepath.Join(e.WorkDir, "s")) })
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

// endSandbox ends what a script that failed has left running.
func endSandbox(t *testing.T, dir string) {
	ctx := context.Background()
	c, err := sandbox.Dial(ctx, dir, "ctlscript")
	if errors.Is(err, sandbox.ErrNotRunning) {
		return
	}
	if err == nil {
		err = c.Down(ctx)
	}
	if err != nil {
		t.Errorf("end the sandbox in %s: %v", dir, err)
	}
}
