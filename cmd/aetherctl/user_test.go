// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"aether.io/aether/internal/sandbox"
)

// ordinaryUser is nobody whom the system knows.
const ordinaryUser = 54321

// userTool is the real program as an ordinary user has it.
type userTool struct {
	t         *testing.T
	dir, home string
	envoy     string
}

func newUserTool(t *testing.T) *userTool {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("run as root: this test becomes an ordinary user")
	}
	found, err := sandbox.FindEnvoy("")
	if err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: the directory above it is closed to others.
	dir, err := os.MkdirTemp("", "ctl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	u := &userTool{t: t, dir: dir, home: filepath.Join(dir, "home"), envoy: filepath.Join(dir, "envoy")}
	binary, err := os.ReadFile(found)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		os.Chmod(dir, 0o755), os.Mkdir(u.home, 0o700), os.Chown(u.home, ordinaryUser, ordinaryUser),
		os.WriteFile(u.envoy, binary, 0o755), os.CopyFS(filepath.Join(dir, "shop"), os.DirFS("../../examples/shop")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("go", "build", "-o", dir+"/", ".", "../aether-agent").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return u
}

// run runs a command line of the tool and returns its output and exit code.
func (u *userTool) run(in string, args ...string) (out, errs string, code int) {
	u.t.Helper()
	cmd := exec.Command(filepath.Join(u.dir, "aetherctl"), args...)
	cmd.Dir, cmd.Stdin = u.dir, strings.NewReader(in)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + u.home, "TMPDIR=" + u.home, "AETHER_ENVOY=" + u.envoy, "AETHER_SANDBOX=default"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinaryUser, Gid: ordinaryUser}}
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		u.t.Fatal(err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

// wants runs a command line that must succeed and say these things.
func (u *userTool) wants(says []string, args ...string) string {
	u.t.Helper()
	out, errs, code := u.run("", args...)
	if code != 0 {
		u.t.Fatalf("aetherctl %s: exit code %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	for _, s := range says {
		if !strings.Contains(out, s) {
			u.t.Errorf("aetherctl %s: does not say %q:\n%s", strings.Join(args, " "), s, out)
		}
	}
	return out
}

// TestOrdinaryUser: the way of a newcomer without root, with the real agent and
// the real Envoy: a Service that is served, one that is refused by name, and
// nothing left.
func TestOrdinaryUser(t *testing.T) {
	u := newUserTool(t)
	defer u.run("", "sandbox", "down") // of a test that failed
	u.wants([]string{"uid 54321, without root", "AGENT    running", "ENVOY    running", "no pod can become another user"},
		"sandbox", "up", "-q", "-f", "shop")
	u.wants([]string{`"outcome":"ok"`, `\"pod\":\"web-`}, "sandbox", "exec", "shop/client", "--", "aether-client", "--mode", "http", "web.shop:80")
	out, errs, code := u.run("typed\n", "sandbox", "exec", "shop/client", "--", "sh", "-c", "cat; echo bad >&2; exit 7")
	if out != "typed\n" || !strings.Contains(errs, "bad\n") || code != 7 {
		t.Errorf("exec: %q, %q, exit code %d", out, errs, code)
	}
	if out, _, code := u.run("", "sandbox", "exec", "shop/client", "--", "aether-client", "--mode", "silent", "orders.shop:80"); code == 0 || !strings.Contains(out, "ECONNRESET") {
		t.Errorf("a refused dial: exit code %d, %s", code, out)
	}
	u.wants([]string{"no-endpoints"}, "svc", "list")
	u.wants([]string{"refuse: no-endpoints"}, "explain", "orders.shop:http")
	u.wants([]string{"enforce"}, "mode")
	u.wants([]string{"enforce"}, "status")
	u.wants(nil, "sandbox", "set", "shop/web-1", "not-ready")
	u.wants([]string{"done"}, "proxy", "restart") // shared memory of its own
	u.wants([]string{`"outcome":"ok"`, `\"pod\":\"web-2`}, "sandbox", "exec", "shop/client", "--", "aether-client", "--mode", "http", "web.shop:80")

	var st sandbox.Status
	if err := json.Unmarshal([]byte(u.wants(nil, "sandbox", "status", "-o", "json")), &st); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(st.Paths.Dir, u.home) {
		t.Errorf("it lives in %s", st.Paths.Dir)
	}
	for what, pid := range map[string]int{"holder": st.PID, "agent": st.Agent.PID, "Envoy": st.Envoy.PID} {
		if err := syscall.Kill(pid, 0); err != nil {
			t.Errorf("%s is said to be process %d: %v", what, pid, err)
		}
	}
	u.wants([]string{"sandbox default is gone"}, "sandbox", "down")
	for what, pid := range map[string]int{"holder": st.PID, "agent": st.Agent.PID, "Envoy": st.Envoy.PID} {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("%s, process %d, is left (%v)", what, pid, err)
		}
	}
	if left, err := os.ReadDir(u.home); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v (%v)", left, err)
	}
	if _, errs, code := u.run("", "sandbox", "status"); code != 1 || !strings.Contains(errs, `no sandbox "default" is running`) {
		t.Errorf("status of none: exit code %d, %s", code, errs)
	}
}
