// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// An ordinary user may do everything a sandbox needs as root of namespaces of
// its own. A program is put there by starting it through the hidden program
// argEnter: the first process of a PID namespace, which makes the surroundings,
// starts the program, reaps what is orphaned there, and ends with the program.
// When it ends, however it does, the kernel ends every process of the PID
// namespace, and with the last of them all mounts, interfaces and rules.

// enterSpec is argEnter's argument, before the program's command line.
type enterSpec struct {
	Record surroundingsRecord `json:"record"`
	// Files is how many descriptors are handed on: 0, 1 and so forth.
	Files int `json:"files"`
}

// enterFlags are the namespaces: IPC because shared memory and semaphores are
// named by the machine otherwise.
const enterFlags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC

// enterCommand returns the command that runs argv in new namespaces; self is a
// program that calls BuiltinMain. Without argv it makes the surroundings only.
func enterCommand(self string, argv []string, files int) (*exec.Cmd, error) {
	o := thisUser()
	spec, err := json.Marshal(enterSpec{Record: surroundingsRecord{Owner: o, StateDir: DefaultStateDir()}, Files: files})
	if err != nil {
		return nil, fmt.Errorf("write the surroundings: %w", err)
	}
	cmd := exec.Command(self, append([]string{argEnter, string(spec)}, argv...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  enterFlags,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: o.UID, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: o.GID, Size: 1}},
	}
	return cmd, nil
}

// CheckNamespaces reports whether this user can have a sandbox: nil for root.
// For others it makes the namespaces and leaves them; the error says which
// setting of the system is in the way, and what to do.
func CheckNamespaces(self string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	cmd, err := enterCommand(self, nil, 0)
	if err != nil {
		return err
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Run(); err != nil {
		if text := strings.TrimSpace(said.String()); text != "" {
			err = errors.New(text)
		}
		return explainRefusal(os.DirFS("/"), err)
	}
	return nil
}

// EnterNamespaces runs this very program again, with the same standard files, as
// root of namespaces of its own, if an ordinary user started it; args is its
// command line, os.Args. Interrupts and terminations are handed on, and the
// program ends with this process. entered is false for root and for a process
// that is there already: these can call Up themselves. A program calls it after
// BuiltinMain.
func EnterNamespaces(args []string) (entered bool, code int, err error) {
	if os.Geteuid() == 0 {
		return false, 0, nil
	}
	self, err := os.Executable()
	if err != nil {
		return false, 0, fmt.Errorf("find this program: %w", err)
	}
	if err := CheckNamespaces(self); err != nil {
		return false, 0, err
	}
	cmd, err := enterCommand(self, append([]string{self}, args[1:]...), 3)
	if err != nil {
		return false, 0, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// It is the thread whose end the kernel watches.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	signals := catchEnd()
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return false, 0, explainRefusal(os.DirFS("/"), err)
	}
	ended := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-signals:
				_ = cmd.Process.Signal(s) // it may just have ended
			case <-ended:
				return
			}
		}
	}()
	err = cmd.Wait()
	close(ended)
	return true, exitCode(err), nil
}

// catchEnd catches the signals that ask for the end.
func catchEnd() chan os.Signal { return catch(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP) }

// enterMain is the hidden program argEnter: `SPEC [COMMAND ARG…]`.
func enterMain(args []string) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return exitSetup
	}
	var s enterSpec
	if len(args) < 1 || json.Unmarshal([]byte(args[0]), &s) != nil {
		return fail(errors.New("sandbox: this command is not for people"))
	}
	signals := catchEnd()
	if err := makeSurroundings(s.Record); err != nil {
		return fail(err)
	}
	argv := args[1:]
	if len(argv) == 0 {
		return 0
	}
	files := make([]uintptr, s.Files)
	for i := range files {
		files[i] = uintptr(i)
	}
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{Env: os.Environ(), Files: files})
	if err != nil {
		return fail(fmt.Errorf("start %s: %w", argv[0], err))
	}
	for fd := 3; fd < s.Files; fd++ {
		unix.Close(fd) // its other end is to see the program close it
	}
	go func() {
		for sig := range signals {
			if n, ok := sig.(syscall.Signal); ok {
				_ = syscall.Kill(pid, n) // it may just have ended
			}
		}
	}()
	return reapUntil(pid)
}

// reapUntil waits for whatever ends in the PID namespace until the process does,
// and returns its exit code.
func reapUntil(pid int) int {
	for {
		var ws syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			fmt.Fprintln(os.Stderr, "sandbox: wait for processes:", err)
			return exitSetup
		case ended == pid && ws.Signaled():
			return exitBySignalBase + int(ws.Signal())
		case ended == pid && ws.Exited():
			return ws.ExitStatus()
		}
	}
}

// makeSurroundings mounts what the namespaces need of their own: /proc for the
// PID namespace, /run for named network namespaces, and /dev/shm for the shared
// memory of one Envoy and its successor. What the system unmounts meanwhile goes
// here too, or this would keep it in use.
func makeSurroundings(r surroundingsRecord) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("keep mounts to the sandbox: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("%s: %w", mountProcStep, err)
	}
	ours := []string{filepath.Base(netnsDir), filepath.Base(recordFile)}
	err := layOver("/run", "mode=755", func(e os.DirEntry) bool { return slices.Contains(ours, e.Name()) })
	if err != nil {
		return err
	}
	if _, err := os.Stat("/dev/shm"); err == nil {
		// Files there are shared memory, which is not shared.
		if err := layOver("/dev/shm", "mode=1777", func(e os.DirEntry) bool { return !e.IsDir() }); err != nil {
			return err
		}
	}
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write %s: %w", recordFile, err)
	}
	if err := os.WriteFile(recordFile, b, 0o644); err != nil {
		return fmt.Errorf("write whose namespaces these are: %w", err)
	}
	return nil
}

// hostDir is where a directory that was laid over has what the system has there.
const hostDir = ".host"

// layOver lays a file system of our own over a directory, with links to what is
// there but for what is hidden: paths that lead through it go on to work.
func layOver(dir, options string, hidden func(os.DirEntry) bool) error {
	old, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return fmt.Errorf("clone the mounts of %s: %w", dir, err)
	}
	defer unix.Close(old)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list %s: %w", dir, err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	host := filepath.Join(dir, hostDir)
	if err := os.Mkdir(host, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", host, err)
	}
	if err := unix.MoveMount(old, "", unix.AT_FDCWD, host, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount what was in %s at %s: %w", dir, host, err)
	}
	for _, e := range entries {
		if e.Name() == hostDir || hidden(e) {
			continue
		}
		if err := os.Symlink(filepath.Join(hostDir, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("link %s: %w", filepath.Join(dir, e.Name()), err)
		}
	}
	return nil
}
