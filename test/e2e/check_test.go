// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/sandbox"
)

// checked is a check as `aetherctl check -o json` printed it, and its exit code.
type checked struct {
	api.Check
	exit int
}

// check runs aetherctl check.
func (n *node) check(t *testing.T) checked {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program(t, "aetherctl"), "--agent-socket", n.Paths().AgentSocket, "check", "-o", "json")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("check: %v", err)
	}
	c := checked{exit: cmd.ProcessState.ExitCode()}
	if err := json.Unmarshal(out.Bytes(), &c.Check); err != nil {
		t.Fatalf("check: exit code %d: %v\n%s\n%s", c.exit, err, out.Bytes(), errs.Bytes())
	}
	return c
}

// notOK lists what is neither ok nor a note, as "state id", each once, sorted.
func (c checked) notOK() []string {
	out := []string{}
	for _, s := range c.Sections {
		for _, f := range s.Findings {
			if f.State != api.FindingOK && f.State != api.FindingNote {
				out = append(out, f.State+" "+f.ID)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// find returns the first finding of a state, and ends the test without one.
func (c checked) find(t *testing.T, state, id string) api.Finding {
	t.Helper()
	for _, s := range c.Sections {
		for _, f := range s.Findings {
			if f.State == state && f.ID == id {
				return f
			}
		}
	}
	t.Fatalf("no finding %s %s in %v", state, id, c.notOK())
	return api.Finding{}
}

// wantCheck wants exactly these findings of a check, and the exit code that they
// call for.
func (n *node) wantCheck(t *testing.T, want ...string) checked {
	t.Helper()
	slices.Sort(want)
	var c checked
	if err := poll(settled, func() error { // a node settles after a change
		c = n.check(t)
		if d := cmp.Diff(append([]string{}, want...), c.notOK()); d != "" {
			return fmt.Errorf("findings (-want +got):\n%s", d)
		}
		return nil
	}); err != nil {
		t.Error(err)
		for _, s := range c.Sections {
			for _, f := range s.Findings {
				if f.State != api.FindingOK && f.State != api.FindingNote {
					t.Logf("%s %s: %s", f.State, f.ID, f.Seen)
				}
			}
		}
	}
	exit := 0
	if slices.ContainsFunc(want, func(f string) bool { return strings.HasPrefix(f, "failed ") }) {
		exit = 1
	}
	if c.exit != exit {
		t.Errorf("exit code %d, want %d", c.exit, exit)
	}
	return c
}

// paste runs a fix as a person would, with aetherctl in PATH.
func paste(t *testing.T, fix string) {
	t.Helper()
	cmd := exec.Command("sh", "-c", fix)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(program(t, "aetherctl"))+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", fix, err, out)
	}
}

// excludingClient is a client whose rules are not the usual ones.
const excludingClient = `
apiVersion: v1
kind: Pod
metadata: {name: client, annotations: {capture.aether.io/exclude-outbound-ports: "3306"}}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: client, image: aether/client}]
---
`

// TestCheck: a healthy node is found to be so; then one thing at a time is broken,
// exactly that is found, and its fix takes the finding away.
func TestCheck(t *testing.T) {
	n := upReady(t, firstRange+server("web", "app: web")+excludingClient+
		service("web", "10.96.0.10", "selector: {app: web}, ports: [{name: greet, port: 80, targetPort: 9001}]"))
	n.expectUnclean("things are broken on purpose")
	n.dial(t, "client", serverFirst("10.96.0.10:80"))
	c := n.wantCheck(t)
	if c.State != api.FindingOK || c.Node != "n1" {
		t.Errorf("the node %s is %s", c.Node, c.State)
	}
	t.Run("text", n.checkInWords)
	t.Run("rules of a pod deleted", n.checkRules)
	t.Run("a pod's namespace is gone", n.checkNamespace)
	t.Run("a rejected listener", n.checkRejection)
	t.Run("the agent is away", n.checkNoAgent)
	t.Run("a damaged state file", n.checkDamage)
	t.Run("the state directory is read-only", n.checkReadOnly)
	t.Run("the access log is taken away", n.checkLog)
	t.Run("a broken manifest", n.checkManifest)
	t.Run("a probe that only connects", n.checkProbe)
	t.Run("the budget of names is used up", n.checkBudget)
	t.Run("Envoy is away", n.checkNoEnvoy)
}

// checkInWords: a person reads the same.
func (n *node) checkInWords(t *testing.T) {
	out, err := exec.Command(program(t, "aetherctl"), "--agent-socket", n.Paths().AgentSocket, "check").Output()
	if err != nil || !bytes.HasSuffix(out, []byte("\nnode n1 is healthy\n")) || bytes.Contains(out, []byte("FAIL")) {
		t.Errorf("%v\n%s", err, out)
	}
}

func (n *node) checkRules(t *testing.T) {
	if err := n.InPod("client", func() error {
		out, err := exec.Command("nft", "delete", "table", "ip", "aether_capture").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	f := n.wantCheck(t, "failed pod-capture").find(t, "failed", "pod-capture")
	if !strings.Contains(f.Seen, "default/client") || len(f.Fix) != 1 || !strings.Contains(f.Fix[0], "exclude-outbound-ports=3306") {
		t.Errorf("%+v", f)
	}
	paste(t, f.Fix[0])
	n.wantCheck(t)
}

func (n *node) checkNamespace(t *testing.T) {
	path, remove := extraNetNS(t, sandboxName(t))
	n.report(t, api.Pod{Namespace: "default", Name: "lost", ServiceAccount: "lost", IP: "10.244.99.96", NetNS: path}, http.StatusOK)
	n.wantCheck(t, "failed pod-capture") // nobody has installed its rules
	remove()
	f := n.wantCheck(t, "failed pod-namespaces").find(t, "failed", "pod-namespaces")
	if !strings.Contains(f.Seen, "default/lost") || !strings.Contains(f.Seen, path) {
		t.Errorf("%+v", f)
	}
	paste(t, "PATH=$PATH:/usr/bin; "+f.Fix[1])
	n.wantCheck(t)
}

func (n *node) checkRejection(t *testing.T) {
	path, remove := extraNetNS(t, sandboxName(t))
	resume := n.suspendEnvoy(t)
	n.report(t, api.Pod{Namespace: "default", Name: "bad", ServiceAccount: "bad", IP: "10.244.99.99", NetNS: path}, http.StatusAccepted)
	remove()
	resume()
	c := n.wantCheck(t, "failed pod-listeners", "failed pod-namespaces")
	if f := c.find(t, "failed", "pod-listeners"); !strings.Contains(f.Seen, "Envoy rejected its listener") || !strings.Contains(f.Seen, path) {
		t.Errorf("%+v", f)
	}
	n.forget(t, "bad")
	n.wantCheck(t)
}

func (n *node) checkNoAgent(t *testing.T) {
	if err := n.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := n.check(t)
	if c.exit != 1 || c.State != api.FindingFailed || c.Failed != 1 || c.NotChecked < 20 {
		t.Errorf("without an agent: exit code %d, %s, %d failed, %d not checked", c.exit, c.State, c.Failed, c.NotChecked)
	}
	c.find(t, "failed", "agent-answers")
	if err := n.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.wantCheck(t)
}

func (n *node) checkDamage(t *testing.T) {
	restart := func(meanwhile func()) {
		t.Helper()
		if err := n.StopAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
		meanwhile()
		if err := n.StartAgent(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	restart(func() {
		if err := os.WriteFile(filepath.Join(n.Paths().Dir, "state", "demand.json"), []byte("}garbage{"), 0o600); err != nil {
			t.Fatal(err)
		}
	})
	f := n.wantCheck(t, "warning state-files").find(t, "warning", "state-files")
	if !strings.Contains(f.Seen, "demand.json was damaged") {
		t.Errorf("%+v", f)
	}
	paste(t, f.Fix[0]) // shows what was set aside
	restart(func() {})
	n.wantCheck(t)
}

func (n *node) checkReadOnly(t *testing.T) {
	dir := filepath.Join(n.Paths().Dir, "state")
	if err := unix.Mount("none", dir, "tmpfs", unix.MS_RDONLY, "size=32m"); err != nil {
		t.Fatal(err)
	}
	mounted := true
	unmount := func() {
		if mounted {
			mounted = false
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(unmount)
	c := n.wantCheck(t, "failed state-directory", "warning disk-space")
	if f := c.find(t, "failed", "state-directory"); !strings.Contains(f.Seen, "read-only file system") {
		t.Errorf("%+v", f)
	}
	if f := c.find(t, "warning", "disk-space"); !strings.Contains(f.Seen, "32 MiB") {
		t.Errorf("%+v", f)
	}
	unmount()
	n.wantCheck(t)
}

func (n *node) checkLog(t *testing.T) {
	if err := os.Rename(n.Paths().AccessLog, n.Paths().AccessLog+".1"); err != nil {
		t.Fatal(err)
	}
	f := n.wantCheck(t, "failed access-log").find(t, "failed", "access-log")
	paste(t, f.Fix[0])
	n.wantCheck(t)
}

func (n *node) checkManifest(t *testing.T) {
	n.write(t, "broken.yaml", "{apiVersion: v1, kind: Service, metadata: {name: broken}, spec: {ports: [{port: many}]}}\n")
	f := n.wantCheck(t, "warning source-problems").find(t, "warning", "source-problems")
	if !strings.Contains(f.Seen, "broken.yaml: Service default/broken: spec.ports[0].port") {
		t.Errorf("%+v", f)
	}
	n.remove(t, "broken.yaml")
	n.wantCheck(t)
}

func (n *node) checkProbe(t *testing.T) {
	n.write(t, "waits.yaml", `
apiVersion: v1
kind: Pod
metadata: {name: waits, labels: {aether.io/managed: "false"}}
spec:
  containers: [{name: c, image: aether/client, args: [idle], livenessProbe: {exec: {command: [nc, -z, web, "80"]}}}]
---
`)
	f := n.wantCheck(t, "warning connect-only").find(t, "warning", "connect-only")
	if !strings.Contains(f.Seen, "default/waits") || !strings.Contains(f.Seen, "livenessProbe") {
		t.Errorf("%+v", f)
	}
	n.remove(t, "waits.yaml")
	n.wantCheck(t)
}

func (n *node) checkBudget(t *testing.T) {
	args := []string{"--mode", "silent", "--concurrency", "64", "--summary", "--timeout", "5s"}
	for i := range 1100 {
		args = append(args, fmt.Sprintf("10.96.%d.%d:80", 100+i/200, 1+i%200))
	}
	n.clientOutput(t, "client", args)
	f := n.wantCheck(t, "warning names-budget").find(t, "warning", "names-budget")
	if !strings.Contains(f.Seen, "1024 of 1024") {
		t.Errorf("%+v", f)
	}
	// The names go with the Envoy that asked for them, the count with the agent.
	paste(t, "aetherctl --agent-socket "+n.Paths().AgentSocket+" proxy restart --full --reason test")
	if err := n.StopAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := n.StartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.wantCheck(t)
}

func (n *node) checkNoEnvoy(t *testing.T) {
	st, err := n.ProxyStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(st.SupervisorPID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(st.SupervisorPID, syscall.SIGCONT) })
	if err := syscall.Kill(st.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c := n.wantCheck(t, "failed envoy-connected", "failed envoy-state", "failed pod-bound",
		"not-checked access-log", "not-checked envoy-descriptors", "not-checked envoy-processes", "not-checked envoy-restarts",
		"not-checked envoy-supervised", "not-checked envoy-version", "not-checked envoy-warming", "not-checked first-dials",
		"not-checked node-connections", "not-checked pod-connections", "not-checked statistics", "not-checked pod-listeners")
	if f := c.find(t, "failed", "envoy-connected"); !strings.Contains(f.Seen, "no Envoy is connected") {
		t.Errorf("%+v", f)
	}
	if err := syscall.Kill(st.SupervisorPID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	f := n.wantCheck(t, "warning envoy-restarts").find(t, "warning", "envoy-restarts")
	if !strings.Contains(f.Seen, "once") {
		t.Errorf("%+v", f)
	}
}

// TestCheckFewDescriptors: a node whose Envoy may open few descriptors is told so;
// one with the usual limit is not (TestCheck).
func TestCheckFewDescriptors(t *testing.T) {
	n := up(t, firstRange, func(c *sandbox.Config) { c.OpenFiles = 3000 })
	f := n.wantCheck(t, "warning envoy-descriptors", "not-checked kernel").find(t, "warning", "envoy-descriptors")
	if !strings.Contains(f.Seen, "of 3000 descriptors") || !strings.Contains(f.Seen, "at most 900 connections") || !strings.Contains(f.Fix[0], "LimitNOFILE") {
		t.Errorf("%+v", f)
	}
}
