// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"aether.io/aether/internal/manifest"
	"aether.io/aether/internal/model"
)

// Node is a running sandbox held by this process. Pods are named
// "namespace/name", or "name" in namespace default. Methods may be called from
// any goroutine.
type Node struct {
	cfg       Config
	paths     paths
	log       *slog.Logger
	lock      *nameLock
	starter   *starter
	nodeIP    netip.Addr
	nodeNS    string // paths of the namespaces
	outsideNS string
	openFiles uint64 // descriptor limit of every child

	agent, envoy *supervised // nil with NoProxy
	proxyReady   chan struct{}
	cni          *unixClient
	agentAPI     *unixClient
	proxyAPI     *unixClient
	pods         *podGroup
	outside      *outsideWorld

	kicked   chan struct{} // capacity 1: something to look at
	firstIn  chan struct{} // closed with the first batch of manifests
	endLoop  context.CancelFunc
	endProcs context.CancelFunc
	loops    sync.WaitGroup
	procs    sync.WaitGroup
	downOnce sync.Once
	downDone chan struct{}
	downErr  error

	files generatedFiles // used by reconcile alone

	bootstrapMu    sync.Mutex
	bootstrapFlags []string // what Envoy's bootstrap was made with

	// ——— guarded by mu ———
	mu       sync.Mutex
	settings AgentSettings
	batch    manifest.Batch
	given    map[model.Name]*corev1.Pod // by SetPod
	running  map[model.Name]*pod
	addrs    *podAddrs
	vips     map[model.Name]netip.Addr
	services map[model.Name]*corev1.Service
	names    names
	// hasDefaultRange: the default ServiceCIDR was made.
	hasDefaultRange bool
	problems        []Problem
	notes           []string
	written         map[model.Name]bool // pods and their readiness as last written to slices
	watchers        chan struct{}       // closed and replaced after every reconcile
}

// ErrNotRunning is returned when no sandbox of that name is running.
var ErrNotRunning = errors.New("no such sandbox is running")

// ErrRunning is returned by Up, Start and Clean when one of that name is.
var ErrRunning = errors.New("a sandbox of that name is running")

// Up makes the node and waits until it works: agent and Envoy connected, pods
// ready or, after Config.ReadyTimeout, not (Status says which). ctx bounds the
// start only. When it fails nothing is left.
func Up(ctx context.Context, c Config) (*Node, error) {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	if err := checkRoot(); err != nil {
		return nil, err
	}
	c, err := c.resolve()
	if err != nil {
		return nil, err
	}
	if err := c.makeStateDir(); err != nil {
		return nil, err
	}
	lock, err := lockName(c)
	if err != nil {
		return nil, err
	}
	removed, err := cleanLeftovers(c)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("remove what an earlier sandbox left: %w", err), lock.release())
	}
	if len(removed) > 0 {
		c.Progress("removed what an earlier sandbox left: " + strings.Join(removed, ", "))
	}
	n := newNode(c, lock)
	if err := n.up(ctx); err != nil {
		return nil, errors.Join(err, n.Down(context.WithoutCancel(ctx)))
	}
	return n, nil
}

func newNode(c Config, lock *nameLock) *Node {
	n := &Node{
		cfg: c, paths: c.paths(), log: c.Log, lock: lock, starter: newStarter(),
		nodeNS: netnsPath(c.Name, nodeNS), outsideNS: netnsPath(c.Name, outsideNS),
		proxyReady: make(chan struct{}), pods: newPodGroup(),
		kicked: make(chan struct{}, 1), firstIn: make(chan struct{}), downDone: make(chan struct{}),
		settings: AgentSettings{Mode: c.Mode, EgressSource: c.EgressSource},
		running:  map[model.Name]*pod{}, given: map[model.Name]*corev1.Pod{}, addrs: newPodAddrs(c.PodCIDR),
		written: map[model.Name]bool{}, watchers: make(chan struct{}),
	}
	n.files = generatedFiles{dir: n.paths.generated(), content: map[string]string{}}
	n.cni = newUnixClient(n.paths.run("cni.sock"))
	n.agentAPI = newUnixClient(n.paths.run("agent.sock"))
	n.proxyAPI = newUnixClient(n.paths.run("proxy.sock"))
	n.outside = &outsideWorld{node: n, count: map[netip.Addr]int{}}
	return n
}

