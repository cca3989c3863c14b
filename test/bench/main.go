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
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"aether.io/aether/internal/sandbox"
	"aether.io/aether/test/bench/figure"
)

// Settings say what to measure and for how long.
type Settings struct {
	// Sources are the source modes, of pod and node.
	Sources []string `json:"sources"`
	// Rows are what to measure.
	Rows []string `json:"rows"`
	// Names is how many cold names are dialled in each source mode.
	Names int `json:"names"`
	// Pairs is how often each load is put on both lanes, Seconds for how long.
	Pairs   int     `json:"pairs"`
	Seconds float64 `json:"seconds"`
	// Calm is the share of the machine that others may use in a pair for it to
	// count; 1 counts all pairs.
	Calm float64 `json:"calm"`

	Rolling   RollingSettings   `json:"rolling"`
	Scale     ScaleSettings     `json:"scale"`
	Memory    MemorySettings    `json:"memory"`
	Neighbour NeighbourSettings `json:"neighbour"`
}

// What to measure, beside the kinds of load.
const (
	rowFirst     = "first"
	rowRolling   = "rolling"
	rowScale     = "scale"
	rowMemory    = "memory"
	rowNeighbour = "neighbour"
)

var (
	allSources = []string{"pod", "node"}
	allRows    = []string{rowFirst, keptAlive, newConnections, rowRolling, rowScale, rowMemory, rowNeighbour}
	// defaults take about a quarter of an hour, quick about a minute.
	defaults = Settings{
		Sources: allSources, Rows: allRows, Names: 300, Pairs: 15, Seconds: 1, Calm: 1,
		Rolling:   RollingSettings{Asked: 2000, Endpoints: 5000, Pods: 100, Names: 300, PerSecond: 50},
		Scale:     ScaleSettings{Services: []int{100, 1000, 10_000}, Changes: 200, PerSecond: 50, Seconds: 10},
		Memory:    MemorySettings{Names: 500, Listeners: 200, Connections: 2000},
		Neighbour: NeighbourSettings{Rounds: 15, Seconds: 1.5},
	}
	quick = Settings{
		Sources: allSources, Rows: allRows, Names: 30, Pairs: 1, Seconds: 1, Calm: 1,
		Rolling:   RollingSettings{Asked: 100, Endpoints: 500, Pods: 5, Names: 30, PerSecond: 50},
		Scale:     ScaleSettings{Services: []int{60, 600}, Changes: 10, PerSecond: 50, Seconds: 1},
		Memory:    MemorySettings{Names: 60, Listeners: 20, Connections: 200},
		Neighbour: NeighbourSettings{Rounds: 1, Seconds: 1},
	}
)

// maxRun bounds a whole run, whatever the settings.
const maxRun = time.Hour

func (s Settings) validate() error {
	for _, x := range s.Sources {
		if !slices.Contains(allSources, x) {
			return fmt.Errorf("source %q: want one of %s", x, strings.Join(allSources, ", "))
		}
	}
	for _, x := range s.Rows {
		if !slices.Contains(allRows, x) {
			return fmt.Errorf("row %q: want one of %s", x, strings.Join(allRows, ", "))
		}
	}
	switch {
	case s.Names < 1 || s.Names > maxNames:
		return fmt.Errorf("%d names: want 1 to %d", s.Names, maxNames)
	case s.Pairs < 1:
		return fmt.Errorf("%d pairs: want at least 1", s.Pairs)
	case s.Seconds < 1 || s.Seconds != float64(int(s.Seconds)):
		return fmt.Errorf("%g s: wrk wants whole seconds, at least 1", s.Seconds)
	case s.Calm <= 0 || s.Calm > 1:
		return fmt.Errorf("calm %g: want a share of more than 0 and at most 1", s.Calm)
	}
	return nil
}

