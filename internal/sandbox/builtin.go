// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"os"
	"path/filepath"
	"slices"

	"aether.io/aether/internal/sandbox/echo"
)

// The hidden first arguments BuiltinMain answers to.
const (
	argRun    = "__sandbox-run"
	argHold   = "__sandbox-hold"
	argEnter  = "__sandbox-enter"
	argEcho   = "__sandbox-echo"
	argClient = "__sandbox-client"
)

// builtinNames are the programs every pod finds in its PATH, by the name they
// are called by.
var builtinNames = map[string]string{"aether-echo": argEcho, "aether-client": argClient}

// BuiltinMain runs the hidden programs of the sandbox (the built-in images, the
// starter of containers, the detached holder, the first process of namespaces). Every program that uses this
// package calls it first in main or TestMain, with os.Args:
//
//	if handled, code := sandbox.BuiltinMain(os.Args); handled { os.Exit(code) }
func BuiltinMain(args []string) (handled bool, code int) {
	if len(args) == 0 {
		return false, 0
	}
	if program, ok := builtinNames[filepath.Base(args[0])]; ok {
		args = slices.Concat([]string{args[0], program}, args[1:])
	}
	if len(args) < 2 {
		return false, 0
	}
	rest := args[2:]
	switch args[1] {
	case argRun:
		return true, runMain(rest)
	case argHold:
		return true, holdMain(rest)
	case argEnter:
		return true, enterMain(rest)
	case argEcho:
		return true, echo.ServerMain(rest, os.Stdout, os.Stderr)
	case argClient:
		return true, echo.ClientMain(rest, os.Stdout, os.Stderr)
	}
	return false, 0
}
