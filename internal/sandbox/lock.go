// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// nameLock claims a sandbox name on this machine. An abstract Unix socket is the
// lock: it leaves no file and ends with its holder.
type nameLock struct {
	listener net.Listener
	ended    chan struct{}
}

func lockAddress(name string) string { return "@aether-sandbox-" + name }

// lockName takes the lock; ErrRunning when another process has it.
func lockName(name string) (*nameLock, error) {
	l, err := net.Listen("unix", lockAddress(name))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w: %s, held by process %d", ErrRunning, name, lockHolder(name))
	}
	if err != nil {
		return nil, fmt.Errorf("claim the name %s: %w", name, err)
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

func (k *nameLock) release() error {
	err := k.listener.Close()
	<-k.ended
	return err
}

// lockHolder returns the process that holds a name, 0 when none does.
func lockHolder(name string) int {
	c, err := net.Dial("unix", lockAddress(name))
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
