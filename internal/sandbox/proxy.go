// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"aether.io/aether/internal/agent/api"
)

// agentFlags are what the agent and its bootstrap subcommand are started with.
func (n *Node) agentFlags() []string {
	n.mu.Lock()
	s := n.settings
	n.mu.Unlock()
	args := []string{
		"--node-name", n.cfg.Node,
		"--service-egress", s.Mode,
		"--egress-source", s.EgressSource,
		"--run-dir", n.paths.at("run"),
		"--state-dir", n.paths.agentState(),
		"--access-log", n.paths.accessLog(),
	}
	if len(n.cfg.Source) > 0 {
		return slices.Concat(args, n.cfg.Source, n.cfg.AgentArgs)
	}
	for _, d := range append(append([]string{}, n.cfg.Dirs...), n.paths.generated()) {
		args = append(args, "--manifest-dir", d)
	}
	return append(args, n.cfg.AgentArgs...)
}

// inNode is the surroundings of agent and Envoy: the node's network, as with
// hostNetwork; the rest is this machine's.
func (n *Node) inNode() runSpec {
	return runSpec{NetNS: n.nodeNS, OpenFiles: n.openFiles, Dies: true}
}

// agentCommand builds the agent's command line.
func (n *Node) agentCommand(context.Context) (*exec.Cmd, error) {
	return n.inNode().command(n.cfg.SelfPath, append([]string{n.cfg.AgentPath}, n.agentFlags()...))
}

// renewBootstrap asks the agent's binary for Envoy's bootstrap, unless that was
// done for these settings already, and reports whether it is another one than
// before.
func (n *Node) renewBootstrap(ctx context.Context) (changed bool, err error) {
	n.bootstrapMu.Lock()
	defer n.bootstrapMu.Unlock()
	flags := n.agentFlags()
	if slices.Equal(flags, n.bootstrapFlags) {
		return false, nil
	}
	args := append([]string{"bootstrap"}, flags...)
	args = append(args, "--descriptor-limit", strconv.FormatUint(n.openFiles, 10),
		"--access-log-success-percent", "100")
	cmd := exec.CommandContext(ctx, n.cfg.AgentPath, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return false, fmt.Errorf("make Envoy's bootstrap: %w: %s", err, strings.TrimSpace(errs.String()))
	}
	old, err := os.ReadFile(n.paths.bootstrap())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("read bootstrap: %w", err)
	}
	changed = !bytes.Equal(old, out.Bytes())
	if changed {
		if err := writeAtomic(n.paths.bootstrap(), out.Bytes()); err != nil {
			return false, err
		}
	}
	n.bootstrapFlags = flags
	return changed, nil
}

// raiseOpenFiles makes room for want descriptors in children and returns what
// they can have: a process may raise its hard limit when it is privileged.
func raiseOpenFiles(want uint64) (uint64, error) {
	var old unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &old); err != nil {
		return 0, fmt.Errorf("read descriptor limit: %w", err)
	}
	if old.Max >= want {
		return want, nil
	}
	raised := unix.Rlimit{Cur: old.Cur, Max: want}
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &raised, nil); err != nil {
		return min(want, old.Max), nil //nolint:nilerr // what there is must do
	}
	return want, nil
}

// earlyDeaths is how often agent or Envoy may end before they have worked once.
const earlyDeaths = 3

// awaitProxy waits until the agent has read its sources and Envoy is connected and
// serves, and then opens the way for captured pods.
func (n *Node) awaitProxy(ctx context.Context) error {
	for {
		state, ready := n.askAgent(ctx)
		if ready && n.EnvoyPID() != 0 { // its supervisor sees it serve a moment later
			close(n.proxyReady)
			return nil
		}
		for _, p := range []earlyDeath{n.agent.early(), n.earlyEnvoy(ctx)} {
			if p.deaths >= earlyDeaths {
				return fmt.Errorf("%s does not stay up: %s%s", p.name, p.exit, n.logTail(p.name))
			}
		}
		if ready {
			state = "Envoy does not serve"
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("%s: %w%s%s", state, err, n.logTail("agent"), n.logTail("envoy"))
		}
	}
}

