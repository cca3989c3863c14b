// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"aether.io/aether/internal/sandbox"
	"aether.io/aether/test/bench/figure"
)

// lane is one way from a pod to the servers.
type lane struct {
	name string
	pod  string // where the client runs
	url  string
	// log is its access log, mark what every line of it must hold. The kernel
	// keeps no log.
	log, mark string
	// loses is the share of its connections that its log may lack.
	loses float64
	pid   func() int // of its proxy; nil for the kernel
	// prepare makes the way and returns what undoes it; nil when it is always there.
	prepare func(context.Context) (undo func() error, err error)
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
	// Versus compares the capture lane with each of the others.
	Versus map[string]Ratio `json:"captureVersus"`
	// Others is the share of the machine that went to something else.
	Others  figure.Distribution `json:"others"`
	Samples []LoadSample        `json:"samples,omitempty"`
}

// Lane says how one lane did on its own.
type Lane struct {
	PerSecond figure.Distribution `json:"perSecond"`
	P50       figure.Distribution `json:"p50ms"`
	P99       figure.Distribution `json:"p99ms"`
	CPU       figure.Distribution `json:"cpuMicroseconds"`     // of its proxy, per request
	All       figure.Distribution `json:"allMicroseconds"`     // of proxy, servers and client, per request
	Machine   figure.Distribution `json:"machineMicroseconds"` // of the whole machine, per request
}

