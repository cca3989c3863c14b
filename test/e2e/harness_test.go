// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"aether.io/aether/internal/sandbox"
	"aether.io/aether/test/accesslog"
)

func TestMain(m *testing.M) {
	if handled, code := sandbox.BuiltinMain(os.Args); handled {
		os.Exit(code)
	}
	// A program with the race detector waits for a second at its end, by default.
	os.Setenv("GORACE", noWaitAtExit)
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		for _, dir := range []string{built.dir, built.plain} {
			if dir != "" {
				os.RemoveAll(dir)
			}
		}
		printAccounts(os.Stdout)
		os.Exit(code)
	}))
}

// noWaitAtExit is a value of GORACE.
const noWaitAtExit = "atexit_sleep_ms=0"

// built are the folders this process built our programs into, with the race
// detector and without; empty when it did not.
var built struct{ dir, plain string }

// programs returns the folder with aether-agent and aetherctl: $AETHER_BIN, or
// one they are built into, with the race detector, once per process.
var programs = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("AETHER_BIN"); dir != "" {
		return filepath.Abs(dir)
	}
	return build(&built.dir, "-race")
})

// plainPrograms is programs without the race detector, which makes the agent ten
// times slower: for tests of what things cost.
var plainPrograms = sync.OnceValues(func() (string, error) { return build(&built.plain) })

// build builds the programs into a folder of their own.
func build(into *string, flags ...string) (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	if *into, err = os.MkdirTemp("", "aether-e2e-"); err != nil {
		return "", fmt.Errorf("make folder for programs: %w", err)
	}
	args := slices.Concat([]string{"build", "-buildvcs=false", "-o", *into + "/"}, flags, []string{"./cmd/aether-agent", "./cmd/aetherctl"})
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return *into, nil
}

// plainAgent runs the agent without the race detector.
func plainAgent(t *testing.T) func(*sandbox.Config) {
	t.Helper()
	dir, err := plainPrograms()
	if err != nil {
		t.Fatal(err)
	}
	return func(c *sandbox.Config) { c.AgentPath = filepath.Join(dir, "aether-agent") }
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("there is no go.mod above the working directory")
		}
		dir = parent
	}
}

// program returns the path of aether-agent or aetherctl.
func program(t *testing.T, name string) string {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// node is a sandbox under test. Its methods may be called from any goroutine,
// but for those whose comment says that they end the test.
type node struct {
	*sandbox.Node
	dir    string // of the manifests
	log    accesslog.Log
	ledger ledger

	mu      sync.Mutex
	markers int // written by awaitManifests
	names   int // made by newName
	// unclean says why Envoy or the agent may end, or the agent complain.
	unclean string
}

// up brings up a node from YAML and takes it down when the test ends. The node
// is named after the test, so that a run clears away what a killed one left; a
// second run of the same test on one machine waits for the first.
func up(t *testing.T, yaml string, change ...func(*sandbox.Config)) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("run as root: this test makes network namespaces")
	}
	envoy, err := sandbox.FindEnvoy("")
	if err != nil {
		t.Fatal(err) // says how to get one
	}
	n := &node{dir: t.TempDir()}
	n.write(t, "main.yaml", yaml)
	var log buffer
	c := sandbox.Config{
		Name: sandboxName(t), Dirs: []string{n.dir}, EnvoyPath: envoy, AgentPath: program(t, "aether-agent"),
		Log: slog.New(slog.NewTextHandler(&log, nil)),
	}
	for _, f := range change {
		f(&c)
	}
	began := time.Now()
	n.Node, err = sandbox.Up(t.Context(), c)
	for errors.Is(err, sandbox.ErrRunning) && time.Since(began) < 5*time.Minute {
		time.Sleep(time.Second)
		n.Node, err = sandbox.Up(t.Context(), c)
	}
	if err != nil {
		t.Fatalf("bring the node up: %v\n%s", err, log.String())
	}
	n.log.Path = n.Paths().AccessLog
	t.Cleanup(func() {
		n.settleAccount(t)
		n.checkEnd(t)
		if t.Failed() {
			n.dump(t, log.String())
		}
		if err := n.Down(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("take the node down: %v", err)
		}
	})
	n.awaitManifests(t)
	for _, p := range n.Status().Problems {
		t.Errorf("the sandbox has a problem: %+v", p)
	}
	for _, p := range n.agentStatus(t).Problems {
		t.Errorf("the agent has a problem: %+v", p)
	}
	t.Logf("up after %.1f s", time.Since(began).Seconds())
	return n
}

