// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
)

// TestExplainRefusal: each setting that can be in the way is named, with its
// remedy.
func TestExplainRefusal(t *testing.T) {
	clone := fmt.Errorf("fork/exec /proc/self/exe: %w", syscall.EPERM)
	full := fmt.Errorf("fork/exec /proc/self/exe: %w", syscall.ENOSPC)
	proc := fmt.Errorf("%s: %w", mountProcStep, syscall.EPERM)
	const allowed = "proc/sys/user/max_user_namespaces=96365 proc/sys/kernel/unprivileged_userns_clone=1 proc/sys/kernel/apparmor_restrict_unprivileged_userns=0 "
	for _, c := range []struct {
		name, files string
		err         error
		want        []string
	}{
		{"no user namespaces", "proc/sys/user/max_user_namespaces=0", full, []string{"user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces="}},
		{"no network namespaces", allowed + "proc/sys/user/max_net_namespaces=0", full, []string{"user.max_net_namespaces is 0", "sysctl -w user.max_net_namespaces="}},
		{"Debian's switch", "proc/sys/user/max_user_namespaces=9 proc/sys/kernel/unprivileged_userns_clone=0", clone, []string{"sysctl -w kernel.unprivileged_userns_clone=1"}},
		{"AppArmor", "proc/sys/kernel/apparmor_restrict_unprivileged_userns=1", clone, []string{"sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"}},
		{"used up", allowed, full, []string{"used up", "sysctl -w user.max_user_namespaces=N"}},
		{"docker", allowed + ".dockerenv=", clone, []string{"seccomp filter", "--security-opt seccomp=unconfined"}},
		{"podman", allowed + "run/.containerenv=", clone, []string{"seccomp filter", "--security-opt seccomp=unconfined"}},
		{"a filter", allowed + "proc/self/status=Name:x\nSeccomp:\t2", clone, []string{"seccomp filter"}},
		{"masked /proc", allowed + "run/.containerenv=", proc, []string{"hides parts of /proc", "unmask=ALL"}},
		{"old kernel", "proc/self/status=Seccomp:\t0", fmt.Errorf("clone: %w", syscall.EINVAL), []string{"CONFIG_USER_NS"}},
		{"unknown", allowed, clone, []string{"no known setting", "unshare -Urnmpf"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := fstest.MapFS{}
			for f := range strings.SplitSeq(c.files, " ") {
				if path, value, ok := strings.Cut(f, "="); ok {
					root[path] = &fstest.MapFile{Data: []byte(value + "\n")}
				}
			}
			got := explainRefusal(root, c.err).Error()
			for _, w := range append(c.want, c.err.Error(), "run this as root (sudo)") {
				if !strings.Contains(got, w) {
					t.Errorf("%q\n  does not say %q", got, w)
				}
			}
		})
	}
}

// TestRootOfAContainer: root without the means is told so.
func TestRootOfAContainer(t *testing.T) {
	const docker = 0xa80425fb // what docker leaves root by default
	err := checkCapabilities(docker)
	if err == nil || !strings.Contains(err.Error(), "without CAP_SYS_ADMIN and CAP_NET_ADMIN here: start the container with `--privileged`") {
		t.Errorf("got %v", err)
	}
	if err := checkCapabilities(1<<41 - 1); err != nil {
		t.Error(err)
	}
	if err := checkRoot(); (err == nil) != (os.Geteuid() == 0) {
		t.Errorf("uid %d: %v", os.Geteuid(), err)
	}
}

// argForbid makes this binary an ordinary user in a user namespace that allows
// none within it, and then Start.
const argForbid = "test-forbid"

func forbidMain(dir string) int {
	err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0o644)
	if err == nil {
		err = syscall.Setresgid(1000, 1000, 1000)
	}
	if err == nil {
		err = syscall.Setresuid(1000, 1000, 1000)
	}
	if err != nil {
		fmt.Println("forbid:", err)
		return 1
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(CheckNamespaces(self))
	_, _, err = EnterNamespaces(os.Args)
	fmt.Println(err)
	_, err = Start(context.Background(), Config{Name: "refused", Dirs: []string{dir}, StateDir: dir, NoProxy: true})
	fmt.Println(err)
	return 0
}

// TestRefusedForReal: a system that allows no user namespaces, and what a user
// is told there.
func TestRefusedForReal(t *testing.T) {
	needRoot(t)
	self, home := reachable(t, ordinaryUser)
	cmd := exec.Command(self, argForbid, home)
	cmd.Env = []string{"TMPDIR=" + home}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: 1000, HostID: ordinaryUser, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := strings.Count(string(out), "user.max_user_namespaces is 0; allow them with `sudo sysctl -w user.max_user_namespaces=15000`, or run this as root (sudo)"); n != 3 {
		t.Errorf("want it said three times:\n%s", out)
	}
	if left, _ := os.ReadDir(home); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}