// Ratio compares a lane with the first one.
type Ratio struct {
	PerSecond figure.Distribution `json:"perSecond"`
	P50       figure.Distribution `json:"p50"`
	P99       figure.Distribution `json:"p99"`
	CPU       figure.Distribution `json:"cpu"`
	All       figure.Distribution `json:"all"`
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
	// CPU is what the lane's proxy used, microseconds per request; 0 for the kernel.
	CPU float64 `json:"cpuMicroseconds"`
	// All is what everything that takes part used, client and servers too. On a
	// machine that does nothing else, its cores over it are the requests per
	// second; unlike those it does not suffer when the machine does.
	All float64 `json:"allMicroseconds"`
	// Machine is what the whole machine used, strangers included, in steps of 10 ms.
	Machine float64 `json:"machineMicroseconds"`
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
		if lane.pid != nil {
			pids = append(pids, lane.pid())
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

func (l *loader) tell(kind string, calm, rounds int, samples []LoadSample) {
	text := fmt.Sprintf("  %-10s %2d/%d", kind, calm, rounds)
	for _, lane := range l.lanes {
		for _, s := range samples {
			if s.Lane == lane.name {
				text += fmt.Sprintf("   %s %.0f/s p99 %.2f ms", lane.name, s.PerSecond, s.P99)
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
// access log, on its way.
func (l *loader) sample(ctx context.Context, lane lane, kind string, d time.Duration) (s LoadSample, err error) {
	s.Lane = lane.name
	if lane.log != "" {
		if err := os.Truncate(lane.log, 0); err != nil {
			return s, fmt.Errorf("empty the access log: %w", err)
		}
	}
	if lane.prepare != nil {
		undo, err := lane.prepare(ctx)
		if err != nil {
			return s, fmt.Errorf("prepare lane %s: %w", lane.name, err)
		}
		defer func() { err = errors.Join(err, undo()) }()
	}
	before, err := lane.used()
	if err != nil {
		return s, err
	}
	began, err := figure.UsageOf(l.processes())
	if err != nil {
		return s, err
	}
	r, err := l.wrk(ctx, lane, kind, d)
	if err != nil {
		return s, fmt.Errorf("load lane %s: %w", lane.name, err)
	}
	after, err := lane.used()
	if err != nil {
		return s, err
	}
	ended, err := figure.UsageOf(l.processes())
	if err != nil {
		return s, err
	}
	each := func(t time.Duration) float64 { return float64(t.Microseconds()) / float64(r.Requests) }
	s.Requests, s.PerSecond = r.Requests, float64(r.Requests)/r.Microseconds*1e6
	s.P50, s.P99, s.Max = r.P50/1000, r.P99/1000, r.Max/1000
	s.CPU, s.All, s.Machine = each(after-before), each(ended.OursSince(began)), each(ended.MachineSince(began))
	s.Others = ended.OthersSince(began, runtime.NumCPU())
	if lane.log == "" {
		return s, nil
	}
	return s, checkLog(ctx, lane, kind, r.Requests, logFlush)
}

// used is the CPU time of the lane's proxy so far.
func (l lane) used() (time.Duration, error) {
	if l.pid == nil {
		return 0, nil
	}
	return figure.CPUTime(l.pid())
}

// wrk is the load itself.
func (l *loader) wrk(ctx context.Context, lane lane, kind string, d time.Duration) (wrkResult, error) {
	argv := []string{
		"wrk", "-t1", "-c" + strconv.Itoa(connections), "-d" + strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s",
		"--timeout", "5s", "-s", l.script,
	}
	if kind == newConnections {
		argv = append(argv, "-H", "Connection: close")
	}
	ctx, cancel := context.WithTimeout(ctx, d+15*time.Second)
	defer cancel()
	out, err := l.node.Output(ctx, lane.pod, append(argv, lane.url)...)
	if err != nil {
		return wrkResult{}, err
	}
	return readWrk(out)
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
	want -= int(lane.loses * float64(want))
	mark := []byte(lane.mark)
	return eventually(ctx, within, func() error {
		b, err := os.ReadFile(lane.log)
		if err != nil {
			return fmt.Errorf("read the access log: %w", err)
		}
		lines, on := bytes.Count(b, []byte("\n")), bytes.Count(b, mark)
		if lines < want || lines > most || on != lines {
			return fmt.Errorf("lane %s: its access log holds %d connections, %d of them with %s; want %d to %d",
				lane.name, lines, on, lane.mark, want, most)
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

// summarise fills in Lanes, Ratios and Versus; the first name is what the others
// are compared with.
func (r *Load) summarise(names []string) {
	var others []float64
	for _, s := range r.Samples {
		if !s.SetAside {
			others = append(others, s.Others)
		}
	}
	r.Others = figure.Of(others)
	r.Lanes, r.Ratios, r.Versus = map[string]Lane{}, map[string]Ratio{}, map[string]Ratio{}
	base, capture := r.of(names[0]), r.of(captureName)
	for _, name := range names {
		own := r.of(name)
		r.Lanes[name] = Lane{
			PerSecond: figure.Of(own.perSecond), P50: figure.Of(own.p50), P99: figure.Of(own.p99),
			CPU: figure.Of(own.cpu), All: figure.Of(own.all), Machine: figure.Of(own.machine),
		}
		if name != names[0] {
			r.Ratios[name] = own.over(base)
		}
		if name != captureName {
			r.Versus[name] = capture.over(own)
		}
	}
}

// series are a lane's samples by round.
type series struct{ perSecond, p50, p99, cpu, all, machine []float64 }

func (r *Load) of(name string) series {
	var out series
	for _, s := range r.Samples {
		if s.Lane == name && !s.SetAside {
			out.perSecond, out.p50 = append(out.perSecond, s.PerSecond), append(out.p50, s.P50)
			out.p99, out.cpu = append(out.p99, s.P99), append(out.cpu, s.CPU)
			out.all, out.machine = append(out.all, s.All), append(out.machine, s.Machine)
		}
	}
	return out
}

// over compares two lanes.
func (s series) over(base series) Ratio {
	return Ratio{
		PerSecond: ratios(s.perSecond, base.perSecond), P50: ratios(s.p50, base.p50), P99: ratios(s.p99, base.p99),
		CPU: ratios(s.cpu, base.cpu), All: ratios(s.all, base.all),
	}
}

// ratios divides round by round. What cost nothing cannot be divided by.
func ratios(of, to []float64) figure.Distribution {
	var out []float64
	for i := range min(len(of), len(to)) {
		if to[i] > 0 {
			out = append(out, of[i]/to[i])
		}
	}
	return figure.Of(out)
}