// sandboxName returns a name of at most 16 letters and digits.
func sandboxName(t *testing.T) string {
	h := fnv.New32a()
	h.Write([]byte(t.Name()))
	return fmt.Sprintf("e2e%08x", h.Sum32())
}

// withArgs adds flags to the agent's command line.
func withArgs(args ...string) func(*sandbox.Config) {
	return func(c *sandbox.Config) { c.AgentArgs = append(c.AgentArgs, args...) }
}

// expectUnclean lets the node end with what is otherwise a failure: warnings of
// the agent, or processes that ended unasked.
func (n *node) expectUnclean(why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unclean = why
}

// checkEnd checks what holds at the end of every test.
func (n *node) checkEnd(t *testing.T) {
	t.Helper()
	checkOnce(t, &n.log)
	agent, err := os.ReadFile(n.Paths().AgentLog)
	if err != nil {
		t.Errorf("read the agent's log: %v", err)
	}
	if bytes.Contains(agent, []byte("DATA RACE")) || bytes.Contains(agent, []byte("panic: ")) {
		t.Errorf("the agent raced or panicked:\n%s", tail(agent, 60))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unclean != "" {
		return
	}
	for line := range bytes.Lines(agent) {
		if bytes.Contains(line, []byte("level=ERROR")) || bytes.Contains(line, []byte("level=WARN")) {
			t.Errorf("the agent complained: %s", line)
		}
	}
	st := n.Status()
	if st.Envoy.Restarts != 0 {
		t.Errorf("Envoy ended unasked: %s", st.Envoy.LastExit)
	}
	if st.Agent.Restarts != 0 {
		t.Errorf("the agent ended unasked: %s", st.Agent.LastExit)
	}
}

// dump prints what helps to see why a test failed.
func (n *node) dump(t *testing.T, sandboxLog string) {
	status, err := json.MarshalIndent(n.Status(), "", " ")
	if err != nil {
		t.Logf("status: %v", err)
	}
	t.Logf("——— sandbox status\n%s", status)
	t.Logf("——— sandbox log\n%s", tail([]byte(sandboxLog), 40))
	for path, lines := range map[string]int{n.Paths().AgentLog: 40, n.Paths().EnvoyLog: 40, n.Paths().AccessLog: 10} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Logf("——— %v", err)
			continue
		}
		t.Logf("——— %s\n%s", filepath.Base(path), tail(withoutNoise(b), lines))
	}
}

// withoutNoise leaves out what Envoy says about its own API for every listener.
func withoutNoise(b []byte) []byte {
	var out []byte
	for line := range bytes.Lines(b) {
		if !bytes.Contains(line, []byte("marked as work-in-progress")) {
			out = append(out, line...)
		}
	}
	return out
}

// tail returns the last lines of a text.
func tail(b []byte, lines int) string {
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// eventually polls until check returns nil, and ends the test when it has not
// within that time.
func eventually(t *testing.T, within time.Duration, what string, check func() error) {
	t.Helper()
	if err := poll(within, check); err != nil {
		t.Fatalf("not within %v: %s: %v", within, what, err)
	}
}

// poll is eventually for goroutines that must not end the test.
func poll(within time.Duration, check func() error) error {
	for deadline := time.Now().Add(within); ; {
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// buffer is a bytes.Buffer for several goroutines.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// nodeSourced lets Envoy dial from the node's own address.
func nodeSourced(c *sandbox.Config) { c.EgressSource = "node" }