func main() {
	if handled, code := sandbox.BuiltinMain(os.Args); handled {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is the program: 0 for a valid run, 1 for one that is not, 2 for bad flags.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	b, s, out, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 2
	}
	if b.docs != "" {
		if err := writeDocs(".", b.docs); err != nil {
			fmt.Fprintln(stderr, "bench: write the documents:", err)
			return 1
		}
		return 0
	}
	b.say = func(format string, args ...any) { fmt.Fprintf(stdout, format+"\n", args...) }
	r, err := b.measure(ctx, s)
	if r != nil {
		r.Valid = err == nil
		if err != nil {
			r.Error = err.Error()
		}
		r.print(stdout)
		fmt.Fprintf(stdout, "\n%.0f s; every sample is in %s\n", r.Seconds, out)
		if err != nil {
			fmt.Fprintln(stdout, "This run is NOT valid.")
		}
		err = errors.Join(err, r.write(out))
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (b *bench, s Settings, out string, err error) {
	b = &bench{}
	var bin string
	var sources, rows string
	var brief bool
	given := defaults
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&bin, "bin", ".build/bin", "`folder` with aether-agent and aetherctl")
	fs.StringVar(&b.envoy, "envoy", ".build/envoy/envoy", "Envoy `binary`")
	fs.StringVar(&b.name, "name", "bench", "`name` of the node: two of different names can run side by side")
	fs.StringVar(&out, "out", ".build/bench.json", "`file` for every sample")
	fs.StringVar(&b.docs, "write-docs", "", "measure nothing: bring the documents along with the run in `file`")
	fs.StringVar(&sources, "source", "", "source `modes` (default "+strings.Join(allSources, ",")+")")
	fs.StringVar(&rows, "only", "", "`rows` to measure (default "+strings.Join(allRows, ",")+")")
	fs.IntVar(&given.Names, "names", defaults.Names, "cold names in each source mode")
	fs.IntVar(&given.Pairs, "pairs", defaults.Pairs, "pairs of samples of each load")
	fs.Float64Var(&given.Seconds, "seconds", defaults.Seconds, "length of a sample")
	fs.Float64Var(&given.Calm, "calm", defaults.Calm,
		fmt.Sprintf("`share` of the machine that others may use in a pair for it to count; up to %d times as many pairs are made", maxAttempts))
	fs.BoolVar(&brief, "quick", false, fmt.Sprintf("%d names, %d pairs of %g s, unless given, and few of everything else", quick.Names, quick.Pairs, quick.Seconds))
	if err := fs.Parse(args); err != nil {
		return nil, s, "", err
	}
	if fs.NArg() > 0 {
		return nil, s, "", fmt.Errorf("unexpected argument %s", fs.Arg(0))
	}
	s = defaults
	if brief {
		s = quick
	}
	fs.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "names":
			s.Names = given.Names
		case "pairs":
			s.Pairs = given.Pairs
		case "seconds":
			s.Seconds = given.Seconds
		case "calm":
			s.Calm = given.Calm
		case "source":
			s.Sources = strings.Split(sources, ",")
		case "only":
			s.Rows = strings.Split(rows, ",")
		}
	})
	b.agent, b.ctl = filepath.Join(bin, "aether-agent"), filepath.Join(bin, "aetherctl")
	return b, s, out, s.validate()
}

// bench makes nodes and measures on them.
type bench struct {
	agent, ctl, envoy string
	name              string // of the node
	docs              string // the run to write documents of
	say               func(format string, args ...any)
}

// measure takes one part after the other, each on a node of its own. The report is nil
// when nothing could be measured at all.
func (b *bench) measure(ctx context.Context, s Settings) (*Report, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("needs root to make network namespaces: run `sudo make bench`")
	}
	ctx, cancel := context.WithTimeout(ctx, maxRun)
	defer cancel()
	m, err := lookAtMachine(ctx, b.envoy)
	if err != nil {
		return nil, err
	}
	b.say("Linux %s, %d cores (%s), Envoy %s, wrk %s; load average before the run %.2f",
		m.Kernel, m.Cores, m.CPU, m.Envoy, m.Wrk, m.LoadBefore)
	r := &Report{Began: time.Now().UTC(), Machine: m, Settings: s}
	// A part that fails makes the run invalid; the others are measured all the same.
	var failed []error
	for _, part := range b.parts(s, r) {
		if ctx.Err() != nil {
			failed = append(failed, ctx.Err())
			break
		}
		b.say("\n%s", part.title)
		if err := part.run(ctx); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", part.title, err))
			b.say("  failed: %v", err)
		}
	}
	r.Rows = r.rows()
	r.Seconds = time.Since(r.Began).Seconds()
	return r, errors.Join(failed...)
}

// part is what is measured on one node.
type part struct {
	title string
	run   func(context.Context) error
}

