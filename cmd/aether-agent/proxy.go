// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"aether.io/aether/internal/agent"
	"aether.io/aether/internal/daemon"
	"aether.io/aether/internal/proxy"
)

// commandProxy runs the supervisor of Envoy.
const commandProxy = "proxy"

const proxyUsage = `Usage:
  aether-agent proxy --bootstrap FILE [flags] [-- Envoy's own flags]

Proxy runs this node's Envoy until SIGTERM or SIGINT, starts it again when it dies,
and replaces it without losing a connection when it is asked to: see
"aetherctl proxy restart".

Flags:
`

// proxyOptions are a parsed command line of proxy.
type proxyOptions struct {
	config              proxy.Config
	logLevel, logFormat string
}

// parseProxy reads what follows the word proxy.
func parseProxy(args []string, stderr io.Writer) (proxyOptions, error) {
	o := proxyOptions{config: proxy.Config{
		RunDir: agent.DefaultRunDir, DrainTime: proxy.DefaultDrainTime, ShutdownTime: proxy.DefaultShutdownTime,
		StartTimeout: proxy.DefaultStartTimeout,
	}}
	fs := flag.NewFlagSet("aether-agent proxy", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // main prints the error
	o.define(fs)
	for i, a := range args {
		if a == "--" {
			o.config.Args = args[i+1:]
			args = args[:i]
			break
		}
	}
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(stderr, proxyUsage)
			fs.SetOutput(stderr)
			fs.PrintDefaults()
		}
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: Envoy's own flags go after --", fs.Arg(0))
	}
	_, err := daemon.NewLogger(io.Discard, o.logLevel, o.logFormat)
	return o, errors.Join(err, o.config.Validate())
}

// define declares the flags.
func (o *proxyOptions) define(fs *flag.FlagSet) {
	c := &o.config
	fs.StringVar(&c.RunDir, "run-dir", c.RunDir, "`directory` of the sockets")
	fs.StringVar(&c.Envoy, "envoy", "envoy", "Envoy's `binary`: a path, or a name to find in PATH; looked up at every start")
	fs.StringVar(&c.Bootstrap, "bootstrap", "", "`file` with Envoy's bootstrap, as aether-agent bootstrap prints it; read at every start (required)")
	fs.Func("base-id", "first of the 8 `numbers` that keep this node's Envoys apart from others of this machine (default: derived from the run directory's inode)",
		func(s string) error {
			n, err := strconv.ParseUint(s, 10, 32)
			if err != nil || n == 0 || n > math.MaxUint32 {
				return errors.New("want a number from 1 to 134217720")
			}
			c.BaseID = uint32(n)
			return nil
		})
	fs.DurationVar(&c.DrainTime, "drain-time", c.DrainTime, "how long a replaced Envoy, or a replaced listener, takes to ask HTTP clients to go")
	fs.DurationVar(&c.ShutdownTime, "shutdown-time", c.ShutdownTime, "how long established connections live on after a hot restart")
	fs.DurationVar(&c.StartTimeout, "start-timeout", c.StartTimeout, "how long a new Envoy may take until it serves")
	fs.IntVar(&c.Concurrency, "concurrency", 0, "Envoy's workers; 0 for one per core")
	fs.StringVar(&c.LogLevel, "envoy-log-level", "warning", "Envoy's own log `level`")
	fs.BoolVar(&c.RestartOnChange, "restart-on-change", false, "hot restart by itself when the binary or the bootstrap has changed")
	fs.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&o.logFormat, "log-format", "text", "text or json")
}

// runProxy is the command proxy. It returns the exit code.
func runProxy(ctx context.Context, args []string, stderr io.Writer) int {
	o, err := parseProxy(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "aether-agent: %v\nrun `aether-agent proxy --help` for the flags\n", strings.TrimSpace(err.Error()))
		return exitUsage
	}
	log, err := daemon.NewLogger(stderr, o.logLevel, o.logFormat)
	if err != nil {
		fmt.Fprintf(stderr, "aether-agent: %v\n", err)
		return exitUsage
	}
	s, err := proxy.New(o.config, log, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "aether-agent: %v\n", err)
		return exitUsage
	}
	ctx, stop := daemon.Signals(ctx, log)
	defer stop()
	if err := s.Run(ctx); err != nil {
		log.Error("the supervisor cannot go on", "err", err)
		return exitFailed
	}
	return 0
}
