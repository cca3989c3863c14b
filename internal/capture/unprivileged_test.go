// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// nobody is a user id that owns nothing on the host.
const nobody = 65534

// A node also runs inside one unprivileged user's namespaces: nothing here may
// need the host's root.
func TestWithoutRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become another user")
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Dir = "/"
	cmd.Env = []string{inUserNamespace + "=1", "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: nobody, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: nobody, Size: 1}},
		Credential:  &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true},
	}
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "installed, checked, removed" {
		t.Fatalf("as user %d in namespaces of its own: %v\n%s", nobody, err, out)
	}
}

// unprivilegedMain is what the copy of the test binary does: a pod's network
// namespace below its own, installed, checked and removed.
func unprivilegedMain() error {
	path, release, err := nestedNetns()
	if err != nil {
		return err
	}
	defer release()
	if err := Install(path, tuned); err != nil {
		return err
	}
	if err := Check(path, tuned); err != nil {
		return err
	}
	if err := Remove(path); err != nil {
		return err
	}
	var d *Drift
	if err := Check(path, tuned); !errors.As(err, &d) {
		return fmt.Errorf("after Remove, Check says %w", err)
	}
	// The host's namespace belongs to somebody else.
	if err := Install("/proc/1/ns/net", tuned); err == nil {
		return errors.New("installed in the host's network namespace")
	}
	fmt.Println("installed, checked, removed")
	return nil
}

// nestedNetns makes a network namespace that a thread holds until release.
func nestedNetns() (path string, release func(), err error) {
	made, done := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		err := unix.Unshare(unix.CLONE_NEWNET)
		path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		made <- err
		<-done
	}()
	if err := <-made; err != nil {
		close(done)
		return "", nil, fmt.Errorf("unshare: %w", err)
	}
	return path, func() { close(done) }, nil
}
