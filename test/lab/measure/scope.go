// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"aether.io/aether/internal/model"
	"aether.io/aether/test/bench/figure"
)

// Scope is one way to learn of endpoints, at growing numbers of Services in demand.
type Scope struct {
	Way scopeName `json:"way"`
	// Sync is how long it took to know what must be known before anything can be
	// answered, seconds, and SyncMiB what came from the API server for it.
	Sync    float64      `json:"syncSeconds"`
	SyncMiB float64      `json:"syncMiB"`
	Levels  []ScopeLevel `json:"levels"`
}

// ScopeLevel is at a number of Services in demand.
type ScopeLevel struct {
	Demand  int `json:"demand"`
	Watches int `json:"watches"`
	// Ask is from the ask for a Service that nobody asked for until its endpoints are
	// known, milliseconds: quiet; AskBusy while Services change.
	Ask     figure.Distribution `json:"askMs"`
	AskBusy figure.Distribution `json:"askBusyMs"`
	// MiB is resident memory after the busy time, HeapMiB live objects.
	MiB     float64 `json:"MiB"`
	HeapMiB float64 `json:"heapMiB"`
	IdleCPU float64 `json:"idleCPU"` // of one core
	BusyCPU float64 `json:"busyCPU"`
	// IdleKiB and BusyKiB come from the API server each second.
	IdleKiB float64 `json:"idleKiBPerSecond"`
	BusyKiB float64 `json:"busyKiBPerSecond"`
	// ServerCPU is kube-apiserver's while Services change, ServerHeapMiB its live
	// objects, ServerGoroutines their number.
	ServerCPU        float64 `json:"serverCPU"`
	ServerHeapMiB    float64 `json:"serverHeapMiB"`
	ServerGoroutines float64 `json:"serverGoroutines"`
	Changes          float64 `json:"changesPerSecond"`
	Others           float64 `json:"others"`
}

// busyAsks is how many Services are asked for while Services change.
const busyAsks = 50

// readerProcess is a reader in a process of its own, in our node's network.
type readerProcess struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	replies *bufio.Scanner
}

func (c *cluster) startReader(ctx context.Context, way scopeName) (*readerProcess, reply, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, reply{}, fmt.Errorf("find this program: %w", err)
	}
	p := &readerProcess{cmd: exec.CommandContext(ctx, self, argReader, string(way), c.AgentKubeconfig(), "n1")}
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, reply{}, fmt.Errorf("start a reader: %w", err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, reply{}, fmt.Errorf("start a reader: %w", err)
	}
	// The child is of the network of the thread that starts it.
	if err := c.Node.InNode(p.cmd.Start); err != nil {
		return nil, reply{}, fmt.Errorf("start a reader: %w", err)
	}
	p.replies = bufio.NewScanner(out)
	p.replies.Buffer(nil, 1<<20)
	first, err := p.next()
	if err != nil {
		return nil, reply{}, errors.Join(err, p.end())
	}
	return p, first, nil
}

func (p *readerProcess) next() (reply, error) {
	var a reply
	if !p.replies.Scan() {
		return a, fmt.Errorf("the reader ended: %w", errors.Join(p.replies.Err(), io.ErrUnexpectedEOF))
	}
	if err := json.Unmarshal(p.replies.Bytes(), &a); err != nil {
		return a, fmt.Errorf("read a reader's reply: %w", err)
	}
	if a.Error != "" {
		return a, errors.New("reader: " + a.Error)
	}
	return a, nil
}

func (p *readerProcess) ask(q request) (reply, error) {
	if err := json.NewEncoder(p.in).Encode(q); err != nil {
		return reply{}, fmt.Errorf("ask a reader: %w", err)
	}
	return p.next()
}

func (p *readerProcess) end() error {
	p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("the reader: %w", err)
	}
	return nil
}

