// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// shmDir is where POSIX shared memory lives on Linux.
const shmDir = "/dev/shm"

// sharedMemory is the file that the epochs of one chain share (Envoy's hot restart
// version 11: a size, a version, two locks, and flags in the last eight bytes).
// The lowest bit of the flags is set by an epoch that starts, and cleared by it
// when it takes over; while it is set no other can start. An epoch that dies in
// between leaves it set.
type sharedMemory struct{ path string }

const (
	shmVersion  = 11
	shmStarting = 1
	shmMaxSize  = 4096
)

func newSharedMemory(base uint32) sharedMemory {
	return sharedMemory{filepath.Join(shmDir, fmt.Sprintf("envoy_shared_memory_%d", uint64(base)*10))}
}

// open checks that the file is what it is taken for, and returns where its flags
// are.
func (m sharedMemory) open() (f *os.File, at int64, err error) {
	if f, err = os.OpenFile(m.path, os.O_RDWR, 0); err != nil {
		return nil, 0, err
	}
	var head [16]byte
	info, err := f.Stat()
	if err == nil {
		_, err = f.ReadAt(head[:], 0)
	}
	if err == nil {
		size, version := binary.NativeEndian.Uint64(head[:8]), binary.NativeEndian.Uint64(head[8:])
		if version != shmVersion || size != uint64(info.Size()) || size > shmMaxSize || size < 24 {
			err = fmt.Errorf("shared memory %s has version %d and says that it has %d bytes of %d: not known", m.path, version, size, info.Size())
		}
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size() - 8, nil
}

// marked reports whether an epoch is starting, or died while it was.
func (m sharedMemory) marked() bool {
	f, at, err := m.open()
	if err != nil {
		return false
	}
	defer f.Close()
	var flags [8]byte
	_, err = f.ReadAt(flags[:], at)
	return err == nil && binary.NativeEndian.Uint64(flags[:])&shmStarting != 0
}

// clear takes the mark away. No epoch of the chain may be starting.
func (m sharedMemory) clear() error {
	f, at, err := m.open()
	if err != nil {
		return fmt.Errorf("clear the mark of a start that failed: %w", err)
	}
	defer f.Close()
	var flags [8]byte
	if _, err = f.ReadAt(flags[:], at); err == nil {
		binary.NativeEndian.PutUint64(flags[:], binary.NativeEndian.Uint64(flags[:])&^shmStarting)
		_, err = f.WriteAt(flags[:], at)
	}
	if err != nil {
		return fmt.Errorf("clear the mark of a start that failed: %w", err)
	}
	return nil
}

// remove removes the file when the chain has ended; Envoy does not.
func (m sharedMemory) remove() error {
	if err := os.Remove(m.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove shared memory: %w", err)
	}
	return nil
}