// awaitAgent waits until the agent answers and Envoy is connected to it.
func (n *Node) awaitAgent(ctx context.Context) error {
	for {
		state, ready := n.askAgent(ctx)
		if ready {
			return nil
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("%s: %w", state, err)
		}
	}
}

// askAgent reports whether agent and Envoy work together, or what is missing.
func (n *Node) askAgent(ctx context.Context) (state string, ready bool) {
	var st api.Status
	_, err := n.agentAPI.call(ctx, http.MethodGet, "/v1/status", nil, &st)
	switch {
	case err != nil:
		return "the agent does not answer: " + err.Error(), false
	case !st.Synced:
		return "the agent has not read its manifests", false
	case !st.Envoy.Connected:
		return "Envoy has not connected to the agent", false
	}
	return "", true
}

// pause is the time between two looks at a condition.
func pause(ctx context.Context) error {
	select {
	case <-time.After(10 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// logTail returns the last lines of a process's log, for an error.
func (n *Node) logTail(name string) string {
	b, err := os.ReadFile(n.paths.log(name + ".log"))
	if err != nil || len(b) == 0 {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) > 8 {
		lines = lines[len(lines)-8:]
	}
	return "\n" + name + ": " + strings.Join(lines, "\n"+name+": ")
}

// AgentPID returns the agent's process id, 0 while it is not running.
func (n *Node) AgentPID() int { return n.processPID(n.agent) }

func (n *Node) processPID(s *supervised) int {
	if s == nil {
		return 0
	}
	return s.pid()
}

var errNoProxy = errors.New("this sandbox has no agent and no Envoy")

// KillAgent kills the agent with SIGKILL; it is started again.
func (n *Node) KillAgent() error { return n.killProcess(n.agent) }

func (n *Node) killProcess(s *supervised) error {
	if s == nil {
		return errNoProxy
	}
	return s.kill()
}

// StopAgent ends the agent (SIGTERM) and leaves it stopped until StartAgent.
func (n *Node) StopAgent(ctx context.Context) error {
	if n.agent == nil {
		return errNoProxy
	}
	return n.agent.set(ctx, false)
}

// StartAgent starts a stopped agent and waits until it answers.
func (n *Node) StartAgent(ctx context.Context) error {
	if n.agent == nil {
		return errNoProxy
	}
	if err := n.agent.set(ctx, true); err != nil {
		return err
	}
	return n.awaitAgent(ctx)
}

// AgentSettings change what the agent is started with. Empty: unchanged.
type AgentSettings struct {
	Mode         string `json:"mode,omitempty"`
	EgressSource string `json:"egressSource,omitempty"`
}

// RestartAgent stops the agent and starts it with other settings, and returns
// when it answers and Envoy is connected. When Envoy's bootstrap changes with them
// Envoy is hot restarted, without waiting for one that still drains.
func (n *Node) RestartAgent(ctx context.Context, s AgentSettings) error {
	if n.agent == nil {
		return errNoProxy
	}
	if err := n.agent.set(ctx, false); err != nil {
		return err
	}
	n.mu.Lock()
	if s.Mode != "" {
		n.settings.Mode = s.Mode
	}
	if s.EgressSource != "" {
		n.settings.EgressSource = s.EgressSource
	}
	n.mu.Unlock()
	changed, err := n.renewBootstrap(ctx)
	if err != nil {
		return err
	}
	if err := n.StartAgent(ctx); err != nil || !changed {
		return err
	}
	// A new Envoy gets its configuration from the agent.
	_, err = n.askRestart(ctx, api.ProxyRestartRequest{Reason: "the agent's settings changed Envoy's bootstrap", Now: true})
	if err != nil {
		return err
	}
	return n.awaitAgent(ctx)
}

// AdminGet asks Envoy's admin interface, e.g. "/stats?usedonly".
func (n *Node) AdminGet(ctx context.Context, path string) ([]byte, error) {
	return adminGet(ctx, n.paths.run("envoy-admin.sock"), path)
}

func adminGet(ctx context.Context, socket, path string) ([]byte, error) {
	var out []byte
	if _, err := newUnixClient(socket).call(ctx, http.MethodGet, path, nil, &out); err != nil {
		return nil, fmt.Errorf("ask Envoy's admin interface for %s: %w", path, err)
	}
	return out, nil
}
