// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
)

// mountProcStep begins the error of a sandbox that cannot mount its /proc.
const mountProcStep = "mount /proc of the sandbox"

// namespaceLimits are the kernel's bounds on namespaces of one user.
var namespaceLimits = []string{"max_user_namespaces", "max_mnt_namespaces", "max_net_namespaces", "max_pid_namespaces", "max_ipc_namespaces", "max_uts_namespaces"}

// explainRefusal turns the failure to make a user's own namespaces into words
// about what is in the way and what to do. root is this machine's file tree: the
// settings are looked at only after the system has really refused, since none of
// them says by itself that it will.
func explainRefusal(root fs.FS, refused error) error {
	why, remedy := refusalCause(root, refused)
	return fmt.Errorf("this system does not let an ordinary user make the sandbox's namespaces (%w): %s; %s, or run this as root (sudo)",
		refused, why, remedy)
}

func refusalCause(root fs.FS, refused error) (why, remedy string) {
	for _, l := range namespaceLimits {
		if setting(root, "proc/sys/user/"+l) == "0" {
			return "user." + l + " is 0", "allow them with `sudo sysctl -w user." + l + "=15000`"
		}
	}
	if setting(root, "proc/sys/kernel/unprivileged_userns_clone") == "0" {
		return "kernel.unprivileged_userns_clone is 0", "allow them with `sudo sysctl -w kernel.unprivileged_userns_clone=1`"
	}
	if v := setting(root, "proc/sys/kernel/apparmor_restrict_unprivileged_userns"); v != "" && v != "0" {
		return "kernel.apparmor_restrict_unprivileged_userns is " + v,
			"allow them with `sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
	}
	if errors.Is(refused, syscall.ENOSPC) {
		return "user.max_user_namespaces is used up, or namespaces are nested too deeply",
			"end what holds them or raise it with `sudo sysctl -w user.max_user_namespaces=N`"
	}
	container := inContainer(root)
	if container && strings.Contains(refused.Error(), mountProcStep) {
		return "this container hides parts of /proc",
			"start it with `--security-opt systempaths=unconfined` (docker) or `--security-opt unmask=ALL` (podman)"
	}
	if container || filtered(root) {
		return "the seccomp filter of this container or service does not allow it",
			"start the container with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined`"
	}
	if errors.Is(refused, syscall.ENOSYS) || errors.Is(refused, syscall.EINVAL) {
		return "the kernel was built without user namespaces", "use a kernel with CONFIG_USER_NS"
	}
	return "no known setting is the cause", "try `unshare -Urnmpf --mount-proc true` for what the system says"
}

// setting reads a value of /proc/sys; empty when this kernel does not have it.
func setting(root fs.FS, path string) string {
	b, err := fs.ReadFile(root, path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// inContainer looks for the files that docker and podman leave in theirs.
func inContainer(root fs.FS) bool {
	for _, f := range []string{".dockerenv", "run/.containerenv"} {
		if _, err := fs.Stat(root, f); err == nil {
			return true
		}
	}
	return false
}

// filtered reports whether this process's system calls pass a seccomp filter.
func filtered(root fs.FS) bool {
	b, err := fs.ReadFile(root, "proc/self/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if mode, ok := strings.CutPrefix(line, "Seccomp:"); ok {
			return strings.TrimSpace(mode) == "2"
		}
	}
	return false
}
