// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"aether.io/aether/test/bench/figure"
)

// Machine is what the figures were taken on.
type Machine struct {
	figure.Machine
	Wrk     string `json:"wrk"`
	HAProxy string `json:"haproxy"`
}

func lookAtMachine(ctx context.Context, envoy string) (m Machine, err error) {
	if m.Machine, err = figure.LookAtMachine(ctx, envoy); err != nil {
		return m, err
	}
	// wrk says its version beside its usage, and ends with 1.
	out, err := exec.CommandContext(ctx, "wrk", "-v").CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return m, errors.New("wrk is not installed: run tools/install-packages.sh wrk:wrk")
	}
	m.Wrk = figure.FirstMatch(`wrk (?:debian/)?(\S+)`, out)
	out, err = exec.CommandContext(ctx, "haproxy", "-v").Output()
	if err != nil {
		return m, fmt.Errorf("ask HAProxy for its version (tools/install-packages.sh haproxy:haproxy installs it): %w", err)
	}
	m.HAProxy = figure.FirstMatch(`version ([0-9.]+)`, out)
	return m, nil
}
