// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// argStart makes this binary start a sandbox, with the manifests of a directory,
// and leave it. A directory that is somebody's state directory is asked for the
// sandbox in it instead.
const argStart = "test-start"

func startMain(dir string) int {
	ctx := context.Background()
	var err error
	if filepath.Base(dir) == "manifests" {
		_, err = Start(ctx, Config{Name: "both", Dirs: []string{dir}, NoProxy: true})
	} else {
		_, err = Dial(ctx, dir, "both")
	}
	if err != nil {
		fmt.Println(err)
		if errors.Is(err, fs.ErrPermission) {
			return 13
		}
		return 1
	}
	return 0
}

// userSandbox starts the sandbox "both" of a user.
func userSandbox(t *testing.T, uid int) (cl *Client, stateDir string, as func(arg string) (string, int)) {
	t.Helper()
	self, home := reachable(t, uid)
	dir := filepath.Join(home, "manifests")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, uid, uid)); err != nil {
		t.Fatal(err)
	}
	writeManifests(t, dir, twoPods)
	as = func(arg string) (string, int) {
		cmd := exec.Command(self, argStart, arg)
		cmd.Env = []string{"TMPDIR=" + home, "PATH=" + os.Getenv("PATH")}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		out, _ := cmd.CombinedOutput() // the exit code says it
		return string(out), cmd.ProcessState.ExitCode()
	}
	if out, code := as(dir); code != 0 {
		t.Fatalf("start as uid %d: exit code %d\n%s", uid, code, out)
	}
	stateDir = filepath.Join(home, fmt.Sprintf("aether-sandbox-%d", uid))
	cl, err := Dial(t.Context(), stateDir, "both")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cl.Down(context.Background()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("down: %v", err)
		}
	})
	return cl, stateDir, as
}

// TestUsersSideBySide: sandboxes of one name, of root and of two users, with the
// same addresses. Root reaches all of them, users their own.
func TestUsersSideBySide(t *testing.T) {
	rootOwn, rootConfig := held(t, "both", twoPods)
	a, aDir, _ := userSandbox(t, ordinaryUser)
	b, bDir, asB := userSandbox(t, ordinaryUser+1)
	for i, cl := range []*Client{rootOwn, a, b} {
		st, err := cl.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if (st.Owner == nil) != (i == 0) || i > 0 && st.Owner.UID != ordinaryUser+i-1 {
			t.Errorf("sandbox %d is said to be of %+v", i, st.Owner)
		}
		var out bytes.Buffer
		code, err := cl.Exec(t.Context(), "client", []string{"sh", "-c", "echo $0", fmt.Sprint(i)}, Stdio{Out: &out})
		if err != nil || code != 0 || out.String() != fmt.Sprintln(i) {
			t.Errorf("exec in sandbox %d: %d, %q (%v)", i, code, out.String(), err)
		}
	}
	if out, code := asB(aDir); code != 13 {
		t.Errorf("one user reaches the other's: exit code %d\n%s", code, out)
	}
	if out, code := asB(bDir); code != 0 {
		t.Errorf("a user does not reach its own: exit code %d\n%s", code, out)
	}
	if err := a.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, cl := range []*Client{rootOwn, b} {
		if st, err := cl.Status(t.Context()); err != nil || !st.Pods[1].Ready {
			t.Errorf("after another one's end: %+v (%v)", st, err)
		}
	}
	if _, err := Dial(t.Context(), aDir, "both"); !errors.Is(err, ErrNotRunning) {
		t.Errorf("dial: %v, want ErrNotRunning", err)
	}
	if err := errors.Join(b.Down(t.Context()), rootOwn.Down(t.Context())); err != nil {
		t.Error(err)
	}
	if removed, err := Clean(t.Context(), rootConfig.StateDir, "both"); err != nil || len(removed) > 0 {
		t.Errorf("something was left: %v (%v)", removed, err)
	}
}
