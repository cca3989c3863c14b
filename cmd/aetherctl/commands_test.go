// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// patience bounds what `until` waits for.
const patience = 20 * time.Second

// until is the script command `until PATTERN PROGRAM [ARGUMENT…]`: run it again and
// again, until its output matches.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until PATTERN PROGRAM [ARGUMENT…]")
	}
	pattern := regexp.MustCompile(args[0])
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		err := ts.Exec(args[1], args[2:]...)
		out := ts.ReadFile("stdout")
		if err == nil && pattern.MatchString(out) {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%v: %v, and never an output that matches %q; the last was\n%s", args[1:], err, args[0], out)
		}
	}
}

// exits is the script command `exits CODE PROGRAM [ARGUMENT…]`: run it and want
// that exit code. testscript itself tells zero from not zero only.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM [ARGUMENT…]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	err = ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("run %s: %v", args[1], err)
	}
	if got != want {
		ts.Fatalf("%v: exit code %d, want %d", args[1:], got, want)
	}
}
