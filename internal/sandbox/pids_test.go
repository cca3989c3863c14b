// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMapPIDs: the sandbox's own numbers, those of containers in their own PID
// namespaces among them, and nobody else's.
func TestMapPIDs(t *testing.T) {
	procs := map[int]procEntry{}
	for _, e := range []procEntry{
		{pid: 1, numbers: []int{1}},
		{pid: 50, parent: 1, numbers: []int{50}},            // a shell outside
		{pid: 100, parent: 1, numbers: []int{100, 1}},       // the first process
		{pid: 101, parent: 100, numbers: []int{101, 2}},     // the holder
		{pid: 110, parent: 101, numbers: []int{110, 9}},     // the agent
		{pid: 120, parent: 101, numbers: []int{120, 12, 1}}, // a container
		{pid: 121, parent: 120, numbers: []int{121, 13, 2}}, // its child
		{pid: 200, parent: 50, numbers: []int{200, 1}},      // another sandbox
		{pid: 201, parent: 200, numbers: []int{201, 2}},     // its holder
		{pid: 202, parent: 999, numbers: []int{202, 77}},    // its parent just ended
		{pid: 300, parent: 50, numbers: []int{300}},         // no sandbox's
	} {
		procs[e.pid] = e
	}
	want := map[int]int{1: 100, 2: 101, 9: 110, 12: 120, 13: 121}
	if d := cmp.Diff(want, mapPIDs(procs, 101)); d != "" {
		t.Error(d)
	}
	if got := mapPIDs(procs, 12345); len(got) != 0 {
		t.Errorf("a holder that cannot be seen: %v", got)
	}
	if d := cmp.Diff(procEntry{parent: 7, numbers: []int{8, 2}}, parseProcStatus("Name:\tx\nPPid:\t7\nNSpid:\t8\t2\n"), cmp.AllowUnexported(procEntry{})); d != "" {
		t.Error(d)
	}
}
