// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// usersOwn starts a sandbox of an ordinary user in the default directory.
func usersOwn(t *testing.T, name, yaml string, change ...func(*Config)) (*Client, Status, Config) {
	t.Helper()
	dir := t.TempDir()
	writeManifests(t, dir, yaml)
	c := Config{Name: name, Dirs: []string{dir}, NoProxy: true, Progress: func(s string) { t.Log(s) }}
	for _, f := range change {
		f(&c)
	}
	cl, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cl.Down(context.Background()); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("down: %v", err)
		}
	})
	st, err := cl.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return cl, st, c
}

// holderAndFirst are the process that holds a sandbox and the first one of its
// PID namespace.
func holderAndFirst(t *testing.T, st Status) []int {
	t.Helper()
	first := readProcs()[st.PID].parent
	all := processesUnder(first)
	if !slices.Contains(all, st.PID) {
		t.Fatalf("process %d does not hold the sandbox: %v", st.PID, all)
	}
	return all
}

func TestOrdinaryUser(t *testing.T) {
	if !asOrdinaryUser(t) {
		return
	}
	cl, st, c := usersOwn(t, "one", twoPods, fakes(t))
	all := holderAndFirst(t, st)
	if st.Owner == nil || st.Owner.UID != ordinaryUser || len(st.Notes) < 2 {
		t.Errorf("whose it is, and what does not work: %+v, %q", st.Owner, st.Notes)
	}
	for what, pid := range map[string]int{
		"agent": st.Agent.PID, "Envoy": st.Envoy.PID, "a container": st.Pods[1].Containers[0].PID,
	} {
		if !slices.Contains(all, pid) {
			t.Errorf("%s is said to be process %d, which is none of %v", what, pid, all)
		}
	}
	if left, err := sandboxNetNS(c.Name); err != nil || len(left) > 0 {
		t.Errorf("the machine has its namespaces: %v (%v)", left, err)
	}
	if _, err := Start(t.Context(), c); !errors.Is(err, ErrRunning) {
		t.Errorf("a second one of the name: %v, want ErrRunning", err)
	}
	if _, err := Clean(t.Context(), c.StateDir, c.Name); !errors.Is(err, ErrRunning) {
		t.Errorf("clean while it runs: %v, want ErrRunning", err)
	}
	// Another one beside it does not see it.
	two, stTwo, _ := usersOwn(t, "two", twoPods)
	if stTwo.Pods[1].IP != st.Pods[1].IP {
		t.Errorf("addresses differ: %s and %s", stTwo.Pods[1].IP, st.Pods[1].IP)
	}
	var out bytes.Buffer
	code, err := two.Exec(t.Context(), "client", []string{"aether-client", "--mode", "http", stTwo.Pods[1].IP + ":8080"}, Stdio{Out: &out})
	if err != nil || code != 0 || !strings.Contains(out.String(), `"outcome":"ok"`) {
		t.Errorf("a dial: %d, %q (%v)", code, out.String(), err)
	}
	if err = two.SetReady(t.Context(), "web", "", false); err != nil {
		t.Error(err)
	}
	if st, err := cl.Status(t.Context()); err != nil || !st.Pods[1].Ready {
		t.Errorf("the switch of the other: %+v (%v)", st.Pods[1], err)
	}
	if err := two.Down(t.Context()); err != nil {
		t.Error(err)
	}
	if err := cl.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all of it has ended", func() bool { return len(anyAlive(all)) == 0 })
	if _, err := Dial(t.Context(), c.StateDir, c.Name); !errors.Is(err, ErrNotRunning) {
		t.Errorf("dial: %v, want ErrNotRunning", err)
	}
	if removed, err := Clean(t.Context(), c.StateDir, c.Name); err != nil || len(removed) > 0 {
		t.Errorf("something was left: %v (%v)", removed, err)
	}
}

