// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Config says what node to make. The zero value of every field but Dirs and
// AgentPath has a default.
type Config struct {
	// Name of the sandbox: 1–16 lower-case letters and digits, default
	// "default". Two sandboxes of different names can run side by side.
	Name string `json:"name"`
	// Dirs are the manifest directories; a later one wins over an earlier one.
	Dirs []string `json:"dirs"`
	// Node is the name of this node, default "n1". Pods without nodeName are its.
	Node string `json:"node"`
	// Mode is the agent's --service-egress, default "enforce".
	Mode string `json:"mode"`
	// EgressSource is the agent's --egress-source, default "pod".
	EgressSource string `json:"egressSource"`
	// AgentPath is the aether-agent binary. Default: beside this program, else PATH.
	AgentPath string `json:"agentPath"`
	// EnvoyPath is the Envoy binary. Default: $AETHER_ENVOY, else PATH, else
	// .build/envoy/envoy under the working directory or one of its parents.
	EnvoyPath string `json:"envoyPath"`
	// SelfPath is a program whose main (or TestMain) calls BuiltinMain first:
	// containers are started through it. Default: this program.
	SelfPath string `json:"selfPath"`
	// StateDir is where the sandbox keeps its files, under a folder of its name
	// that Down removes. Default: DefaultStateDir.
	StateDir string `json:"stateDir"`
	// PodCIDR is where pods without status.podIP get their address, default
	// 10.244.0.0/16. NodeIP is the node's own address: default the InternalIP
	// of the Node manifest, else 172.18.0.2.
	PodCIDR netip.Prefix `json:"podCIDR"`
	NodeIP  netip.Addr   `json:"nodeIP"`
	// EnvoyConcurrency is Envoy's worker count, default 2; EnvoyLogLevel its
	// log level, default "warning".
	EnvoyConcurrency int    `json:"envoyConcurrency"`
	EnvoyLogLevel    string `json:"envoyLogLevel"`
	// OpenFiles is the descriptor limit of every process in the sandbox,
	// default 131072, and never more than the system allows.
	OpenFiles uint64 `json:"openFiles"`
	// AgentArgs and EnvoyArgs are added to the command lines.
	AgentArgs []string `json:"agentArgs,omitempty"`
	EnvoyArgs []string `json:"envoyArgs,omitempty"`
	// EnvoyDrainTime and EnvoyShutdownTime are aether-agent proxy's --drain-time
	// and --shutdown-time; 0 leaves its defaults.
	EnvoyDrainTime    time.Duration `json:"envoyDrainTime,omitempty"`
	EnvoyShutdownTime time.Duration `json:"envoyShutdownTime,omitempty"`
	// NoProxy leaves out agent, Envoy and capture: pods, slices and VIPs only.
	NoProxy bool `json:"noProxy,omitempty"`
	// Source are the agent's flags for a source of truth outside of the sandbox,
	// such as an API server. When it is not empty the agent reads no manifests, the
	// sandbox writes no objects and allocates no ClusterIPs, and Dirs may be empty:
	// SetPod says which pods run.
	Source []string `json:"source,omitempty"`
	// ReadyTimeout bounds how long Up waits for pods to become ready, default
	// 15 s. Pods that are not ready by then do not fail Up.
	ReadyTimeout time.Duration `json:"readyTimeout"`
	// StartTimeout bounds how long Up waits for agent and Envoy, default 30 s.
	StartTimeout time.Duration `json:"startTimeout"`

	// Prepare, when not nil, is called once the node's network is there, before
	// agent and Envoy are started; its error ends Up.
	Prepare func(ctx context.Context, nodeNetNS string, nodeIP netip.Addr) error `json:"-"`
	// Progress is told each step of Up in words. Log gets state changes.
	Progress func(string) `json:"-"`
	Log      *slog.Logger `json:"-"`
}

// Modes and sources the agent knows.
var (
	modes         = []string{"passthrough", "balance", "enforce"}
	egressSources = []string{"pod", "node"}
)

const rootStateDir = "/run/aether-sandbox"

var namePattern = regexp.MustCompile(`^[a-z0-9]{1,16}$`)