// scopes measures each way, while agent and kube-proxy are stopped: what is looked
// at is the reader and kube-apiserver.
func (c *cluster) scopes(ctx context.Context, s Settings, r *Report) error {
	if err := c.Node.StopAgent(ctx); err != nil {
		return fmt.Errorf("stop the agent: %w", err)
	}
	c.KubeProxy.Stop()
	for _, way := range allScopes {
		x, err := c.measureScope(ctx, way, s)
		if err != nil {
			return fmt.Errorf("%s: %w", way, err)
		}
		r.Scopes = append(r.Scopes, x)
	}
	return nil
}

func (c *cluster) measureScope(ctx context.Context, way scopeName, s Settings) (x Scope, err error) {
	p, first, err := c.startReader(ctx, way)
	if err != nil {
		return x, err
	}
	defer func() { err = errors.Join(err, p.end()) }()
	x = Scope{Way: way, Sync: first.Synced, SyncMiB: float64(first.Received) / (1 << 20)}
	asked := 0
	next := func(n int) (names []model.Name) {
		for range n {
			o := c.people.others[asked*stride%len(c.people.others)]
			names = append(names, model.Name{Namespace: o.namespace, Name: o.name})
			asked++
		}
		return names
	}
	for _, demand := range s.Demand {
		l := ScopeLevel{Demand: demand}
		a, err := p.ask(request{Ask: next(demand - min(asked, demand-1))})
		if err != nil {
			return x, err
		}
		l.Ask = figure.Of(a.Times)
		if err := c.measureLevel(ctx, p, &l, s, next); err != nil {
			return x, err
		}
		c.say("  %-18s %3d in demand: %d watches; asked p50 %.2f ms, p99 %.2f ms, busy %.2f, %.2f; %.0f MiB, heap %.0f; CPU %.2f %%, busy %.1f %%; %.1f, %.0f KiB/s; server %.1f %%, heap %.0f MiB, %.0f goroutines; others %.0f %%",
			way, demand, l.Watches, l.Ask.Median, l.Ask.P99, l.AskBusy.Median, l.AskBusy.P99, l.MiB, l.HeapMiB,
			100*l.IdleCPU, 100*l.BusyCPU, l.IdleKiB, l.BusyKiB, 100*l.ServerCPU, l.ServerHeapMiB, l.ServerGoroutines, 100*l.Others)
		x.Levels = append(x.Levels, l)
	}
	return x, nil
}

// measureLevel looks at a reader idle, while Services change, and asks for more of
// them then, at the last level.
func (c *cluster) measureLevel(ctx context.Context, p *readerProcess, l *ScopeLevel, s Settings, next func(int) []model.Name) error {
	pids := []int{p.cmd.Process.Pid, c.APIServer.PID()}
	look := func() (cpu [2]float64, kib float64, err error) {
		before, err := p.ask(request{})
		if err != nil {
			return cpu, 0, err
		}
		used, err := cpuOf(pids)
		if err != nil {
			return cpu, 0, err
		}
		began := time.Now()
		if !pause(ctx, time.Duration(s.ScopeWindow*float64(time.Second))) {
			return cpu, 0, ctx.Err()
		}
		took := time.Since(began)
		after, err := p.ask(request{})
		if err != nil {
			return cpu, 0, err
		}
		now, err := cpuOf(pids)
		for i := range cpu {
			cpu[i] = float64(now[i]-used[i]) / float64(took)
		}
		return cpu, float64(after.Received-before.Received) / 1024 / took.Seconds(), err
	}
	with := []int{p.cmd.Process.Pid, c.APIServer.PID(), c.Etcd.PID()}
	began, err := figure.UsageOf(with)
	if err != nil {
		return err
	}
	cpu, kib, err := look()
	if err != nil {
		return err
	}
	l.IdleCPU, l.IdleKiB = cpu[0], kib
	ch := churn(ctx, s.Busy, c.moveEndpoint)
	since := time.Now()
	cpu, l.BusyKiB, err = look()
	l.BusyCPU, l.ServerCPU = cpu[0], cpu[1]
	l.Changes = float64(ch.n.Load()) / time.Since(since).Seconds()
	var a reply
	if err == nil && l.Demand == s.Demand[len(s.Demand)-1] {
		a, err = p.ask(request{Ask: next(busyAsks)})
		l.AskBusy = figure.Of(a.Times)
	}
	_, churnErr := ch.end()
	if err := errors.Join(err, churnErr); err != nil {
		return err
	}
	ended, err := figure.UsageOf(with)
	if err != nil {
		return err
	}
	l.Others = ended.OthersSince(began, runtime.NumCPU())
	if l.MiB, err = figure.ResidentMiB(p.cmd.Process.Pid); err != nil {
		return err
	}
	if a, err = p.ask(request{Collect: true}); err != nil {
		return err
	}
	l.Watches, l.HeapMiB = a.Watches, a.HeapMiB
	l.ServerHeapMiB, l.ServerGoroutines, err = c.serverMemory(ctx)
	return err
}