// TestOrdinaryUserDirectories: what the sandbox lays a file system of its own
// over can still hold manifests and its files.
func TestOrdinaryUserDirectories(t *testing.T) {
	if !asOrdinaryUser(t) {
		return
	}
	shm, err := os.MkdirTemp("/dev/shm", "sandbox")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(shm) })
	cl, st, _ := usersOwn(t, "shm", twoPods, func(c *Config) {
		writeManifests(t, shm, twoPods)
		c.Dirs, c.StateDir = []string{shm}, shm
	})
	if len(st.Pods) != 2 || !strings.HasPrefix(st.Paths.Dir, shm) {
		t.Errorf("%d pods, files in %s", len(st.Pods), st.Paths.Dir)
	}
	// What it puts there itself is nobody else's.
	code, err := cl.Exec(t.Context(), "client", []string{"sh", "-c", "touch /dev/shm/of-the-sandbox /run/of-the-sandbox"}, Stdio{Err: os.Stderr})
	if err != nil || code != 0 {
		t.Errorf("exit code %d (%v)", code, err)
	}
	for _, f := range []string{"/dev/shm/of-the-sandbox", "/run/of-the-sandbox"} {
		if _, err := os.Stat(f); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is outside (%v)", f, err)
		}
	}
}

// TestOrdinaryUserExec: standard files, exit codes, and who is asked to end.
func TestOrdinaryUserExec(t *testing.T) {
	if !asOrdinaryUser(t) {
		return
	}
	cl, st, _ := usersOwn(t, "exec", twoPods)
	// A caller that says nothing keeps nobody from ending the sandbox.
	silent, err := net.Dial("unix", filepath.Join(st.Paths.Dir, "exec.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	sh := func(script, in string) (int, string, string, error) {
		var out, errs bytes.Buffer
		code, err := cl.Exec(t.Context(), "client", []string{"sh", "-c", script}, Stdio{In: strings.NewReader(in), Out: &out, Err: &errs})
		return code, out.String(), errs.String(), err
	}
	long := strings.Repeat("0123456789", 100_000)
	for _, c := range []struct {
		script, in, out, errs string
		code                  int
	}{
		{"cat; echo from $HOSTNAME; exit 4", "in\n", "in\nfrom client\n", "", 4},
		{"cat; echo bad >&2", long, long, "bad\n", 0},
		{"kill -KILL $$", "", "", "", 137},
		{"id -u", "", "0\n", "", 0},
		{"true", long, "", "", 0}, // what it does not read is lost
	} {
		code, out, errs, err := sh(c.script, c.in)
		if err != nil || code != c.code || out != c.out || errs != c.errs {
			t.Errorf("%q: %d, %.80q, %.80q (%v)", c.script, code, out, errs, err)
		}
	}
	if code, err := cl.Exec(t.Context(), "client", []string{"no-such-program"}, Stdio{}); err != nil || code != exitNotFound {
		t.Errorf("no such program: %d (%v)", code, err)
	}
	if _, err := cl.Exec(t.Context(), "nobody", []string{"true"}, Stdio{}); err == nil || !strings.Contains(err.Error(), "no pod default/nobody") {
		t.Errorf("no such pod: %v", err)
	}
	// A caller that gives up takes the command with it.
	ctx, cancel := context.WithCancel(t.Context())
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		_, _ = r.Read(make([]byte, 1)) // it runs
		cancel()
	}()
	_, err = cl.Exec(ctx, "client", []string{"sh", "-c", "echo; exec sleep 600"}, Stdio{Out: w})
	w.Close()
	if !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v, want it to say so", err)
	}
	ended := make(chan struct{})
	go func() {
		for b := make([]byte, 1); ; {
			if _, err := r.Read(b); err != nil {
				close(ended)
				return
			}
		}
	}()
	select {
	case <-ended: // nobody has the other end of the pipe any more
	case <-time.After(10 * time.Second):
		t.Error("the command of a caller that gave up still runs")
	}
}

