// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	// checkTimeout bounds one run of Envoy that checks something.
	checkTimeout = 10 * time.Second
	// maxBootstrap bounds the bootstrap file.
	maxBootstrap = 8 << 20
)

var (
	// errIncompatible: a hot restart from the running Envoy to the new one cannot be.
	errIncompatible = errors.New("only a full restart can do this")
	// errNoAgent: a new Envoy would wait for its configuration for ever.
	errNoAgent = errors.New("the agent is away")
)

// inputs are what an Envoy is started from, as of one moment.
type inputs struct {
	binary    string // absolute path
	size      int64
	modified  time.Time
	bootstrap [sha256.Size]byte
	local     bool // the bootstrap has the agent's socket of this run directory
}

// resolve finds the binary and reads the bootstrap.
func (c Config) resolve() (inputs, error) {
	var in inputs
	path, err := exec.LookPath(c.Envoy)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return in, fmt.Errorf("find envoy: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return in, fmt.Errorf("find envoy: %w", err)
	}
	boot, err := os.Stat(c.Bootstrap)
	if err != nil {
		return in, fmt.Errorf("read bootstrap: %w", err)
	}
	if boot.Size() > maxBootstrap {
		return in, fmt.Errorf("read bootstrap: %s has %d bytes, more than %d", c.Bootstrap, boot.Size(), maxBootstrap)
	}
	b, err := os.ReadFile(c.Bootstrap)
	if err != nil {
		return in, fmt.Errorf("read bootstrap: %w", err)
	}
	return inputs{
		binary: path, size: info.Size(), modified: info.ModTime(),
		bootstrap: sha256.Sum256(b), local: bytes.Contains(b, []byte(c.run(xdsSocket))),
	}, nil
}

// changed lists in what two inputs differ.
func (in inputs) changed(now inputs) []string {
	out := []string{}
	if in.binary != now.binary || in.size != now.size || !in.modified.Equal(now.modified) {
		out = append(out, "binary")
	}
	if in.bootstrap != now.bootstrap {
		out = append(out, "bootstrap")
	}
	return out
}

// check says why no Envoy can take over from one of that hot restart version.
func (c Config) check(ctx context.Context, in inputs, version string) error {
	out, err := runEnvoy(ctx, in.binary, "--hot-restart-version")
	if err != nil {
		return fmt.Errorf("ask %s for its hot restart version: %w", in.binary, err)
	}
	if now := strings.TrimSpace(string(out)); now != version {
		return fmt.Errorf("hot restart into %s: it has hot restart version %s, the running Envoy has %s: %w",
			in.binary, now, version, errIncompatible)
	}
	if in.local {
		conn, err := net.DialTimeout("unix", c.run(xdsSocket), time.Second)
		if err != nil {
			return fmt.Errorf("%w, and a new Envoy would get no configuration: %w", errNoAgent, err)
		}
		conn.Close()
	}
	args := append([]string{"--mode", "validate", "-c", c.Bootstrap, "--log-level", "error"}, c.Args...)
	if out, err := runEnvoy(ctx, in.binary, args...); err != nil {
		return fmt.Errorf("%w: it does not take bootstrap %s: %w: %s", errNotServing, c.Bootstrap, err, lastLine(out))
	}
	return nil
}

// runEnvoy runs Envoy to its end and returns what it printed.
func runEnvoy(ctx context.Context, binary string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return exec.CommandContext(ctx, binary, args...).CombinedOutput()
}

// lastLine returns the last line with content, cut to what a person reads.
func lastLine(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	last := strings.TrimSpace(lines[len(lines)-1])
	const most = 400
	if len(last) > most {
		last = last[:most] + "…"
	}
	return last
}
