// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"errors"
	"io"
	"net/netip"
)

// errEarly is returned by what is declared here and whose body is in the next
// commits of this room.
var errEarly = errors.New("sandbox: being built")

// ErrNotRunning is returned when no sandbox of that name is running.
var ErrNotRunning = errors.New("no such sandbox is running")

// ErrRunning is returned by Up and Start when one of that name is.
var ErrRunning = errors.New("a sandbox of that name is running")

// Stdio is what a command in a pod reads and writes. Nil means nothing.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

// Node is a running sandbox held by this process. Pods are named
// "namespace/name", or "name" in namespace default. Methods may be called from
// any goroutine.
type Node struct{}

// Up makes the node and waits until it works. ctx bounds the start only.
func Up(ctx context.Context, c Config) (*Node, error) { return nil, errEarly }

// Down ends everything and removes it. A second call does nothing.
func (n *Node) Down(ctx context.Context) error { return errEarly }

// Status returns the current state.
func (n *Node) Status() Status { return Status{} }

// Exec runs a command in a pod and returns its exit code; an error means that it
// could not be run. Ending ctx kills it.
func (n *Node) Exec(ctx context.Context, pod string, argv []string, s Stdio) (int, error) {
	return 0, errEarly
}

// Output runs a command in a pod and returns what it printed; a non-zero exit
// code is an error with what it printed on stderr.
func (n *Node) Output(ctx context.Context, pod string, argv ...string) ([]byte, error) {
	return nil, errEarly
}

// InPod runs f on a thread in the pod's network namespace. Sockets that f itself
// opens belong to the pod; goroutines it starts do not run there.
func (n *Node) InPod(pod string, f func() error) error { return errEarly }

// InNode and InOutside are the same for the node and for the external world.
func (n *Node) InNode(f func() error) error    { return errEarly }
func (n *Node) InOutside(f func() error) error { return errEarly }

// PodIP, VIP: addresses by name. Zero Addr: none (yet).
func (n *Node) PodIP(pod string) netip.Addr   { return netip.Addr{} }
func (n *Node) VIP(service string) netip.Addr { return netip.Addr{} }

// AgentPID and EnvoyPID are 0 while the process is not running.
func (n *Node) AgentPID() int { return 0 }
func (n *Node) EnvoyPID() int { return 0 }

// KillAgent and KillEnvoy kill the process with SIGKILL; it is started again.
func (n *Node) KillAgent() error { return errEarly }
func (n *Node) KillEnvoy() error { return errEarly }

// StopAgent ends the agent (SIGTERM) and leaves it stopped until StartAgent.
func (n *Node) StopAgent(ctx context.Context) error  { return errEarly }
func (n *Node) StartAgent(ctx context.Context) error { return errEarly }

// AgentSettings change what the agent is started with. Empty: unchanged.
type AgentSettings struct {
	Mode         string `json:"mode,omitempty"`
	EgressSource string `json:"egressSource,omitempty"`
}

// RestartAgent stops the agent and starts it with other settings. Envoy is
// restarted too when its bootstrap changes with them.
func (n *Node) RestartAgent(ctx context.Context, s AgentSettings) error { return errEarly }

// SetReady overrides a container's readiness ("": of all), ResetReady gives it
// back to the probe.
func (n *Node) SetReady(pod, container string, ready bool) error { return errEarly }
func (n *Node) ResetReady(pod, container string) error           { return errEarly }

// SetTerminating marks the pod's endpoints as terminating; its containers go on.
func (n *Node) SetTerminating(pod string, terminating bool) error { return errEarly }

// WaitReady waits until the pods are ready and their endpoints written.
func (n *Node) WaitReady(ctx context.Context, pods ...string) error { return errEarly }

// AdminGet asks Envoy's admin interface, e.g. "/stats?usedonly".
func (n *Node) AdminGet(ctx context.Context, path string) ([]byte, error) { return nil, errEarly }

// Start makes a sandbox held by a detached process of its own and returns when
// it works, or with the reason why it does not.
func Start(ctx context.Context, c Config) (*Client, error) { return nil, errEarly }

// Dial finds a running sandbox. stateDir "" is the default. ErrNotRunning when
// there is none.
func Dial(ctx context.Context, stateDir, name string) (*Client, error) { return nil, errEarly }

// Clean removes what a dead sandbox of that name left; removed lists it.
// ErrRunning when it is not dead.
func Clean(ctx context.Context, stateDir, name string) (removed []string, err error) {
	return nil, errEarly
}

// Client talks to a sandbox held by another process.
type Client struct{}

func (c *Client) Status(ctx context.Context) (Status, error) { return Status{}, errEarly }
func (c *Client) Exec(ctx context.Context, pod string, argv []string, s Stdio) (int, error) {
	return 0, errEarly
}
func (c *Client) SetReady(ctx context.Context, pod, container string, ready bool) error {
	return errEarly
}
func (c *Client) ResetReady(ctx context.Context, pod, container string) error { return errEarly }
func (c *Client) SetTerminating(ctx context.Context, pod string, terminating bool) error {
	return errEarly
}
func (c *Client) KillAgent(ctx context.Context) error                       { return errEarly }
func (c *Client) KillEnvoy(ctx context.Context) error                       { return errEarly }
func (c *Client) StopAgent(ctx context.Context) error                       { return errEarly }
func (c *Client) StartAgent(ctx context.Context) error                      { return errEarly }
func (c *Client) RestartAgent(ctx context.Context, s AgentSettings) error   { return errEarly }
func (c *Client) AdminGet(ctx context.Context, path string) ([]byte, error) { return nil, errEarly }

// Down ends the sandbox and waits until its process is gone.
func (c *Client) Down(ctx context.Context) error { return errEarly }

// BuiltinMain runs the hidden programs of the sandbox (the built-in images, the
// starter of containers, the detached holder). Every program that uses this
// package calls it first in main or TestMain, with os.Args:
//
//	if handled, code := sandbox.BuiltinMain(os.Args); handled { os.Exit(code) }
func BuiltinMain(args []string) (handled bool, code int) { return false, 0 }
