// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"
)

// Config says what cluster to make. The zero value of every field has a default.
type Config struct {
	// Name of the lab: 1 to 16 lower-case letters and digits, default "lab".
	// Labs of different names can run side by side.
	Name string `json:"name"`
	// Nodes are the nodes of the cluster, default DefaultNodes. The first is ours:
	// its pods are captured, agent, Envoy and kube-proxy run there.
	Nodes []NodeConfig `json:"nodes"`
	// ServiceCIDR is what kube-apiserver is started with, default 10.96.0.0/16;
	// PodCIDR is where pods get their addresses, default 10.244.0.0/16.
	ServiceCIDR netip.Prefix `json:"serviceCIDR"`
	PodCIDR     netip.Prefix `json:"podCIDR"`
	// Mode is the agent's --service-egress, default "enforce"; EgressSource its
	// --egress-source, default "pod". AgentArgs are added to its command line.
	Mode         string   `json:"mode"`
	EgressSource string   `json:"egressSource"`
	AgentArgs    []string `json:"agentArgs,omitempty"`
	// AgentRights is the manifest of the agent's ServiceAccount and its roles,
	// default deploy/rbac.yaml of the repository.
	AgentRights string `json:"agentRights"`
	// NoProxy leaves out agent, Envoy and capture.
	NoProxy bool `json:"noProxy,omitempty"`
	// FeatureGates are given to kube-apiserver, kube-controller-manager and
	// kube-proxy alike: "A=true,B=false". Default: none.
	FeatureGates string `json:"featureGates,omitempty"`
	// APIServerArgs, ControllerManagerArgs are added to the command lines.
	APIServerArgs         []string `json:"apiServerArgs,omitempty"`
	ControllerManagerArgs []string `json:"controllerManagerArgs,omitempty"`
	// Root is the repository; default: the directory of the product's go.mod above
	// the working directory.
	Root string `json:"root"`
	// StateDir holds the lab's files in a folder of its name, which Down removes;
	// default /run/aether-lab.
	StateDir string `json:"stateDir"`
	// StartTimeout bounds the start of each program, default 60 s. Programs that
	// have to be built first are not counted.
	StartTimeout time.Duration `json:"startTimeout"`

	// Progress is told each step of Up in words. Log gets state changes.
	Progress func(string) `json:"-"`
	Log      *slog.Logger `json:"-"`
}

// NodeConfig is one node of the cluster.
type NodeConfig struct {
	Name string `json:"name"`
	// Zone is its topology.kubernetes.io/zone label, empty for none.
	Zone string `json:"zone,omitempty"`
	// Labels are added to those a kubelet sets.
	Labels map[string]string `json:"labels,omitempty"`
}

// DefaultNodes is the cluster nobody said anything about: our node n1 and two
// others, in three zones.
func DefaultNodes() []NodeConfig {
	return []NodeConfig{{Name: "n1", Zone: "zone-a"}, {Name: "n2", Zone: "zone-b"}, {Name: "n3", Zone: "zone-c"}}
}

const defaultStateDir = "/run/aether-lab"

var namePattern = regexp.MustCompile(`^[a-z0-9]{1,16}$`)

// withDefaults fills in the defaults.
func (c Config) withDefaults() Config {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def(&c.Name, "lab")
	def(&c.Mode, "enforce")
	def(&c.EgressSource, "pod")
	def(&c.StateDir, defaultStateDir)
	if len(c.Nodes) == 0 {
		c.Nodes = DefaultNodes()
	}
	if !c.ServiceCIDR.IsValid() {
		c.ServiceCIDR = netip.MustParsePrefix("10.96.0.0/16")
	}
	if !c.PodCIDR.IsValid() {
		c.PodCIDR = netip.MustParsePrefix("10.244.0.0/16")
	}
	if c.StartTimeout <= 0 {
		c.StartTimeout = 60 * time.Second
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// resolve checks the settings and finds the repository.
func (c Config) resolve() (Config, error) {
	switch {
	case !namePattern.MatchString(c.Name):
		return c, fmt.Errorf("lab name %q: want 1 to 16 lower-case letters and digits", c.Name)
	case !c.ServiceCIDR.Addr().Is4() || c.ServiceCIDR.Bits() > 28:
		return c, fmt.Errorf("service CIDR %s: want an IPv4 prefix of at most 28 bits", c.ServiceCIDR)
	case len(c.Nodes) > maxNodes:
		return c, fmt.Errorf("%d nodes: want at most %d", len(c.Nodes), maxNodes)
	case os.Geteuid() != 0:
		return c, errors.New("run as root: the lab makes network namespaces")
	}
	seen := map[string]bool{}
	for _, n := range c.Nodes {
		if n.Name == "" || seen[n.Name] {
			return c, fmt.Errorf("node name %q: want names that differ", n.Name)
		}
		seen[n.Name] = true
	}
	var err error
	if c.Root == "" {
		if c.Root, err = findRoot(); err != nil {
			return c, err
		}
	}
	if c.AgentRights == "" {
		c.AgentRights = filepath.Join(c.Root, "deploy", "rbac.yaml")
	}
	for _, p := range []*string{&c.Root, &c.StateDir, &c.AgentRights} {
		if *p, err = filepath.Abs(*p); err != nil {
			return c, fmt.Errorf("make path absolute: %w", err)
		}
	}
	return c, nil
}

// productModule begins the go.mod of the repository.
const productModule = "module aether.io/aether\n"

// findRoot looks for the repository above the working directory.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	for {
		b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && len(b) >= len(productModule) && string(b[:len(productModule)]) == productModule {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find the repository: there is no go.mod of aether.io/aether above the working directory")
		}
		dir = parent
	}
}

// our is the node that is captured.
func (c Config) our() NodeConfig { return c.Nodes[0] }

// maxNodes keeps the nodes' addresses within what certificates and links know.
const maxNodes = 200

// Addresses of the cluster. The control plane has its own; node i has the i-th
// after our node's, which is the sandbox's default.
var controlIP = netip.MustParseAddr("172.18.0.1")

func (c Config) nodeIP(i int) netip.Addr {
	a := netip.MustParseAddr("172.18.0.2")
	for range i {
		a = a.Next()
	}
	return a
}

// apiVIP is the ClusterIP of default/kubernetes: the first of the range.
func (c Config) apiVIP() netip.Addr { return c.ServiceCIDR.Masked().Addr().Next() }

// paths names every file of a lab. dir is the folder Down removes.
type paths struct{ dir string }

func (c Config) paths() paths { return paths{filepath.Join(c.StateDir, c.Name)} }

func (p paths) at(elem ...string) string {
	return filepath.Join(slices.Concat([]string{p.dir}, elem)...)
}
func (p paths) log(name string) string       { return p.at("logs", name+".log") }
func (p paths) pki(name string) string       { return p.at("pki", name) }
func (p paths) kubeconfig(who string) string { return p.at("kubeconfig", who+".yaml") }
func (p paths) lock() string                 { return p.dir + ".lock" }
func (p paths) holderLog() string            { return p.dir + ".log" }
func (p paths) subdirectories() []string {
	return []string{"logs", "pki", "kubeconfig", "etcd", "bin"}
}