// TestOrdinaryUserHolderKilled: the kernel ends everything; Clean and the next
// start remove the files.
func TestOrdinaryUserHolderKilled(t *testing.T) {
	if !asOrdinaryUser(t) {
		return
	}
	for _, victim := range []string{"holder", "first process"} {
		cl, st, c := usersOwn(t, "killed", twoPods)
		left := make(chan error, 1)
		go func() {
			// It has left the process group, and its parent ends.
			_, err := cl.Exec(context.WithoutCancel(t.Context()), "client", []string{"sh", "-c", "setsid sleep 601 & sleep 602"}, Stdio{})
			left <- err
		}()
		eventually(t, "the commands run", func() bool { return len(holderAndFirst(t, st)) >= 7 })
		all := holderAndFirst(t, st)
		pid := st.PID
		if victim != "holder" {
			pid = readProcs()[st.PID].parent
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "all of it dies with the "+victim, func() bool { return len(anyAlive(all)) == 0 })
		if err := <-left; err == nil {
			t.Error("the caller of a command was not told")
		}
		if victim != "holder" {
			removed, err := Clean(t.Context(), c.StateDir, c.Name)
			if err != nil || len(removed) != 2 {
				t.Errorf("removed %v (%v), want a log and files", removed, err)
			}
			continue
		}
		var said []string
		c.Progress = func(s string) { said = append(said, s) }
		again, err := Start(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.Join(said, "\n"), "earlier sandbox left") {
			t.Errorf("said %q, want what was removed", said)
		}
		if err := again.Down(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestOrdinaryUserGivesUp: a start that is called off leaves nothing.
func TestOrdinaryUserGivesUp(t *testing.T) {
	if !asOrdinaryUser(t) {
		return
	}
	dir := t.TempDir()
	writeManifests(t, dir, twoPods)
	ctx, cancel := context.WithCancel(t.Context())
	c := Config{Name: "given", Dirs: []string{dir}, NoProxy: true, Progress: func(string) { cancel() }}
	if _, err := Start(ctx, c); err == nil {
		t.Error("it started")
	}
	eventually(t, "the files are gone", func() bool {
		_, err := os.Stat(DefaultStateDir())
		return errors.Is(err, os.ErrNotExist)
	})
}

func TestOwnerNotes(t *testing.T) {
	alice := Owner{UID: 1000, GID: 1000, Name: "alice"}
	if n := ownerNotes(alice, 131072, 131072); len(n) != 2 || !strings.Contains(n[0], "belong to alice (uid 1000)") {
		t.Errorf("with descriptors enough: %q", n)
	}
	if n := ownerNotes(Owner{UID: 7}, 4096, 131072); len(n) != 3 || !strings.Contains(n[2], "at most 4096 descriptors for each process, not 131072") || !strings.Contains(n[0], "belong to uid 7,") {
		t.Errorf("with too few: %q", n)
	}
}

func TestDefaultStateDir(t *testing.T) {
	if !asOrdinaryUser(t) {
		return
	}
	home := t.TempDir()
	if err := os.Chmod(home, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(home, link); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", "/tmp")
	const fallback = "/tmp/aether-sandbox-54321"
	for runtimeDir, want := range map[string]string{
		home: filepath.Join(home, "aether-sandbox"), "": fallback, "/run": fallback, link: fallback, "relative": fallback,
		filepath.Join(home, "none"): fallback,
	} {
		t.Setenv("XDG_RUNTIME_DIR", runtimeDir)
		if got := DefaultStateDir(); got != want {
			t.Errorf("XDG_RUNTIME_DIR=%s: %s, want %s", runtimeDir, got, want)
		}
	}
	// A default directory that others could have made is not used.
	t.Setenv("XDG_RUNTIME_DIR", home)
	dir := DefaultStateDir()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Dial(t.Context(), "", ""); err == nil || !strings.Contains(err.Error(), "can be written by others") {
		t.Errorf("dial: %v", err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), Config{Dirs: []string{home}, NoProxy: true}); err == nil || !strings.Contains(err.Error(), "is not a directory") {
		t.Errorf("start: %v", err)
	}
}
