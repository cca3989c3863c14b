// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"aether.io/aether/internal/plan/demand"
	"aether.io/aether/internal/sandbox/echo"
)

// TestDemandFile: whatever becomes of what the agent remembers on disk, it
// starts, serves, says it loudly, and remembers again as soon as it can.
func TestDemandFile(t *testing.T) {
	n := upReady(t, restartWorld())
	n.keepAccount()
	n.expectUnclean("the state directory is damaged")
	envoyPID := n.EnvoyPID()
	l := n.learn(t)
	rounds := keepTalking(t, l)
	good := n.demandFile(t, knownService)
	half := good[:len(good)/2]
	for _, c := range []struct{ name, content, says string }{
		{"truncated", string(half), "parse JSON"},
		{"garbage", "\x00\x7fELF\xff\xfe garbage", "parse JSON"},
		{"of a future version", strings.Replace(string(good), `"version":1`, `"version":2`, 1), "the file has 2"},
		{"empty", "", "parse JSON"},
		{"larger than any", string(bytes.Repeat([]byte(" "), 17<<20)), "bytes, more than"},
	} {
		t.Run(c.name, func(t *testing.T) { n.damagedDemand(t, []byte(c.content), c.says) })
	}
	t.Run("a directory in its place", n.demandIsDirectory)
	t.Run("the disk is full", n.diskFull)
	t.Run("the directory is read-only", n.stateReadOnly)
	t.Run("the directory vanishes", n.stateVanishes)
	l.check(t, "after all of it")
	if pid := n.EnvoyPID(); pid != envoyPID {
		t.Errorf("Envoy is process %d, was %d", pid, envoyPID)
	}
	t.Logf("%d rounds on a connection of before", rounds())
}

func (n *node) stateDir() string { return filepath.Join(n.Paths().Dir, "state") }

// demandFile waits until the file on disk names the targets, and returns it.
func (n *node) demandFile(t *testing.T, targets ...string) []byte {
	t.Helper()
	var b []byte
	eventually(t, settled, fmt.Sprintf("the demand file holds %v", targets), func() (err error) {
		b, err = n.tryDemandFile(targets...)
		return err
	})
	return b
}

func (n *node) tryDemandFile(targets ...string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(n.stateDir(), "demand.json"))
	if err != nil {
		return nil, err
	}
	names, err := demand.Decode(b)
	if err != nil {
		return nil, err
	}
	for _, target := range targets {
		if !slices.ContainsFunc(names, func(n demand.Name) bool { return n.Target.String() == target }) {
			return nil, fmt.Errorf("%s is not in it: %s", target, b)
		}
	}
	return b, nil
}

// withAgentStopped changes the disk while the agent is away, and starts it. What
// was known works meanwhile and after.
func (n *node) withAgentStopped(t *testing.T, change func()) {
	t.Helper()
	if err := n.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	change()
	wantAllOK(t, []echo.Verdict{n.dial(t, "alice", serverFirst(knownService))})
	if err := n.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.awaitConnected(t, 0, 0)
	n.knownServed(t)
}

// knownServed: names of before work without a wait, refusals are refusals.
func (n *node) knownServed(t *testing.T) {
	t.Helper()
	for _, pod := range []string{"alice", "bob"} {
		v := n.dial(t, pod, serverFirst(knownService))
		wantAllOK(t, []echo.Verdict{v})
		if v.TotalMS > 2_000 {
			t.Errorf("%s from %s took %.0f ms: it waited", knownService, pod, v.TotalMS)
		}
	}
	if v := n.dial(t, "alice", echo.Client{Mode: "silent", Target: emptyService}); v.Outcome != echo.Reset {
		t.Errorf("%s, want a refusal", told(v))
	}
}

// awaitProblem waits for a problem of a source in the agent's status, or for its end.
func (n *node) awaitProblem(t *testing.T, source, text string, want bool) {
	t.Helper()
	eventually(t, settled, fmt.Sprintf("the status has a problem of %s with %q: %t", source, text, want), func() error {
		s, err := n.tryStatus(t.Context())
		if err != nil {
			return err
		}
		for _, p := range s.Problems {
			if strings.Contains(p.Source, source) && strings.Contains(p.Text, text) {
				if want {
					return nil
				}
				return fmt.Errorf("%+v", p)
			}
		}
		if want {
			return fmt.Errorf("%+v", s.Problems)
		}
		return nil
	})
}

// awaitWarned waits for a line of the agent's log written since, at level WARN.
func (n *node) awaitWarned(t *testing.T, since int, words ...string) {
	t.Helper()
	eventually(t, settled, fmt.Sprintf("the agent's log warns: %q", words), func() error {
		b, err := os.ReadFile(n.Paths().AgentLog)
		if err != nil {
			return err
		}
	lines:
		for line := range bytes.Lines(b[since:]) {
			for _, w := range append([]string{"level=WARN"}, words...) {
				if !bytes.Contains(line, []byte(w)) {
					continue lines
				}
			}
			return nil
		}
		return errors.New("it does not")
	})
}

func (n *node) agentLogLength(t *testing.T) int {
	t.Helper()
	info, err := os.Stat(n.Paths().AgentLog)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Size())
}

