// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
)

// A sandbox outlives the command that made it: Start runs the program again with
// argHold in a session of its own, and that process holds the node. It tells how
// the start goes as JSON lines on descriptor 3.

// holdMessage is one line of it.
type holdMessage struct {
	Progress string `json:"progress,omitempty"`
	Ready    bool   `json:"ready,omitempty"`
	Error    string `json:"error,omitempty"`
}

// holdFD is where the holder tells how the start goes.
const holdFD = 3

// Start makes a sandbox held by a detached process of its own and returns when
// it works, or with the reason why it does not. Config.Progress is told each
// step; Config.Log is not used, the holder writes a log file. For an ordinary
// user the process and all of the node live in namespaces of the user's own.
func Start(ctx context.Context, c Config) (*Client, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	c, err := c.resolve()
	if err != nil {
		return nil, err
	}
	if isHeld(c) {
		return nil, runningError(c)
	}
	if err := CheckNamespaces(c.SelfPath); err != nil {
		return nil, err
	}
	if err := startHolder(ctx, c); err != nil {
		return nil, err
	}
	return Dial(ctx, c.StateDir, c.Name)
}

func startHolder(ctx context.Context, c Config) error {
	text, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("write settings: %w", err)
	}
	if err := c.makeStateDir(); err != nil {
		return err
	}
	log, err := os.Create(c.paths().holderLog())
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	defer r.Close()
	cmd, err := holderCommand(c, string(text))
	if err != nil {
		w.Close()
		return err
	}
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{w}
	cmd.SysProcAttr.Setsid = true
	err = cmd.Start()
	w.Close()
	if err != nil {
		return fmt.Errorf("start the holder: %w", err)
	}
	go func() { _ = cmd.Wait() }() // so that it is no zombie should it end before us
	// When the caller gives up the holder ends, removes everything, and its end
	// of the pipe closes.
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })()
	return followHolder(ctx, bufio.NewScanner(r), c)
}

// holderCommand runs the holder, without root in namespaces of its own.
func holderCommand(c Config, settings string) (*exec.Cmd, error) {
	if os.Geteuid() != 0 {
		return enterCommand(c.SelfPath, []string{c.SelfPath, argHold, settings}, holdFD+1)
	}
	cmd := exec.Command(c.SelfPath, argHold, settings)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	return cmd, nil
}

func followHolder(ctx context.Context, lines *bufio.Scanner, c Config) error {
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var m holdMessage
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return fmt.Errorf("read from the holder: %w", err)
		}
		switch {
		case m.Ready:
			return nil
		case m.Error != "":
			os.Remove(c.paths().holderLog())
			c.removeStateDir()
			return errors.New(m.Error)
		}
		c.Progress(m.Progress)
	}
	b, _ := os.ReadFile(c.paths().holderLog()) // may be gone: then there is nothing to add
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("the process that holds the sandbox ended: %s", strings.TrimSpace(string(b)))
}

// holdMain is the hidden program argHold: it makes the node, serves the control
// socket, and takes everything down on SIGTERM or when asked.
func holdMain(args []string) int {
	report := json.NewEncoder(os.NewFile(holdFD, "report"))
	// Whoever started us may have gone; then nobody reads.
	tell := func(m holdMessage) { _ = report.Encode(m) }
	var c Config
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &c) != nil {
		fmt.Fprintln(os.Stderr, "sandbox: this command is not for people")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	c.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	c.Progress = func(s string) { tell(holdMessage{Progress: s}) }
	n, err := Up(ctx, c)
	if err != nil {
		tell(holdMessage{Error: err.Error()})
		return 1
	}
	control, err := n.Serve()
	if err != nil {
		tell(holdMessage{Error: errors.Join(err, n.Down(context.Background())).Error()})
		return 1
	}
	tell(holdMessage{Ready: true})
	os.NewFile(holdFD, "report").Close()
	select {
	case <-ctx.Done():
	case <-control.Asked():
	}
	err = n.Down(context.Background())
	if err == nil {
		err = os.Remove(n.paths.holderLog())
		n.cfg.removeStateDir()
	}
	control.Close(err)
	if err != nil {
		slog.New(slog.NewTextHandler(os.Stderr, nil)).Error("end sandbox", "err", err)
		return 1
	}
	return 0
}
