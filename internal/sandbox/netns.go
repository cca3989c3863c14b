// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// netnsDir is where named network namespaces live; Envoy opens the pods' by path.
const netnsDir = "/run/netns"

// Names of the namespaces that are no pod's. Pods' have a dot in them.
const (
	nodeNS    = "node"
	outsideNS = "outside"
)

func netnsName(sandbox, part string) string { return "aether-" + sandbox + "-" + part }
func netnsPath(sandbox, part string) string {
	return filepath.Join(netnsDir, netnsName(sandbox, part))
}

// createNetNS makes a named network namespace with its loopback down.
func createNetNS(sandbox, part string) (path string, err error) {
	done := make(chan error)
	go func() {
		// The thread's namespace changes; unless it is set back for sure the
		// goroutine ends locked and the thread with it.
		runtime.LockOSThread()
		old, err := netns.Get()
		if err != nil {
			done <- fmt.Errorf("open own network namespace: %w", err)
			return
		}
		defer old.Close()
		made, err := netns.NewNamed(netnsName(sandbox, part))
		if back := netns.Set(old); back == nil {
			runtime.UnlockOSThread()
		}
		if err != nil {
			done <- fmt.Errorf("make network namespace %s: %w", netnsName(sandbox, part), err)
			return
		}
		done <- made.Close()
	}()
	return netnsPath(sandbox, part), <-done
}

// removeNetNS removes a named namespace; one that is not there is no error. The
// kernel ends it when nothing uses it any more.
func removeNetNS(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove network namespace: %w", err)
	}
	return nil
}

// inNetNS runs f on a thread in the namespace.
func inNetNS(path string, f func() error) error {
	return ns.WithNetNSPath(path, func(ns.NetNS) error { return f() })
}

// sandboxNetNS lists the namespaces of a sandbox by path.
func sandboxNetNS(sandbox string) ([]string, error) {
	entries, err := os.ReadDir(netnsDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var out []string
	for _, e := range entries {
		part, ok := strings.CutPrefix(e.Name(), "aether-"+sandbox+"-")
		if ok && (part == nodeNS || part == outsideNS || strings.Contains(part, ".")) {
			out = append(out, filepath.Join(netnsDir, e.Name()))
		}
	}
	return out, nil
}

// processesIn returns the processes whose network namespace is one of those.
func processesIn(paths []string) ([]int, error) {
	want := map[uint64]bool{}
	for _, p := range paths {
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err == nil {
			want[st.Ino] = true
		}
	}
	if len(want) == 0 {
		return nil, nil
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Stat(filepath.Join("/proc", e.Name(), "ns/net"), &st) == nil && want[st.Ino] {
			out = append(out, pid)
		}
	}
	return out, nil
}

// killIn kills what still runs in the namespaces, by pid, until nothing does.
// This process is never among them: its threads only visit.
func killIn(paths []string) (killed []int, err error) {
	self := os.Getpid()
	for deadline := time.Now().Add(5 * time.Second); ; {
		pids, err := processesIn(paths)
		if err != nil {
			return killed, err
		}
		pids = slices.DeleteFunc(pids, func(p int) bool { return p == self })
		if len(pids) == 0 {
			return killed, nil
		}
		if time.Now().After(deadline) {
			return killed, fmt.Errorf("end processes %v in the sandbox's namespaces: still there after 5 s", pids)
		}
		for _, p := range pids {
			if !slices.Contains(killed, p) {
				killed = append(killed, p)
			}
			if err := syscall.Kill(p, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return killed, fmt.Errorf("end process %d: %w", p, err)
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// alive reports whether a process runs. One that has ended and that its parent
// has not waited for yet does not.
func alive(pid int) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return false
	}
	// "pid (name) state …"; the name may hold anything.
	_, rest, _ := strings.Cut(string(b[max(0, bytes.LastIndexByte(b, ')')):]), " ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}
