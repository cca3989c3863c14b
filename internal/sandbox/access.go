// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"aether.io/aether/internal/model"
)

// Stdio is what a command in a pod reads and writes. Nil means nothing.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

// podName reads "namespace/name", or "name" in namespace default.
func podName(s string) model.Name {
	if ns, name, ok := strings.Cut(s, "/"); ok {
		return model.Name{Namespace: ns, Name: name}
	}
	return model.Name{Namespace: "default", Name: s}
}

// pod finds a running pod whose namespace exists.
func (n *Node) pod(name string) (*pod, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.running[podName(name)]
	switch {
	case p == nil:
		return nil, fmt.Errorf("no pod %s", podName(name))
	case !p.networkUp:
		return nil, fmt.Errorf("pod %s is not up yet%s", podName(name), p.why())
	}
	return p, nil
}

// Exec runs a command in a pod and returns its exit code; an error means that it
// could not be run. Ending ctx kills it.
func (n *Node) Exec(ctx context.Context, pod string, argv []string, s Stdio) (int, error) {
	p, err := n.pod(pod)
	if err != nil {
		return 0, err
	}
	return p.exec(ctx, p.execTarget(), argv, s)
}

// Output runs a command in a pod and returns what it printed; a non-zero exit
// code is an error with what it printed on stderr. What it printed is returned
// with the error, too.
func (n *Node) Output(ctx context.Context, pod string, argv ...string) ([]byte, error) {
	var out, errs bytes.Buffer
	code, err := n.Exec(ctx, pod, argv, Stdio{Out: &out, Err: &errs})
	if err == nil && code != 0 {
		err = fmt.Errorf("%s in pod %s: exit code %d: %s", argv[0], pod, code, bytes.TrimSpace(errs.Bytes()))
	}
	return out.Bytes(), err
}

// InPod runs f on a thread in the pod's network namespace. Sockets that f itself
// opens belong to the pod; goroutines it starts do not run there.
func (n *Node) InPod(pod string, f func() error) error {
	p, err := n.pod(pod)
	if err != nil {
		return err
	}
	return inNetNS(p.netns, f)
}

// InNode is InPod for the node.
func (n *Node) InNode(f func() error) error { return inNetNS(n.nodeNS, f) }

// InOutside is InPod for the external world.
func (n *Node) InOutside(f func() error) error { return inNetNS(n.outsideNS, f) }

// PodIP returns a pod's address, the zero Addr while it has none.
func (n *Node) PodIP(pod string) netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.running[podName(pod)]; p != nil {
		return p.ip
	}
	return netip.Addr{}
}

// VIP returns the ClusterIP of a Service ("namespace/name", or "name" in
// namespace default), given or allocated; the zero Addr when it has none.
func (n *Node) VIP(service string) netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	name := podName(service)
	if a := n.vips[name]; a.IsValid() {
		return a
	}
	if s := n.services[name]; s != nil {
		if a, err := netip.ParseAddr(s.Spec.ClusterIP); err == nil {
			return a
		}
	}
	return netip.Addr{}
}

// eachContainer changes containers of a pod: the named one, or all that have
// readiness.
func (n *Node) eachContainer(podText, named string, f func(*container)) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.running[podName(podText)]
	if p == nil {
		return fmt.Errorf("no pod %s", podName(podText))
	}
	found := false
	for _, c := range p.containers {
		if named == "" || c.spec.Name == named {
			f(c)
			found = true
		}
	}
	if !found {
		return fmt.Errorf("pod %s has no container %s", podName(podText), named)
	}
	n.kick()
	return nil
}

// SetReady overrides a container's readiness, "" standing for all of the pod's.
// It wins over the annotation sandbox.aether.io/ready and over probes, until
// ResetReady; a container that does not run is not ready all the same.
func (n *Node) SetReady(pod, containerName string, ready bool) error {
	return n.eachContainer(pod, containerName, func(c *container) { c.forced = &ready })
}

// ResetReady gives readiness back to the annotation or the probe.
func (n *Node) ResetReady(pod, containerName string) error {
	return n.eachContainer(pod, containerName, func(c *container) { c.forced = nil })
}

// SetTerminating marks the pod's endpoints as terminating; its containers go on.
func (n *Node) SetTerminating(pod string, terminating bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.running[podName(pod)]
	if p == nil {
		return fmt.Errorf("no pod %s", podName(pod))
	}
	p.terminating = terminating
	n.kick()
	return nil
}

// WaitReady waits until the pods are ready and their endpoints written.
func (n *Node) WaitReady(ctx context.Context, pods ...string) error {
	return n.await(ctx, func() error {
		for _, name := range pods {
			if !n.written[podName(name)] {
				why := ""
				if p := n.running[podName(name)]; p != nil {
					why = p.why()
				}
				return fmt.Errorf("pod %s is not ready%s", podName(name), why)
			}
		}
		return nil
	})
}

// Paths returns the files and namespaces of the sandbox.
func (n *Node) Paths() Paths {
	p := n.paths
	return Paths{
		Dir: p.dir, RunDir: p.at("run"), AgentSocket: p.run("agent.sock"), AdminSocket: p.run("envoy-admin.sock"),
		Generated: p.generated(), AccessLog: p.accessLog(), AgentLog: p.log("agent.log"), EnvoyLog: p.log("envoy.log"),
		Bootstrap: p.bootstrap(), NodeNetNS: n.nodeNS, OutsideNS: n.outsideNS,
	}
}

// Status returns the current state.
func (n *Node) Status() Status {
	envoy := n.envoyStatus()
	n.mu.Lock()
	defer n.mu.Unlock()
	st := Status{
		Name: n.cfg.Name, Node: n.cfg.Node, NodeIP: n.nodeIP.String(), PID: os.Getpid(),
		Mode: n.settings.Mode, EgressSource: n.settings.EgressSource,
		Agent: processStatus(n.agent), Envoy: envoy,
		Pods: n.podStatus(), Services: serviceStatus(n.services, n.vips),
		Problems: append([]Problem{}, n.problems...), Notes: append([]string{}, n.notes...),
		Paths: n.Paths(),
	}
	if o, inside := NamespaceOwner(); inside {
		st.Owner = &o
		st.Notes = append(st.Notes, ownerNotes(o, n.openFiles, n.cfg.OpenFiles)...)
	}
	return st
}

func processStatus(s *supervised) ProcessStatus {
	if s == nil {
		return ProcessStatus{State: "off"}
	}
	return s.status()
}

// status needs node.mu.
func (p *pod) status() PodStatus {
	st := PodStatus{
		Namespace: p.plan.name.Namespace, Name: p.plan.name.Name, UID: p.uid, Node: p.plan.node, IP: p.ip.String(),
		Captured: p.plan.captured && !p.node.cfg.NoProxy, Outside: p.plan.outside != nil,
		Phase: string(p.phase), Ready: p.isReady(), Terminating: p.isTerminating(), Problem: p.problem,
		NetNS: p.netns, Interface: p.iface, Containers: []ContainerStatus{},
	}
	for _, c := range p.containers {
		s := ContainerStatus{
			Name: c.spec.Name, Init: c.init, State: "waiting", Ready: c.isReady(p.forced), Forced: c.forced != nil || p.forced != nil,
			PID: c.pid, Restarts: c.restarts, Reason: c.reason, Log: p.node.paths.containerLog(p.key, c.spec.Name),
		}
		if c.running {
			s.State = "running"
		} else if c.ended {
			s.State = "terminated"
		}
		st.Containers = append(st.Containers, s)
	}
	return st
}
