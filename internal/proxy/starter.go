// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
)

// starter forks from one thread that lives as long as it does: the signal that a
// process asks for at its parent's death comes when the thread that forked it
// ends, whatever becomes of the process around it.
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

// close ends the thread, and with it what it has started.
func (s *starter) close() {
	close(s.requests)
	<-s.ended
}

// start starts a command. It gets SIGKILL when the starter ends, until Envoy asks
// for SIGTERM instead.
func (s *starter) start(cmd *exec.Cmd) error {
	// A group of its own: a terminal's Ctrl-C is for the supervisor, which ends
	// Envoys in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	r := startRequest{cmd: cmd, reply: make(chan error, 1)}
	s.requests <- r
	if err := <-r.reply; err != nil {
		return fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return nil
}
