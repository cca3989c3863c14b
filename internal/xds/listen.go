// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxPath is what a socket address has room for, with its ending zero (unix(7)).
const maxPath = len(unix.RawSockaddrUnix{}.Path) - 1

// Listen makes a Unix socket at path with the given mode (0600 or 0660). A socket
// there that nobody serves any more is replaced; one that is served, and anything
// that is no socket, is an error. The path never leads nowhere and never has a
// wider mode than asked for: the socket is made in a private directory beside it
// and moved into place. Closing the listener removes the path, unless somebody has
// replaced it since.
//
// Connections tell the peer's process id to the ADS server (Stream.PID).
func Listen(path string, mode fs.FileMode) (net.Listener, error) {
	if err := vacant(path); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	private, err := os.MkdirTemp(filepath.Dir(path), ".")
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l, made, err := place(filepath.Join(private, "s"), path, mode)
	if err := errors.Join(err, os.RemoveAll(private)); err != nil {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return &listener{UnixListener: l, path: path, made: made}, nil
}

func place(fresh, path string, mode fs.FileMode) (*net.UnixListener, fs.FileInfo, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(fresh, mode); err != nil {
		return l, nil, err
	}
	made, err := os.Lstat(fresh)
	if err != nil {
		return l, nil, err
	}
	return l, made, os.Rename(fresh, path)
}

// vacant reports, as an error, that path is taken.
func vacant(path string) error {
	if len(path) > maxPath {
		return fmt.Errorf("the path has %d bytes, a Unix socket's at most %d", len(path), maxPath)
	}
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("the path is taken by something that is no socket")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(errors.New("another process serves it"), c.Close())
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return nil // left behind
	}
	return err
}

type listener struct {
	*net.UnixListener
	path  string
	made  fs.FileInfo
	close sync.Once
}

// Accept returns connections whose remote address tells the peer's pid.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return &conn{c, peerAddr{c.RemoteAddr(), peerPID(c)}}, nil
}

// Addr is the path that was asked for.
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close stops listening and removes the path if it is still this socket's.
func (l *listener) Close() error {
	l.close.Do(func() {
		if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.made) {
			_ = os.Remove(l.path) // a stale socket harms nobody: Listen replaces it
		}
	})
	return l.UnixListener.Close()
}

type conn struct {
	*net.UnixConn
	peer peerAddr
}

func (c *conn) RemoteAddr() net.Addr { return c.peer }

type peerAddr struct {
	net.Addr
	pid int
}

// peerPID returns the pid of the process that connected, or 0.
func peerPID(c *net.UnixConn) int {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) { // fails on a closed connection only
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}
