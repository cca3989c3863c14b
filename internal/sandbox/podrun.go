// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// quickGrace is how long containers have to end when the whole node goes.
const quickGrace = 300 * time.Millisecond

// runContainers runs init containers one after the other, then the others
// together, and returns when all have ended: for good, or because the pod is
// being deleted.
func (p *pod) runContainers() {
	var all, mains sync.WaitGroup
	defer all.Wait()
	// Sidecars end after the last main container.
	sidecars, endSidecars := context.WithCancel(p.stopping)
	defer endSidecars()
	for _, c := range p.containers {
		if !c.init {
			continue
		}
		if isSidecar(c.spec) {
			all.Go(func() { p.runContainer(sidecars, c) })
			continue
		}
		if code := p.runContainer(p.stopping, c); code != 0 {
			if p.stopping.Err() == nil {
				p.update(func() { p.phase = corev1.PodFailed })
			}
			return
		}
	}
	p.update(func() { p.phase = corev1.PodRunning })
	var mu sync.Mutex
	failed := false
	for _, c := range p.containers {
		if c.init {
			continue
		}
		mains.Go(func() {
			if p.runContainer(p.stopping, c) != 0 {
				mu.Lock()
				failed = true
				mu.Unlock()
			}
		})
	}
	mains.Wait()
	if p.stopping.Err() == nil {
		phase := corev1.PodSucceeded
		if failed {
			phase = corev1.PodFailed
		}
		p.update(func() { p.phase = phase })
	}
}

// runContainer runs one container and starts it again as the restart policy
// says. It returns the last exit code.
func (p *pod) runContainer(ctx context.Context, c *container) int {
	b := podBackoff()
	for {
		began := time.Now()
		code, reason := p.runOnce(ctx, c)
		again := ctx.Err() == nil && p.plan.restarts(c.spec, c.init, code)
		p.update(func() {
			c.running, c.passing, c.pid, c.reason = false, false, 0, reason
			c.ended = !again
		})
		if !again {
			return code
		}
		select {
		case <-time.After(b.after(time.Since(began))):
		case <-ctx.Done():
			p.update(func() { c.ended = true })
			return code
		}
		p.update(func() { c.restarts++ })
	}
}

// runOnce starts the container and returns when it has ended.
func (p *pod) runOnce(ctx context.Context, c *container) (code int, reason string) {
	if ctx.Err() != nil {
		return exitSetup, "not started"
	}
	ch, err := p.startContainer(c)
	if err != nil {
		return exitSetup, err.Error()
	}
	p.update(func() { c.running, c.pid, c.reason, c.started = true, ch.pid, "", ch.started })
	probing, endProbing := context.WithCancel(context.Background())
	var probes sync.WaitGroup
	if c.probed {
		probes.Go(func() { p.probeReadiness(probing, c) })
	}
	select {
	case <-ch.ended:
	case <-ctx.Done():
		// Probes go on while the container ends: its endpoint is terminating, and
		// serving for as long as it answers.
		ch.stop(p.grace())
	}
	endProbing()
	probes.Wait()
	code = exitCode(ch.err)
	return code, fmt.Sprintf("exit code %d", code)
}

// grace is how long a container has to end.
func (p *pod) grace() time.Duration {
	p.node.mu.Lock()
	grace := p.plan.grace
	if p.shorter != nil {
		grace = *p.shorter
	}
	p.node.mu.Unlock()
	if p.node.pods.ctx.Err() != nil {
		return min(quickGrace, grace)
	}
	return grace
}

func (p *pod) probeReadiness(ctx context.Context, c *container) {
	t := timingOf(c.spec.ReadinessProbe)
	check, err := p.node.checker(c.spec.ReadinessProbe, c.spec, p.ip, func(ctx context.Context, argv []string) error {
		return p.execCheck(ctx, c, argv)
	})
	if err != nil {
		p.update(func() { c.reason = err.Error() })
		return
	}
	probe(ctx, t, check, func(ready bool, reason string) {
		p.update(func() {
			c.passing, c.reason = ready, ""
			if reason != "" {
				c.reason = "readiness probe: " + reason
			}
		})
	})
}