// withDefaults fills in the defaults that need nothing from the system.
func (c Config) withDefaults() Config {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def(&c.Name, "default")
	def(&c.Node, "n1")
	def(&c.Mode, "enforce")
	def(&c.EgressSource, "pod")
	if c.StateDir == "" {
		c.StateDir = DefaultStateDir()
	}
	def(&c.EnvoyLogLevel, "warning")
	if !c.PodCIDR.IsValid() {
		c.PodCIDR = netip.MustParsePrefix("10.244.0.0/16")
	}
	if c.EnvoyConcurrency <= 0 {
		c.EnvoyConcurrency = 2
	}
	if c.OpenFiles == 0 {
		c.OpenFiles = 131072
	}
	if c.ReadyTimeout <= 0 {
		c.ReadyTimeout = 15 * time.Second
	}
	if c.StartTimeout <= 0 {
		c.StartTimeout = 30 * time.Second
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// validate reports the first setting that cannot work.
func (c Config) validate() error {
	switch {
	case !namePattern.MatchString(c.Name):
		return fmt.Errorf("sandbox name %q: want 1 to 16 lower-case letters and digits", c.Name)
	case len(c.Dirs) == 0 && len(c.Source) == 0:
		return errors.New("no manifest directory given (-f DIR)")
	case !slices.Contains(modes, c.Mode):
		return fmt.Errorf("mode %q: want one of %s", c.Mode, strings.Join(modes, ", "))
	case !slices.Contains(egressSources, c.EgressSource):
		return fmt.Errorf("egress source %q: want one of %s", c.EgressSource, strings.Join(egressSources, ", "))
	case !c.PodCIDR.Addr().Is4() || c.PodCIDR.Bits() > 30:
		return fmt.Errorf("pod CIDR %s: want an IPv4 prefix of at most 30 bits", c.PodCIDR)
	case c.NodeIP.IsValid() && !c.NodeIP.Is4():
		return fmt.Errorf("node address %s: want IPv4", c.NodeIP)
	}
	for _, d := range c.Dirs {
		if st, err := os.Stat(d); err != nil {
			return fmt.Errorf("manifest directory: %w", err)
		} else if !st.IsDir() {
			return fmt.Errorf("manifest directory %s: not a directory", d)
		}
	}
	// sun_path holds 108 bytes with the closing zero; envoy-admin.sock is the
	// longest name of ours.
	if p := c.paths().run("envoy-admin.sock"); len(p) > 107 {
		return fmt.Errorf("state directory %s: too long, Unix socket %s would have %d bytes (at most 107)",
			c.StateDir, p, len(p))
	}
	return nil
}

// resolve finds the binaries and makes paths absolute.
func (c Config) resolve() (Config, error) {
	var err error
	abs := func(p *string) {
		if *p != "" && err == nil {
			*p, err = filepath.Abs(*p)
		}
	}
	abs(&c.StateDir)
	c.Dirs = slices.Clone(c.Dirs)
	for i := range c.Dirs {
		abs(&c.Dirs[i])
	}
	if c.SelfPath == "" {
		if c.SelfPath, err = os.Executable(); err != nil {
			return c, fmt.Errorf("find this program: %w", err)
		}
	}
	abs(&c.SelfPath)
	if err != nil {
		return c, fmt.Errorf("make path absolute: %w", err)
	}
	if c.NoProxy {
		return c, nil
	}
	if c.AgentPath, err = findAgent(c.AgentPath); err != nil {
		return c, err
	}
	c.EnvoyPath, err = FindEnvoy(c.EnvoyPath)
	return c, err
}

// findAgent returns the agent binary: the given one, the one beside this
// program, or the one in PATH.
func findAgent(given string) (string, error) {
	if given != "" {
		return checkExecutable(given, "agent")
	}
	if self, err := os.Executable(); err == nil {
		if p, err := checkExecutable(filepath.Join(filepath.Dir(self), "aether-agent"), "agent"); err == nil {
			return p, nil
		}
	}
	if p, err := exec.LookPath("aether-agent"); err == nil {
		return filepath.Abs(p)
	}
	return "", errors.New("aether-agent is neither beside this program nor in PATH: run `make build`")
}

func checkExecutable(path, what string) (string, error) {
	st, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	if st.IsDir() || st.Mode()&0o111 == 0 {
		return "", fmt.Errorf("%s %s: not an executable file", what, path)
	}
	return filepath.Abs(path)
}

// paths names every file of a sandbox. dir is the folder Down removes.
type paths struct{ dir string }

func (c Config) paths() paths { return paths{dir: filepath.Join(c.StateDir, c.Name)} }

func (p paths) at(elem ...string) string { return filepath.Join(append([]string{p.dir}, elem...)...) }
func (p paths) run(name string) string   { return p.at("run", name) }
func (p paths) log(name string) string   { return p.at("logs", name) }
func (p paths) generated() string        { return p.at("manifests-generated") }
func (p paths) agentState() string       { return p.at("state") }
func (p paths) bootstrap() string        { return p.at("envoy.json") }
func (p paths) control() string          { return p.at("control.sock") }
func (p paths) exec() string             { return p.at("exec.sock") }
func (p paths) lockFile() string         { return p.dir + ".lock" }
func (p paths) holderLog() string        { return p.dir + ".log" }
func (p paths) etc(pod, f string) string { return p.at("etc", pod, f) }
func (p paths) subdirectories() []string {
	return []string{"run", "logs", "manifests-generated", "state", "etc", "bin"}
}
func (p paths) bin() string { return p.at("bin") }
func (p paths) containerLog(pod, container string) string {
	return p.log(pod + "_" + container + ".log")
}
func (p paths) accessLog() string { return p.log("access.log") }

// marker tells a sandbox's directory from somebody else's of that name.
const marker = ".aether-sandbox"

// mark makes the directory and its marker.
func (p paths) mark() error {
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if err := os.WriteFile(p.at(marker), []byte("This directory is removed when its sandbox ends.\n"), 0o644); err != nil {
		return fmt.Errorf("mark directory: %w", err)
	}
	return nil
}

// remove removes the directory and reports whether there was one. One without
// the marker is removed if it is empty, and is an error otherwise.
func (p paths) remove() (had bool, err error) {
	if _, err := os.Stat(p.at(marker)); err == nil {
		if err := os.RemoveAll(p.dir); err != nil {
			return true, fmt.Errorf("remove files: %w", err)
		}
		return true, nil
	}
	err = os.Remove(p.dir)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("%s is in the way and was not made by a sandbox: %w", p.dir, err)
	}
	return true, nil
}
