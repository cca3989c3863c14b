// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// runSpec says in what surroundings a command runs. It is the argument of the
// hidden program argRun, which makes them and becomes the command.
type runSpec struct {
	NetNS string `json:"netns,omitempty"`
	// Binds are files laid over others in a mount namespace of the command's
	// own: target → source. A target that does not exist is skipped.
	Binds map[string]string `json:"binds,omitempty"`
	// Hostname is set in a UTS namespace of the command's own.
	Hostname string `json:"hostname,omitempty"`
	// Init is true for a container's first process: it is the first of a PID
	// namespace and gets a /proc of it.
	Init bool `json:"init,omitempty"`
	// Caps bounds the capabilities to these; nil keeps all.
	Caps []int  `json:"caps,omitempty"`
	Dir  string `json:"dir,omitempty"`
	// OpenFiles is the descriptor limit, 0 keeps it.
	OpenFiles uint64 `json:"openFiles,omitempty"`
	// Dies is true when the command must not outlive the thread that started it.
	Dies bool `json:"dies,omitempty"`
}

// Exit codes of the starter itself, as shells and container tools use them.
const (
	exitSetup        = 125
	exitNotRunnable  = 126
	exitNotFound     = 127
	exitBySignalBase = 128
)

// runMain is the hidden program argRun: `SPEC COMMAND ARG…`. It returns only
// when something failed.
func runMain(args []string) int {
	fail := func(code int, err error) int {
		fmt.Fprintln(os.Stderr, "sandbox:", err)
		return code
	}
	if len(args) < 2 {
		return fail(exitSetup, errors.New("no command"))
	}
	var s runSpec
	if err := json.Unmarshal([]byte(args[0]), &s); err != nil {
		return fail(exitSetup, fmt.Errorf("read the surroundings: %w", err))
	}
	// Namespaces and capabilities belong to a thread; the one that calls execve
	// is the one that stays.
	runtime.LockOSThread()
	if err := s.enter(); err != nil {
		return fail(exitSetup, err)
	}
	path, err := exec.LookPath(args[1])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		if errors.Is(err, os.ErrPermission) {
			return fail(exitNotRunnable, err)
		}
		return fail(exitNotFound, err)
	}
	err = syscall.Exec(path, args[1:], os.Environ())
	return fail(exitNotRunnable, fmt.Errorf("run %s: %w", path, err))
}

// enter makes the surroundings around the calling thread.
func (s runSpec) enter() error {
	if s.Dies {
		if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
			return fmt.Errorf("set parent death signal: %w", err)
		}
	}
	netns := -1
	if s.NetNS != "" {
		var err error
		if netns, err = unix.Open(s.NetNS, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("open network namespace %s: %w", s.NetNS, err)
		}
	}
	if s.Init || len(s.Binds) > 0 {
		if err := s.enterMounts(); err != nil {
			return err
		}
	}
	if s.Hostname != "" {
		if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
			return fmt.Errorf("make UTS namespace: %w", err)
		}
		if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
			return fmt.Errorf("set hostname: %w", err)
		}
	}
	if netns >= 0 {
		if err := unix.Setns(netns, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", s.NetNS, err)
		}
	}
	if s.OpenFiles > 0 {
		// Through package syscall: it then leaves the limit alone at execve.
		l := syscall.Rlimit{Cur: s.OpenFiles, Max: s.OpenFiles}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
			return fmt.Errorf("set descriptor limit %d: %w", s.OpenFiles, err)
		}
	}
	if s.Dir != "" {
		if err := os.Chdir(s.Dir); err != nil {
			return fmt.Errorf("change directory: %w", err)
		}
	}
	if s.Caps != nil {
		return boundCapabilities(s.Caps)
	}
	return nil
}

// enterMounts makes a private mount namespace without the mounts that would keep
// other pods' network namespaces alive, and lays the binds over it.
func (s runSpec) enterMounts() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make mount namespace: %w", err)
	}
	propagation := uintptr(unix.MS_PRIVATE)
	if rootless() {
		// The machine's own mounts cannot be detached below, so what is unmounted
		// there must go here too.
		propagation = unix.MS_SLAVE
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|propagation, ""); err != nil {
		return fmt.Errorf("keep mounts to the pod: %w", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) > 4 && strings.HasPrefix(f[4], netnsDir+"/") {
			// A namespace that is removed meanwhile takes its mount with it.
			err := unix.Unmount(f[4], unix.MNT_DETACH)
			if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("detach %s: %w", f[4], err)
			}
		}
	}
	for target, source := range s.Binds {
		if _, err := os.Stat(target); err != nil {
			continue
		}
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("lay %s over %s: %w", source, target, err)
		}
	}
	if s.Init {
		if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mount /proc: %w", err)
		}
	}
	return nil
}

// boundCapabilities drops every capability but keep from the bounding set, so
// that the command does not get it at execve although it is root.
func boundCapabilities(keep []int) error {
	want := map[int]bool{}
	for _, c := range keep {
		want[c] = true
	}
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		if want[c] {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: unknown to this kernel
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	return nil
}

// command returns the command that becomes argv in the surroundings.
func (s runSpec) command(self string, argv []string) (*exec.Cmd, error) {
	spec, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("write the surroundings: %w", err)
	}
	args := append([]string{argRun, string(spec)}, argv...)
	for i, a := range args {
		if a == builtinPlaceholder {
			args[i] = self
		}
	}
	cmd := exec.Command(self, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if s.Init {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
	}
	return cmd, nil
}