// serverMemory has kube-apiserver collect its garbage and returns what is left.
func (c *cluster) serverMemory(ctx context.Context) (heapMiB, goroutines float64, err error) {
	api := c.client.Discovery().RESTClient()
	if err := api.Get().RequestURI((&url.URL{Path: "/debug/pprof/heap", RawQuery: "gc=1"}).String()).Do(ctx).Error(); err != nil {
		return 0, 0, fmt.Errorf("have kube-apiserver collect its garbage: %w", err)
	}
	text, err := api.Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, 0, fmt.Errorf("ask kube-apiserver for its metrics: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		for name, v := range map[string]*float64{"go_memstats_heap_alloc_bytes ": &heapMiB, "go_goroutines ": &goroutines} {
			if rest, ok := strings.CutPrefix(line, name); ok {
				if _, err := fmt.Sscan(rest, v); err != nil {
					return 0, 0, fmt.Errorf("read kube-apiserver's metrics: %w", err)
				}
			}
		}
	}
	return heapMiB / (1 << 20), goroutines, nil
}

// scopeHeads are those of the table of ways.
var scopeHeads = []string{
	"way", "in demand", "watches", "asked → known p50", "p99", "memory", "live objects", "CPU idle", "CPU busy", "received busy",
	"kube-apiserver: CPU busy", "live objects", "goroutines",
}

// scopeCells are its lines.
func scopeCells(scopes []Scope) [][]string {
	var out [][]string
	for _, x := range scopes {
		for _, l := range x.Levels {
			asked := figure.Millis.Write(l.Ask.P99)
			if l.AskBusy.Count > 0 {
				asked += ", busy " + figure.Millis.Write(l.AskBusy.P99)
			}
			out = append(out, []string{
				string(x.Way), figure.Count.Write(float64(l.Demand)), figure.Count.Write(float64(l.Watches)),
				figure.Millis.Write(l.Ask.Median), asked, figure.Mebibytes.Write(l.MiB), figure.Mebibytes.Write(l.HeapMiB),
				figure.CoreShare.Write(l.IdleCPU), figure.CoreShare.Write(l.BusyCPU), figure.Kibibytes.Write(l.BusyKiB) + "/s",
				figure.CoreShare.Write(l.ServerCPU), figure.Mebibytes.Write(l.ServerHeapMiB), figure.Count.Write(l.ServerGoroutines),
			})
		}
	}
	return out
}

// scopeStarts are the table of what each way needs before anything is answered.
func scopeStarts(scopes []Scope) [][]string {
	var out [][]string
	for _, x := range scopes {
		out = append(out, []string{string(x.Way), figure.Seconds.Write(x.Sync), figure.Mebibytes.Write(x.SyncMiB)})
	}
	return out
}

var startHeads = []string{"way", "until it can answer", "received for it"}
