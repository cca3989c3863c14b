// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"aether.io/aether/internal/daemon"
	"aether.io/aether/internal/xds/xdstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long anything may take that needs no time of the clock.
const patience = 10 * time.Second

// TestScenarios tells the agent's story in words: testdata/*.txtar. The agent is
// the real one with its real sockets and a watched directory; Envoy is
// xdstest's; time passes only by the word "advance".
//
//	agent start [key=value…]     mode, hold, window, budget, node, zone, range; looks=yes:
//	                             there is an API server that is looked at
//	agent begin [key=value…]     the same, without waiting until it is ready
//	agent ready|stop|log, agent logs PATTERN
//	apply FILE[=NAME]…           into the watched directory, under another name
//	delete NAME…                 out of it
//	envoy start|stop|disconnect|connect [NAME]
//	envoy gone                   wait until the agent has noticed
//	envoy rejects NAME           refuse the resource from now on; "nothing" ends it
//	envoy forget|saw NAME|removed none   what came since
//	dial ADDRESS…                a pod's connection, through the newest Envoy; waits
//	                             until the agent has heard of it
//	answer ADDRESS WANT…         what Envoy has for it, soon
//	listener NAMESPACE/NAME WANT…
//	explain ADDRESS, services, status, metrics, each with [until PATTERN]
//	mode [MODE]
//	pod add|delete NAMESPACE/NAME [field=value…]   ip, uid, sa, netns; advance the
//	                             clock once the agent has the pod
//	advance DURATION
//	allocate IP service NAME|other NAME|free   whose an address is to the API server
//	apiserver answers|silent|CAUSE   what it does when it is looked at
//	apiserver looked N           wait until it has been N times
//	watch behind|current         whether the source knows that it is
//	disk broken|mended
//	saved FILE [until PATTERN]   a file of the state directory
func TestScenarios(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:   "testdata",
		Setup: setup,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"agent":    word((*scenario).agentWord),
			"apply":    word((*scenario).apply),
			"delete":   word((*scenario).remove),
			"envoy":    word((*scenario).envoyWord),
			"dial":     word((*scenario).dial),
			"answer":   word((*scenario).answer),
			"listener": word((*scenario).listener),
			"explain":  word(until((*scenario).explain)),
			"services": word(until((*scenario).services)),
			"status":   word(until((*scenario).status)),
			"metrics":  word(until((*scenario).metrics)),
			"mode":     word((*scenario).mode),
			"pod":      word((*scenario).pod),
			"advance":  word((*scenario).advance),

			"allocate":  word((*scenario).allocate),
			"apiserver": word((*scenario).apiserver),
			"watch":     word((*scenario).watch),
			"disk":      word((*scenario).disk),
			"saved":     word(until((*scenario).saved)),
		},
		RequireExplicitExec: true,
	})
}

// word makes a script command of a method. "! word" wants it to fail.
func word(f func(*scenario, *testscript.TestScript, []string) error) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		err := f(ts.Value("scenario").(*scenario), ts, args)
		if err != nil && neg {
			fmt.Fprintln(ts.Stderr(), err)
		}
		if err != nil && !neg {
			ts.Fatalf("%v", err)
		}
		if err == nil && neg {
			ts.Fatalf("it succeeded")
		}
	}
}

// until makes a word print what f does; with "until PATTERN" at the end it waits
// until that matches.
func until(f func(*scenario, io.Writer, []string) error) func(*scenario, *testscript.TestScript, []string) error {
	return func(s *scenario, ts *testscript.TestScript, args []string) error {
		n := len(args)
		if n < 2 || args[n-2] != "until" {
			return f(s, ts.Stdout(), args)
		}
		re, err := regexp.Compile("(?m)" + args[n-1])
		if err != nil {
			return err
		}
		return soon(func() error {
			var b strings.Builder
			if err := f(s, &b, args[:n-2]); err != nil {
				return err
			}
			if !re.MatchString(b.String()) {
				return fmt.Errorf("%q does not match %q", b.String(), args[n-1])
			}
			return nil
		})
	}
}

// scenario is one node of a script.
type scenario struct {
	work, run, state, manifests string
	clock                       *fakeClock
	log                         *syncBuffer
	agent                       *running
	agents                      []*running
	envoys                      map[string]*xdstest.Envoy
	current                     string // newest Envoy
	api                         *apiServer
	real                        bool   // clock, namespaces and counts are real
	netns                       string // directory of what passes for network namespaces

	mu      sync.Mutex
	rejects map[string]bool
}

// running is one agent process.
type running struct {
	cfg      Config
	registry *prometheus.Registry
	cancel   context.CancelFunc
	ready    func() error
	done     chan error
	batches  atomic.Int64
	client   map[string]*http.Client
}

func setup(env *testscript.Env) error {
	s, err := newScenario(env.WorkDir)
	if err != nil {
		return err
	}
	env.Values["scenario"] = s
	env.Setenv("RUN", s.run)
	env.Defer(s.end)
	return nil
}

