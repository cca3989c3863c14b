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
)

// Settings say what to measure and for how long.
type Settings struct {
	// Sources are the source modes, of pod and node.
	Sources []string `json:"sources"`
	// Rows are what to measure, of first, kept-alive and new.
	Rows []string `json:"rows"`
	// Names is how many cold names are dialled in each source mode.
	Names int `json:"names"`
	// Pairs is how often each load is put on both lanes, Seconds for how long.
	Pairs   int     `json:"pairs"`
	Seconds float64 `json:"seconds"`
	// Calm is the share of the machine that others may use in a pair for it to
	// count; 1 counts all pairs.
	Calm float64 `json:"calm"`
}

const rowFirst = "first"

var (
	allSources = []string{"pod", "node"}
	allRows    = []string{rowFirst, keptAlive, newConnections}
	// defaults take about four minutes, quick some forty seconds.
	defaults = Settings{Sources: allSources, Rows: allRows, Names: 250, Pairs: 21, Seconds: 1, Calm: 1}
	quick    = Settings{Sources: allSources, Rows: allRows, Names: 40, Pairs: 3, Seconds: 1, Calm: 1}
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
	b.say = func(format string, args ...any) { fmt.Fprintf(stdout, format+"\n", args...) }
	r, err := b.measure(ctx, s)
	if r != nil {
		r.Valid = err == nil
		if err != nil {
			r.Error = err.Error()
		} else {
			r.print(stdout)
			fmt.Fprintf(stdout, "\n%.0f s; every sample is in %s\n", r.Seconds, out)
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
	fs.StringVar(&out, "out", ".build/bench.json", "`file` for every sample")
	fs.StringVar(&sources, "source", "", "source `modes` (default pod,node)")
	fs.StringVar(&rows, "only", "", "`rows` to measure (default first,kept-alive,new)")
	fs.IntVar(&given.Names, "names", defaults.Names, "cold names in each source mode")
	fs.IntVar(&given.Pairs, "pairs", defaults.Pairs, "pairs of samples of each load")
	fs.Float64Var(&given.Seconds, "seconds", defaults.Seconds, "length of a sample")
	fs.Float64Var(&given.Calm, "calm", defaults.Calm,
		fmt.Sprintf("`share` of the machine that others may use in a pair for it to count; up to %d times as many pairs are made", maxAttempts))
	fs.BoolVar(&brief, "quick", false, fmt.Sprintf("%d names, %d pairs of %g s, unless given", quick.Names, quick.Pairs, quick.Seconds))
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
	say               func(format string, args ...any)
}

// measure makes one node per source mode, one after the other. The report is nil
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
	for _, source := range s.Sources {
		if err = b.measureSource(ctx, s, source, r); err != nil {
			err = fmt.Errorf("%s-sourced: %w", source, err)
			break
		}
	}
	r.Rows = r.rows()
	r.Seconds = time.Since(r.Began).Seconds()
	return r, err
}

// measureSource takes all rows of one source mode on a fresh node.
func (b *bench) measureSource(ctx context.Context, s Settings, source string, r *Report) (err error) {
	dir, err := os.MkdirTemp("", "aether-bench-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	defer os.RemoveAll(dir)
	objects := filepath.Join(dir, "objects")
	script := filepath.Join(dir, "result.lua")
	if err := errors.Join(
		os.Mkdir(objects, 0o755),
		os.WriteFile(filepath.Join(objects, "bench.yaml"), []byte(manifests(s.Names)), 0o644),
		os.WriteFile(script, []byte(wrkScript), 0o644),
	); err != nil {
		return fmt.Errorf("write the manifests: %w", err)
	}
	node, err := sandbox.Up(ctx, sandbox.Config{
		Name: "bench", Dirs: []string{objects}, EgressSource: source, EnvoyConcurrency: workers,
		AgentPath: b.agent, EnvoyPath: b.envoy, SelfPath: b.ctl,
	})
	if err != nil {
		return fmt.Errorf("start the node: %w", err)
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		err = errors.Join(err, node.Down(clean))
	}()
	b.say("\n%s-sourced: the node is up", source)
	if slices.Contains(s.Rows, rowFirst) {
		if err := calm(s.Calm).wait(ctx); err != nil {
			return err
		}
		f, err := measureFirstConnections(ctx, node, source, s.Names)
		if err != nil {
			return err
		}
		r.First = append(r.First, f)
		b.say("  %-10s %d names   first p50 %.2f ms, p99 %.2f ms   later p50 %.2f ms, p99 %.2f ms   others used %.0f %% of the machine",
			rowFirst, len(f.Samples), f.Cold.Median, f.Cold.P99, f.Warm.Median, f.Warm.P99, 100*f.Others)
	}
	return b.measureLoad(ctx, s, source, node, script, r)
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

func (b *bench) measureLoad(ctx context.Context, s Settings, source string, node *sandbox.Node, script string, r *Report) error {
	kinds := slices.DeleteFunc(slices.Clone(s.Rows), func(row string) bool { return row == rowFirst })
	if len(kinds) == 0 {
		return nil
	}
	bare, err := startBare(ctx, node, b.envoy, filepath.Dir(script))
	if err != nil {
		return err
	}
	defer bare.stop()
	l := loader{
		node: node, script: script, lanes: []lane{bare.lane(), captureLane(node)}, shared: sharedProcesses(node),
		duration: time.Duration(s.Seconds * float64(time.Second)), calm: calm(s.Calm), progress: b.say,
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
