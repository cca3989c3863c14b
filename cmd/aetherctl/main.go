// SPDX-License-Identifier: Apache-2.0

// Command aetherctl asks a node what it does with a connection, and why.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"aether.io/aether/internal/ctl"
	"aether.io/aether/internal/sandbox"
)

func main() {
	// A sandbox starts its own programs through this one.
	if handled, code := sandbox.BuiltinMain(os.Args); handled {
		os.Exit(code)
	}
	os.Exit(run())
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return ctl.Main(ctx, os.Args[1:], ctl.IO{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
}