func newScenario(work string) (*scenario, error) {
	run, err := os.MkdirTemp("", "aether") // short: sockets live there
	if err != nil {
		return nil, err
	}
	s := &scenario{
		work: work, run: run,
		state:     filepath.Join(work, "state"),
		manifests: filepath.Join(work, "manifests"),
		netns:     filepath.Join(work, "netns"),
		clock:     newFakeClock(),
		log:       &syncBuffer{},
		envoys:    map[string]*xdstest.Envoy{},
		rejects:   map[string]bool{},
	}
	s.api = newAPIServer(s.clock)
	return s, errors.Join(os.Mkdir(s.manifests, 0o755), os.Mkdir(s.netns, 0o755), os.Mkdir(s.state, 0o700))
}

func (s *scenario) end() {
	for _, e := range s.envoys {
		e.Close()
	}
	for _, a := range s.agents {
		a.cancel()
		<-a.done
	}
	os.RemoveAll(s.run)
}

var errEnded = errors.New("the agent ended")

// soon waits until f returns nil and gives its last error otherwise.
func soon(f func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := f()
		if err == nil || errors.Is(err, errEnded) || time.Now().After(deadline) {
			return err
		}
		<-time.After(2 * time.Millisecond)
	}
}

func (s *scenario) agentWord(ts *testscript.TestScript, args []string) error {
	switch args[0] {
	case "start":
		return s.startAgent(args[1:], (*scenario).awaitReady)
	case "begin":
		return s.startAgent(args[1:], (*scenario).awaitBegun)
	case "ready":
		return s.awaitReady(s.agent)
	case "stop":
		s.agent.cancel()
		err := <-s.agent.done
		s.agent.done <- nil
		return err
	case "log":
		fmt.Fprint(ts.Stdout(), s.log.String())
		return nil
	case "logs":
		return s.awaitLog(args[1])
	}
	return fmt.Errorf("unknown word %q", args[0])
}

func (s *scenario) startAgent(args []string, await func(*scenario, *running) error) error {
	c := DefaultConfig()
	c.Node, c.RunDir, c.StateDir, c.MetricsAddress = "n1", s.run, s.state, ""
	if s.real {
		c.ScrapeInterval = 50 * time.Millisecond
	}
	var looker Looker
	if slices.Contains(args, "looks=yes") {
		looker, args = s.api, slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "looks=yes" })
	}
	if err := configure(&c, args); err != nil {
		return err
	}
	log, err := daemon.NewLogger(s.log, "debug", "text")
	if err != nil {
		return err
	}
	a := &running{cfg: c, registry: daemon.NewRegistry(), done: make(chan error, 2)}
	source := Manifests([]string{s.manifests})
	deps := Deps{
		Log: log, Registry: a.registry, Looker: looker,
		Source: func(ctx context.Context, sink func(Batch)) error {
			return source(ctx, func(b Batch) {
				sink(b)
				a.batches.Add(1)
			})
		},
	}
	if !s.real {
		deps.Clock, deps.CheckNetNS = s.clock, checkFile
		deps.Scraper = func(context.Context) (map[string]count, error) { return nil, errors.New("no admin socket") }
	}
	x, err := New(c, deps)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	a.cancel, a.ready = cancel, x.isReady
	a.client = map[string]*http.Client{agentSocket: unixClient(c.run(agentSocket)), cniSocket: unixClient(c.run(cniSocket))}
	go func() { a.done <- x.Run(ctx) }()
	s.agents = append(s.agents, a)
	if err := await(s, a); err != nil {
		return err
	}
	s.agent = a
	return nil
}

// awaitReady waits until an agent serves Envoy and the CNI plugin, or has ended.
func (s *scenario) awaitReady(a *running) error {
	return soon(func() error {
		select {
		case err := <-a.done:
			a.done <- err
			return fmt.Errorf("%w: %w", errEnded, err)
		default:
		}
		if err := a.ready(); err != nil {
			return err
		}
		for _, name := range []string{xdsSocket, cniSocket, agentSocket, refuseSocket} {
			if _, err := os.Stat(filepath.Join(s.run, name)); err != nil {
				return err
			}
		}
		return nil
	})
}

// awaitBegun waits until an agent serves the CLI.
func (s *scenario) awaitBegun(a *running) error {
	return soon(func() error {
		_, err := a.getStatus()
		return err
	})
}

// awaitLog waits until a line of the log matches.
func (s *scenario) awaitLog(pattern string) error {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return err
	}
	return soon(func() error {
		if !re.MatchString(s.log.String()) {
			return fmt.Errorf("no line of the log matches %q", pattern)
		}
		return nil
	})
}

// checkFile stands for CheckNetNS: a namespace is a file.
func checkFile(path string) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("%s does not exist", path)
	}
	return nil
}

