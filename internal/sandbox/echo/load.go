// SPDX-License-Identifier: Apache-2.0

package echo

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Load makes many connections of one kind.
type Load struct {
	Client
	Targets []string
	// Count is how many connections to each target, default 1. Concurrency is how
	// many at once, default 1.
	Count, Concurrency int
	// Pause is waited by each worker between its connections.
	Pause time.Duration
	// Duration makes connections for that long, Forever until told to end; both
	// whatever Count says. Connections under way when Duration is over are
	// brought to their end.
	Duration time.Duration
	Forever  bool
}

// Summary counts verdicts. Milliseconds are of connections that went ok, from
// connect to the first answer.
type Summary struct {
	Connections int             `json:"connections"`
	Outcomes    map[Outcome]int `json:"outcomes"`
	PerSecond   float64         `json:"per_second"`
	Exchanges   int             `json:"exchanges"`
	P50         float64         `json:"p50_ms"`
	P90         float64         `json:"p90_ms"`
	P99         float64         `json:"p99_ms"`
	Max         float64         `json:"max_ms"`
}

// Run makes the connections; sink is called for each verdict, never twice at
// once. When ctx ends, connections under way are dropped without a verdict.
func (l Load) Run(ctx context.Context, sink func(Verdict)) Summary {
	feeding := ctx
	if l.Duration > 0 {
		var cancel context.CancelFunc
		feeding, cancel = context.WithTimeout(ctx, l.Duration)
		defer cancel()
	}
	sum := Summary{Outcomes: map[Outcome]int{}}
	var latencies []float64
	var mu sync.Mutex
	begin := time.Now()
	jobs := make(chan string)
	var wg sync.WaitGroup
	for range max(l.Concurrency, 1) {
		wg.Go(func() {
			for target := range jobs {
				c := l.Client
				c.Target = target
				v := c.Do(ctx)
				if ctx.Err() != nil {
					continue
				}
				mu.Lock()
				sum.Connections++
				sum.Outcomes[v.Outcome]++
				sum.Exchanges += v.Exchanges
				if v.Outcome == OK {
					latencies = append(latencies, math.Round(1000*(v.ConnectMS+v.LatencyMS))/1000)
				}
				sink(v)
				mu.Unlock()
				if l.Pause > 0 {
					select {
					case <-time.After(l.Pause):
					case <-feeding.Done():
					}
				}
			}
		})
	}
	l.feed(feeding, jobs)
	close(jobs)
	wg.Wait()
	sum.PerSecond = math.Round(float64(sum.Connections)/time.Since(begin).Seconds()*10) / 10
	slices.Sort(latencies)
	sum.P50, sum.P90, sum.P99 = percentile(latencies, 50), percentile(latencies, 90), percentile(latencies, 99)
	sum.Max = percentile(latencies, 100)
	return sum
}

// feed hands out targets in turn until Count each are out or ctx ends.
func (l Load) feed(ctx context.Context, jobs chan<- string) {
	endless := l.Forever || l.Duration > 0
	for i := 0; endless || i < max(l.Count, 1); i++ {
		for _, t := range l.Targets {
			select {
			case jobs <- t:
			case <-ctx.Done():
				return
			}
		}
	}
}

// percentile is the nearest-rank percentile of sorted values, 0 of none.
func percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// ClientMain is the program of image aether/client. It prints one verdict per
// line and ends with 0 when all went ok (or open), else 1. With the one argument
// "idle", or none, it waits until it is told to end.
func ClientMain(args []string, stdout, stderr io.Writer) int {
	var l Load
	var summary bool
	fs := flag.NewFlagSet("client", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprintln(stderr, "usage: client [MODE] [flags] HOST:PORT…\n       client idle\n"+
			"HOST may be a range of IPv4 addresses and PORT one of ports: 10.96.1.0-10.96.1.9:80, 10.96.0.10:1-1023")
		fs.PrintDefaults()
	}
	fs.StringVar(&l.Mode, "mode", "talk", "one of "+strings.Join(Modes, ", "))
	fs.DurationVar(&l.Timeout, "timeout", 5*time.Second, "for connecting, and for each answer")
	fs.StringVar(&l.Path, "path", "/", "mode http: what to ask for")
	fs.StringVar(&l.Host, "host", "", "mode http: the Host header")
	fs.Int64Var(&l.Bytes, "bytes", 0, "half-close, transfer: how much")
	fs.IntVar(&l.Exchanges, "exchanges", 1, "rounds on each connection")
	fs.DurationVar(&l.Interval, "interval", 0, "between rounds")
	fs.DurationVar(&l.Hold, "hold", 0, "keep each connection open after its last round")
	fs.BoolVar(&l.WaitClose, "wait-close", false, "wait for the peer to end the connection and tell how")
	fs.Func("mark", "SO_MARK of the socket, e.g. 0xae71", func(s string) error {
		n, err := strconv.ParseUint(s, 0, 31)
		l.Mark = int(n)
		return err
	})
	fs.StringVar(&l.Bind, "bind", "", "source `address`")
	fs.IntVar(&l.Count, "count", 1, "connections to each target")
	fs.IntVar(&l.Concurrency, "concurrency", 1, "connections at once")
	fs.DurationVar(&l.Pause, "pause", 0, "between a worker's connections")
	fs.DurationVar(&l.Duration, "duration", 0, "go on for this long, whatever --count")
	fs.BoolVar(&l.Forever, "loop", false, "go on until told to end")
	fs.BoolVar(&summary, "summary", false, "print one summary instead of verdicts")
	idle := len(args) == 0 || slices.Equal(args, []string{"idle"})
	if err := l.parse(fs, args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if len(l.Targets) == 0 && !idle {
		fs.Usage()
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if idle { // a pod to run commands in
		<-ctx.Done()
		return 0
	}
	return l.print(ctx, stdout, summary)
}

// parse reads flags, a mode and targets; flags may stand before and after the mode.
func (l *Load) parse(fs *flag.FlagSet, args []string) error {
	err := fs.Parse(args)
	if rest := fs.Args(); err == nil && len(rest) > 0 && slices.Contains(Modes, rest[0]) {
		l.Mode = rest[0]
		err = fs.Parse(rest[1:])
	}
	if err != nil {
		return err
	}
	if l.Targets, err = expandAll(fs.Args()); err != nil {
		fmt.Fprintln(fs.Output(), "client:", err)
	}
	return err
}

// print runs the load and prints what came of it.
func (l Load) print(ctx context.Context, stdout io.Writer, summary bool) int {
	out := json.NewEncoder(stdout)
	out.SetEscapeHTML(false)
	code := 0
	sum := l.Run(ctx, func(v Verdict) {
		if v.Outcome != OK && v.Outcome != Open {
			code = 1
		}
		if !summary {
			_ = out.Encode(v)
		}
	})
	if summary {
		_ = out.Encode(sum)
	}
	return code
}
