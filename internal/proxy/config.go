// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Defaults of Config.
const (
	// DefaultDrainTime is how long a draining Envoy takes to ask HTTP clients to
	// go, spread over that time. It is Envoy's own default.
	DefaultDrainTime = 10 * time.Minute
	// DefaultShutdownTime is how long established connections outlive a hot
	// restart. It is Envoy's own default: longer than the life that most
	// connection pools give a connection, and short enough that two Envoys'
	// memory, and the wait for the next hot restart, come to an end.
	DefaultShutdownTime = 15 * time.Minute
	// DefaultStartTimeout is how long a new Envoy may take until it serves. One
	// that has some thousand listeners to bind takes seconds.
	DefaultStartTimeout = 30 * time.Second
)

const (
	// Names in the run directory. Envoy adds to the prefix: hot_parent_1234567890.
	apiSocket    = "proxy.sock"
	lockFile     = "proxy.lock"
	hotPrefix    = "hot"
	adminSocket  = "envoy-admin.sock" // Envoy's bootstrap says so
	xdsSocket    = "xds.sock"         // the agent makes it
	longestName  = "hot_udp_parent_1234567890"
	maxSocket    = 107
	slots        = 8 // base ids of one supervisor: one per chain of hot restarts that lives
	minBaseID    = 1024
	maxBaseID    = 1<<27 - slots // Envoy takes ten times the base id, as an int32
	endGrace     = 3 * time.Second
	pollInterval = 15 * time.Millisecond
)

// Config says which Envoy to run and how.
type Config struct {
	// RunDir holds the sockets: the supervisor's own, Envoy's admin interface,
	// and those over which one epoch takes over from another.
	RunDir string
	// Envoy is the binary: a path, or a name to look up in PATH. It is resolved
	// anew for every start, so that an upgrade is a file replaced and a restart.
	Envoy string
	// Bootstrap is the file Envoy starts with, read anew for every start. Its
	// admin interface must be envoy-admin.sock in RunDir.
	Bootstrap string
	// BaseID is the first of the 8 that are used; 0 derives it from the run
	// directory's device and inode number: no two directories of one machine
	// share them, so two nodes on one machine do not meet.
	BaseID uint32
	// DrainTime is Envoy's --drain-time-s, ShutdownTime its
	// --parent-shutdown-time-s: whole seconds, at least 1 s.
	DrainTime, ShutdownTime time.Duration
	// StartTimeout bounds how long a new Envoy may take until it serves.
	StartTimeout time.Duration
	// Concurrency is Envoy's number of workers; 0 leaves it to Envoy (one per
	// core).
	Concurrency int
	// LogLevel is Envoy's.
	LogLevel string
	// Args are added to Envoy's command line.
	Args []string
	// RestartOnChange has Envoy hot restarted when its binary or its bootstrap has
	// changed and then stood still for two seconds.
	RestartOnChange bool
}

// Validate reports every value that the supervisor cannot work with.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !filepath.IsAbs(c.RunDir) {
		bad("run dir %q: not an absolute path", c.RunDir)
	} else if p := filepath.Join(c.RunDir, longestName); len(p) > maxSocket {
		bad("run dir %s: too long, Unix socket %s would have %d bytes (at most %d)", c.RunDir, p, len(p), maxSocket)
	}
	if c.Envoy == "" {
		bad("envoy is empty: want the path of the binary")
	}
	if !filepath.IsAbs(c.Bootstrap) {
		bad("bootstrap %q: not an absolute path", c.Bootstrap)
	}
	if c.BaseID > maxBaseID {
		bad("base id %d: want at most %d", c.BaseID, maxBaseID)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"drain time", c.DrainTime}, {"shutdown time", c.ShutdownTime}} {
		if d.value < time.Second || d.value%time.Second != 0 {
			bad("%s %s: want whole seconds, at least 1s", d.name, d.value)
		}
	}
	if c.DrainTime > c.ShutdownTime {
		bad("drain time %s: longer than the shutdown time %s", c.DrainTime, c.ShutdownTime)
	}
	if c.StartTimeout <= 0 {
		bad("start timeout %s: want more than 0", c.StartTimeout)
	}
	if c.Concurrency < 0 {
		bad("concurrency %d: want 0 or more", c.Concurrency)
	}
	return errors.Join(errs...)
}

func (c Config) run(name string) string { return filepath.Join(c.RunDir, name) }

// baseID returns the first base id: the one that is set, or one that follows from
// what the run directory is.
func (c Config) baseID() (uint32, error) {
	if c.BaseID != 0 {
		return c.BaseID, nil
	}
	info, err := os.Stat(c.RunDir)
	if err != nil {
		return 0, fmt.Errorf("derive base id: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("derive base id: %s has no inode number", c.RunDir)
	}
	return baseIDOf(st.Dev, st.Ino), nil
}

// baseIDOf spreads directories over all multiples of slots that are base ids.
func baseIDOf(dev, ino uint64) uint32 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d:%d", dev, ino)
	const groups = (maxBaseID - minBaseID) / slots
	return uint32(minBaseID + h.Sum64()%groups*slots)
}

// command returns Envoy's command line.
func (c Config) command(binary string, base uint32, number int) []string {
	args := []string{
		binary, "-c", c.Bootstrap,
		"--base-id", strconv.FormatUint(uint64(base), 10),
		"--restart-epoch", strconv.Itoa(number),
		"--socket-path", c.run(hotPrefix), "--socket-mode", "600",
		"--drain-time-s", seconds(c.DrainTime),
		"--parent-shutdown-time-s", seconds(c.ShutdownTime),
		// Spread over the drain time, so that HTTP clients do not all come back in
		// one moment. Connections without HTTP do not notice.
		"--drain-strategy", "gradual",
		// The agent tells only fields that Envoy 1.40 knows. To look for others costs
		// Envoy's main thread a fifth of the time for what it is told.
		"--ignore-unknown-dynamic-fields",
	}
	if c.Concurrency > 0 {
		args = append(args, "--concurrency", strconv.Itoa(c.Concurrency))
	}
	if c.LogLevel != "" {
		args = append(args, "--log-level", c.LogLevel)
	}
	return append(args, c.Args...)
}

func seconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }
