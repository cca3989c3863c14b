// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A sandbox in namespaces of its own numbers its processes by itself; /proc
// tells each process's number in every PID namespace that it is in.

// procEntry is what /proc/PID/status says of a process.
type procEntry struct {
	pid, parent int
	// numbers are its ids, from the namespace of the reader to its own.
	numbers []int
}

// readProcs lists the processes; those that end meanwhile are left out.
func readProcs() map[int]procEntry {
	out := map[int]procEntry{}
	files, _ := filepath.Glob("/proc/[0-9]*/status") // the pattern is good
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if e := parseProcStatus(string(b)); len(e.numbers) > 0 {
			e.pid = e.numbers[0]
			out[e.pid] = e
		}
	}
	return out
}

func parseProcStatus(text string) (e procEntry) {
	for line := range strings.Lines(text) {
		key, rest, _ := strings.Cut(line, ":")
		switch key {
		case "PPid":
			e.parent, _ = strconv.Atoi(strings.TrimSpace(rest)) // the kernel's words
		case "NSpid":
			for f := range strings.FieldsSeq(rest) {
				n, _ := strconv.Atoi(f)
				e.numbers = append(e.numbers, n)
			}
		}
	}
	return e
}

// hostPIDs maps the ids that the namespace of process holder uses to those used
// here. It is empty when holder cannot be seen.
func hostPIDs(holder int) map[int]int { return mapPIDs(readProcs(), holder) }

func mapPIDs(procs map[int]procEntry, holder int) map[int]int {
	out := map[int]int{}
	h, ok := procs[holder]
	if !ok {
		return out
	}
	depth := len(h.numbers) - 1
	first := firstProcess(procs, holder, depth)
	for _, e := range procs {
		if len(e.numbers) > depth && firstProcess(procs, e.pid, depth) == first {
			out[e.numbers[depth]] = e.pid
		}
	}
	return out
}

// firstProcess goes from a process to its parents until one is the first of the
// PID namespace at that depth, 0 when none is.
func firstProcess(procs map[int]procEntry, pid, depth int) int {
	for range len(procs) {
		e, ok := procs[pid]
		if !ok || depth >= len(e.numbers) {
			return 0
		}
		if e.numbers[depth] == 1 {
			return pid
		}
		pid = e.parent
	}
	return 0
}

// renumber replaces the process ids of a status. One that is not in the map is
// that of a process that ended a moment ago: it stays.
func (s *Status) renumber(pids map[int]int) {
	change := func(p *int) {
		if n, ok := pids[*p]; ok {
			*p = n
		}
	}
	change(&s.PID)
	change(&s.Agent.PID)
	change(&s.Envoy.PID)
	for i := range s.Pods {
		s.Pods[i].Containers = slices.Clone(s.Pods[i].Containers)
		for j := range s.Pods[i].Containers {
			change(&s.Pods[i].Containers[j].PID)
		}
	}
}