// execCheck is an exec probe: exit code 0 in time is good.
func (p *pod) execCheck(ctx context.Context, c *container, argv []string) error {
	var out bytes.Buffer
	code, err := p.exec(ctx, c, argv, Stdio{Out: &out, Err: &out})
	if err != nil {
		return err
	}
	if code != 0 {
		return fmt.Errorf("exit code %d: %s", code, bytes.TrimSpace(out.Bytes()[:min(out.Len(), 200)]))
	}
	return nil
}

// surroundings returns what a process of a container runs in, and its
// environment. first is true for the container itself.
func (p *pod) surroundings(c *corev1.Container, first bool) (runSpec, []string, error) {
	n := p.node
	env, err := containerEnv(c, podFacts{
		name: p.plan.name, uid: p.uid, ip: p.ip, nodeIP: n.nodeIP, node: p.plan.node,
		serviceAccount: p.plan.serviceAccount(), labels: p.plan.pod.Labels, annotations: p.plan.pod.Annotations,
	}, p.plan.hostname())
	if err != nil {
		return runSpec{}, nil, err
	}
	for i, e := range env { // the built-in programs are found by name
		if path, ok := strings.CutPrefix(e, "PATH="); ok {
			env[i] = "PATH=" + n.paths.bin() + ":" + path
		}
	}
	caps, err := containerCaps(c)
	if err != nil {
		return runSpec{}, nil, err
	}
	return runSpec{
		NetNS: p.netns,
		Binds: map[string]string{
			"/etc/hosts":       n.paths.etc(p.key, "hosts"),
			"/etc/resolv.conf": n.paths.etc(p.key, "resolv.conf"),
		},
		Hostname: p.plan.hostname(), Init: first, Caps: caps, Dir: c.WorkingDir,
		OpenFiles: n.openFiles, Dies: true,
	}, env, nil
}

func (p *pod) startContainer(c *container) (*child, error) {
	spec, env, err := p.surroundings(c.spec, true)
	if err != nil {
		return nil, err
	}
	argv, err := containerCommand(c.spec)
	if err != nil {
		return nil, err
	}
	cmd, err := spec.command(p.node.cfg.SelfPath, expandAll(argv, env))
	if err != nil {
		return nil, err
	}
	cmd.Env = env
	log, err := os.OpenFile(p.node.paths.containerLog(p.key, c.spec.Name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open container log: %w", err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	return p.node.starter.start(cmd)
}

// exec runs a command beside a container and returns its exit code. Ending ctx
// kills it and what it started in its process group.
func (p *pod) exec(ctx context.Context, c *container, argv []string, s Stdio) (int, error) {
	spec, env, err := p.surroundings(c.spec, false)
	if err != nil {
		return 0, err
	}
	cmd, err := spec.command(p.node.cfg.SelfPath, argv)
	if err != nil {
		return 0, err
	}
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.In, s.Out, s.Err
	ch, err := p.node.starter.start(cmd)
	if err != nil {
		return 0, err
	}
	return awaitCommand(ctx, ch)
}

func awaitCommand(ctx context.Context, ch *child) (int, error) {
	select {
	case <-ch.ended:
		return exitCode(ch.err), nil
	case <-ctx.Done():
		// The group bears its leader's id. It may just have ended: no error.
		_ = syscall.Kill(-ch.pid, syscall.SIGKILL)
		<-ch.ended
		return exitCode(ch.err), ctx.Err()
	}
}

// execTarget returns the container commands run beside: the first one.
func (p *pod) execTarget() *container {
	return p.containers[slices.IndexFunc(p.containers, func(c *container) bool { return !c.init })]
}
