// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Client talks to a sandbox held by another process.
type Client struct {
	paths   paths
	control *unixClient
	pid     int
	own     bool // it lives in namespaces of an ordinary user's own
}

// Dial finds a running sandbox. stateDir and name "" are the defaults.
// ErrNotRunning when there is none.
func Dial(ctx context.Context, stateDir, name string) (*Client, error) {
	cfg := Config{Name: name, StateDir: stateDir}.withDefaults()
	if err := cfg.checkStateDir(); err != nil {
		return nil, err
	}
	c := &Client{paths: cfg.paths()}
	c.control = newUnixClient(c.paths.control())
	_, err := c.Status(ctx)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w: %s", ErrNotRunning, cfg.Name)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Clean removes what a dead sandbox of that name left; removed lists it.
// ErrRunning when it is not dead.
func Clean(_ context.Context, stateDir, name string) (removed []string, err error) {
	c := Config{Name: name, StateDir: stateDir}.withDefaults()
	if !namePattern.MatchString(c.Name) {
		return nil, fmt.Errorf("sandbox name %q: want 1 to 16 lower-case letters and digits", c.Name)
	}
	if c.StateDir, err = filepath.Abs(c.StateDir); err != nil {
		return nil, fmt.Errorf("make path absolute: %w", err)
	}
	if _, err := os.Stat(c.StateDir); rootless() && errors.Is(err, os.ErrNotExist) {
		return nil, nil // a directory is all that could be left
	}
	lock, err := lockName(c)
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, lock.release())
		c.removeStateDir()
	}()
	if err := os.Remove(c.paths().holderLog()); err == nil {
		removed = append(removed, c.paths().holderLog())
	}
	more, err := cleanLeftovers(c)
	return append(removed, more...), err
}

func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return fmt.Errorf("write request: %w", err)
		}
	}
	_, err := c.control.call(ctx, method, path, body, out)
	return err
}

func podPath(pod string) string {
	n := podName(pod)
	return "/v1/pods/" + url.PathEscape(n.Namespace) + "/" + url.PathEscape(n.Name)
}

// Status returns the sandbox's current state. Processes have the ids that this
// process knows them by.
func (c *Client) Status(ctx context.Context) (st Status, err error) {
	if err = c.call(ctx, http.MethodGet, "/v1/status", nil, &st); err != nil {
		return st, err
	}
	c.pid, c.own = st.PID, st.Owner != nil
	if c.own {
		c.pid = peerPID(c.paths.control())
		st.renumber(hostPIDs(c.pid))
	}
	return st, nil
}

// SetReady is Node.SetReady.
func (c *Client) SetReady(ctx context.Context, pod, container string, ready bool) error {
	return c.call(ctx, http.MethodPost, podPath(pod), podSwitch{Container: container, Ready: &ready}, nil)
}

// ResetReady is Node.ResetReady.
func (c *Client) ResetReady(ctx context.Context, pod, container string) error {
	return c.call(ctx, http.MethodPost, podPath(pod), podSwitch{Container: container, ResetReady: true}, nil)
}

// SetTerminating is Node.SetTerminating.
func (c *Client) SetTerminating(ctx context.Context, pod string, terminating bool) error {
	return c.call(ctx, http.MethodPost, podPath(pod), podSwitch{Terminating: &terminating}, nil)
}

func (c *Client) agent(ctx context.Context, a agentAction) error {
	return c.call(ctx, http.MethodPost, "/v1/agent", a, nil)
}

// KillAgent is Node.KillAgent.
func (c *Client) KillAgent(ctx context.Context) error {
	return c.agent(ctx, agentAction{Action: "kill"})
}

// StopAgent is Node.StopAgent.
func (c *Client) StopAgent(ctx context.Context) error {
	return c.agent(ctx, agentAction{Action: "stop"})
}

// StartAgent is Node.StartAgent.
func (c *Client) StartAgent(ctx context.Context) error {
	return c.agent(ctx, agentAction{Action: "start"})
}

// RestartAgent is Node.RestartAgent.
func (c *Client) RestartAgent(ctx context.Context, s AgentSettings) error {
	return c.agent(ctx, agentAction{Action: "restart", Settings: s})
}

// KillEnvoy is Node.KillEnvoy.
func (c *Client) KillEnvoy(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, "/v1/envoy/kill", nil, nil)
}

// AdminGet is Node.AdminGet.
func (c *Client) AdminGet(ctx context.Context, path string) ([]byte, error) {
	return adminGet(ctx, c.paths.run("envoy-admin.sock"), path)
}

// Exec runs a command in a pod and returns the exit code; an error means that it
// could not be run. In a sandbox of root the command is a child of this process
// with its terminal; the namespaces of an ordinary user can be entered by their
// own processes only, so the holder starts it there with this process's files.
// When ctx ends the command is ended, unless it has the terminal: then a Ctrl-C
// has reached it already, and what it does with it is its own affair.
func (c *Client) Exec(ctx context.Context, pod string, argv []string, s Stdio) (int, error) {
	if len(argv) == 0 {
		return 0, errors.New("no command given")
	}
	var plan execPlan
	if err := c.call(ctx, http.MethodGet, podPath(pod)+"/exec", nil, &plan); err != nil {
		return 0, err
	}
	if plan.Socket != "" {
		return execThrough(ctx, plan.Socket, execRequest{Pod: pod, Argv: argv, Term: os.Getenv("TERM")}, s)
	}
	cmd, err := plan.Spec.command(plan.Self, argv)
	if err != nil {
		return 0, err
	}
	cmd.Env = plan.Env
	if t := os.Getenv("TERM"); t != "" {
		cmd.Env = append(cmd.Env, "TERM="+t)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.In, s.Out, s.Err
	interactive := isTerminal(s.In)
	cmd.SysProcAttr.Setpgid = !interactive
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start %s: %w", argv[0], err)
	}
	ch := &child{cmd: cmd, pid: cmd.Process.Pid, ended: make(chan struct{})}
	go func() {
		ch.err = cmd.Wait()
		close(ch.ended)
	}()
	if interactive {
		<-ch.ended
		return exitCode(ch.err), nil
	}
	return awaitCommand(ctx, ch)
}

// isTerminal tells of what a Stdio holds.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Down ends the sandbox and waits until its process is gone, and without root
// the first one of its namespaces: nothing outlives that.
func (c *Client) Down(ctx context.Context) error {
	last := c.pid
	if c.own {
		last = readProcs()[c.pid].parent
	}
	if err := c.call(ctx, http.MethodPost, "/v1/down", nil, nil); err != nil {
		return err
	}
	for last != 0 && alive(last) {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("wait for process %d to end: %w", last, ctx.Err())
		}
	}
	return nil
}
