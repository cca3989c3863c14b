// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
)

// Forker starts children from one thread that lives as long as it does: the
// signal that a process gets at its parent's death comes when the thread that
// forked it ends, whatever becomes of the process around it. So children die with
// the Forker however it ends, and not before.
type Forker struct {
	requests chan forkRequest
	ended    chan struct{}
}

type forkRequest struct {
	cmd   *exec.Cmd
	reply chan error
}

// NewForker starts the thread. Close ends it.
func NewForker() *Forker {
	return newForker(onMainThread)
}

// onMainThread reports whether the caller runs on the process's first thread. Go never
// ends that one, only parks it, and what it forked would live on.
func onMainThread() bool { return syscall.Gettid() == syscall.Getpid() }

func newForker(onMain func() bool) *Forker {
	f := &Forker{requests: make(chan forkRequest), ended: make(chan struct{})}
	go f.run(onMain)
	return f
}

// run starts what it is asked for, and ends its thread when nobody can ask any more.
func (f *Forker) run(onMain func() bool) {
	runtime.LockOSThread()
	if onMain() {
		// While this goroutine has the main thread the next one gets another.
		go f.run(onMain)
		<-f.ended
		runtime.UnlockOSThread()
		return
	}
	defer close(f.ended)
	for r := range f.requests {
		r.reply <- r.cmd.Start()
	}
	// Never unlocked: the thread ends with the goroutine.
}

// Close ends the thread, and with it whatever it started that still runs. Start
// must not be called any more.
func (f *Forker) Close() {
	close(f.requests)
	<-f.ended
}

// Start starts a command that gets SIGKILL when the Forker ends, unless it asks
// for another signal itself. It is a group of its own, for a terminal's Ctrl-C is
// for the parent, which ends its children in order; a session of its own, if the
// command asks for one, is a group too.
func (f *Forker) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	cmd.SysProcAttr.Setpgid = !cmd.SysProcAttr.Setsid
	r := forkRequest{cmd: cmd, reply: make(chan error, 1)}
	f.requests <- r
	if err := <-r.reply; err != nil {
		return fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return nil
}
