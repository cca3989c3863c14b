// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

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
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended since
		}
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

// calm is the share of the machine, 0 to 1, that others may use in a round for it
// to count. 1 lets every round count.
type calm float64

const (
	// calmLook is how long others are watched before a round begins, calmWait how
	// long at most until they are calm: after that the round is made all the same.
	calmLook = 300 * time.Millisecond
	calmWait = 20 * time.Second
)

// wait waits for others to be calm.
func (c calm) wait(ctx context.Context) error {
	if c >= 1 {
		return nil
	}
	for deadline := time.Now().Add(calmWait); time.Now().Before(deadline); {
		before, err := usageOf(nil)
		if err != nil {
			return err
		}
		select {
		case <-time.After(calmLook):
		case <-ctx.Done():
			return ctx.Err()
		}
		after, err := usageOf(nil)
		if err != nil {
			return err
		}
		if after.othersSince(before, runtime.NumCPU()) <= float64(c) {
			return nil
		}
	}
	return nil
}

// holds reports whether others were calm in all samples of a round.
func (c calm) holds(samples []LoadSample) bool {
	return c >= 1 || !slices.ContainsFunc(samples, func(s LoadSample) bool { return s.Others > float64(c) })
}
