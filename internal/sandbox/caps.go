// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// defaultCaps is what container runtimes leave a container that asks for nothing.
// NET_RAW is in it: a pod can make raw sockets and set socket marks.
var defaultCaps = []string{
	"CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP",
	"NET_BIND_SERVICE", "SYS_CHROOT", "KILL", "AUDIT_WRITE",
}

var capNumbers = map[string]int{
	"CHOWN": unix.CAP_CHOWN, "DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "DAC_READ_SEARCH": unix.CAP_DAC_READ_SEARCH,
	"FOWNER": unix.CAP_FOWNER, "FSETID": unix.CAP_FSETID, "KILL": unix.CAP_KILL, "SETGID": unix.CAP_SETGID,
	"SETUID": unix.CAP_SETUID, "SETPCAP": unix.CAP_SETPCAP, "LINUX_IMMUTABLE": unix.CAP_LINUX_IMMUTABLE,
	"NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "NET_BROADCAST": unix.CAP_NET_BROADCAST,
	"NET_ADMIN": unix.CAP_NET_ADMIN, "NET_RAW": unix.CAP_NET_RAW, "IPC_LOCK": unix.CAP_IPC_LOCK,
	"IPC_OWNER": unix.CAP_IPC_OWNER, "SYS_MODULE": unix.CAP_SYS_MODULE, "SYS_RAWIO": unix.CAP_SYS_RAWIO,
	"SYS_CHROOT": unix.CAP_SYS_CHROOT, "SYS_PTRACE": unix.CAP_SYS_PTRACE, "SYS_PACCT": unix.CAP_SYS_PACCT,
	"SYS_ADMIN": unix.CAP_SYS_ADMIN, "SYS_BOOT": unix.CAP_SYS_BOOT, "SYS_NICE": unix.CAP_SYS_NICE,
	"SYS_RESOURCE": unix.CAP_SYS_RESOURCE, "SYS_TIME": unix.CAP_SYS_TIME, "SYS_TTY_CONFIG": unix.CAP_SYS_TTY_CONFIG,
	"MKNOD": unix.CAP_MKNOD, "LEASE": unix.CAP_LEASE, "AUDIT_WRITE": unix.CAP_AUDIT_WRITE,
	"AUDIT_CONTROL": unix.CAP_AUDIT_CONTROL, "SETFCAP": unix.CAP_SETFCAP, "MAC_OVERRIDE": unix.CAP_MAC_OVERRIDE,
	"MAC_ADMIN": unix.CAP_MAC_ADMIN, "SYSLOG": unix.CAP_SYSLOG, "WAKE_ALARM": unix.CAP_WAKE_ALARM,
	"BLOCK_SUSPEND": unix.CAP_BLOCK_SUSPEND, "AUDIT_READ": unix.CAP_AUDIT_READ, "PERFMON": unix.CAP_PERFMON,
	"BPF": unix.CAP_BPF, "CHECKPOINT_RESTORE": unix.CAP_CHECKPOINT_RESTORE,
}

// containerCaps returns the capabilities a container keeps: the runtimes' default
// set, changed by securityContext.capabilities; nil (all) when it is privileged.
func containerCaps(c *corev1.Container) ([]int, error) {
	set := slices.Clone(defaultCaps)
	if sc := c.SecurityContext; sc != nil {
		if isTrue(sc.Privileged) {
			return nil, nil
		}
		if sc.Capabilities != nil {
			for _, d := range sc.Capabilities.Drop {
				if name := capName(d); name == "ALL" {
					set = nil
				} else {
					set = slices.DeleteFunc(set, func(s string) bool { return s == name })
				}
			}
			for _, a := range sc.Capabilities.Add {
				if capName(a) == "ALL" {
					return nil, nil
				}
				set = append(set, capName(a))
			}
		}
	}
	out := []int{}
	for _, s := range set {
		n, ok := capNumbers[s]
		if !ok {
			return nil, fmt.Errorf("container %s: unknown capability %q", c.Name, s)
		}
		out = append(out, n)
	}
	return out, nil
}

func capName(c corev1.Capability) string {
	return strings.TrimPrefix(strings.ToUpper(string(c)), "CAP_")
}

// checkRoot is nil when this process may make a node: it is root, of this
// machine or of namespaces made by EnterNamespaces, and not one whom a container
// runtime took the means from.
func checkRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("a node is made by root, of this machine or of namespaces made by EnterNamespaces")
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	return checkCapabilities(uint64(have[1].Effective)<<32 | uint64(have[0].Effective))
}

// checkCapabilities refuses a root that lacks what network namespaces, their
// rules and the processes in them need.
func checkCapabilities(have uint64) error {
	var missing []string
	for _, name := range []string{"SYS_ADMIN", "NET_ADMIN", "SETPCAP"} {
		if have&(1<<capNumbers[name]) == 0 {
			missing = append(missing, "CAP_"+name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("root is without %s here: start the container with `--privileged`, or run this outside of it", strings.Join(missing, " and "))
}
