// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"aether.io/aether/internal/agent/api"
)

func none(dir, pattern string) error {
	left, err := filepath.Glob(filepath.Join(dir, pattern))
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("left behind: %v", left)
	}
	return err
}

// TestLife: hot restarts, a crash, a full restart, the end; with the real Envoy.
func TestLife(t *testing.T) {
	b := layBed(t)
	b.run()
	first := b.status()
	if first.Version != "1.40.0" && !strings.HasPrefix(first.Version, "1.") || len(first.Epochs) != 1 || first.Epochs[0].Epoch != 0 || first.ShutdownTime != 3 {
		t.Errorf("%+v", first)
	}
	old := b.conn()
	b.boot(b.bootstrap("second"))
	if s := b.status(); !slices.Equal(s.Changed, []string{"bootstrap"}) {
		t.Errorf("changed: %v", s.Changed)
	}
	if r := b.restart(api.ProxyRestartRequest{}, 200, ""); r.State != "done" || r.PID == first.PID {
		t.Errorf("%+v", r)
	}
	handed := time.Now()
	b.wantEcho(old, "a connection of the old Envoy")
	fresh := b.conn()
	if s := b.status(); len(s.Epochs) != 2 || s.Epochs[0].State != "draining" || s.Epochs[1].Epoch != 1 || len(s.Changed) > 0 {
		t.Errorf("%+v", s)
	}
	if r := b.restart(api.ProxyRestartRequest{}, 202, "established connections of process"); r.State != "scheduled" {
		t.Errorf("%+v", r)
	}
	for echoes(old) == nil {
		time.Sleep(5 * time.Millisecond)
	}
	if lived := time.Since(handed); lived < 2900*time.Millisecond || lived > 5*time.Second {
		t.Errorf("a connection of the old Envoy lived for %v, want 3 s", lived)
	}
	s := b.await("the scheduled one is done", func(s api.ProxyStatus) bool { return s.HotRestarts == 2 })
	b.wantEcho(fresh, "a connection of the second Envoy")
	// The third dies; the second drains on, and its connections live.
	if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	after := b.await("the next serves", func(n api.ProxyStatus) bool { return n.PID != s.PID && n.PID != 0 })
	t.Logf("served %d ms after a crash", time.Since(killed).Milliseconds())
	b.wantEcho(fresh, "a connection of the draining Envoy after its child's death")
	b.conn()
	if after.Restarts != 1 || after.Epochs[len(after.Epochs)-1].BaseID == s.Epochs[0].BaseID || !strings.Contains(after.LastExit, "signal: killed") {
		t.Errorf("%+v", after)
	}
	if r := b.restart(api.ProxyRestartRequest{Full: true}, 200, ""); r.PID == after.PID {
		t.Errorf("%+v", r)
	}
	if err := echoes(fresh); err == nil {
		t.Error("a connection outlived a full restart")
	}
	b.conn()
	pid := b.alone().PID
	began := time.Now()
	b.stop()
	if alive(pid) || time.Since(began) > endGrace+time.Second {
		t.Errorf("Envoy is alive %t, %v after the end was asked for", alive(pid), time.Since(began))
	}
	for dir, pattern := range map[string]string{b.cfg.RunDir: "*.sock", b.cfg.RunDir + "/": hotPrefix + "_*"} {
		if err := none(dir, pattern); err != nil {
			t.Error(err)
		}
	}
	base, err := b.cfg.baseID()
	if err != nil {
		t.Fatal(err)
	}
	for slot := range uint32(slots) {
		if err := none(shmDir, filepath.Base(newSharedMemory(base+slot).path)); err != nil {
			t.Error(err)
		}
	}
}

