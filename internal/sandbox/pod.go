// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// pod is one pod that runs, is being made, or is being removed. One goroutine
// (run) leads its life; the fields below the line belong to Node.mu.
type pod struct {
	node  *Node
	plan  podPlan
	key   string
	uid   string
	ip    netip.Addr
	netns string
	iface string // empty for pods that share a namespace
	// netnsPart is the pod's part of the namespace's name; empty likewise.
	netnsPart string

	stopping context.Context // ends when deletion begins
	stop     context.CancelFunc
	gone     chan struct{} // closed when nothing is left of it

	// ——— guarded by node.mu ———
	manifest    *corev1.Pod    // plan.pod, or a later one of equal identity
	forced      *bool          // likewise
	shorter     *time.Duration // takes the place of plan.grace: RemovePod's
	networkUp   bool
	terminating bool // by switch
	phase       corev1.PodPhase
	problem     string
	containers  []*container
}

// container is one container of a pod; guarded by Node.mu but for spec and init.
type container struct {
	spec     *corev1.Container
	init     bool
	running  bool
	ended    bool // for good
	probed   bool // has a readiness probe that is done here
	passing  bool // what the probe says
	started  time.Time
	forced   *bool
	pid      int
	restarts int
	reason   string
}

// podBackoff is the wait between attempts to make a pod or start a container: the
// kubelet's shape at a scale for people who wait.
func podBackoff() backoff {
	return backoff{min: 100 * time.Millisecond, max: 5 * time.Second, stable: 10 * time.Second}
}

func (n *Node) newPod(plan podPlan, ip netip.Addr) *pod {
	p := &pod{
		node: n, key: podKey(plan.name), ip: ip, plan: plan, manifest: plan.pod, forced: plan.forced,
		phase: corev1.PodPending, gone: make(chan struct{}),
	}
	if p.uid = string(plan.pod.UID); p.uid == "" {
		p.uid = newUID()
	}
	p.stopping, p.stop = context.WithCancel(n.pods.ctx)
	switch {
	case plan.outside != nil:
		p.netns = n.outsideNS
	case plan.hostNetwork:
		p.netns = n.nodeNS
	default:
		// A name of its own each time, as runtimes give: a pod that comes back
		// under its name is not where the one before it was.
		p.netnsPart = p.key + "." + newUID()[:8]
		p.netns = netnsPath(n.cfg.Name, p.netnsPart)
		p.iface = podInterface(p.key)
	}
	spec := &plan.pod.Spec
	for i := range spec.InitContainers {
		p.containers = append(p.containers, newContainer(&spec.InitContainers[i], true))
	}
	for i := range spec.Containers {
		p.containers = append(p.containers, newContainer(&spec.Containers[i], false))
	}
	return p
}

func newContainer(c *corev1.Container, init bool) *container {
	r := c.ReadinessProbe
	return &container{spec: c, init: init, probed: r != nil && r.GRPC == nil}
}

// newUID returns a random UUID (version 4).
func newUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// update changes the pod's state and lets the node look at it.
func (p *pod) update(f func()) {
	p.node.mu.Lock()
	f()
	p.node.mu.Unlock()
	p.node.kick()
}

// deleting reports whether the pod is on its way out.
func (p *pod) deleting() bool { return p.stopping.Err() != nil }

// isTerminating, isReady and isTerminal are the pod as its endpoints show it.
// They need node.mu.
func (p *pod) isTerminating() bool {
	return p.deleting() || p.terminating || p.manifest.DeletionTimestamp != nil
}

func (p *pod) isTerminal() bool { return p.phase == corev1.PodSucceeded || p.phase == corev1.PodFailed }

func (p *pod) isReady() bool {
	if p.phase != corev1.PodRunning {
		return false
	}
	for _, c := range p.containers {
		if c.init && !isSidecar(c.spec) {
			continue
		}
		if !c.isReady(p.forced) {
			return false
		}
	}
	return true
}

// isReady: the switch wins over the annotation, the annotation over the probe; a
// container that does not run is never ready.
func (c *container) isReady(annotation *bool) bool {
	switch {
	case !c.running:
		return false
	case c.forced != nil:
		return *c.forced
	case annotation != nil:
		return *annotation
	}
	return !c.probed || c.passing
}

// settled reports whether the container is ready, or has been probed in vain for
// as long as it takes to call a container not ready, counted from its start.
func (c *container) settled(annotation *bool) bool {
	if c.isReady(annotation) {
		return true
	}
	if !c.running || !c.probed {
		return false
	}
	t := timingOf(c.spec.ReadinessProbe)
	return time.Since(c.started) > t.initialDelay+time.Duration(t.failure)*t.period
}

// settled reports whether it is no use to wait for the pod to become ready: it
// is, it has ended, it is not ready on purpose, or its probes have failed for
// good. It needs node.mu.
func (p *pod) settled() bool {
	if p.isTerminal() {
		return true
	}
	if p.phase != corev1.PodRunning {
		return false
	}
	if p.forced != nil && !*p.forced {
		return true
	}
	for _, c := range p.containers {
		if (!c.init || isSidecar(c.spec)) && !c.settled(p.forced) {
			return false
		}
	}
	return true
}

// run leads the pod's life.
func (p *pod) run() {
	defer close(p.gone)
	if p.setUp() {
		p.runContainers()
		<-p.stopping.Done()
		// Its containers have ended: no endpoint any more, whatever comes yet.
		p.update(func() { p.phase = corev1.PodSucceeded })
	}
	p.tearDown()
	p.node.podGone(p)
}

