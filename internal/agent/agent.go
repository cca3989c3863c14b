// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"aether.io/aether/internal/check"
	"aether.io/aether/internal/daemon"
	"aether.io/aether/internal/model"
	"aether.io/aether/internal/plan"
	"aether.io/aether/internal/plan/demand"
	"aether.io/aether/internal/refuse"
	"aether.io/aether/internal/xds"
)

const (
	runDirMode   = 0o755
	stateDirMode = 0o700
	// envoyMode is of the sockets that Envoy connects to, ownMode of the others.
	envoyMode fs.FileMode = 0o660
	ownMode   fs.FileMode = 0o600
	// mailboxSize is how many messages may wait for the loop.
	mailboxSize = 256
)

// Deps are what an agent needs beside its configuration. Source is required; the
// others have defaults.
type Deps struct {
	Source   Source
	Log      *slog.Logger
	Registry *prometheus.Registry
	Clock    Clock
	// Looker looks at addresses that the source does not know before they are
	// refused. Without it they are refused after Config.NoServiceHold.
	Looker Looker
	// CheckNetNS reports, as an error, that a path is no pod's network namespace.
	CheckNetNS func(path string) error
	// Scraper reads Envoy's counts.
	Scraper Scraper
	// Restarter asks for a hot restart of Envoy.
	Restarter Restarter
	// LookAtPod looks into a pod's network namespace, where its rules should be
	// what its annotations say. Without it a check says that nobody looked.
	LookAtPod func(netns string, annotations map[string]string) (check.PodSight, error)
	// ConnectOnly lists what only connects in the pods of this node. Without it a
	// check says that nobody looked.
	ConnectOnly func(context.Context) ([]check.ConnectOnly, error)
	// APIServer says how the watches of the Kubernetes API fare. Without it another
	// source is meant.
	APIServer func() check.APIServer
	// EnvoyPID returns Envoy's process, whose memory, CPU time and descriptors are
	// among the metrics. Default: the one that serves the admin socket.
	EnvoyPID func() (int, error)
}

// Agent is one node's agent. It runs once.
type Agent struct {
	cfg   Config
	deps  Deps
	meter *Metrics
	in    chan message
	ended chan struct{} // closed when the loop has ended
	ready chan struct{} // closed when the first publication is done
	open  atomic.Bool   // the xDS socket is there

	directory *directory
	records   *records
}

// New checks the configuration and makes an agent. It does no I/O.
func New(c Config, d Deps) (*Agent, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if d.Source == nil {
		return nil, errors.New("no source of Services")
	}
	if d.Log == nil {
		d.Log = slog.Default()
	}
	if d.Registry == nil {
		d.Registry = daemon.NewRegistry()
	}
	if d.Clock == nil {
		d.Clock = systemClock{}
	}
	if d.CheckNetNS == nil {
		d.CheckNetNS = CheckNetNS
	}
	if d.Scraper == nil {
		d.Scraper = adminScraper(c.AdminSocket())
	}
	if d.Restarter == nil {
		d.Restarter = supervisorOf(c.run(proxySocket))
	}
	if d.EnvoyPID == nil {
		d.EnvoyPID = envoyProcess(c.AdminSocket())
	}
	c.Envoy = c.settings()
	a := &Agent{
		cfg: c, deps: d, meter: NewMetrics(d.Registry),
		in: make(chan message, mailboxSize), ended: make(chan struct{}), ready: make(chan struct{}),
		directory: newDirectory(),
	}
	a.records = a.newRecords()
	return a, nil
}

type systemClock struct{}