func (n *Node) up(ctx context.Context) error {
	var err error
	if n.openFiles, err = raiseOpenFiles(n.cfg.OpenFiles); err != nil {
		return err
	}
	if err := n.makeDirectories(); err != nil {
		return err
	}
	loopCtx, endLoop := context.WithCancel(context.Background())
	procCtx, endProcs := context.WithCancel(context.Background())
	n.endLoop, n.endProcs = endLoop, endProcs
	n.loops.Go(func() { manifest.Watch(loopCtx, n.cfg.Dirs, manifest.Options{}, n.receive) })
	select {
	case <-n.firstIn:
	case <-ctx.Done():
		return fmt.Errorf("read manifests: %w", ctx.Err())
	}
	if err := n.makeNetwork(); err != nil {
		return err
	}
	n.cfg.Progress(fmt.Sprintf("node %s at %s, network namespaces made", n.cfg.Node, n.nodeIP))
	if n.cfg.Prepare != nil {
		if err := n.cfg.Prepare(ctx, n.nodeNS, n.nodeIP); err != nil {
			return err
		}
	}
	n.reconcile() // before the agent starts: it finds every Service at once
	n.loops.Go(func() { n.loop(loopCtx) })
	if !n.cfg.NoProxy {
		if err := n.startProxy(ctx, procCtx); err != nil {
			return err
		}
	}
	return n.awaitPods(ctx)
}

func (n *Node) makeDirectories() error {
	if err := n.paths.mark(); err != nil {
		return err
	}
	for _, d := range n.paths.subdirectories() {
		if err := os.MkdirAll(n.paths.at(d), 0o755); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	for name := range builtinNames {
		if err := os.Symlink(n.cfg.SelfPath, n.paths.at("bin", name)); err != nil {
			return fmt.Errorf("link built-in program: %w", err)
		}
	}
	return nil
}

func (n *Node) makeNetwork() error {
	n.mu.Lock()
	n.nodeIP = chooseNodeIP(n.cfg, n.batch.Objects().Nodes)
	n.mu.Unlock()
	for _, part := range []string{nodeNS, outsideNS} {
		if _, err := createNetNS(n.cfg.Name, part); err != nil {
			return err
		}
	}
	if err := setUpNode(n.nodeNS, n.nodeIP); err != nil {
		return err
	}
	return connect(n.nodeNS, n.outsideNS, outsideLink, n.nodeIP, nil, true)
}

// defaultNodeIP is outside the usual pod and Service ranges.
var defaultNodeIP = netip.MustParseAddr("172.18.0.2")

// chooseNodeIP: the setting, else the Node object's InternalIP, else the default.
func chooseNodeIP(c Config, nodes []*corev1.Node) netip.Addr {
	if c.NodeIP.IsValid() {
		return c.NodeIP
	}
	for _, o := range nodes {
		if o.Name != c.Node {
			continue
		}
		for _, a := range o.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil && ip.Is4() && a.Type == corev1.NodeInternalIP {
				return ip
			}
		}
	}
	return defaultNodeIP
}

func (n *Node) startProxy(ctx, procCtx context.Context) error {
	n.agent = newSupervised("agent", n.starter, n.log, n.paths.log("agent.log"), n.agentCommand, n.kick)
	n.envoy = newSupervised("envoy", n.starter, n.log, n.paths.log("envoy.log"), n.proxyCommand, n.kick)
	n.procs.Go(func() { n.agent.run(procCtx) })
	n.procs.Go(func() { n.envoy.run(procCtx) })
	ctx, cancel := context.WithTimeout(ctx, n.cfg.StartTimeout)
	defer cancel()
	if err := n.awaitProxy(ctx); err != nil {
		return err
	}
	pids := ""
	if !rootless() { // they are of the sandbox's own counting there
		pids = fmt.Sprintf(" (pids %d and %d)", n.AgentPID(), n.EnvoyPID())
	}
	n.cfg.Progress(fmt.Sprintf("agent and Envoy%s are connected, mode %s", pids, n.cfg.Mode))
	return nil
}

// receive takes a batch of manifests.
func (n *Node) receive(b manifest.Batch) {
	n.mu.Lock()
	n.batch = b
	first := n.services == nil
	if first {
		n.services = map[model.Name]*corev1.Service{}
	}
	n.mu.Unlock()
	if first {
		close(n.firstIn)
		return
	}
	n.kick()
}

// kick asks for a reconcile; many kicks may become one.
func (n *Node) kick() {
	select {
	case n.kicked <- struct{}{}:
	default:
	}
}

func (n *Node) loop(ctx context.Context) {
	for {
		select {
		case <-n.kicked:
			n.reconcile()
		case <-ctx.Done():
			return
		}
	}
}

