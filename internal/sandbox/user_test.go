// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// ordinaryUser is nobody whom the system knows.
const ordinaryUser = 54321

// asOrdinaryUser runs the calling test as an ordinary user: it is true in a
// process of that user, which goes on with the test. In root's it runs this
// binary again for that one test, reports how it went, and is false.
func asOrdinaryUser(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return true
	}
	self, home := reachable(t, ordinaryUser)
	cmd := exec.Command(self, "-test.run", "^"+t.Name()+"$", "-test.v", "-test.timeout", "90s")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home}
	cmd.Dir = home
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinaryUser, Gid: ordinaryUser}}
	out, err := cmd.CombinedOutput()
	t.Logf("as uid %d:\n%s", ordinaryUser, out)
	if err != nil {
		t.Errorf("as uid %d: %v", ordinaryUser, err)
	}
	if left, _ := filepath.Glob(filepath.Join(home, "aether-sandbox*")); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
	return false
}

// reachable returns a copy of this binary that everybody may run, and a user's
// home beside it.
func reachable(t *testing.T, uid int) (self, home string) {
	t.Helper()
	// Not t.TempDir: the directory above it is closed to others.
	dir, err := os.MkdirTemp("", "user")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	self, home = filepath.Join(dir, "sandbox.test"), filepath.Join(dir, "home")
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		os.Chmod(dir, 0o755), os.WriteFile(self, b, 0o755), os.Mkdir(home, 0o700), os.Chown(home, uid, uid),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return self, home
}

// processesUnder lists a process and all that descend from it.
func processesUnder(pid int) []int {
	procs := readProcs()
	var out []int
	for p := range procs {
		for at := p; at > 1; at = procs[at].parent {
			if at == pid {
				out = append(out, p)
				break
			}
		}
	}
	return out
}

// anyAlive names those of the processes that run.
func anyAlive(pids []int) (running []string) {
	for _, p := range pids {
		if alive(p) {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p))
			running = append(running, fmt.Sprintf("%d %.80q", p, name))
		}
	}
	return running
}