func (systemClock) Now() time.Time                         { return time.Now() }
func (systemClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Run runs the agent until ctx ends or something it cannot do without fails: its
// directories, its lock, a socket. It returns nil when ctx ended.
//
// The order matters: the lock is first, so that two agents never share a run
// directory. The refuser, the CLI's socket and metrics come at once. The xDS
// socket comes when the sources have synced and everything remembered is
// published, and the CNI plugin's socket after it.
func (a *Agent) Run(ctx context.Context) error {
	if err := os.MkdirAll(a.cfg.RunDir, runDirMode); err != nil {
		return fmt.Errorf("make run directory: %w", err)
	}
	lock, err := daemon.Acquire(a.cfg.run(lockFile))
	if err != nil {
		return fmt.Errorf("use run directory: %w", err)
	}
	defer lock.Release()
	state, err := a.openState()
	if err != nil {
		return fmt.Errorf("use state directory: %w", err)
	}
	if state != nil {
		defer state.Release()
	}
	first, err := a.listenEarly()
	if err != nil {
		return err
	}
	a.deps.Log.Info("agent starts", "node", a.cfg.Node, "mode", string(a.cfg.Mode), "version", daemon.Version(), "pid", os.Getpid())

	server := xds.New(a.xdsConfig())
	writes := make(chan write, len(stateFiles))
	l := a.newLoop(server, writes)
	starts := make(chan uint64, maxStarting)
	l.lives = starts
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(writes)
		defer close(a.ended)
		l.run(ctx)
		return nil
	})
	group.Go(func() error {
		writer(a.cfg, writes, a.mailbox().tell)
		return nil
	})
	group.Go(func() error {
		return a.deps.Source(ctx, func(b Batch) { a.mailbox().tell(sourceBatch{b, a.deps.Clock.Now()}) })
	})
	group.Go(func() error {
		scrape(ctx, a.deps.Scraper, a.cfg.ScrapeInterval, a.deps.Clock, a.mailbox().tell)
		return nil
	})
	if a.deps.Looker != nil {
		group.Go(func() error {
			lookWorker{a.deps.Looker, a.deps.Clock, a.mailbox().tell}.run(ctx, a.ready, l.lookAts)
			return nil
		})
	}
	group.Go(func() error {
		watchStarts(ctx, starts, newUnixHTTP(a.cfg.AdminSocket(), liveTimeout), a.mailbox().tell)
		return nil
	})
	group.Go(func() error {
		compactor(ctx, l.compacts, a.deps.Restarter, a.cfg.CompactNames, a.mailbox().tell)
		return nil
	})
	a.serveEarly(ctx, group, first)
	group.Go(func() error { return a.serveReady(ctx, group, server) })
	err = group.Wait()
	l.finalSaves()
	a.deps.Log.Info("agent stopped", "node", a.cfg.Node)
	return err
}

// openState makes the state directory and takes its lock. Another agent there is
// an error. A disk that cannot be written is not: the agent works without what it
// would have remembered.
func (a *Agent) openState() (*daemon.Lock, error) {
	err := os.MkdirAll(a.cfg.StateDir, stateDirMode)
	if err == nil {
		var lock *daemon.Lock
		if lock, err = daemon.Acquire(filepath.Join(a.cfg.StateDir, lockFile)); err == nil {
			return lock, nil
		}
	}
	if errors.Is(err, daemon.ErrLocked) {
		return nil, err
	}
	a.deps.Log.Warn("nothing can be remembered for the next start", "path", a.cfg.StateDir, "err", err)
	return nil, nil
}

func (a *Agent) mailbox() mailbox { return mailbox{a.in, a.ended} }

func (a *Agent) xdsConfig() xds.Config {
	m := xds.NewMetrics()
	a.deps.Registry.MustRegister(m)
	return xds.Config{
		Sink:    func(ev xds.Event) { a.mailbox().tell(xdsEvent{ev, a.deps.Clock.Now()}) },
		Metrics: m,
		Log:     a.deps.Log,
	}
}

var stateFiles = []string{demandFile, podsFile}

