// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// nsGetType is the ioctl NS_GET_NSTYPE (ioctl_ns(2), Linux 4.11).
const nsGetType = 0xb703

// CheckNetNS reports, as an error, that path is no network namespace of a pod:
// it does not exist, is something else, or is the one this process is in.
func CheckNetNS(path string) error {
	// Nonblocking, for path may be a pipe.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s does not exist", path)
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	if kind, err := unix.IoctlRetInt(fd, nsGetType); err != nil || kind != unix.CLONE_NEWNET {
		return fmt.Errorf("%s is no network namespace", path)
	}
	pod, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	if own, err := os.Stat("/proc/self/ns/net"); err == nil && os.SameFile(pod, own) {
		return fmt.Errorf("%s is the node's own network namespace", path)
	}
	return nil
}
