// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// held starts a sandbox held by a process of its own.
func held(t *testing.T, name, yaml string) (*Client, Config) {
	t.Helper()
	needRoot(t)
	dir := t.TempDir()
	writeManifests(t, dir, yaml)
	c := Config{Name: name, Dirs: []string{dir}, StateDir: t.TempDir(), NoProxy: true, Progress: func(s string) { t.Log(s) }}
	cl, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := Clean(context.Background(), c.StateDir, name); err != nil {
			t.Errorf("clean: %v", err)
		}
	})
	return cl, c
}

func TestHeldSandbox(t *testing.T) {
	cl, c := held(t, "sbtest20", twoPods)
	st, err := cl.Status(t.Context())
	if err != nil || st.PID == os.Getpid() || len(st.Pods) != 2 || !st.Pods[0].Ready {
		t.Fatalf("got %+v (%v)", st, err)
	}
	if st.Problems == nil || st.Notes == nil || st.Services == nil {
		t.Errorf("a list is null: %+v", st)
	}
	if _, err := Start(t.Context(), c); !errors.Is(err, ErrRunning) {
		t.Errorf("a second one: %v, want ErrRunning", err)
	}
	var out bytes.Buffer
	code, err := cl.Exec(t.Context(), "client", []string{"sh", "-c", "cat; echo from $HOSTNAME; exit 4"}, Stdio{In: strings.NewReader("in\n"), Out: &out})
	if err != nil || code != 4 || out.String() != "in\nfrom client\n" {
		t.Errorf("exec: %d, %q (%v)", code, out.String(), err)
	}
	if _, err := cl.Exec(t.Context(), "nobody", []string{"true"}, Stdio{}); err == nil || !strings.Contains(err.Error(), "no pod default/nobody") {
		t.Errorf("exec in a pod that is not there: %v", err)
	}
	if err := cl.SetReady(t.Context(), "web", "", false); err != nil {
		t.Fatal(err)
	}
	if st, err := cl.Status(t.Context()); err != nil || st.Pods[1].Ready || !st.Pods[1].Containers[0].Forced {
		t.Errorf("the switch: %+v (%v)", st.Pods[1], err)
	}
	if err := errors.Join(cl.ResetReady(t.Context(), "web", "echo"), cl.SetTerminating(t.Context(), "web", true)); err != nil {
		t.Error(err)
	}
	if err := cl.SetReady(t.Context(), "web", "nosuch", true); err == nil || !strings.Contains(err.Error(), "no container nosuch") {
		t.Errorf("a container that is not there: %v", err)
	}
	if err := cl.KillAgent(t.Context()); err == nil {
		t.Error("an agent that is not there was killed")
	}
	if err := cl.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	if alive(st.PID) {
		t.Error("the holder is alive")
	}
	if _, err := Dial(t.Context(), c.StateDir, c.Name); !errors.Is(err, ErrNotRunning) {
		t.Errorf("dial: %v, want ErrNotRunning", err)
	}
	if left, _ := os.ReadDir(c.StateDir); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
	if removed, err := Clean(t.Context(), c.StateDir, c.Name); err != nil || len(removed) > 0 {
		t.Errorf("something was left: %v (%v)", removed, err)
	}
}

// TestHolderKilled: its children die with it; what is left is removed by Clean,
// and by the next start.
func TestHolderKilled(t *testing.T) {
	for _, by := range []string{"clean", "start"} {
		cl, c := held(t, "sbtest21", twoPods)
		st, err := cl.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(st.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for _, p := range st.Pods {
			eventually(t, "the containers die", func() bool { return !alive(p.Containers[0].PID) })
		}
		eventually(t, "the name is free", func() bool { return !isHeld(c) })
		if by == "start" {
			var said []string
			c.Progress = func(s string) { said = append(said, s) }
			again, err := Start(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(strings.Join(said, "\n"), "earlier sandbox left: 4 network namespaces") {
				t.Errorf("said %q, want what was removed", said)
			}
			if err := again.Down(t.Context()); err != nil {
				t.Error(err)
			}
			continue
		}
		removed, err := Clean(t.Context(), c.StateDir, c.Name)
		if err != nil || len(removed) != 3 {
			t.Errorf("removed %v (%v), want a log, namespaces and files", removed, err)
		}
		if left, _ := sandboxNetNS(c.Name); len(left) > 0 {
			t.Errorf("namespaces left: %v", left)
		}
	}
}

func TestStartThatFails(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	writeManifests(t, dir, twoPods)
	c := Config{Name: "sbtest22", Dirs: []string{dir}, StateDir: t.TempDir(), NoProxy: true}
	ctx, cancel := context.WithCancel(t.Context())
	c.Progress = func(string) { cancel() } // the caller gives up half-way
	begin := time.Now()
	if _, err := Start(ctx, c); err == nil {
		t.Error("it started")
	}
	if time.Since(begin) > 10*time.Second {
		t.Errorf("it took %v", time.Since(begin))
	}
	eventually(t, "the holder is gone", func() bool { return !isHeld(c) })
	if left, _ := sandboxNetNS(c.Name); len(left) > 0 {
		t.Errorf("namespaces left: %v", left)
	}
}
