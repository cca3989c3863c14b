// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// nameLock claims a sandbox name. Root's names are the machine's, for its
// namespaces are: an abstract Unix socket is the lock, which leaves no file and
// ends with its holder. Without root abstract sockets stay inside the sandbox's
// network namespace; what two sandboxes of one name would share is their state
// directory, and the lock is on a file beside it.
type nameLock struct {
	listener net.Listener
	ended    chan struct{}
	file     *os.File
}

func lockAddress(name string) string { return "@aether-sandbox-" + name }

// lockName takes the lock of c.Name; ErrRunning when another process has it.
func lockName(c Config) (*nameLock, error) {
	if rootless() {
		return lockFile(c)
	}
	l, err := net.Listen("unix", lockAddress(c.Name))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, runningError(c)
	}
	if err != nil {
		return nil, fmt.Errorf("claim the name %s: %w", c.Name, err)
	}
	k := &nameLock{listener: l, ended: make(chan struct{})}
	go func() {
		defer close(k.ended)
		for {
			c, err := l.Accept() // somebody asks who holds it
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	return k, nil
}

// runningError is ErrRunning with the name and, where it can be seen, the holder.
func runningError(c Config) error {
	if pid := holderPID(c); pid != 0 {
		return fmt.Errorf("%w: %s, held by process %d", ErrRunning, c.Name, pid)
	}
	return fmt.Errorf("%w: %s", ErrRunning, c.Name)
}

// lockFile locks the file and makes sure that it still is the one of that path:
// the one who had it before removed it.
func lockFile(c Config) (*nameLock, error) {
	path := c.paths().lockFile()
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open lock: %w", err)
		}
		whole := unix.Flock_t{Type: unix.F_WRLCK}
		err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &whole)
		if err == nil {
			mine, errMine := f.Stat()
			named, errNamed := os.Stat(path)
			if errMine == nil && errNamed == nil && os.SameFile(mine, named) {
				return &nameLock{file: f}, nil
			}
		}
		f.Close()
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
			return nil, runningError(c)
		}
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
	}
}

func (k *nameLock) release() error {
	if k.file != nil {
		err := os.Remove(k.file.Name())
		return errors.Join(err, k.file.Close())
	}
	err := k.listener.Close()
	<-k.ended
	return err
}

// isHeld reports whether a process holds the name.
func isHeld(c Config) bool {
	if !rootless() {
		return peerPID(lockAddress(c.Name)) != 0
	}
	f, err := os.OpenFile(c.paths().lockFile(), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	l := unix.Flock_t{Type: unix.F_WRLCK}
	return unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l) == nil && l.Type != unix.F_UNLCK
}

// holderPID returns the process that holds a name, 0 when none does or it cannot
// be seen from here.
func holderPID(c Config) int {
	if rootless() {
		return peerPID(c.paths().control())
	}
	return peerPID(lockAddress(c.Name))
}

// peerPID returns the process that listens on a Unix socket as it is numbered
// here, 0 when there is none.
func peerPID(address string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", address)
	if err != nil {
		return 0
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	// On failure the holder stays unknown.
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}
