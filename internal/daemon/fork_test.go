// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// Children die with the Forker, and not before, whatever thread asked for them.
func TestForker(t *testing.T) {
	t.Run("on any thread", func(t *testing.T) { testForker(t, NewForker()) })
	// Which of them is the main thread is chance, so the first one is said to be.
	t.Run("first on the main thread", func(t *testing.T) {
		var threads []int
		f := newForker(func() bool {
			threads = append(threads, syscall.Gettid())
			return len(threads) == 1 || onMainThread()
		})
		testForker(t, f)
		if len(threads) < 2 || threads[0] == threads[len(threads)-1] {
			t.Errorf("tried on threads %v, want on another one at last", threads)
		}
	})
}

func testForker(t *testing.T, f *Forker) {
	started := make(chan *exec.Cmd)
	go func() { // its thread ends, for what the runtime cares, before the child
		cmd := exec.Command("sleep", "60")
		if err := f.Start(cmd); err != nil {
			t.Error(err)
		}
		started <- cmd
	}()
	cmd := <-started
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the child is gone before its time: %v", err)
	}
	if err := f.Start(exec.Command("/nowhere/to/be/found")); err == nil || !strings.Contains(err.Error(), "/nowhere/to/be/found") {
		t.Errorf("a command that does not exist: %v", err)
	}
	f.Close()
	var ended *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &ended) || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the child ended as %v, want SIGKILL", err)
	}
}