func (s *scenario) envoyWord(_ *testscript.TestScript, args []string) error {
	name := s.current
	if len(args) > 1 && (args[0] == "start" || args[0] == "stop") {
		name = args[1]
	}
	e := s.envoys[name]
	switch args[0] {
	case "start":
		if len(args) < 2 {
			name = "envoy"
		}
		fresh, err := xdstest.New(xdstest.DialUnix(filepath.Join(s.run, xdsSocket)), xdstest.Options{Node: "n1", Judge: s.judge})
		if err != nil {
			return err
		}
		if old := s.envoys[name]; old != nil {
			old.Close()
		}
		s.envoys[name], s.current = fresh, name
		return fresh.Connect()
	case "stop":
		e.Close()
		delete(s.envoys, name)
		return nil
	case "disconnect":
		e.Disconnect()
		return nil
	case "connect":
		return e.Connect()
	case "gone":
		return s.awaitGone()
	case "forget":
		e.Forget()
		return nil
	case "saw":
		return e.Wait(within(patience), func() bool {
			return slices.ContainsFunc(e.Responses(), func(r xdstest.Response) bool { return slices.Contains(r.Names, args[1]) })
		})
	case "removed":
		for _, r := range e.Responses() {
			if len(r.Removed) > 0 {
				return fmt.Errorf("removed: %v", r.Removed)
			}
		}
		return nil
	case "rejects":
		s.mu.Lock()
		defer s.mu.Unlock()
		s.rejects = map[string]bool{args[1]: true}
		return nil
	}
	return fmt.Errorf("unknown word %q", args[0])
}

// within returns a context that ends after d.
func within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// awaitGone waits until the agent knows of no Envoy.
func (s *scenario) awaitGone() error {
	return soon(func() error {
		st, err := s.agent.getStatus()
		if err == nil && st.Envoy.Connected {
			err = errors.New("an Envoy is connected")
		}
		return err
	})
}

// disk breaks or mends the state directory: a directory stands where the demand
// file should be, which no rename replaces.
func (s *scenario) disk(_ *testscript.TestScript, args []string) error {
	path := filepath.Join(s.state, demandFile)
	if err := os.RemoveAll(path); err != nil || args[0] == "mended" {
		return err
	}
	return os.MkdirAll(filepath.Join(path, "in the way"), 0o700)
}

func (s *scenario) saved(w io.Writer, args []string) error {
	b, err := os.ReadFile(filepath.Join(s.state, args[0]))
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

func (s *scenario) judge(_, name string, _ []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rejects[name] {
		return errors.New("cannot bind: no such namespace")
	}
	return nil
}

// apply moves files into the watched directory and waits until the agent has
// taken them in.
func (s *scenario) apply(ts *testscript.TestScript, args []string) error {
	return s.edit(func() error {
		for _, name := range args {
			from, to, ok := strings.Cut(name, "=")
			if !ok {
				to = from
			}
			early := filepath.Join(s.work, ".early")
			if err := os.WriteFile(early, []byte(ts.ReadFile(from)), 0o600); err != nil {
				return err
			}
			if err := os.Rename(early, filepath.Join(s.manifests, to)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *scenario) remove(_ *testscript.TestScript, args []string) error {
	return s.edit(func() error {
		for _, name := range args {
			if err := os.Remove(filepath.Join(s.manifests, name)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *scenario) edit(change func() error) error {
	if s.agent == nil {
		return change()
	}
	before := s.agent.batches.Load()
	if err := change(); err != nil {
		return err
	}
	err := soon(func() error {
		if s.agent.batches.Load() == before {
			return errors.New("the source tells nothing")
		}
		return nil
	})
	return errors.Join(err, s.barrier())
}

// barrier waits until the loop has taken in everything that was sent before.
func (s *scenario) barrier() error {
	_, err := s.agent.getStatus()
	return err
}

func (s *scenario) advance(_ *testscript.TestScript, args []string) error {
	d, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	if err := s.barrier(); err != nil { // what came before comes before
		return err
	}
	s.clock.Advance(d)
	return s.barrier()
}

func (s *scenario) dial(_ *testscript.TestScript, args []string) error {
	e := s.envoys[s.current]
	if e == nil {
		return errors.New("there is no Envoy")
	}
	for _, a := range args {
		e.Ask("svc:" + a)
		if _, err := netip.ParseAddrPort(a); err != nil {
			continue
		}
		if err := s.explainUntil(a, "live: asked true"); err != nil {
			return err
		}
	}
	return nil
}

func (s *scenario) explainUntil(address, text string) error {
	return soon(func() error {
		var b strings.Builder
		if err := s.explain(&b, []string{address}); err != nil {
			return err
		}
		if !strings.Contains(b.String(), text) {
			return fmt.Errorf("%q does not hold %q", b.String(), text)
		}
		return nil
	})
}

// fields reads key=value arguments; only the keys named are allowed.
func fields(args []string, keys ...string) (map[string]string, error) {
	out := map[string]string{}
	for _, a := range args {
		k, v, ok := strings.Cut(a, "=")
		if !ok || !slices.Contains(keys, k) {
			return nil, fmt.Errorf("unknown argument %q, want one of %v", a, keys)
		}
		out[k] = v
	}
	return out, nil
}
