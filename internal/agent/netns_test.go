// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// onThread runs f on a thread that ends with it, and that is not the first one:
// a namespace of that one would be the whole process's.
func onThread(f func()) {
	runtime.LockOSThread() // and not unlocked
	if unix.Gettid() != os.Getpid() {
		f()
		return
	}
	defer runtime.UnlockOSThread()
	done := make(chan struct{})
	go func() {
		defer close(done)
		onThread(f)
	}()
	<-done
}

func TestCheckNetNS(t *testing.T) {
	dir := t.TempDir()
	file, pipe := filepath.Join(dir, "file"), filepath.Join(dir, "pipe")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, want string }{
		{filepath.Join(dir, "none"), "does not exist"},
		{file, "is no network namespace"},
		{pipe, "is no network namespace"},
		{dir, "is no network namespace"},
		{"/proc/self/ns/mnt", "is no network namespace"},
		{"/proc/self/ns/net", "is the node's own network namespace"},
	} {
		if err := CheckNetNS(c.path); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.path, err, c.want)
		}
	}

	path, stop := make(chan string), make(chan struct{})
	ended := make(chan struct{})
	go onThread(func() {
		defer close(ended)
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("make a network namespace (root is needed): %v", err)
			close(path)
			return
		}
		path <- fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		<-stop
	})
	if p, ok := <-path; ok {
		if err := CheckNetNS(p); err != nil {
			t.Errorf("a pod's namespace: %v", err)
		}
		close(stop)
	}
	<-ended
}