// newLoop makes the loop with what an earlier agent left.
func (a *Agent) newLoop(p publisher, writes chan<- write) *loop {
	r := restore(a.cfg, a.deps.CheckNetNS, a.deps.Log)
	changes := make([]model.Change, 0, len(r.pods))
	for _, w := range r.pods {
		changes = append(changes, model.SetWorkload{Workload: w})
	}
	state, _ := model.New(model.Options{RangeOverride: a.cfg.ServiceRange}).Apply(changes)
	names := demand.Config{Budget: a.cfg.NameBudget, Hold: a.cfg.NoServiceHold, Window: a.cfg.DemandWindow}
	if a.deps.Looker != nil {
		names.LookRate, names.LookBurst = a.cfg.LookRate, 2*a.cfg.LookRate
	}
	l := &loop{
		cfg: a.cfg, log: a.deps.Log, clock: a.deps.Clock, meter: a.meter, checkNetNS: a.deps.CheckNetNS,
		xds: p, in: a.in, writes: writes, ready: a.ready,
		state:     state,
		settings:  plan.Settings{Mode: a.cfg.Mode, Node: a.cfg.Node, Zone: a.cfg.Zone},
		demand:    demand.New(names, r.names),
		lookAts:   make(chan demand.LookAt, demand.MaxLooks),
		published: newPublished(),
		pace:      newPace(),
		pods:      newPods(r.pods, r.annotations),
		envoys:    map[uint64]xds.Stream{},
		nacks:     map[xds.Key]string{},

		compaction: compaction{limit: a.cfg.CompactNames},
		compacts:   make(chan demand.StreamID, 1),
		starting:   map[uint64]bool{},
		directory:  a.directory,
	}
	l.files = files{
		demandFile: {name: demandFile, gap: demandGap, snapshot: func() func() []byte {
			names := l.demand.Remembered()
			return func() []byte { return demand.Encode(names) }
		}},
		podsFile: {name: podsFile, snapshot: func() func() []byte {
			b := encodePods(l.pods.workloads(), l.pods.annotationsOf)
			return func() []byte { return b }
		}},
	}
	for name, why := range r.damaged {
		l.files[name].damaged = why
	}
	l.observe(&turn{})
	return l
}

// early are the listeners of what makes sense from the start.
type early struct{ cli, refuse, records, health net.Listener }

func (e early) close() {
	for _, l := range []net.Listener{e.cli, e.refuse, e.records, e.health} {
		if l != nil {
			l.Close()
		}
	}
}

func (a *Agent) listenEarly() (e early, err error) {
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	if e.cli, err = daemon.ListenUnix(a.cfg.run(agentSocket), ownMode); err != nil {
		return e, err
	}
	if e.refuse, err = daemon.ListenUnix(a.cfg.run(refuseSocket), envoyMode); err != nil {
		return e, err
	}
	if e.records, err = daemon.ListenUnix(a.cfg.run(recordSocket), envoyMode); err != nil {
		return e, err
	}
	if a.cfg.MetricsAddress == "" {
		return e, nil
	}
	if e.health, err = net.Listen("tcp", a.cfg.MetricsAddress); err != nil {
		return e, fmt.Errorf("serve metrics: %w", err)
	}
	return e, nil
}

func (a *Agent) serveEarly(ctx context.Context, group *errgroup.Group, e early) {
	metrics := newEnvoyMetrics(a.cfg.AdminSocket(), a.deps.EnvoyPID, a.deps.Registry, a.deps.Log)
	cli := a.cliRoutes(a.looker(), metrics)
	group.Go(func() error { return daemon.ServeHTTP(ctx, e.cli, cli, a.deps.Log) })
	group.Go(func() error {
		return refuse.New(refuse.Config{Log: a.deps.Log, Registerer: a.deps.Registry}).Serve(ctx, e.refuse)
	})
	a.records.serve(ctx, group, e.records, a.cfg.ScrapeInterval, a.deps.Clock)
	if e.health != nil {
		h := a.healthRoutes(metrics)
		group.Go(func() error { return daemon.ServeHTTP(ctx, e.health, h, a.deps.Log) })
	}
}

// serveReady serves Envoy and then the CNI plugin, once everything that is
// remembered is published.
func (a *Agent) serveReady(ctx context.Context, group *errgroup.Group, server *xds.Server) error {
	select {
	case <-a.ready:
	case <-ctx.Done():
		return nil
	}
	ln, err := xds.Listen(a.cfg.XDSSocket(), envoyMode)
	if err != nil {
		return err
	}
	a.open.Store(true)
	group.Go(func() error {
		ln, err := daemon.ListenUnix(a.cfg.run(cniSocket), ownMode)
		if err != nil {
			return err
		}
		h := cniHandler{loop: a.mailbox(), checkNetNS: a.deps.CheckNetNS}
		return daemon.ServeHTTP(ctx, ln, h.routes(), a.deps.Log)
	})
	return server.Serve(ctx, ln)
}

func (a *Agent) isReady() error {
	if !a.open.Load() {
		return errNotSynced
	}
	return nil
}
