// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Lock is a file lock that ends with the process at the latest.
type Lock struct{ f *os.File }

// ErrLocked means that another process holds a lock.
var ErrLocked = errors.New("another process holds the lock")

// Acquire takes the lock of the file at path, which it makes if need be and into
// which it writes the process id. It does not wait: when another process holds
// the lock the error wraps ErrLocked and names that process.
func Acquire(path string) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		return nil, fmt.Errorf("lock %s: %w%s", path, ErrLocked, holder(f))
	}
	l := &Lock{f}
	if err := l.sign(); err != nil {
		l.Release()
		return nil, fmt.Errorf("write lock file: %w", err)
	}
	return l, nil
}

// sign writes the process id, for people. A full disk does not matter.
func (l *Lock) sign() error {
	if err := l.f.Truncate(0); err != nil {
		return err
	}
	_, err := l.f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	if errors.Is(err, unix.ENOSPC) {
		return nil
	}
	return err
}

// holder says who wrote the lock file, if it can be read.
func holder(f *os.File) string {
	b := make([]byte, 32)
	n, _ := f.ReadAt(b, 0)
	if pid := strings.TrimSpace(string(b[:n])); pid != "" {
		return " (pid " + pid + ")"
	}
	return ""
}

// Release gives the lock back. The file stays, for its removal could take away a
// lock that another process has just been given.
func (l *Lock) Release() { l.f.Close() }
