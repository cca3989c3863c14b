// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"aether.io/aether/internal/check"
)

// moment is one instant by two clocks: the wall's, and the time since boot, which
// nobody can set.
type moment struct {
	wall time.Time
	boot time.Duration
	err  error
}

func readClocks() moment {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return moment{err: fmt.Errorf("read the time since boot: %w", err)}
	}
	return moment{wall: time.Now().Round(0), boot: time.Duration(t.Nano())}
}

// clockStep is how much further the wall clock went than time did.
func clockStep(from, to moment) (time.Duration, error) {
	if err := errors.Join(from.err, to.err); err != nil {
		return 0, err
	}
	return to.wall.Sub(from.wall) - (to.boot - from.boot), nil
}

func lookAtClock(begun moment, stateDir string) check.Clock {
	now := readClocks()
	var c check.Clock
	c.Boot = check.Saw(now.wall.Add(-now.boot), now.err)
	c.Newest = check.Saw(newest(stateDir))
	c.Step = check.Saw(clockStep(begun, now))
	var t unix.Timex
	state, err := unix.Adjtimex(&t) // reads only, as no mode is set
	c.Synchronised = check.Saw(state != unix.TIME_ERROR, err)
	return c
}

// newest returns the newest file of a directory.
func newest(dir string) (check.Newest, error) {
	var n check.Newest
	entries, err := os.ReadDir(dir)
	if err != nil {
		return n, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // renamed meanwhile
		}
		if err != nil {
			return n, err
		}
		if info.ModTime().After(n.At) {
			n = check.Newest{Name: filepath.Join(dir, e.Name()), At: info.ModTime()}
		}
	}
	return n, nil
}

func lookAtKernel() check.Kernel {
	var k check.Kernel
	var u unix.Utsname
	err := unix.Uname(&u)
	k.Release = check.Saw(unix.ByteSliceToString(u.Release[:]), err)
	ports, err := readNumbers("/proc/sys/net/ipv4/ip_local_port_range", 2)
	if err != nil {
		k.Ports = check.NotLooked[int](err.Error())
	} else {
		k.Ports = check.Saw(int(ports[1])-int(ports[0])+1, nil)
	}
	backlog, err := readNumbers("/proc/sys/net/core/somaxconn", 1)
	if err != nil {
		k.Backlog = check.NotLooked[int](err.Error())
	} else {
		k.Backlog = check.Saw(int(backlog[0]), nil)
	}
	k.Conntrack = check.Saw(tracked())
	return k
}

// tracked reads the conntrack table of this process's network namespace.
func tracked() (check.Conntrack, error) {
	count, err := readNumbers("/proc/sys/net/netfilter/nf_conntrack_count", 1)
	if errors.Is(err, fs.ErrNotExist) {
		return check.Conntrack{Off: true}, nil
	}
	if err != nil {
		return check.Conntrack{}, err
	}
	most, err := readNumbers("/proc/sys/net/netfilter/nf_conntrack_max", 1)
	if err != nil {
		return check.Conntrack{}, err
	}
	return check.Conntrack{Count: count[0], Max: most[0]}, nil
}

func readNumbers(path string, n int) ([]uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(b))
	if len(fields) != n {
		return nil, fmt.Errorf("%s holds %q, want %d numbers", path, strings.TrimSpace(string(b)), n)
	}
	out := make([]uint64, n)
	for i, f := range fields {
		if out[i], err = strconv.ParseUint(f, 10, 64); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return out, nil
}

// lookAtDisk tries to write where the agent writes, and looks at where Envoy logs.
func (k *looker) lookAtDisk(d *check.Disk) {
	d.StateDir, d.AccessLog = k.cfg.StateDir, k.cfg.Envoy.AccessLogPath
	d.Writable = check.Saw(struct{}{}, tryWrite(d.StateDir))
	d.Space = check.Saw(freeSpace(d.StateDir))
	if isDevice(d.AccessLog) {
		// The log is whoever started Envoy's to keep.
		d.LogSpace = check.NotLooked[check.Space](d.AccessLog + " is no file on a disk of this node")
		return
	}
	err := canAppend(d.AccessLog)
	if d.LogMissing = errors.Is(err, fs.ErrNotExist); !d.LogMissing {
		d.LogWritable = check.Saw(struct{}{}, err)
	}
	d.LogSpace = check.Saw(freeSpace(filepath.Dir(d.AccessLog)))
}

func isDevice(path string) bool {
	if strings.HasPrefix(path, "/dev/") || strings.HasPrefix(path, "/proc/") {
		return true
	}
	info, err := os.Stat(path)
	return err == nil && !info.Mode().IsRegular() && !info.IsDir()
}

// tryWrite makes a file and removes it.
func tryWrite(dir string) error {
	f, err := os.CreateTemp(dir, ".check-*")
	if err != nil {
		return err
	}
	name := f.Name()
	_, err = f.WriteString("whether files can be written\n")
	return errors.Join(err, f.Close(), os.Remove(name))
}

// canAppend opens a file as Envoy does, but makes none.
func canAppend(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

func freeSpace(path string) (check.Space, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return check.Space{}, fmt.Errorf("look at the file system of %s: %w", path, err)
	}
	return check.Space{
		FreeBytes: s.Bavail * uint64(s.Bsize), Bytes: s.Blocks * uint64(s.Bsize),
		FreeInodes: s.Ffree, Inodes: s.Files,
	}, nil
}
