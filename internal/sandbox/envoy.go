// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"aether.io/aether/internal/agent/api"
)

// Envoy runs under its own supervisor, as on a node: `aether-agent proxy`, which is
// asked over proxy.sock. The sandbox keeps that one running.

// proxyTimeout bounds a question to the supervisor, which answers from memory.
const proxyTimeout = 2 * time.Second

// proxyCommand sees to Envoy's bootstrap and builds the supervisor's command line.
func (n *Node) proxyCommand(ctx context.Context) (*exec.Cmd, error) {
	if _, err := n.renewBootstrap(ctx); err != nil {
		return nil, err
	}
	argv := []string{
		n.cfg.AgentPath, "proxy",
		"--run-dir", n.paths.at("run"), "--envoy", n.cfg.EnvoyPath, "--bootstrap", n.paths.bootstrap(),
		"--concurrency", strconv.Itoa(n.cfg.EnvoyConcurrency), "--envoy-log-level", n.cfg.EnvoyLogLevel,
	}
	if d := n.cfg.EnvoyDrainTime; d > 0 {
		argv = append(argv, "--drain-time", d.String())
	}
	if d := n.cfg.EnvoyShutdownTime; d > 0 {
		argv = append(argv, "--shutdown-time", d.String())
	}
	argv = append(argv, "--",
		// Envoy calls the IP matcher work in progress at every listener update.
		"--component-log-level", "misc:error",
		"--file-flush-interval-msec", "100")
	return n.inNode().command(n.cfg.SelfPath, append(argv, n.cfg.EnvoyArgs...))
}

// ProxyStatus asks Envoy's supervisor for its state.
func (n *Node) ProxyStatus(ctx context.Context) (api.ProxyStatus, error) {
	var st api.ProxyStatus
	ctx, cancel := context.WithTimeout(ctx, proxyTimeout)
	defer cancel()
	if n.envoy == nil {
		return st, errNoProxy
	}
	if _, err := n.proxyAPI.call(ctx, http.MethodGet, "/v1/status", nil, &st); err != nil {
		return st, fmt.Errorf("ask Envoy's supervisor: %w", err)
	}
	return st, nil
}

// envoyStatus is Envoy's part of the sandbox's status.
func (n *Node) envoyStatus() ProcessStatus {
	if n.envoy == nil {
		return ProcessStatus{State: "off"}
	}
	p := n.envoy.status()
	st, err := n.ProxyStatus(context.Background())
	if err != nil {
		return ProcessStatus{State: "starting", Restarts: p.Restarts, LastExit: p.LastExit}
	}
	out := ProcessStatus{State: "running", PID: st.PID, Restarts: p.Restarts + st.Restarts, LastExit: st.LastExit}
	if st.PID == 0 {
		out.State = "starting"
	}
	return out
}

// earlyEnvoy says how often Envoy, or its supervisor, ended before it worked.
func (n *Node) earlyEnvoy(ctx context.Context) earlyDeath {
	d := n.envoy.early()
	if st, err := n.ProxyStatus(ctx); err == nil && st.PID == 0 && st.FailedStarts > d.deaths {
		d.deaths, d.exit = st.FailedStarts, st.LastExit
	}
	return d
}

// EnvoyPID returns the process id of the Envoy that takes new connections, 0 while
// there is none.
func (n *Node) EnvoyPID() int {
	st, err := n.ProxyStatus(context.Background())
	if err != nil {
		return 0 // no proxy, or its supervisor is not there yet
	}
	return st.PID
}

// KillEnvoy kills the Envoy that takes new connections with SIGKILL; its supervisor
// starts another.
func (n *Node) KillEnvoy() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	st, err := n.ProxyStatus(ctx)
	if err != nil {
		return err
	}
	if st.PID == 0 {
		return errors.New("kill Envoy: it is not running")
	}
	return n.killEpoch(ctx, st.PID)
}

// killEpoch kills one Envoy and waits until it is gone.
func (n *Node) killEpoch(ctx context.Context, pid int) error {
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill Envoy, process %d: %w", pid, err)
	}
	for {
		st, err := n.ProxyStatus(ctx)
		if err == nil && !slices.ContainsFunc(st.Epochs, func(e api.ProxyEpoch) bool { return e.PID == pid }) {
			return nil
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("wait for the end of Envoy, process %d: %w", pid, err)
		}
	}
}

// RestartEnvoy hot restarts Envoy and returns when the new one serves. While an
// older one drains it waits for its end, which is up to the shutdown time.
func (n *Node) RestartEnvoy(ctx context.Context) error {
	before, err := n.ProxyStatus(ctx)
	if err != nil {
		return err
	}
	const reason = "asked of the sandbox"
	done, err := n.askRestart(ctx, api.ProxyRestartRequest{Reason: reason})
	if err != nil || done.State != "scheduled" {
		return err
	}
	for {
		st, err := n.ProxyStatus(ctx)
		switch {
		case err != nil:
			return err
		case st.HotRestarts > before.HotRestarts && st.Scheduled == "" && st.State == "serving":
			return nil
		case st.FailedRestarts > before.FailedRestarts && st.LastRestart != nil:
			return fmt.Errorf("restart Envoy: %s", st.LastRestart.Error)
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("restart Envoy: %s: %w", done.Error, err)
		}
	}
}

func (n *Node) askRestart(ctx context.Context, q api.ProxyRestartRequest) (done api.ProxyRestart, err error) {
	if n.envoy == nil {
		return done, errNoProxy
	}
	body, err := json.Marshal(q)
	if err != nil {
		return done, fmt.Errorf("write request: %w", err)
	}
	if _, err := n.proxyAPI.call(ctx, http.MethodPost, "/v1/restart", body, &done); err != nil {
		return done, fmt.Errorf("restart Envoy: %w", err)
	}
	return done, nil
}
