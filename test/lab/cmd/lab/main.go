// SPDX-License-Identifier: Apache-2.0

// Command lab brings a Kubernetes cluster up on this machine and takes it down:
//
//	lab up [flags]      make it, held by a process of its own, and say how to look around
//	lab down [-name N]  end it, or remove what a killed one left
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"aether.io/aether/test/lab"
)

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, args); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		return 1
	}
	return 0
}

// argHold is the hidden command of the process that holds the lab.
const argHold = "hold"

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("want up or down")
	}
	switch args[0] {
	case "up":
		return up(ctx, args[1:])
	case "down":
		return down(ctx, args[1:])
	case argHold:
		return hold(ctx, args[1:])
	}
	return fmt.Errorf("command %q: want up or down", args[0])
}

// settings reads flags; they are those of up.
func settings(args []string) (c lab.Config, err error) {
	fs := flag.NewFlagSet("lab up", flag.ContinueOnError)
	fs.StringVar(&c.Name, "name", "lab", "`name` of the lab")
	fs.StringVar(&c.Mode, "service-egress", "", "the agent's `mode` (default enforce)")
	fs.StringVar(&c.EgressSource, "egress-source", "", "the agent's egress `source` (default pod)")
	fs.StringVar(&c.FeatureGates, "feature-gates", "", "Kubernetes' feature `gates`, A=true,B=false")
	fs.BoolVar(&c.NoProxy, "no-proxy", false, "leave out agent and Envoy")
	if err := fs.Parse(args); err != nil {
		return c, err
	}
	if fs.NArg() > 0 {
		return c, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	return c, nil
}

// message is one line from the holder to up.
type message struct {
	Progress string `json:"progress,omitempty"`
	Ready    string `json:"ready,omitempty"` // how to look around
	Error    string `json:"error,omitempty"`
}

// reportFD is where the holder tells how the start goes.
const reportFD = 3

// up starts the holder and follows its start.
func up(ctx context.Context, args []string) error {
	c, err := settings(args)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	log, err := lab.HolderLog(c.Name)
	if err != nil {
		return err
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	defer r.Close()
	cmd := exec.Command(self, append([]string{argHold}, args...)...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	w.Close()
	if err != nil {
		return fmt.Errorf("start the holder: %w", err)
	}
	go func() { _ = cmd.Wait() }() // so that it is no zombie should it end before us
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })()
	return follow(r, log.Name())
}

func follow(r io.Reader, log string) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return fmt.Errorf("read from the holder: %w", err)
		}
		switch {
		case m.Error != "":
			os.Remove(log)
			return errors.New(m.Error)
		case m.Ready != "":
			fmt.Println(m.Ready)
			return nil
		}
		fmt.Println("lab:", m.Progress)
	}
	b, _ := os.ReadFile(log) // may be gone: then there is nothing to add
	return fmt.Errorf("the process that holds the lab ended: %s", strings.TrimSpace(string(b)))
}

// hold makes the lab and takes it down when it is asked to.
func hold(ctx context.Context, args []string) error {
	report := json.NewEncoder(os.NewFile(reportFD, "report"))
	// Whoever started us may have gone; then nobody reads.
	tell := func(m message) { _ = report.Encode(m) }
	c, err := settings(args)
	if err == nil {
		c.Progress = func(s string) { tell(message{Progress: s}) }
		err = holdCluster(ctx, c, func(s string) {
			tell(message{Ready: s})
			os.NewFile(reportFD, "report").Close()
		})
	}
	if err != nil {
		tell(message{Error: err.Error()})
	}
	return err
}

func holdCluster(ctx context.Context, c lab.Config, ready func(string)) error {
	cluster, err := lab.Up(ctx, c)
	if err != nil {
		return err
	}
	control, err := cluster.Node.Serve()
	if err != nil {
		return errors.Join(err, cluster.Down(context.Background()))
	}
	ready(cluster.LookAround())
	select {
	case <-ctx.Done():
	case <-control.Asked():
	}
	err = cluster.Down(context.Background())
	control.Close(err)
	return err
}

// down ends the holder, if there is one, and removes what is left.
func down(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("lab down", flag.ContinueOnError)
	name := fs.String("name", "lab", "`name` of the lab")
	if err := fs.Parse(args); err != nil {
		return err
	}
	removed, err := lab.End(ctx, *name)
	if err != nil {
		return err
	}
	if len(removed) == 0 {
		removed = []string{"nothing was there"}
	}
	fmt.Println("lab:", strings.Join(removed, ", "))
	return nil
}
