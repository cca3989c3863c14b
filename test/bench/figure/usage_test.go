// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestBusyTime(t *testing.T) {
	cases := []struct {
		name, stat string
		want       time.Duration
		err        string
	}{
		{"idle and iowait do not count", "cpu  100 1 20 5000 300 4 5 6 70 8\ncpu0 1 2 3 4 5 6 7 8\n", 1360 * time.Millisecond, ""},
		{"too short", "cpu 1 2 3\n", 0, "unknown line"},
		{"not the sum", "cpu0 1 2 3 4 5 6 7 8 9\n", 0, "unknown line"},
		{"not a number", "cpu 1 2 x 4 5 6 7 8 9\n", 0, "invalid syntax"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := busyTime([]byte(c.stat))
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("error %v, want %q", err, c.err)
			}
			if got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// TestUsageTellsOthersApart: what this process burns is ours, what a child that
// nobody has waited for burns is not, until it is waited for.
func TestUsageTellsOthersApart(t *testing.T) {
	before, err := UsageOf(nil)
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sh", "-c", "while :; do :; done")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Process.Kill() })
	var used time.Duration
	for deadline := time.Now().Add(20 * time.Second); used < 300*time.Millisecond; {
		if time.Now().After(deadline) {
			t.Fatalf("the child has run for %v", used)
		}
		if used, err = CPUTime(child.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	stranger, err := UsageOf(nil)
	if err != nil {
		t.Fatal(err)
	}
	member, err := UsageOf([]int{child.Process.Pid})
	if err != nil {
		t.Fatal(err)
	}
	if got := member.ours - stranger.ours; got < used {
		t.Errorf("counted as ours the child adds %v, it had run for %v", got, used)
	}
	if share := stranger.OthersSince(before, 1); share <= 0 {
		t.Errorf("the child's share is %v", share)
	}
	_ = child.Process.Kill()
	_ = child.Wait() // killed
	waited, err := UsageOf(nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := waited.ours - stranger.ours; got < used {
		t.Errorf("waited for, the child adds %v, it had run for %v", got, used)
	}
}