// awaitPods waits until it is no use to wait for any pod, and the endpoints are
// written; at most ReadyTimeout. Who waits longer than a moment is told for what.
func (n *Node) awaitPods(ctx context.Context) error {
	begin, told := time.Now(), false
	for time.Since(begin) < n.cfg.ReadyTimeout {
		// Bounded: that a probe has failed for good is a matter of time alone.
		bounded, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		err := n.await(bounded, func() error {
			if waiting := n.unsettled(); len(waiting) > 0 {
				return fmt.Errorf("not ready: %s", strings.Join(waiting, ", "))
			}
			return nil
		})
		cancel()
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return err
		}
		if !told && time.Since(begin) > 2*time.Second {
			told = true
			n.cfg.Progress("waiting for pods: " + n.listed(n.unsettled))
		}
	}
	n.mu.Lock()
	ready, count := 0, len(n.running)
	for _, r := range n.written {
		if r {
			ready++
		}
	}
	n.mu.Unlock()
	n.cfg.Progress(fmt.Sprintf("%d of %d pods are ready", ready, count))
	if others := n.listed(n.notReady); others != "" {
		n.cfg.Progress("not ready: " + others)
	}
	return nil
}

// maxListed is how many pods a line of progress names.
const maxListed = 5

// listed names the first of some pods and counts the others.
func (n *Node) listed(pods func() []string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := pods()
	text := strings.Join(all[:min(len(all), maxListed)], ", ")
	if more := len(all) - maxListed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// unsettled lists the pods that may still become ready, each with its reason. It
// needs mu.
func (n *Node) unsettled() []string {
	return n.podsThat(func(name model.Name, p *pod) bool {
		// What is written must be what is.
		ready, known := n.written[name]
		return !p.settled() || !known || ready != p.isReady()
	})
}

// notReady lists the pods that are not ready and have not ended. It needs mu.
func (n *Node) notReady() []string {
	return n.podsThat(func(_ model.Name, p *pod) bool { return !p.isReady() && !p.isTerminal() })
}

func (n *Node) podsThat(is func(model.Name, *pod) bool) []string {
	var out []string
	for name, p := range n.running {
		if is(name, p) {
			out = append(out, name.String()+p.why())
		}
	}
	slices.Sort(out)
	return out
}

// why says what keeps a pod from being ready. It needs node.mu.
func (p *pod) why() string {
	if p.problem != "" {
		return " (" + p.problem + ")"
	}
	for _, c := range p.containers {
		if c.reason != "" {
			return " (container " + c.spec.Name + ": " + c.reason + ")"
		}
	}
	return ""
}

// await waits until check, called with mu held after every reconcile, is nil.
func (n *Node) await(ctx context.Context, check func() error) error {
	for {
		n.mu.Lock()
		err := check()
		next := n.watchers
		n.mu.Unlock()
		if err == nil {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// Down ends everything and removes it. A second call waits for the first. When
// ctx ends Down returns, and goes on.
func (n *Node) Down(ctx context.Context) error {
	n.downOnce.Do(func() {
		go func() {
			n.downErr = n.tearDown()
			close(n.downDone)
		}()
	})
	select {
	case <-n.downDone:
		return n.downErr
	case <-ctx.Done():
		return fmt.Errorf("end sandbox %s: %w", n.cfg.Name, ctx.Err())
	}
}

// tearDown ends pods first, then Envoy and the agent, then whatever else runs in
// the namespaces, and removes namespaces and files.
func (n *Node) tearDown() error {
	n.pods.end()
	n.pods.wg.Wait()
	if n.endLoop != nil {
		n.endLoop()
		n.loops.Wait()
		n.endProcs()
		n.procs.Wait()
	}
	n.pods.wg.Wait() // the loop may have started one more
	_, err := cleanLeftovers(n.cfg)
	n.starter.Close()
	err = errors.Join(err, n.lock.release())
	n.cfg.removeStateDir()
	return err
}

// removeStateDir removes the directory of all sandboxes with the last one, if it
// is the sandbox's own.
func (c Config) removeStateDir() {
	if c.StateDir == DefaultStateDir() {
		_ = os.Remove(c.StateDir) // fails while it holds another
	}
}

// cleanLeftovers removes processes, namespaces and files of a sandbox and lists
// what there was.
func cleanLeftovers(c Config) (removed []string, err error) {
	var namespaces []string
	if os.Geteuid() == 0 { // an ordinary user's are not among those of the machine
		if namespaces, err = sandboxNetNS(c.Name); err != nil {
			return nil, err
		}
	}
	killed, err := killIn(namespaces)
	if err != nil {
		return nil, err
	}
	if len(killed) > 0 {
		removed = append(removed, fmt.Sprintf("%d processes", len(killed)))
	}
	for _, p := range namespaces {
		if err := removeNetNS(p); err != nil {
			return removed, err
		}
	}
	if len(namespaces) > 0 {
		removed = append(removed, fmt.Sprintf("%d network namespaces", len(namespaces)))
	}
	had, err := c.paths().remove()
	if err != nil {
		return removed, err
	}
	if had {
		removed = append(removed, c.paths().dir)
	}
	c.removeStateDir()
	return removed, nil
}
