// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/plan"
	"aether.io/aether/internal/plan/demand"
)

// Defaults of Config.
const (
	DefaultRunDir         = "/run/aether"
	DefaultStateDir       = "/var/lib/aether"
	DefaultMetricsAddress = "127.0.0.1:18090"
	DefaultScrapeInterval = time.Minute
	maxLookRate           = 10_000
)

// Names of the sockets and the lock in the run directory.
const (
	xdsSocket    = "xds.sock"
	recordSocket = "als.sock"
	refuseSocket = "refuse.sock"
	cniSocket    = "cni.sock"
	agentSocket  = "agent.sock"
	adminSocket  = "envoy-admin.sock" // Envoy makes it
	lockFile     = "agent.lock"
)

// Config is what one node's agent is told at its start.
type Config struct {
	// Node is the name of this node's Node object.
	Node string
	// Zone overrides the zone label of the Node object when not empty.
	Zone string
	// Mode is how far the node takes over Service egress at the start.
	Mode plan.Mode
	// Envoy are the settings of the translation. Its RefuseSocket is set from
	// RunDir.
	Envoy envoy.Settings
	// ServiceRange replaces the ranges of the ServiceCIDR objects when not empty.
	ServiceRange []netip.Prefix
	// RunDir holds the sockets, StateDir what outlives a restart. Both are made
	// if need be.
	RunDir, StateDir string
	// DemandWindow is how long a Service port is remembered after its last dial,
	// NoServiceHold how long an unknown address waits for its Service.
	DemandWindow, NoServiceHold time.Duration
	// LookRate is how many addresses that no Service is known to have are looked at a
	// second, where there is somebody who looks; after a quiet time twice as many.
	LookRate int
	// NameBudget is how many names that are no Service port are answered.
	NameBudget int
	// CompactNames is how many names one Envoy may be asked for before it is hot
	// restarted to forget them; 0 for never.
	CompactNames int
	// MetricsAddress is where metrics and health are served, host:port; empty
	// for nowhere.
	MetricsAddress string
	// ScrapeInterval is how often Envoy's connection counts are read. Each reading
	// keeps Envoy's main thread for some 35 ms with 2,000 asked Service ports, and
	// first connections wait meanwhile.
	ScrapeInterval time.Duration
}

// DefaultConfig returns the configuration of a node that sets nothing but its
// name.
func DefaultConfig() Config {
	return Config{
		Mode:           plan.ModePassthrough,
		Envoy:          envoy.DefaultSettings(),
		RunDir:         DefaultRunDir,
		StateDir:       DefaultStateDir,
		DemandWindow:   demand.DefaultWindow,
		NoServiceHold:  demand.DefaultHold,
		LookRate:       demand.DefaultLookRate,
		NameBudget:     demand.DefaultBudget,
		CompactNames:   DefaultCompactNames,
		MetricsAddress: DefaultMetricsAddress,
		ScrapeInterval: DefaultScrapeInterval,
	}
}

// Validate reports every value the agent cannot work with.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Node == "" {
		bad("node name is empty")
	}
	if !ValidMode(c.Mode) {
		bad("service egress %q: want passthrough, balance or enforce", c.Mode)
	}
	for _, p := range c.ServiceRange {
		if !p.IsValid() || !p.Addr().Is4() {
			bad("service range %q: want IPv4 prefixes such as 10.96.0.0/16", p)
		} else if p != p.Masked() {
			bad("service range %q: has bits set after the prefix, want %s", p, p.Masked())
		}
	}
	for _, d := range []struct{ what, path string }{{"run dir", c.RunDir}, {"state dir", c.StateDir}} {
		if !filepath.IsAbs(d.path) {
			bad("%s %q: not an absolute path", d.what, d.path)
		}
	}
	if c.DemandWindow <= 0 {
		bad("demand window %s: want more than 0", c.DemandWindow)
	}
	if c.NoServiceHold < 0 || c.NoServiceHold > demand.OnDemandTimeout {
		bad("no-service hold %s: want 0 to %s, the time Envoy waits for an answer", c.NoServiceHold, demand.OnDemandTimeout)
	}
	if c.LookRate <= 0 || c.LookRate > maxLookRate {
		bad("look rate %d: want 1 to %d", c.LookRate, maxLookRate)
	}
	if c.NameBudget <= 0 {
		bad("name budget %d: want at least 1", c.NameBudget)
	}
	if c.CompactNames < 0 {
		bad("compact names %d: want 0 (never) or more", c.CompactNames)
	}
	if c.ScrapeInterval <= 0 {
		bad("scrape interval %s: want more than 0", c.ScrapeInterval)
	}
	if c.MetricsAddress != "" {
		if _, err := net.ResolveTCPAddr("tcp", c.MetricsAddress); err != nil {
			bad("metrics address %q: want host:port", c.MetricsAddress)
		}
	}
	if err := c.settings().Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ValidMode reports whether m is one of the modes.
func ValidMode(m plan.Mode) bool {
	return m == plan.ModePassthrough || m == plan.ModeBalance || m == plan.ModeEnforce
}

// settings returns Envoy's settings with the socket that this agent serves.
func (c Config) settings() envoy.Settings {
	s := c.Envoy
	s.RefuseSocket = c.run(refuseSocket)
	return s
}

func (c Config) run(name string) string { return filepath.Join(c.RunDir, name) }

// XDSSocket returns where Envoy asks, as its bootstrap needs to know.
func (c Config) XDSSocket() string { return c.run(xdsSocket) }

// RecordSocket returns where Envoy sends its connection records.
func (c Config) RecordSocket() string { return c.run(recordSocket) }

// AdminSocket returns where Envoy is to make its admin socket.
func (c Config) AdminSocket() string { return c.run(adminSocket) }
