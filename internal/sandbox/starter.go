// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// starter starts children from one thread that lives as long as it does: the
// parent-death signal is bound to the thread that forked, not to the process. So
// children die with the sandbox however it ends, and not before.
type starter struct {
	requests chan startRequest
	ended    chan struct{}
}

type startRequest struct {
	cmd   *exec.Cmd
	reply chan error
}

func newStarter() *starter {
	s := &starter{requests: make(chan startRequest), ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for r := range s.requests {
			r.reply <- r.cmd.Start()
		}
	}()
	return s
}

// close ends the thread, and with it whatever is still running.
func (s *starter) close() {
	close(s.requests)
	<-s.ended
}

// start starts a command that dies with the starter.
func (s *starter) start(cmd *exec.Cmd) (*child, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	// A group of its own: a terminal's Ctrl-C is for the sandbox, which ends its
	// children in order. A session of its own is one, too.
	cmd.SysProcAttr.Setpgid = !cmd.SysProcAttr.Setsid
	r := startRequest{cmd: cmd, reply: make(chan error, 1)}
	s.requests <- r
	if err := <-r.reply; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	c := &child{cmd: cmd, pid: cmd.Process.Pid, started: time.Now(), ended: make(chan struct{})}
	go func() {
		c.err = cmd.Wait()
		close(c.ended)
	}()
	return c, nil
}

// child is one running process.
type child struct {
	cmd     *exec.Cmd
	pid     int
	started time.Time
	ended   chan struct{}
	err     error // of Wait; valid once ended is closed
}

// signal sends a signal to the process itself. A process that has ended already
// is no error.
func (c *child) signal(sig syscall.Signal) {
	// The only other error is a signal the system does not know.
	_ = c.cmd.Process.Signal(sig)
}

// stop asks the process to end and kills it after grace. It returns when the
// process is gone.
func (c *child) stop(grace time.Duration) {
	if grace > 0 {
		c.signal(syscall.SIGTERM)
		select {
		case <-c.ended:
			return
		case <-time.After(grace):
		}
	}
	c.signal(syscall.SIGKILL)
	<-c.ended
}

// exitCode returns the exit code as a shell would: 128 + n for signal n.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	var ee *exec.ExitError
	if !errors.As(err, &ee) {
		return exitSetup
	}
	if ws, ok := ee.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return exitBySignalBase + int(ws.Signal())
	}
	return ee.ExitCode()
}
