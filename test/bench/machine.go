// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Machine is what the figures were taken on.
type Machine struct {
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Envoy  string `json:"envoy"`
	Wrk    string `json:"wrk"`
	Go     string `json:"go"`
	// LoadBefore is the load average of the last minute when the run began: what
	// others were doing.
	LoadBefore float64 `json:"loadBefore"`
}

func lookAtMachine(ctx context.Context, envoy string) (Machine, error) {
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version()}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, fmt.Errorf("read the kernel's version: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(u.Release[:])
	var err error
	if m.LoadBefore, err = loadAverage(); err != nil {
		return m, err
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m, fmt.Errorf("read the processor's name: %w", err)
	}
	m.CPU = firstMatch(`(?m)^model name\s*:\s*(.*)$`, info)
	out, err := exec.CommandContext(ctx, envoy, "--version").Output()
	if err != nil {
		return m, fmt.Errorf("ask Envoy for its version: %w", err)
	}
	m.Envoy = firstMatch(`version: [0-9a-f]+/([^/\s]+)`, out)
	// wrk says its version beside its usage, and ends with 1.
	out, err = exec.CommandContext(ctx, "wrk", "-v").CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return m, errors.New("wrk is not installed: run tools/install-packages.sh wrk:wrk")
	}
	m.Wrk = firstMatch(`wrk (?:debian/)?(\S+)`, out)
	return m, nil
}

func firstMatch(pattern string, in []byte) string {
	if m := regexp.MustCompile(pattern).FindSubmatch(in); m != nil {
		return string(m[1])
	}
	return ""
}

func loadAverage() (float64, error) {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, fmt.Errorf("read the load average: %w", err)
	}
	one, _, _ := strings.Cut(string(b), " ")
	f, err := strconv.ParseFloat(one, 64)
	if err != nil {
		return 0, fmt.Errorf("read the load average: %w", err)
	}
	return f, nil
}

// cpuTime is what a process's threads have run so far, as the scheduler counts
// it. Threads that have ended are left out: Envoy's stay.
func cpuTime(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("process %d has no threads to look at", pid)
	}
	var sum time.Duration
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return 0, fmt.Errorf("read CPU time: %w", err)
		}
		ran, _, _ := bytes.Cut(b, []byte(" "))
		ns, err := strconv.ParseInt(string(ran), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read CPU time from %s: %w", f, err)
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

// usage is CPU time spent since some moment: by everything that runs on this
// machine, and by the processes under measurement.
type usage struct {
	at            time.Time
	machine, ours time.Duration
}

// usageOf reads both; pids are the processes under measurement beside this one
// and the children it has waited for.
func usageOf(pids []int) (usage, error) {
	u := usage{at: time.Now()}
	for _, pid := range slices.Concat(pids, []int{os.Getpid()}) {
		t, err := cpuTime(pid)
		if err != nil {
			return u, err
		}
		u.ours += t
	}
	var children unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &children); err != nil {
		return u, fmt.Errorf("read the children's CPU time: %w", err)
	}
	u.ours += time.Duration(children.Utime.Nano() + children.Stime.Nano())
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return u, fmt.Errorf("read the machine's CPU time: %w", err)
	}
	u.machine, err = busyTime(b)
	return u, err
}

// tick is the unit of /proc/stat.
const tick = 10 * time.Millisecond

// busyTime is the time in which a core did not stand idle, or was taken away by
// the hypervisor, from the first line of /proc/stat: cpu user nice system idle
// iowait irq softirq steal …
func busyTime(stat []byte) (time.Duration, error) {
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("read the machine's CPU time: unknown line %q", line)
	}
	var sum time.Duration
	for i, f := range fields[1:9] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the machine's CPU time: %w", err)
		}
		if idle := i == 3 || i == 4; !idle {
			sum += time.Duration(n) * tick
		}
	}
	return sum, nil
}

// othersSince is the share of the machine, 0 to 1, that everything else has used
// between two readings.
func (u usage) othersSince(before usage, cores int) float64 {
	others := (u.machine - before.machine) - (u.ours - before.ours)
	return max(0, float64(others)/float64(cores)/float64(u.at.Sub(before.at)))
}
