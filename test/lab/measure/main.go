// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"aether.io/aether/internal/sandbox"
	"aether.io/aether/test/bench/figure"
)

// Settings say what to measure, in what cluster, and for how long.
type Settings struct {
	Parts []string `json:"parts"`
	// Small and Large are how many Services there are, first and then; Endpoints how
	// many they have in all then.
	Small     int `json:"small"`
	Large     int `json:"large"`
	Endpoints int `json:"endpoints"`
	// Leaving is how many Services have an endpoint that leaves and comes back,
	// Samples how many new Services, and how many leaves, are timed at each size.
	Leaving int `json:"leaving"`
	Samples int `json:"samples"`
	// Cold is how many Services are dialled for the first time, quiet and under load.
	Cold int `json:"cold"`
	// Under load: names asked for, endpoints of the Service that rolls, captured pods.
	Asked   int `json:"asked"`
	Rolling int `json:"rolling"`
	Pods    int `json:"pods"`
	// Busy is how many slices change per second, Window how many seconds CPU and
	// memory are looked at meanwhile, Idle how many nothing changes: long enough for
	// what Go's runtime does every two minutes.
	Busy   int     `json:"busy"`
	Window float64 `json:"window"`
	Idle   float64 `json:"idle"`
	// Demand are the numbers of Services in demand of part scope, ascending;
	// ScopeWindow is its Window.
	Demand      []int   `json:"demand"`
	ScopeWindow float64 `json:"scopeWindow"`
}

// Parts of a run, in their order.
const (
	partSmall  = "small"   // new Services and leaving endpoints in the small cluster
	partLarge  = "large"   // the same in the large one
	partPass   = "balance" // new Services in mode balance
	partCost   = "cost"
	partFirst  = "first"
	partLoaded = "loaded"
	partScope  = "scope"
)

var (
	allParts = []string{partSmall, partLarge, partPass, partCost, partFirst, partLoaded, partScope}
	defaults = Settings{
		Parts: allParts, Small: 100, Large: 10_000, Endpoints: 100_000, Leaving: 8, Samples: 100, Cold: 300,
		Asked: 2000, Rolling: 5000, Pods: 100, Busy: 50, Window: 60, Idle: 125, Demand: []int{1, 50, 500}, ScopeWindow: 10,
	}
	quick = Settings{
		Parts: allParts, Small: 20, Large: 200, Endpoints: 1000, Leaving: 4, Samples: 3, Cold: 10,
		Asked: 20, Rolling: 200, Pods: 4, Busy: 20, Window: 1, Idle: 1, Demand: []int{1, 5}, ScopeWindow: 1,
	}
)

// maxRun bounds a whole run, whatever the settings.
const maxRun = time.Hour

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if len(os.Args) > 1 && os.Args[1] == argReader {
		code := readerMain(ctx, os.Args[2:], os.Stdin, os.Stdout)
		stop()
		os.Exit(code)
	}
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// program is what the command line says.
type program struct {
	settings        Settings
	name, out, docs string
}

// run is the program: 0 for a valid run, 1 for one that is not, 2 for bad flags.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	p, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "measure:", err)
		return 2
	}
	if p.docs != "" {
		if err := writeDocs(repository, p.docs); err != nil {
			fmt.Fprintln(stderr, "measure: write the documents:", err)
			return 1
		}
		return 0
	}
	say := func(format string, args ...any) { fmt.Fprintf(stdout, format+"\n", args...) }
	r, err := measure(ctx, p, say)
	if r != nil {
		r.Valid = err == nil
		if err != nil {
			r.Error = err.Error()
		}
		r.Rows = r.rows()
		figure.Print(stdout, heads, figure.Cells(r.Rows))
		if len(r.Scopes) > 0 {
			figure.Print(stdout, startHeads, scopeStarts(r.Scopes))
			figure.Print(stdout, scopeHeads, scopeCells(r.Scopes))
		}
		say("\n%.0f s; every sample is in %s", r.Seconds, p.out)
		if err != nil {
			say("This run is NOT valid.")
		}
		err = errors.Join(err, figure.WriteJSON(p.out, r))
	}
	if err != nil {
		fmt.Fprintln(stderr, "measure:", err)
		return 1
	}
	return 0
}

// repository is where the documents are, from the module's directory.
const repository = "../.."

func parse(args []string, stderr io.Writer) (p program, err error) {
	var parts string
	var brief bool
	fs := flag.NewFlagSet("measure", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&p.name, "name", "measure", "`name` of the lab")
	fs.StringVar(&p.out, "out", repository+"/.build/bench-cluster.json", "`file` for every sample")
	fs.StringVar(&p.docs, "write-docs", "", "measure nothing: bring the documents along with the run in `file`")
	fs.StringVar(&parts, "only", "", "`parts` to measure (default "+strings.Join(allParts, ",")+")")
	fs.BoolVar(&brief, "quick", false, "a small cluster and few of everything, in about a minute")
	if err := fs.Parse(args); err != nil {
		return p, err
	}
	if fs.NArg() > 0 {
		return p, fmt.Errorf("unexpected argument %s", fs.Arg(0))
	}
	p.settings = defaults
	if brief {
		p.settings = quick
	}
	if parts != "" {
		p.settings.Parts = strings.Split(parts, ",")
	}
	for _, x := range p.settings.Parts {
		if !slices.Contains(allParts, x) {
			return p, fmt.Errorf("part %q: want one of %s", x, strings.Join(allParts, ", "))
		}
	}
	return p, nil
}