// parts are what the settings ask for, in order.
func (b *bench) parts(s Settings, r *Report) []part {
	var out []part
	add := func(title string, run func(context.Context) error, rows ...string) {
		if slices.ContainsFunc(rows, func(row string) bool { return slices.Contains(s.Rows, row) }) {
			out = append(out, part{title, run})
		}
	}
	for _, source := range s.Sources {
		add(source+"-sourced", func(ctx context.Context) error { return b.measureSource(ctx, s, source, r) }, rowFirst, keptAlive, newConnections)
	}
	for _, source := range s.Sources {
		add(source+"-sourced, a large Service rolling", func(ctx context.Context) error {
			l, err := b.measureRolling(ctx, source, s.Rolling)
			if err == nil {
				r.Rolling = append(r.Rolling, l)
				b.sayFirst(l.FirstConnections)
			}
			return err
		}, rowRolling)
	}
	for _, size := range s.Scale.Services {
		add(figure.Thousands(size)+" Services", func(ctx context.Context) error {
			l, err := b.measureScale(ctx, size, s.Scale)
			if err == nil {
				r.Scale = append(r.Scale, l)
				b.say("  %-10s told → acknowledged p50 %.2f ms, p99 %.2f ms   agent %.0f MiB, %.1f %% of a core, %.1f %% busy   others used %.0f %% of the machine",
					rowScale, l.Told.Median, l.Told.P99, l.IdleMiB, 100*l.IdleCPU, 100*l.BusyCPU, 100*l.Others)
			}
			return err
		}, rowScale)
	}
	add("memory of Envoy", func(ctx context.Context) error {
		m, err := b.measureMemory(ctx, s.Memory)
		if err == nil {
			r.Memory = &m
		}
		return err
	}, rowMemory)
	add("a neighbour that misbehaves", func(ctx context.Context) error {
		n, err := b.measureNeighbour(ctx, s.Neighbour)
		if err == nil {
			r.Neighbour = &n
		}
		return err
	}, rowNeighbour)
	return out
}

func (b *bench) sayFirst(f FirstConnections) {
	b.say("  %-10s %d names   first p50 %.2f ms, p99 %.2f ms   later p50 %.2f ms, p99 %.2f ms   others used %.0f %% of the machine",
		rowFirst, len(f.Samples), f.Cold.Median, f.Cold.P99, f.Warm.Median, f.Warm.P99, 100*f.Others)
}

// measureSource takes first connections and loads of one source mode.
func (b *bench) measureSource(ctx context.Context, s Settings, source string, r *Report) error {
	return b.withNode(ctx, nodeSpec{source: source, pods: manifests(s.Names)}, func(n *sandbox.Node, _, dir string) error {
		if slices.Contains(s.Rows, rowFirst) {
			if err := calm(s.Calm).wait(ctx); err != nil {
				return err
			}
			f, err := measureFirstConnections(ctx, n, source, s.Names)
			if err != nil {
				return err
			}
			r.First = append(r.First, f)
			b.sayFirst(f)
		}
		return b.measureLoad(ctx, s, source, n, dir, r)
	})
}

// sharedProcesses are the agent's and the servers'.
func sharedProcesses(node *sandbox.Node) []int {
	pids := []int{node.AgentPID()}
	for _, p := range node.Status().Pods {
		for _, c := range p.Containers {
			pids = append(pids, c.PID)
		}
	}
	return pids
}

func (b *bench) measureLoad(ctx context.Context, s Settings, source string, node *sandbox.Node, dir string, r *Report) error {
	kinds := slices.DeleteFunc(slices.Clone(s.Rows), func(row string) bool { return row != keptAlive && row != newConnections })
	if len(kinds) == 0 {
		return nil
	}
	script := filepath.Join(dir, "result.lua")
	if err := os.WriteFile(script, []byte(wrkScript), 0o644); err != nil {
		return fmt.Errorf("write wrk's script: %w", err)
	}
	envoy, err := envoyOf(ctx, node)
	if err != nil {
		return err
	}
	bare, err := startBare(ctx, node, source, b.envoy, dir)
	if err != nil {
		return err
	}
	defer bare.stop()
	haproxy, err := startHAProxy(ctx, node, source, dir)
	if err != nil {
		return err
	}
	defer haproxy.stop()
	l := loader{
		node: node, script: script, lanes: append(bare.lanes(), captureLane(node, envoy), haproxy.lane(), dnatLane(node)),
		shared: sharedProcesses(node), duration: time.Duration(s.Seconds * float64(time.Second)), calm: calm(s.Calm), progress: b.say,
	}
	for _, kind := range kinds {
		load, err := l.measure(ctx, source, kind, s.Pairs)
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		r.Load = append(r.Load, load)
	}
	return nil
}