// setAside lists what was set aside of the demand file.
func (n *node) setAside(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.stateDir(), "demand.json.damaged-*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func (n *node) damagedDemand(t *testing.T, content []byte, says string) {
	path := filepath.Join(n.stateDir(), "demand.json")
	before, since := n.setAside(t), n.agentLogLength(t)
	n.withAgentStopped(t, func() {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	n.awaitProblem(t, "demand.json", "was damaged", true)
	n.awaitProblem(t, "demand.json", says, true)
	n.awaitWarned(t, since, "demand.json", "damaged")
	after := slices.DeleteFunc(n.setAside(t), func(f string) bool { return slices.Contains(before, f) })
	if len(after) != 1 {
		t.Fatalf("set aside: %v, want one more file", after)
	}
	if b, err := os.ReadFile(after[0]); err != nil || !bytes.Equal(b, content) {
		t.Errorf("%s, set aside, holds %d bytes (%v), want the %d that were found", after[0], len(b), err, len(content))
	}
	n.demandFile(t, knownService, emptyService, "10.96.0.10:7") // Envoy had them
}

func (n *node) demandIsDirectory(t *testing.T) {
	path := filepath.Join(n.stateDir(), "demand.json")
	n.withAgentStopped(t, func() {
		if err := errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "x"), 0o700)); err != nil {
			t.Fatal(err)
		}
	})
	n.awaitProblem(t, "demand.json", "was damaged", true)
	n.demandFile(t, knownService, emptyService)
}

// mountState lays a file system over the state directory, until the test ends.
func (n *node) mountState(t *testing.T, source, kind string, flags uintptr, data string) (unmount func()) {
	t.Helper()
	dir, mounted := n.stateDir(), true
	if err := unix.Mount(source, dir, kind, flags, data); err != nil {
		t.Fatalf("mount over %s: %v", dir, err)
	}
	unmount = func() {
		if mounted {
			mounted = false
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Errorf("unmount %s: %v", dir, err)
			}
		}
	}
	t.Cleanup(unmount)
	return unmount
}

// newName is a Service port that nobody has dialled before.
func (n *node) newName(t *testing.T) string {
	t.Helper()
	n.mu.Lock()
	n.names++
	i := n.names
	n.mu.Unlock()
	name := fmt.Sprintf("new-%d", i)
	target := fmt.Sprintf("10.96.3.%d:80", i)
	n.write(t, name+".yaml", service(name, hostOf(target), "selector: {app: web}, ports: [{name: greet, port: 80, targetPort: 9001}]"))
	n.awaitUsed(t, target, 1)
	wantAllOK(t, []echo.Verdict{n.dial(t, "alice", serverFirst(target))})
	return target
}

// diskFull: the state directory has a disk of its own with no room left, when
// the agent starts and while it runs.
func (n *node) diskFull(t *testing.T) {
	ballast := filepath.Join(n.stateDir(), "ballast")
	fill := func() {
		f, err := os.Create(ballast)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for {
			if _, err := f.Write(make([]byte, 4096)); errors.Is(err, unix.ENOSPC) {
				return
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
	var unmount func()
	n.withAgentStopped(t, func() {
		unmount = n.mountState(t, "tmpfs", "tmpfs", 0, "size=64k")
		fill()
	})
	n.newName(t)
	n.awaitProblem(t, "demand.json", "no space left", true)
	n.awaitWarned(t, 0, "state is not saved", "demand.json", "no space left")
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	n.demandFile(t, knownService, n.newName(t))
	n.awaitProblem(t, "demand.json", "is not saved", false)

	fill() // while it runs
	since := n.agentLogLength(t)
	n.newName(t)
	n.awaitWarned(t, since, "state is not saved", "demand.json", "no space left")
	n.knownServed(t)
	if _, err := n.tryDemandFile(knownService); err != nil {
		t.Errorf("the last good file is not there: %v", err)
	}
	n.withAgentStopped(t, unmount)
	n.demandFile(t, knownService)
}

// stateReadOnly: the agent can read what it remembers and write nothing.
func (n *node) stateReadOnly(t *testing.T) {
	since := n.agentLogLength(t)
	var undo func()
	n.withAgentStopped(t, func() {
		undo = n.mountState(t, n.stateDir(), "", unix.MS_BIND, "")
		if err := unix.Mount("", n.stateDir(), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatalf("make %s read-only: %v", n.stateDir(), err)
		}
	})
	n.awaitWarned(t, since, "nothing can be remembered", "read-only")
	n.newName(t)
	n.awaitProblem(t, "demand.json", "read-only", true)
	n.knownServed(t)
	undo()
	n.demandFile(t, knownService, n.newName(t))
	n.awaitProblem(t, "demand.json", "is not saved", false)
}

// stateVanishes: somebody removes the whole directory while the agent runs.
func (n *node) stateVanishes(t *testing.T) {
	if err := os.RemoveAll(n.stateDir()); err != nil {
		t.Fatal(err)
	}
	n.knownServed(t)
	n.demandFile(t, knownService, n.newName(t))
	n.awaitProblem(t, "demand.json", "is not saved", false)
	n.withAgentStopped(t, func() {})
	n.demandFile(t, knownService)
}
