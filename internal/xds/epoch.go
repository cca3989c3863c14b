// SPDX-License-Identifier: Apache-2.0

package xds

// maxProcesses bounds the Envoy processes that are remembered: far more than can
// be alive at once on a node.
const maxProcesses = 16

// epochs tells Envoy processes apart.
type epochs struct {
	last  uint64
	known []process // newest last
}

type process struct {
	pid   int
	epoch uint64
}

// of numbers the process that opened a stream. A process that holds nothing has
// just started, whatever its pid; one that holds something is known by its pid, or
// comes from before this server's time.
func (e *epochs) of(pid int, fresh bool) uint64 {
	if !fresh {
		for i := len(e.known) - 1; i >= 0; i-- {
			if pid != 0 && e.known[i].pid == pid {
				return e.known[i].epoch
			}
		}
		return 0
	}
	e.last++
	if len(e.known) == maxProcesses {
		e.known = e.known[1:]
	}
	e.known = append(e.known, process{pid, e.last})
	return e.last
}
