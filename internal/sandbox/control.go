// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/daemon"
)

// The control socket of a sandbox held by a process of its own: JSON over HTTP
// on a Unix socket that its user alone may open.
//
//	GET  /v1/status                       Status
//	GET  /v1/pods/{namespace}/{name}/exec execPlan
//	POST /v1/pods/{namespace}/{name}      podSwitch
//	POST /v1/agent                        agentAction
//	POST /v1/envoy/kill
//	POST /v1/down                         answers when all is gone
type controlServer struct {
	node *Node
	down chan struct{} // closed when somebody asked for the end
	once sync.Once     // closes it
	gone chan struct{} // closed by the holder when all is gone; err says how it went
	err  error
}

// podSwitch changes how a pod's endpoints are shown. Absent fields change nothing.
type podSwitch struct {
	Container   string `json:"container,omitempty"`
	Ready       *bool  `json:"ready,omitempty"`
	ResetReady  bool   `json:"resetReady,omitempty"`
	Terminating *bool  `json:"terminating,omitempty"`
}

// agentAction is kill, stop, start or restart; settings are for restart.
type agentAction struct {
	Action   string        `json:"action"`
	Settings AgentSettings `json:"settings,omitzero"`
}

// execPlan is all that is needed to start a command in a pod.
type execPlan struct {
	// Socket, when not empty, is where to ask the holder to start it; the rest is
	// empty then.
	Socket string   `json:"socket,omitempty"`
	Self   string   `json:"self"`
	Spec   runSpec  `json:"spec"`
	Env    []string `json:"env"`
}

func newControlServer(n *Node) *controlServer {
	return &controlServer{node: n, down: make(chan struct{}), gone: make(chan struct{})}
}

// finished lets the callers who asked for the end go.
func (s *controlServer) finished(err error) {
	s.err = err
	close(s.gone)
}

// Control is what a program that holds a node serves to aetherctl.
type Control struct {
	server               *controlServer
	stopControl, stopRun func()
}

// Serve opens the node's sockets for callers from other processes (Dial, and
// aetherctl sandbox). Close ends them.
func (n *Node) Serve() (*Control, error) {
	c := &Control{server: newControlServer(n)}
	var err error
	if c.stopControl, err = c.server.listen(); err != nil {
		return nil, err
	}
	if c.stopRun, err = n.serveExec(); err != nil {
		c.stopControl()
		return nil, err
	}
	return c, nil
}

// Asked is closed when somebody asked for the end of the node. The program is to
// bring it about and to say with Close how it went.
func (c *Control) Asked() <-chan struct{} { return c.server.down }

// Close ends the sockets. Who asked for the end gets its result.
func (c *Control) Close(result error) {
	c.stopRun()
	c.server.finished(result)
	c.stopControl()
}

// listen opens the socket; requests are served until the returned function is
// called.
func (s *controlServer) listen() (stop func(), err error) {
	l, err := daemon.ListenUnix(s.node.paths.control(), 0o600)
	if err != nil {
		return nil, err
	}
	srv := &http.Server{Handler: s.handler(), ReadHeaderTimeout: time.Minute}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = srv.Serve(l) // ends with Shutdown
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if srv.Shutdown(ctx) != nil { // lets the answer to /v1/down out
			srv.Close()
		}
		<-ended
	}, nil
}

func (s *controlServer) handler() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, f func(*http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			out, err := f(r)
			w.Header().Set("Content-Type", "application/json")
			if err != nil {
				w.WriteHeader(http.StatusBadRequest)
				out = api.Error{Error: err.Error()}
			}
			_ = json.NewEncoder(w).Encode(out) // the caller sees a cut reply
		})
	}
	n := s.node
	handle("GET /v1/status", func(*http.Request) (any, error) { return n.Status(), nil })
	handle("GET /v1/pods/{namespace}/{name}/exec", func(r *http.Request) (any, error) {
		return n.execPlan(r.PathValue("namespace") + "/" + r.PathValue("name"))
	})
	handle("POST /v1/pods/{namespace}/{name}", func(r *http.Request) (any, error) {
		return struct{}{}, s.switchPod(r)
	})
	handle("POST /v1/agent", func(r *http.Request) (any, error) { return struct{}{}, s.agent(r) })
	handle("POST /v1/envoy/kill", func(*http.Request) (any, error) { return struct{}{}, n.KillEnvoy() })
	handle("POST /v1/down", func(*http.Request) (any, error) {
		s.once.Do(func() { close(s.down) })
		<-s.gone
		return struct{}{}, s.err
	})
	return mux
}

func (n *Node) execPlan(name string) (execPlan, error) {
	p, err := n.pod(name)
	if err != nil {
		return execPlan{}, err
	}
	if rootless() {
		return execPlan{Socket: n.paths.exec()}, nil
	}
	spec, env, err := p.surroundings(p.execTarget().spec, false)
	spec.Dies = false // the caller's process starts it, not this one
	return execPlan{Self: n.cfg.SelfPath, Spec: spec, Env: env}, err
}

func (s *controlServer) switchPod(r *http.Request) error {
	var w podSwitch
	if err := json.NewDecoder(r.Body).Decode(&w); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	pod := r.PathValue("namespace") + "/" + r.PathValue("name")
	var errs []error
	if w.Ready != nil {
		errs = append(errs, s.node.SetReady(pod, w.Container, *w.Ready))
	}
	if w.ResetReady {
		errs = append(errs, s.node.ResetReady(pod, w.Container))
	}
	if w.Terminating != nil {
		errs = append(errs, s.node.SetTerminating(pod, *w.Terminating))
	}
	return errors.Join(errs...)
}

func (s *controlServer) agent(r *http.Request) error {
	var a agentAction
	if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	switch a.Action {
	case "kill":
		return s.node.KillAgent()
	case "stop":
		return s.node.StopAgent(r.Context())
	case "start":
		return s.node.StartAgent(r.Context())
	case "restart":
		return s.node.RestartAgent(r.Context(), a.Settings)
	}
	return fmt.Errorf("action %q: want kill, stop, start or restart", a.Action)
}
