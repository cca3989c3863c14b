// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"os/exec"
	"syscall"
	"time"

	"aether.io/aether/internal/daemon"
)

// starter starts children that die with it.
type starter struct{ *daemon.Forker }

func newStarter() *starter { return &starter{daemon.NewForker()} }

// start starts a command and waits for its end beside the caller.
func (s *starter) start(cmd *exec.Cmd) (*child, error) {
	if err := s.Start(cmd); err != nil {
		return nil, err
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
