// SPDX-License-Identifier: Apache-2.0

package ctl

import (
	"errors"
	"fmt"
	"io"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // no answer could be had
	exitInput  = 2 // the question or the manifests are at fault
)

// exitError is an error with the exit code it stands for. err is nil when the
// code alone is to be passed on, as of a command run in a pod.
type exitError struct {
	code int
	err  error
	next string // the command to try next, or empty
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// badInput is an error of the person's input.
func badInput(next, format string, args ...any) error {
	return &exitError{code: exitInput, err: fmt.Errorf(format, args...), next: next}
}

// failed is an error of the world around.
func failed(next, format string, args ...any) error {
	return &exitError{code: exitFailed, err: fmt.Errorf(format, args...), next: next}
}

// report prints an error and returns the exit code. code is for errors that do
// not carry their own; next likewise.
func report(w io.Writer, command string, err error, code int, next string) int {
	var e *exitError
	if errors.As(err, &e) {
		code, next = e.code, e.next
		if e.err == nil {
			return code
		}
	}
	fmt.Fprintf(w, "%s: %v\n", command, err)
	if next != "" {
		fmt.Fprintf(w, "try: %s\n", next)
	}
	return code
}
