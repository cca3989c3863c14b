// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime is what a process's threads have run so far, as the scheduler counts
// it. Threads that have ended are left out: Envoy's stay.
func CPUTime(pid int) (time.Duration, error) {
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

// Usage is CPU time spent since some moment: by everything that runs on this
// machine, and by the processes under measurement.
type Usage struct {
	at            time.Time
	machine, ours time.Duration
}

// UsageOf reads both; pids are the processes under measurement beside this one
// and the children it has waited for.
func UsageOf(pids []int) (Usage, error) {
	u := Usage{at: time.Now()}
	for _, pid := range slices.Concat(pids, []int{os.Getpid()}) {
		t, err := CPUTime(pid)
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

// OthersSince is the share of the machine, 0 to 1, that everything else has used
// between two readings.
func (u Usage) OthersSince(before Usage, cores int) float64 {
	others := (u.machine - before.machine) - (u.ours - before.ours)
	return max(0, float64(others)/float64(cores)/float64(u.at.Sub(before.at)))
}

// OursSince is what the processes under measurement used between two readings.
func (u Usage) OursSince(before Usage) time.Duration { return u.ours - before.ours }

// MachineSince is what all of the machine used between two readings.
func (u Usage) MachineSince(before Usage) time.Duration { return u.machine - before.machine }

// ResidentMiB is a process's resident memory.
func ResidentMiB(pid int) (float64, error) { return statusMiB(pid, "VmRSS:") }

// MostResidentMiB is the most that a process's resident memory was since its start.
func MostResidentMiB(pid int) (float64, error) { return statusMiB(pid, "VmHWM:") }

func statusMiB(pid int, field string) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read memory in use: %w", err)
	}
	for line := range bytes.Lines(b) {
		if f := strings.Fields(string(line)); len(f) == 3 && f[0] == field {
			kib, err := strconv.ParseFloat(f[1], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("process %d tells no memory in use", pid)
}

// CPUShare is how much of one core a process uses over some time.
func CPUShare(ctx context.Context, pid int, d time.Duration) (float64, error) {
	before, err := CPUTime(pid)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	after, err := CPUTime(pid)
	return float64(after-before) / float64(time.Since(began)), err
}

// LoadAverage is the load average of the last minute.
func LoadAverage() (float64, error) {
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