// setUp makes the pod's surroundings, again and again until it works; false when
// the pod is deleted before.
func (p *pod) setUp() bool {
	b := podBackoff()
	for p.stopping.Err() == nil {
		began := time.Now()
		err := p.trySetUp(p.stopping)
		if err == nil {
			p.update(func() { p.problem = "" })
			return p.stopping.Err() == nil
		}
		p.update(func() { p.problem = err.Error() })
		p.node.log.Debug("pod is not up yet", "pod", p.plan.name.String(), "err", err)
		select {
		case <-time.After(b.after(time.Since(began))):
		case <-p.stopping.Done():
		}
	}
	return false
}

// trySetUp does what is missing: network, hosts file, and for a captured pod the
// agent's listener before the rules that lead to it.
func (p *pod) trySetUp(ctx context.Context) error {
	if err := p.setUpNetwork(ctx); err != nil {
		return err
	}
	if err := p.writeEtc(); err != nil {
		return err
	}
	if !p.plan.captured || p.node.cfg.NoProxy {
		return nil
	}
	return p.setUpCapture(ctx)
}

func (p *pod) setUpNetwork(ctx context.Context) error {
	if p.networkReady() {
		return nil
	}
	release, err := p.node.pods.slot(ctx)
	if err != nil {
		return err
	}
	defer release()
	switch {
	case p.plan.outside != nil:
		err = p.node.outside.hold(p.plan.outside)
	case p.iface != "":
		err = p.connectNetwork()
	}
	if err != nil {
		return err
	}
	p.update(func() { p.networkUp = true })
	return nil
}

func (p *pod) networkReady() bool {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	return p.networkUp
}

func (p *pod) connectNetwork() error {
	// A half-made attempt is thrown away.
	if err := p.removeNetwork(); err != nil {
		return err
	}
	if _, err := createNetNS(p.node.cfg.Name, p.netnsPart); err != nil {
		return err
	}
	return connect(p.node.nodeNS, p.netns, p.iface, p.node.nodeIP, []netip.Addr{p.ip}, false)
}

func (p *pod) removeNetwork() error {
	if err := disconnect(p.node.nodeNS, p.iface); err != nil {
		return err
	}
	return removeNetNS(p.netns)
}

// writeEtc writes the files laid over those of /etc. The node keeps the hosts
// file up to date afterwards.
func (p *pod) writeEtc() error {
	if err := os.MkdirAll(p.node.paths.etc(p.key, ""), 0o755); err != nil {
		return fmt.Errorf("make directory of pod files: %w", err)
	}
	if err := writeInPlace(p.node.paths.etc(p.key, "resolv.conf"), resolvConf); err != nil {
		return err
	}
	return p.node.writeHosts(p)
}

// tearDown removes what setUp made. The agent must know before the namespace is
// gone: Envoy must not be left with a listener that names it.
func (p *pod) tearDown() {
	n := p.node
	if n.pods.ctx.Err() != nil {
		return // the whole node goes, and Down removes everything
	}
	b := podBackoff()
	for n.pods.ctx.Err() == nil {
		err := p.tryTearDown(n.pods.ctx)
		if err == nil {
			return
		}
		p.update(func() { p.problem = err.Error() })
		select {
		case <-time.After(b.after(0)):
		case <-n.pods.ctx.Done():
		}
	}
}

func (p *pod) tryTearDown(ctx context.Context) error {
	if p.plan.captured && !p.node.cfg.NoProxy {
		if err := p.node.agentRemovePod(ctx, p.plan.name); err != nil {
			return err
		}
	}
	if p.iface != "" {
		if err := p.removeNetwork(); err != nil {
			return err
		}
	}
	if p.plan.outside != nil && p.networkReady() {
		if err := p.node.outside.release(p.plan.outside); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(filepath.Dir(p.node.paths.etc(p.key, "hosts"))); err != nil {
		return fmt.Errorf("remove pod files: %w", err)
	}
	return nil
}

// podGroup is what all pods of a node share: their common end, and how many may
// be made at once (the kernel makes interfaces one after the other anyway).
type podGroup struct {
	ctx   context.Context
	end   context.CancelFunc
	wg    sync.WaitGroup
	slots chan struct{}
}

func newPodGroup() *podGroup {
	g := &podGroup{slots: make(chan struct{}, 4)}
	g.ctx, g.end = context.WithCancel(context.Background())
	return g
}

func (g *podGroup) slot(ctx context.Context) (release func(), err error) {
	select {
	case g.slots <- struct{}{}:
		return func() { <-g.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// outsideWorld counts who holds which address of the outside namespace.
type outsideWorld struct {
	node  *Node
	mu    sync.Mutex
	count map[netip.Addr]int
}

func (o *outsideWorld) hold(addrs []netip.Addr) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := setOutside(o.node.nodeNS, o.node.outsideNS, o.node.nodeIP, addrs, nil); err != nil {
		return err
	}
	for _, a := range addrs {
		o.count[a]++
	}
	return nil
}

func (o *outsideWorld) release(addrs []netip.Addr) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var last []netip.Addr
	for _, a := range addrs {
		if o.count[a]--; o.count[a] <= 0 {
			delete(o.count, a)
			last = append(last, a)
		}
	}
	return setOutside(o.node.nodeNS, o.node.outsideNS, o.node.nodeIP, nil, last)
}