// measure makes a cluster and takes one part after the other. The report is nil
// when nothing could be measured at all.
func measure(ctx context.Context, p program, say func(string, ...any)) (r *Report, err error) {
	ctx, cancel := context.WithTimeout(ctx, maxRun)
	defer cancel()
	envoy, err := sandbox.FindEnvoy("")
	if err != nil {
		return nil, err
	}
	m, err := figure.LookAtMachine(ctx, envoy)
	if err != nil {
		return nil, err
	}
	say("Linux %s, %d cores (%s), Envoy %s; load average before the run %.2f", m.Kernel, m.Cores, m.CPU, m.Envoy, m.LoadBefore)
	began := time.Now().UTC()
	c, err := up(ctx, p.name, say)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Down(context.WithoutCancel(ctx))) }()
	r = &Report{Began: began, Machine: m, Settings: p.settings}
	defer func() { r.Seconds = time.Since(r.Began).Seconds() }()
	if r.Kubernetes, err = c.kubernetes(); err != nil {
		return r, err
	}
	for _, part := range c.parts(p.settings, r) {
		say("\n%s", part.title)
		if err := part.run(ctx); err != nil {
			say("  failed: %v", err)
			return r, fmt.Errorf("%s: %w", part.title, err)
		}
	}
	return r, nil
}

// part is one of a run.
type part struct {
	title string
	run   func(context.Context) error
}

// parts are what the settings ask for, in order. Each builds on the cluster that
// those before it left.
func (c *cluster) parts(s Settings, r *Report) []part {
	wanted := func(p string) bool { return slices.Contains(s.Parts, p) }
	var out []part
	add := func(name, title string, run func(context.Context) error) {
		if wanted(name) {
			out = append(out, part{title, run})
		}
	}
	grow := func(n, endpoints int, small bool) func(context.Context) error {
		return func(ctx context.Context) error { return c.grow(ctx, n, endpoints, small, s) }
	}
	out = append(out, part{"the small cluster", grow(s.Small, s.Small*perService, true)})
	add(partSmall, "new Services and leaving endpoints", func(ctx context.Context) error { return c.changes(ctx, s, r) })
	out = append(out, part{"the large cluster", grow(s.Large, s.Endpoints, false)})
	add(partLarge, "new Services and leaving endpoints", func(ctx context.Context) error { return c.changes(ctx, s, r) })
	add(partPass, "new Services in mode balance", func(ctx context.Context) error { return c.inBalance(ctx, s, r) })
	add(partCost, "memory and CPU", func(ctx context.Context) (err error) {
		if r.Cost, err = c.measureCost(ctx, s); err == nil {
			c.sayCost(r.Cost)
		}
		return err
	})
	add(partFirst, "first connections", func(ctx context.Context) error {
		f, err := c.measureFirst(ctx, c.people.cold)
		if err == nil {
			r.First = append(r.First, f)
			c.sayFirst(f)
		}
		return err
	})
	add(partLoaded, "first connections under load", func(ctx context.Context) error { return c.loaded(ctx, s, r) })
	add(partScope, "ways to learn of endpoints", func(ctx context.Context) error { return c.scopes(ctx, s, r) })
	return out
}

// changes times new Services and leaving endpoints at the cluster's size.
func (c *cluster) changes(ctx context.Context, s Settings, r *Report) error {
	x := Changes{Services: len(c.people.all()), Endpoints: c.people.endpoints(), Mode: "enforce"}
	var err error
	if x.Appear, err = c.measureAppear(ctx, s.Samples); err != nil {
		return err
	}
	c.sayTimes("first answer", x.Appear)
	if err := c.quiet(ctx); err != nil {
		return err
	}
	leave, err := c.measureLeave(ctx, s.Samples)
	if err != nil {
		return err
	}
	x.Leave = &leave
	c.sayTimes("last connection", leave)
	r.Changes = append(r.Changes, x)
	return nil
}

// inBalance times new Services in the mode in which an unknown address is passed on.
func (c *cluster) inBalance(ctx context.Context, s Settings, r *Report) error {
	if err := c.Node.RestartAgent(ctx, sandbox.AgentSettings{Mode: "balance"}); err != nil {
		return err
	}
	x := Changes{Services: len(c.people.all()), Endpoints: c.people.endpoints(), Mode: "balance"}
	var err error
	if x.Appear, err = c.measureAppear(ctx, s.Samples); err != nil {
		return err
	}
	c.sayTimes("first answer", x.Appear)
	r.Changes = append(r.Changes, x)
	return c.Node.RestartAgent(ctx, sandbox.AgentSettings{Mode: "enforce"})
}

// loaded takes first connections under load, half of them beside kube-proxy and half
// while it is stopped: it works for the same changes, on the same cores.
func (c *cluster) loaded(ctx context.Context, s Settings, r *Report) error {
	if err := c.prepareLoad(ctx, s); err != nil {
		return err
	}
	half := len(c.people.loaded) / 2
	for i, list := range [][]*service{c.people.loaded[:half], c.people.loaded[half:]} {
		if i == 1 {
			c.KubeProxy.Stop()
		}
		f, err := c.measureFirstLoaded(ctx, list, s)
		if err != nil {
			return err
		}
		r.First = append(r.First, f)
		c.sayFirst(f)
	}
	return nil
}
