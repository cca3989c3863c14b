// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"aether.io/aether/internal/sandbox"
)

// lane is one way from the client pod to the servers, through an Envoy.
type lane struct {
	name string
	url  string
	// cluster is what every line of its access log must name.
	cluster string
	log     string
	pid     func() int
}

// Kinds of load.
const (
	keptAlive      = "kept-alive"
	newConnections = "new"
)

// connections is how many of them the load holds at a time.
const connections = 16

// Load compares lanes under one kind of load in one source mode.
type Load struct {
	Source string           `json:"source"`
	Kind   string           `json:"kind"`
	Lanes  map[string]Lane  `json:"lanes"`
	Ratios map[string]Ratio `json:"ratios"` // of each lane to the first, round by round
	// Others is the share of the machine that went to something else.
	Others  Distribution `json:"others"`
	Samples []LoadSample `json:"samples"`
}

// Lane says how one lane did on its own.
type Lane struct {
	PerSecond Distribution `json:"perSecond"`
	P50       Distribution `json:"p50ms"`
	P99       Distribution `json:"p99ms"`
	CPU       Distribution `json:"cpuMicroseconds"` // of its Envoy, per request
	All       Distribution `json:"allMicroseconds"` // of Envoys, servers and client, per request
}

// Ratio compares a lane with the first one.
type Ratio struct {
	PerSecond Distribution `json:"perSecond"`
	P50       Distribution `json:"p50"`
	P99       Distribution `json:"p99"`
	CPU       Distribution `json:"cpu"`
	All       Distribution `json:"all"`
}

// LoadSample is one lane under load once.
type LoadSample struct {
	Round     int     `json:"round"`
	Lane      string  `json:"lane"`
	Requests  int     `json:"requests"`
	PerSecond float64 `json:"perSecond"`
	P50       float64 `json:"p50ms"`
	P99       float64 `json:"p99ms"`
	Max       float64 `json:"maxms"`
	// CPU is what the lane's Envoy used, microseconds per request.
	CPU float64 `json:"cpuMicroseconds"`
	// All is what everything that takes part used, client and servers too. On a
	// machine that does nothing else, its cores over it are the requests per
	// second; unlike those it does not suffer when the machine does.
	All float64 `json:"allMicroseconds"`
	// Others is the share of the machine, 0 to 1, that processes used meanwhile
	// which have no part in this.
	Others float64 `json:"others"`
	// SetAside is true when that was too much in one sample of the round: the
	// round counts for nothing.
	SetAside bool `json:"setAside,omitempty"`
}

// maxAttempts is how many rounds are made at most for each that is wanted.
const maxAttempts = 4

// loader puts lanes under load in turns.
type loader struct {
	node     *sandbox.Node
	script   string // of wrk
	lanes    []lane
	shared   []int // processes that work for every lane
	duration time.Duration
	calm     calm
	progress func(format string, args ...any)
}

// measure makes rounds over the lanes, each round in another order, until there
// are enough calm ones.
func (l *loader) measure(ctx context.Context, source, kind string, rounds int) (Load, error) {
	res := Load{Source: source, Kind: kind}
	for _, lane := range l.lanes {
		if _, err := l.sample(ctx, lane, kind, time.Second); err != nil {
			return res, err
		}
	}
	for round, calm := 1, 0; calm < rounds; round++ {
		if round > maxAttempts*rounds {
			return res, fmt.Errorf("others use the machine too much: %d of %d rounds were calm, want %d", calm, round-1, rounds)
		}
		if err := l.calm.wait(ctx); err != nil {
			return res, err
		}
		samples, err := l.round(ctx, round, kind)
		if err != nil {
			return res, err
		}
		if l.calm.holds(samples) {
			calm++
		} else {
			for i := range samples {
				samples[i].SetAside = true
			}
		}
		res.Samples = append(res.Samples, samples...)
		l.tell(kind, calm, rounds, samples)
	}
	res.summarise(l.names())
	return res, nil
}

