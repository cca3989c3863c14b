// SPDX-License-Identifier: Apache-2.0

// Command demo shows the main job on this machine: it makes a node out of
// network namespaces from the example shop, checks each claim on the real kernel
// and the real Envoy, prints what was seen, and writes a machine-readable copy.
// It exits 1 if any claim is false. For an ordinary user all of it, the program
// included, runs in namespaces of that user. It must prove nothing by a constant:
// every claim carries what was observed.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"aether.io/aether/internal/sandbox"
)

func main() {
	if handled, code := sandbox.BuiltinMain(os.Args); handled {
		os.Exit(code)
	}
	bin := flag.String("bin", ".build/bin", "`folder` with aether-agent and aetherctl")
	envoy := flag.String("envoy", ".build/envoy/envoy", "Envoy `binary`")
	dir := flag.String("manifests", "examples/shop", "manifest `folder`")
	out := flag.String("out", ".build/demo.json", "`file` for the machine-readable copy")
	flag.Parse()

	if entered, code, err := sandbox.EnterNamespaces(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	} else if entered {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := show(ctx, *bin, *envoy, *dir, *out)
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	case !ok:
		fmt.Fprintln(os.Stderr, "demo: not every claim holds")
		os.Exit(1)
	}
}

// show runs the demo; ok is true when every claim holds.
func show(ctx context.Context, bin, envoy, dir, out string) (ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()

	// The demo adds manifests while it runs, beside the example's own.
	extra, err := os.MkdirTemp("", "aether-demo-")
	if err != nil {
		return false, fmt.Errorf("make a manifest folder: %w", err)
	}
	defer os.RemoveAll(extra)

	ctl, err := filepath.Abs(filepath.Join(bin, "aetherctl"))
	if err != nil {
		return false, fmt.Errorf("find aetherctl: %w", err)
	}
	r := newReport(os.Stdout, whose())
	r.note("as %s: making a node out of network namespaces from %s", r.User, dir)
	began := time.Now()
	node, err := sandbox.Up(ctx, sandbox.Config{
		Name: "demo", Dirs: []string{dir, extra},
		AgentPath: filepath.Join(bin, "aether-agent"), EnvoyPath: envoy, SelfPath: ctl,
		Progress: func(s string) { r.note("  %s", s) },
	})
	if err != nil {
		return false, fmt.Errorf("start the node: %w", err)
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		if e := node.Down(clean); e != nil && err == nil {
			err = fmt.Errorf("remove the node: %w", e)
		}
	}()
	r.note("the node is up after %.1f s\n", time.Since(began).Seconds())

	d := &demo{node: node, ctl: ctl, extra: extra, report: r, shop: dir}
	for _, c := range claims() {
		if err := ctx.Err(); err != nil {
			return false, fmt.Errorf("not every claim was looked at: %w", err)
		}
		r.check(ctx, d, c)
	}
	r.finish(time.Since(began))
	if err := r.write(out); err != nil {
		return false, err
	}
	return r.ok(), nil
}

// whose names the user who runs the demo.
func whose() string {
	if o, inside := sandbox.NamespaceOwner(); inside {
		return o.String() + ", without root"
	}
	return "root"
}
