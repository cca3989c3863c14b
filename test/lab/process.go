// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"aether.io/aether/internal/daemon"
)

// Process is one program of the cluster. It runs until Stop, Kill or the end of
// the lab, and is not started again when it ends by itself. Methods may be called
// from any goroutine.
type Process struct {
	name    string
	forker  *daemon.Forker
	log     *slog.Logger
	output  string // the file its output is appended to
	netns   string
	command func() []string
	// ready, when not nil, is nil once the program works; Start waits for it.
	ready   func(context.Context) error
	timeout time.Duration

	mu     sync.Mutex
	cmd    *exec.Cmd
	ended  chan struct{} // closed when cmd has ended; nil before the first start
	exit   error
	paused bool
}

// Name returns the program's name.
func (p *Process) Name() string { return p.name }

// LogFile is where its output goes.
func (p *Process) LogFile() string { return p.output }

// PID returns the process id, 0 while it does not run.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return 0
	}
	return p.cmd.Process.Pid
}

// running needs mu.
func (p *Process) running() bool {
	if p.ended == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Start starts the program and waits until it works. One that runs is left alone.
func (p *Process) Start(ctx context.Context) error {
	if err := p.launch(); err != nil {
		return err
	}
	return p.AwaitReady(ctx)
}

// launch starts the program without waiting.
func (p *Process) launch() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running() {
		return nil
	}
	out, err := os.OpenFile(p.output, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open log of %s: %w", p.name, err)
	}
	defer out.Close()
	cmd := exec.Command("nsenter", append([]string{"--net=" + p.netns, "--"}, p.command()...)...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := p.forker.Start(cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	ended := make(chan struct{})
	p.cmd, p.ended, p.exit, p.paused = cmd, ended, nil, false
	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		p.exit = err
		p.mu.Unlock()
		close(ended)
	}()
	p.log.Info("process started", "state", p.name, "pid", cmd.Process.Pid)
	return nil
}

// AwaitReady waits until the program works.
func (p *Process) AwaitReady(ctx context.Context) error {
	if p.ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return Poll(ctx, p.name+" works", func(ctx context.Context) error {
		if p.PID() == 0 {
			return errEnded{fmt.Errorf("%s ended (%s):\n%s", p.name, p.result(), p.Tail(12))}
		}
		return p.ready(ctx)
	})
}

// result is how it ended, in words.
func (p *Process) result() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exit == nil {
		return "exit status 0"
	}
	return p.exit.Error()
}

// stopGrace is how long a program has to end after SIGTERM.
const stopGrace = 10 * time.Second

// Stop ends the program with SIGTERM, or with SIGKILL after 10 s, and returns when
// it is gone.
func (p *Process) Stop() {
	p.signal(syscall.SIGTERM)
	if !p.wait(stopGrace) {
		p.Kill()
	}
}

// Kill ends the program with SIGKILL and returns when it is gone.
func (p *Process) Kill() {
	p.signal(syscall.SIGKILL)
	p.wait(stopGrace)
}

// wait waits for the end of the program; false when it did not end in time.
func (p *Process) wait(most time.Duration) bool {
	p.mu.Lock()
	ended := p.ended
	p.mu.Unlock()
	if ended == nil {
		return true
	}
	select {
	case <-ended:
		return true
	case <-time.After(most):
		return false
	}
}

// Restart is Stop and Start.
func (p *Process) Restart(ctx context.Context) error {
	p.Stop()
	return p.Start(ctx)
}

// Pause stops the program where it is (SIGSTOP), as a machine that hangs would;
// Resume lets it go on.
func (p *Process) Pause() { p.signal(syscall.SIGSTOP) }

// Resume lets a paused program go on.
func (p *Process) Resume() { p.signal(syscall.SIGCONT) }

// signal sends a signal; a program that does not run gets none. One that is
// paused is let go on before it is asked to end.
func (p *Process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return
	}
	switch s {
	case syscall.SIGSTOP:
		p.paused = true
	case syscall.SIGTERM, syscall.SIGCONT:
		if p.paused {
			_ = p.cmd.Process.Signal(syscall.SIGCONT)
		}
		p.paused = false
	}
	_ = p.cmd.Process.Signal(s) // it may just have ended
}

// Tail returns the last lines of the program's log, each with its name before it.
func (p *Process) Tail(lines int) string { return tail(p.output, lines) }

// tail returns the last lines of a file.
func tail(path string, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	name := strings.TrimSuffix(filepath.Base(path), ".log")
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	all = all[max(0, len(all)-lines):]
	return name + ": " + strings.Join(all, "\n"+name+": ")
}

// errEnded ends a Poll at once: waiting is no use.
type errEnded struct{ error }

func (e errEnded) Unwrap() error { return e.error }

// pollEvery is the time between two looks at a condition.
const pollEvery = 20 * time.Millisecond

// Poll waits until check returns nil. When ctx ends before, the error says what
// was waited for and what check said last.
func Poll(ctx context.Context, what string, check func(context.Context) error) error {
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if ended := (errEnded{}); errors.As(err, &ended) {
			return fmt.Errorf("wait until %s: %w", what, ended.error)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w: %w", what, ctx.Err(), err)
		case <-time.After(pollEvery):
		}
	}
}
