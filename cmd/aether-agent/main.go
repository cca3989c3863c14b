// SPDX-License-Identifier: Apache-2.0

// Command aether-agent is the agent of one node: it answers the node's Envoy over
// xDS and takes in the pods whose egress is captured.
//
//	aether-agent [flags]             run the agent until SIGTERM or SIGINT
//	aether-agent bootstrap [flags]   print Envoy's bootstrap for this node
//	aether-agent proxy [flags]       run the node's Envoy until SIGTERM or SIGINT
//	aether-agent version             print the version
//
// It exits 0 when it was told to stop, 1 when it could not go on, and 2 for a
// command line that is wrong.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"aether.io/aether/internal/agent"
	"aether.io/aether/internal/daemon"
	"aether.io/aether/internal/envoy"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

// run is the command. It returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == commandProxy {
		return runProxy(ctx, args[1:], stderr)
	}
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "aether-agent: %v\nrun `aether-agent --help` for the flags\n", err)
		return exitUsage
	}
	switch o.command {
	case commandVersion:
		fmt.Fprintln(stdout, daemon.Version())
	case commandBootstrap:
		b, err := envoy.Bootstrap(o.bootstrap)
		if err != nil {
			fmt.Fprintf(stderr, "aether-agent: %v\n", err)
			return exitUsage
		}
		if _, err := stdout.Write(b); err != nil {
			fmt.Fprintf(stderr, "aether-agent: write bootstrap: %v\n", err)
			return exitFailed
		}
	case commandRun:
		return runAgent(ctx, o, stderr)
	}
	return 0
}

func runAgent(ctx context.Context, o options, stderr io.Writer) int {
	log, err := daemon.NewLogger(stderr, o.logLevel, o.logFormat)
	if err != nil {
		fmt.Fprintf(stderr, "aether-agent: %v\n", err)
		return exitUsage
	}
	deps := agent.Deps{Log: log, Registry: daemon.NewRegistry(), LookAtPod: lookAtPod}
	if err := o.sources(&deps); err != nil {
		fmt.Fprintf(stderr, "aether-agent: %v\n", err)
		return exitUsage
	}
	a, err := agent.New(o.config, deps)
	if err != nil {
		fmt.Fprintf(stderr, "aether-agent: %v\n", err)
		return exitUsage
	}
	ctx, stop := daemon.Signals(ctx, log)
	defer stop()
	if err := a.Run(ctx); err != nil {
		log.Error("the agent cannot go on", "err", err)
		return exitFailed
	}
	return 0
}
