// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is what the figures were taken on.
type Machine struct {
	Kernel  string `json:"kernel"`
	CPU     string `json:"cpu"`
	Cores   int    `json:"cores"`
	Envoy   string `json:"envoy"`
	Wrk     string `json:"wrk"`
	HAProxy string `json:"haproxy"`
	Go      string `json:"go"`
	// LoadBefore is the load average of the last minute when the run began: what
	// others were doing.
	LoadBefore float64 `json:"loadBefore"`
}

func lookAtMachine(ctx context.Context, envoy string) (Machine, error) {
	m := Machine{Cores: runtime.NumCPU(), Go: runtime.Version()}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, fmt.Errorf("read the kernel's version: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(u.Release[:])
	var err error
	if m.LoadBefore, err = loadAverage(); err != nil {
		return m, err
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m, fmt.Errorf("read the processor's name: %w", err)
	}
	m.CPU = firstMatch(`(?m)^model name\s*:\s*(.*)$`, info)
	out, err := exec.CommandContext(ctx, envoy, "--version").Output()
	if err != nil {
		return m, fmt.Errorf("ask Envoy for its version: %w", err)
	}
	m.Envoy = firstMatch(`version: [0-9a-f]+/([^/\s]+)`, out)
	// wrk says its version beside its usage, and ends with 1.
	out, err = exec.CommandContext(ctx, "wrk", "-v").CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return m, errors.New("wrk is not installed: run tools/install-packages.sh wrk:wrk")
	}
	m.Wrk = firstMatch(`wrk (?:debian/)?(\S+)`, out)
	out, err = exec.CommandContext(ctx, "haproxy", "-v").Output()
	if err != nil {
		return m, fmt.Errorf("ask HAProxy for its version (tools/install-packages.sh haproxy:haproxy installs it): %w", err)
	}
	m.HAProxy = firstMatch(`version ([0-9.]+)`, out)
	return m, nil
}

func firstMatch(pattern string, in []byte) string {
	if m := regexp.MustCompile(pattern).FindSubmatch(in); m != nil {
		return string(m[1])
	}
	return ""
}

func loadAverage() (float64, error) {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, fmt.Errorf("read the load average: %w", err)
	}
	one, _, _ := strings.Cut(string(b), " ")
	f, err := strconv.ParseFloat(one, 64)
	if err != nil {
		return 0, fmt.Errorf("read the load average: %w", err)
	}
	return f, nil
}
