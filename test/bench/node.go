// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"aether.io/aether/internal/sandbox"
)

// nodeSpec says what node a section measures on.
type nodeSpec struct {
	source string
	// pods are the manifests that the sandbox reads: pods and what belongs to them.
	pods string
	// objects are files that only the agent reads, by name, so that many of them
	// cost nobody else anything.
	objects map[string]string
	agent   []string // further flags
}

// readyWithin bounds the start of a node with many objects.
const readyWithin = 2 * time.Minute

// withNode makes a node, calls f with it, the directory of the objects, and one
// for whatever else, and removes all of it.
func (b *bench) withNode(ctx context.Context, spec nodeSpec, f func(n *sandbox.Node, objects, dir string) error) (err error) {
	dir, err := os.MkdirTemp("", "aether-bench-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	defer os.RemoveAll(dir)
	pods, objects := filepath.Join(dir, "pods"), filepath.Join(dir, "objects")
	if err := errors.Join(os.Mkdir(pods, 0o755), os.Mkdir(objects, 0o755),
		os.WriteFile(filepath.Join(pods, "pods.yaml"), []byte(spec.pods), 0o644)); err != nil {
		return fmt.Errorf("write the manifests: %w", err)
	}
	args := spec.agent
	if len(spec.objects) > 0 {
		args = append(args, "--manifest-dir", objects)
	}
	for name, text := range spec.objects {
		if err := os.WriteFile(filepath.Join(objects, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("write the manifests: %w", err)
		}
	}
	n, err := sandbox.Up(ctx, sandbox.Config{
		Name: b.name, Dirs: []string{pods}, EgressSource: spec.source, EnvoyConcurrency: workers,
		AgentPath: b.agent, EnvoyPath: b.envoy, SelfPath: b.ctl, AgentArgs: args,
		StartTimeout: readyWithin, ReadyTimeout: readyWithin,
	})
	if err != nil {
		return fmt.Errorf("start the node: %w", err)
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, n.Down(clean))
	}()
	return f(n, objects, dir)
}

// envoyOf returns the process that takes new connections, once it is known.
func envoyOf(ctx context.Context, node *sandbox.Node) (pid int, err error) {
	err = eventually(ctx, 10*time.Second, func() error {
		if pid = node.EnvoyPID(); pid == 0 {
			return errors.New("there is no Envoy")
		}
		return nil
	})
	return pid, err
}

// processesOf are the agent's, Envoy's and the servers'.
func processesOf(ctx context.Context, node *sandbox.Node) ([]int, error) {
	pid, err := envoyOf(ctx, node)
	return append(sharedProcesses(node), pid), err
}

// agentMetrics are the agent's metrics by name and labels, as it writes them.
type agentMetrics map[string]float64

// since is what was added to a metric since an earlier reading.
func (m agentMetrics) since(before agentMetrics, name string) float64 { return m[name] - before[name] }

// metricsAddress is where the agent serves them, in the node's namespace.
const metricsAddress = "127.0.0.1:18090"

// agentClient reads the agent's metrics. Its connections belong to the node's
// namespace.
type agentClient struct{ http http.Client }

func newAgentClient(node *sandbox.Node) *agentClient {
	dial := func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = node.InNode(func() error {
			c, err = (&net.Dialer{}).DialContext(ctx, network, addr)
			return err
		})
		return c, err
	}
	return &agentClient{http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: 10 * time.Second}}
}

func (c *agentClient) close() { c.http.CloseIdleConnections() }

func (c *agentClient) metrics(ctx context.Context) (agentMetrics, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+metricsAddress+"/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("read the agent's metrics: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("read the agent's metrics: %w", err)
	}
	defer resp.Body.Close()
	return readMetrics(resp.Body)
}

// readMetrics reads Prometheus' text form.
func readMetrics(r io.Reader) (agentMetrics, error) {
	m := agentMetrics{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		name, value, ok := cutLast(lines.Text(), " ")
		if !ok || strings.HasPrefix(name, "#") {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("read the agent's metric %s: %w", name, err)
		}
		m[name] = v
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the agent's metrics: %w", err)
	}
	if len(m) == 0 {
		return nil, errors.New("the agent has no metrics")
	}
	return m, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// replace replaces a file in one step.
func replace(path, text string) error {
	// A name that the manifest source does not read.
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write a manifest: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("replace a manifest: %w", err)
	}
	return nil
}

// ask dials targets for the first time, many at once, whatever comes of it.
func ask(ctx context.Context, node *sandbox.Node, targets []string) error {
	const atOnce, perCommand = 16, 1000
	for len(targets) > 0 {
		some := targets[:min(len(targets), perCommand)]
		targets = targets[len(some):]
		argv := append([]string{"aether-client", "--mode", "silent", "--timeout", "50ms", "--concurrency", strconv.Itoa(atOnce), "--summary"}, some...)
		if _, err := node.Exec(ctx, clientPod, argv, sandbox.Stdio{}); err != nil {
			return fmt.Errorf("ask for %d names: %w", len(some), err)
		}
	}
	return nil
}

// awaitClusters waits until Envoy has at least so many clusters more than before.
func awaitClusters(ctx context.Context, node *sandbox.Node, want int) error {
	return eventually(ctx, time.Minute, func() error {
		got, err := clusterCount(ctx, node)
		if err == nil && got < want {
			err = fmt.Errorf("envoy has %d clusters, want %d", got, want)
		}
		return err
	})
}

func clusterCount(ctx context.Context, node *sandbox.Node) (int, error) {
	text, err := node.AdminGet(ctx, "/stats?filter=^cluster_manager.active_clusters$")
	if err != nil {
		return 0, err
	}
	_, value, _ := strings.Cut(strings.TrimSpace(string(text)), ": ")
	n, err := strconv.Atoi(value)
	if err != nil {
		return 0, fmt.Errorf("read Envoy's number of clusters from %q: %w", text, err)
	}
	return n, nil
}
