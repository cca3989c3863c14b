// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// backoff is how long to wait before a process is started again: min, doubling
// up to max, and min again after it has run for stable.
type backoff struct {
	min, max, stable time.Duration
	next             time.Duration
}

// after returns the wait after a run of that length.
func (b *backoff) after(ran time.Duration) time.Duration {
	if ran >= b.stable || b.next < b.min {
		b.next = b.min
	}
	wait := b.next
	b.next = min(2*b.next, b.max)
	return wait
}

// processBackoff is for the agent and Envoy's supervisor: a node without them is
// without network for captured pods.
func processBackoff() backoff {
	return backoff{min: 50 * time.Millisecond, max: 5 * time.Second, stable: 10 * time.Second}
}

// endGrace is how long agent and supervisor have to end after SIGTERM; the
// supervisor gives Envoy 3 s.
const endGrace = 5 * time.Second

// supervised is a process that is to run all the time, unless it was stopped on
// purpose.
type supervised struct {
	name    string
	starter *starter
	log     *slog.Logger
	output  string // file its output is appended to
	// build makes the command anew for every start.
	build func(context.Context) (*exec.Cmd, error)
	// changed is called without locks held after every change of state.
	changed func()

	mu       sync.Mutex
	want     bool
	wake     chan struct{} // capacity 1: want changed
	idle     chan struct{} // closed while nothing runs or is being started
	current  *child
	restarts int
	lastExit string
}

func newSupervised(name string, s *starter, log *slog.Logger, output string,
	build func(context.Context) (*exec.Cmd, error), changed func(),
) *supervised {
	idle := make(chan struct{})
	close(idle)
	return &supervised{
		name: name, starter: s, log: log, output: output, build: build, changed: changed,
		want: true, wake: make(chan struct{}, 1), idle: idle,
	}
}

// run keeps the process running until ctx ends, and then ends it.
func (s *supervised) run(ctx context.Context) {
	b := processBackoff()
	for s.begin(ctx) {
		began := time.Now()
		c, err := s.launch(ctx)
		if err == nil {
			s.watch(ctx, c)
		} else {
			s.note(nil, err.Error())
			s.log.Error("start process", "state", s.name, "err", err)
		}
		if s.rest() || ctx.Err() != nil {
			continue
		}
		s.log.Warn("process ended, starting it again", "state", s.name, "reason", s.exit())
		select {
		case <-time.After(b.after(time.Since(began))):
		case <-s.wake:
		case <-ctx.Done():
		}
		s.mu.Lock()
		s.restarts++
		s.mu.Unlock()
	}
}

// begin waits until the process is to run; false when ctx ended.
func (s *supervised) begin(ctx context.Context) bool {
	for {
		if ctx.Err() != nil {
			return false
		}
		s.mu.Lock()
		if s.want {
			s.idle = make(chan struct{})
			s.mu.Unlock()
			return true
		}
		s.mu.Unlock()
		select {
		case <-s.wake:
		case <-ctx.Done():
		}
	}
}

// rest marks the end of a run and reports whether it was asked for.
func (s *supervised) rest() (onPurpose bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.idle)
	return !s.want
}

func (s *supervised) launch(ctx context.Context) (*child, error) {
	cmd, err := s.build(ctx)
	if err != nil {
		return nil, err
	}
	out, err := os.OpenFile(s.output, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	c, err := s.starter.start(cmd)
	if err != nil {
		return nil, err
	}
	s.note(c, "")
	s.log.Info("process started", "state", s.name, "pid", c.pid)
	return c, nil
}

// watch returns when the process has ended: by itself, or because it is not
// wanted any more.
func (s *supervised) watch(ctx context.Context, c *child) {
	for {
		select {
		case <-c.ended:
		case <-ctx.Done():
			c.stop(endGrace)
		case <-s.wake:
			if s.wanted() {
				continue
			}
			c.stop(endGrace)
		}
		break
	}
	reason := "exit code 0"
	if c.err != nil {
		reason = c.err.Error()
	}
	s.note(nil, fmt.Sprintf("pid %d: %s", c.pid, reason))
}

// note takes over a new current process, or the end of the last one.
func (s *supervised) note(c *child, exit string) {
	s.mu.Lock()
	s.current = c
	if exit != "" {
		s.lastExit = exit
	}
	s.mu.Unlock()
	s.changed()
}

func (s *supervised) wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.want
}

func (s *supervised) exit() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastExit
}

// set says whether the process is to run, and waits until it has ended if not.
func (s *supervised) set(ctx context.Context, want bool) error {
	s.mu.Lock()
	s.want = want
	idle := s.idle
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	if want {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop %s: %w", s.name, ctx.Err())
	}
}

// kill ends the current process with SIGKILL; the supervision starts it again.
func (s *supervised) kill() error {
	s.mu.Lock()
	c := s.current
	s.mu.Unlock()
	if c == nil {
		return fmt.Errorf("kill %s: it is not running", s.name)
	}
	c.signal(syscall.SIGKILL)
	<-c.ended
	return nil
}

// pid returns the process id, 0 when it is not running.
func (s *supervised) pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		return 0
	}
	return s.current.pid
}

func (s *supervised) status() ProcessStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := ProcessStatus{State: "starting", Restarts: s.restarts, LastExit: s.lastExit}
	switch {
	case s.current != nil:
		p.State, p.PID = "running", s.current.pid
	case !s.want:
		p.State = "stopped"
	}
	return p
}

// early is what awaitProxy wants to know of a process.
func (s *supervised) early() earlyDeath {
	p := s.status()
	return earlyDeath{s.name, p.Restarts, p.LastExit}
}

// earlyDeath says how often a process ended before it had worked once.
type earlyDeath struct {
	name   string
	deaths int
	exit   string
}