// TestWhatDoesNotWork: whatever is wrong with the next Envoy, the old one goes on, and
// the one after it can take over.
func TestWhatDoesNotWork(t *testing.T) {
	b := layBed(t)
	b.run()
	before := b.status()
	c := b.conn()
	good := b.bootstrap("good")
	for _, x := range []struct {
		what   string
		change func()
		code   int
		want   string
	}{
		{"a bootstrap that is none", func() { b.boot("{") }, 502, "does not take bootstrap"},
		{"no bootstrap", func() { os.Remove(b.cfg.Bootstrap) }, 409, "read bootstrap"},
		{"no binary", func() { b.link("/nowhere/envoy") }, 409, "find envoy"},
		{"another hot restart version", func() {
			b.script(`case "$*" in *--hot-restart-version*) echo 12.1;; *) exec ENVOY "$@";; esac`)
		}, 409, "it has hot restart version 12.1, the running Envoy has 11."},
		{"a binary that dies", func() {
			b.script(`case "$*" in *--restart-epoch*) exit 7;; *) exec ENVOY "$@";; esac`)
		}, 502, "the new Envoy did not work: exit status 7"},
		{"a binary that dies having taken the mark", func() {
			// Its bootstrap is broken when it has been validated: it dies in the middle.
			b.script(`case "$*" in *--restart-epoch*) echo '{"x": 1}' >` + b.cfg.Bootstrap + `;; esac; exec ENVOY "$@"`)
		}, 502, "the new Envoy did not work: exit status 1"},
		{"one that never serves", func() {
			b.script(`case "$*" in *--restart-epoch*) exec sleep 60;; *) exec ENVOY "$@";; esac`)
		}, 502, "it did not serve within 5s"},
	} {
		x.change()
		b.restart(api.ProxyRestartRequest{}, x.code, x.want)
		b.wantEcho(c, x.what)
		b.conn()
		if s := b.status(); s.PID != before.PID || s.Restarts != 0 || len(s.Epochs) != 1 || s.LastRestart.State != "failed" {
			t.Errorf("%s: %+v", x.what, s)
		}
		b.link(findEnvoy(t))
		b.boot(good)
	}
	if r := b.restart(api.ProxyRestartRequest{}, 200, ""); r.PID == before.PID {
		t.Errorf("%+v", r)
	}
	b.wantEcho(c, "after the next hot restart")
	b.conn()
	if s := b.status(); s.FailedRestarts != 7 || s.HotRestarts != 1 {
		t.Errorf("%+v", s)
	}
}

// A hot restart needs somebody to configure the new Envoy.
func TestAgentAway(t *testing.T) {
	b := layBed(t)
	b.boot(strings.Replace(b.bootstrap("x"), `"cluster": "c"`, fmt.Sprintf(`"cluster": %q`, b.cfg.run(xdsSocket)), 1))
	b.run()
	b.restart(api.ProxyRestartRequest{}, 409, "the agent is away")
	b.restart(api.ProxyRestartRequest{Full: true}, 200, "")
}

// A replaced bootstrap, and a link to another binary, are noticed by themselves.
func TestRestartOnChange(t *testing.T) {
	b := layBed(t)
	b.cfg.RestartOnChange = true
	b.run()
	first := b.status()
	b.boot("{") // tried once
	b.await("it is tried", func(s api.ProxyStatus) bool { return s.FailedRestarts == 1 })
	b.boot(b.bootstrap("other"))
	s := b.await("it takes over", func(s api.ProxyStatus) bool { return s.HotRestarts == 1 })
	if s.FailedRestarts != 1 || s.PID == first.PID || s.LastRestart.Reason != "changed: bootstrap" {
		t.Errorf("%+v", s)
	}
}

// TestSupervisorDies: no Envoy outlives its supervisor, and the next one starts with a
// clean slate.
func TestSupervisorDies(t *testing.T) {
	b := layBed(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asSupervisor+"="+b.cfg.RunDir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b.await("Envoy serves", func(s api.ProxyStatus) bool { return s.State == "serving" })
	s, err := New(b.cfg, slog.New(slog.DiscardHandler), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another process holds the lock") {
		t.Errorf("a second supervisor of one run directory: %v", err)
	}
	b.restart(api.ProxyRestartRequest{}, 200, "")
	pids := []int{}
	for _, e := range b.status().Epochs {
		pids = append(pids, e.PID)
	}
	if len(pids) != 2 {
		t.Errorf("processes %v, want two", pids)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for _, pid := range pids {
		// One that was just asking its parent, which died too, notices the signal
		// when it gives up on the answer, some 15 s later.
		for deadline := time.Now().Add(30 * time.Second); running(pid); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("Envoy, process %d, outlived its supervisor", pid)
			}
		}
	}
	b.run()
	b.conn()
}

// running reports whether a process of somebody else runs; one that has ended may
// wait for whoever inherited it.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}