// round puts every lane under load once.
func (l *loader) round(ctx context.Context, round int, kind string) ([]LoadSample, error) {
	order := slices.Clone(l.lanes)
	if round%2 == 0 {
		slices.Reverse(order)
	}
	samples := make([]LoadSample, 0, len(order))
	for _, lane := range order {
		s, err := l.sample(ctx, lane, kind, l.duration)
		if err != nil {
			return nil, err
		}
		s.Round = round
		samples = append(samples, s)
	}
	return samples, nil
}

func (l *loader) names() []string {
	var out []string
	for _, lane := range l.lanes {
		out = append(out, lane.name)
	}
	return out
}

// processes are those under measurement, each once, but for wrk, a child that is
// waited for.
func (l *loader) processes() []int {
	pids := slices.Clone(l.shared)
	for _, lane := range l.lanes {
		pids = append(pids, lane.pid())
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

func (l *loader) tell(kind string, calm, rounds int, samples []LoadSample) {
	text := fmt.Sprintf("  %-10s %2d/%d", kind, calm, rounds)
	for _, lane := range l.lanes {
		for _, s := range samples {
			if s.Lane == lane.name {
				text += fmt.Sprintf("   %s %.0f/s, p99 %.2f ms, %.1f µs of CPU", lane.name, s.PerSecond, s.P99, s.CPU)
			}
		}
	}
	if samples[0].SetAside {
		text += "   set aside: others were busy"
	}
	l.progress("%s", text)
}

// wrkScript prints what wrk saw as one JSON object in a line of its own.
const wrkScript = `done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('\n{"requests":%d,"microseconds":%d,"p50":%d,"p99":%d,"max":%d,',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), latency.max))
  io.write(string.format('"errors":{"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d}}\n',
    e.connect, e.read, e.write, e.status, e.timeout))
end
`

// wrkResult is what wrkScript prints; times are microseconds.
type wrkResult struct {
	Requests     int            `json:"requests"`
	Microseconds float64        `json:"microseconds"`
	P50          float64        `json:"p50"`
	P99          float64        `json:"p99"`
	Max          float64        `json:"max"`
	Errors       map[string]int `json:"errors"`
}

func readWrk(out []byte) (wrkResult, error) {
	var r wrkResult
	for line := range bytes.Lines(out) {
		if !bytes.HasPrefix(line, []byte("{")) {
			continue
		}
		if err := json.Unmarshal(line, &r); err != nil {
			return r, fmt.Errorf("read wrk's result: %w", err)
		}
		for what, n := range r.Errors {
			if n != 0 {
				return r, fmt.Errorf("wrk counted %d %s errors in %d requests", n, what, r.Requests)
			}
		}
		if r.Requests == 0 || r.Microseconds == 0 {
			return r, fmt.Errorf("wrk made no request")
		}
		return r, nil
	}
	return r, fmt.Errorf("wrk printed no result: %s", lastLine(out))
}

// sample puts one lane under load and checks that every connection is in its
// access log, on its cluster.
func (l *loader) sample(ctx context.Context, lane lane, kind string, d time.Duration) (LoadSample, error) {
	s := LoadSample{Lane: lane.name}
	if err := os.Truncate(lane.log, 0); err != nil {
		return s, fmt.Errorf("empty the access log: %w", err)
	}
	argv := []string{
		"wrk", "-t1", "-c" + strconv.Itoa(connections), "-d" + strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s",
		"--timeout", "5s", "-s", l.script,
	}
	if kind == newConnections {
		argv = append(argv, "-H", "Connection: close")
	}
	before, err := cpuTime(lane.pid())
	if err != nil {
		return s, err
	}
	began, err := usageOf(l.processes())
	if err != nil {
		return s, err
	}
	ctx, cancel := context.WithTimeout(ctx, d+15*time.Second)
	defer cancel()
	out, err := l.node.Output(ctx, clientPod, append(argv, lane.url)...)
	if err != nil {
		return s, fmt.Errorf("load lane %s: %w", lane.name, err)
	}
	after, err := cpuTime(lane.pid())
	if err != nil {
		return s, err
	}
	ended, err := usageOf(l.processes())
	if err != nil {
		return s, err
	}
	r, err := readWrk(out)
	if err != nil {
		return s, fmt.Errorf("lane %s: %w", lane.name, err)
	}
	s.Requests, s.PerSecond = r.Requests, float64(r.Requests)/r.Microseconds*1e6
	s.P50, s.P99, s.Max = r.P50/1000, r.P99/1000, r.Max/1000
	s.CPU = float64((after - before).Microseconds()) / float64(r.Requests)
	s.All = float64((ended.ours - began.ours).Microseconds()) / float64(r.Requests)
	s.Others = ended.othersSince(began, runtime.NumCPU())
	return s, checkLog(ctx, lane, kind, r.Requests, logFlush)
}

// logFlush is how long Envoy may take to write its log.
const logFlush = 5 * time.Second

// cutOff is how many connections the log may hold beside those that the load
// counts: what it cuts off at its end, what it makes to see whether anybody
// answers, and what the log had not yet written when the sample before ended.
const cutOff = 4 * connections

// checkLog waits, for that long, until the lane's log holds all connections that
// the requests took, each once.
func checkLog(ctx context.Context, lane lane, kind string, requests int, within time.Duration) error {
	want := requests
	if kind == keptAlive {
		want = connections
	}
	most := want + cutOff
	cluster := []byte(`"cluster":` + strconv.Quote(lane.cluster))
	return eventually(ctx, within, func() error {
		b, err := os.ReadFile(lane.log)
		if err != nil {
			return fmt.Errorf("read the access log: %w", err)
		}
		lines, on := bytes.Count(b, []byte("\n")), bytes.Count(b, cluster)
		if lines < want || lines > most || on != lines {
			return fmt.Errorf("lane %s: its access log holds %d connections, %d of them on cluster %s; want %d to %d",
				lane.name, lines, on, lane.cluster, want, most)
		}
		return nil
	})
}

// eventually tries until f succeeds or the time is over; it returns f's last error.
func eventually(ctx context.Context, limit time.Duration, f func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := f()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// summarise fills in Lanes and Ratios; the first name is what the others are
// compared with.
func (r *Load) summarise(names []string) {
	var others []float64
	for _, s := range r.Samples {
		if !s.SetAside {
			others = append(others, s.Others)
		}
	}
	r.Others = distributionOf(others)
	r.Lanes, r.Ratios = map[string]Lane{}, map[string]Ratio{}
	for _, name := range names {
		own := r.of(name)
		r.Lanes[name] = Lane{
			PerSecond: distributionOf(own.perSecond), P50: distributionOf(own.p50),
			P99: distributionOf(own.p99), CPU: distributionOf(own.cpu), All: distributionOf(own.all),
		}
		if name == names[0] {
			continue
		}
		base := r.of(names[0])
		r.Ratios[name] = Ratio{
			PerSecond: ratios(own.perSecond, base.perSecond), P50: ratios(own.p50, base.p50),
			P99: ratios(own.p99, base.p99), CPU: ratios(own.cpu, base.cpu),
			All: ratios(own.all, base.all),
		}
	}
}

// series are a lane's samples by round.
type series struct{ perSecond, p50, p99, cpu, all []float64 }

func (r *Load) of(name string) series {
	var out series
	for _, s := range r.Samples {
		if s.Lane == name && !s.SetAside {
			out.perSecond, out.p50 = append(out.perSecond, s.PerSecond), append(out.p50, s.P50)
			out.p99, out.cpu, out.all = append(out.p99, s.P99), append(out.cpu, s.CPU), append(out.all, s.All)
		}
	}
	return out
}

// ratios divides round by round.
func ratios(of, to []float64) Distribution {
	var out []float64
	for i := range min(len(of), len(to)) {
		out = append(out, of[i]/to[i])
	}
	return distributionOf(out)
}
