// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
)

// maxSocketPath is the longest path of a Unix socket on Linux, in bytes.
const maxSocketPath = 107

// dialTimeout is how long a socket that exists may take to say whether anybody
// listens on it. A connect to a Unix socket does not block but for a full queue.
const dialTimeout = time.Second

// made counts the sockets of this process.
var made atomic.Uint32

// ListenUnix listens on a Unix socket with the given permissions. A socket left
// behind by a process that is gone is replaced; one that somebody listens on,
// and any other kind of file, is not. Closing the listener removes the socket.
func ListenUnix(path string, mode fs.FileMode) (net.Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("listen on %s: the path has %d bytes, a Unix socket's has at most %d",
			path, len(path), maxSocketPath)
	}
	if err := removeStale(path); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	// Made under another name, so that nobody connects before the permissions
	// are what they shall be and before it is listened on.
	early := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%d-%d", os.Getpid(), made.Add(1)))
	if len(early) > maxSocketPath {
		early = path
	}
	os.Remove(early) // by an earlier process of our id
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: early, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	err = os.Chmod(early, mode)
	if err == nil && early != path {
		err = os.Rename(early, path)
	}
	if err != nil {
		l.Close()
		os.Remove(early)
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return &unixListener{UnixListener: l, path: path}, nil
}

// unixListener removes its socket when it is closed.
type unixListener struct {
	*net.UnixListener
	path string
}

func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

func (l *unixListener) Close() error {
	err := l.UnixListener.Close()
	if err == nil {
		os.Remove(l.path)
	}
	return err
}

// removeStale removes the socket at path if nobody listens on it.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("there is a file that is no socket")
	}
	c, err := net.DialTimeout("unix", path, dialTimeout)
	if err == nil {
		c.Close()
		return errors.New("another process listens on it")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}
