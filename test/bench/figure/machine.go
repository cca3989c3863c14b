// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"

	"golang.org/x/sys/unix"
)

// Machine is what figures were taken on.
type Machine struct {
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Envoy  string `json:"envoy"`
	Go     string `json:"go"`
	// LoadBefore is the load average of the last minute when the run began: what
	// others were doing.
	LoadBefore float64 `json:"loadBefore"`
}

// LookAtMachine reads what the machine is, and asks an Envoy for its version.
func LookAtMachine(ctx context.Context, envoy string) (Machine, error) {
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version()}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, fmt.Errorf("read the kernel's version: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(u.Release[:])
	var err error
	if m.LoadBefore, err = LoadAverage(); err != nil {
		return m, err
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m, fmt.Errorf("read the processor's name: %w", err)
	}
	m.CPU = FirstMatch(`(?m)^model name\s*:\s*(.*)$`, info)
	out, err := exec.CommandContext(ctx, envoy, "--version").Output()
	if err != nil {
		return m, fmt.Errorf("ask Envoy for its version: %w", err)
	}
	m.Envoy = FirstMatch(`version: [0-9a-f]+/([^/\s]+)`, out)
	return m, nil
}

// FirstMatch is what the first group of a pattern matches, empty for nothing.
func FirstMatch(pattern string, in []byte) string {
	if m := regexp.MustCompile(pattern).FindSubmatch(in); m != nil {
		return string(m[1])
	}
	return ""
}
