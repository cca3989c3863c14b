// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"aether.io/aether/test/bench/figure"
)

// First compares first connections with later ones, with or without a load.
type First struct {
	figure.First
	Others float64    `json:"others"`
	Load   *FirstLoad `json:"load,omitempty"`
}

// FirstLoad is what goes on meanwhile.
type FirstLoad struct {
	Asked     int     `json:"asked"`     // names that Envoy holds
	Pods      int     `json:"pods"`      // captured ones
	Endpoints int     `json:"endpoints"` // of the Service that rolls
	Rolled    float64 `json:"slicesPerSecond"`
	// KubeProxy is false when it was stopped meanwhile.
	KubeProxy bool    `json:"kubeProxy"`
	AgentCPU  float64 `json:"agentCPU"` // of one core, as the others
	EnvoyCPU  float64 `json:"envoyCPU"`
	ProxyCPU  float64 `json:"kubeProxyCPU"`
	ServerCPU float64 `json:"apiServerCPU"`
}

const (
	warmPerName = 5
	warmUp      = 20
	// coldPause lets every process go back to sleep.
	coldPause = 5 * time.Millisecond
	askers    = 8
)

// measureFirst dials each Service for the first time, then again, one after the
// other, from the captured pod.
func (c *cluster) measureFirst(ctx context.Context, cold []*service) (First, error) {
	var f First
	if n, err := c.known(ctx, cold); err != nil || n != 0 {
		return f, errors.Join(fmt.Errorf("of the Services that nobody asked for Envoy knows %d", n), err)
	}
	before, err := figure.UsageOf(c.processes())
	if err != nil {
		return f, err
	}
	err = c.Node.InPod(capturedPod, func() error {
		for range warmUp {
			if d := dial(c.people.leaving[0].target(), firstTimeout, firstTimeout); d.err != nil {
				return fmt.Errorf("dial %s: %w", c.people.leaving[0].target(), d.err)
			}
			time.Sleep(coldPause)
		}
		for _, s := range cold {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			x := figure.ColdSample{Target: s.target()}
			for i := range 1 + warmPerName {
				d := dial(s.target(), firstTimeout, firstTimeout)
				if d.err != nil {
					return fmt.Errorf("connection %d to %s: %w", i+1, s.target(), d.err)
				}
				if took := ms(d.ended.Sub(d.began)); i == 0 {
					x.Cold = took
				} else {
					x.Warm = append(x.Warm, took)
				}
				time.Sleep(coldPause)
			}
			f.Samples = append(f.Samples, x)
		}
		return nil
	})
	if err != nil {
		return f, err
	}
	after, err := figure.UsageOf(c.processes())
	if err != nil {
		return f, err
	}
	f.Others = after.OthersSince(before, runtime.NumCPU())
	if n, err := c.known(ctx, cold); err != nil || n != len(cold) {
		return f, errors.Join(fmt.Errorf("of %d Services that were dialled Envoy knows %d", len(cold), n), err)
	}
	f.Summarise()
	return f, nil
}

// known counts the Services that Envoy has a cluster for.
func (c *cluster) known(ctx context.Context, list []*service) (int, error) {
	text, err := c.Node.AdminGet(ctx, "/clusters")
	if err != nil {
		return 0, err
	}
	has := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		name, _, _ := strings.Cut(line, "::")
		has[name] = true
	}
	n := 0
	for _, s := range list {
		if has["svc:"+s.target()] {
			n++
		}
	}
	return n, nil
}

// ask dials Services so that the node holds their names.
func (c *cluster) ask(ctx context.Context, list []*service) error {
	g, ctx := errgroup.WithContext(ctx)
	next := make(chan *service)
	g.Go(func() error {
		defer close(next)
		for _, s := range list {
			select {
			case next <- s:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range askers {
		g.Go(func() error {
			return c.Node.InPod(capturedPod, func() error {
				for s := range next {
					if d := dial(s.target(), firstTimeout, firstTimeout); d.err != nil {
						return fmt.Errorf("ask for %s: %w", s.target(), d.err)
					}
				}
				return nil
			})
		})
	}
	return g.Wait()
}

// prepareLoad asks for many names, the one that rolls among them, and makes pods.
func (c *cluster) prepareLoad(ctx context.Context, s Settings) error {
	if err := c.ask(ctx, c.people.asked); err != nil {
		return err
	}
	// Nobody answers there: the name is held all the same.
	err := c.Node.InPod(capturedPod, func() error {
		_ = dial(c.people.rolling.target(), time.Second, time.Second)
		return nil
	})
	if err != nil {
		return err
	}
	if n, err := c.known(ctx, append(c.people.asked, c.people.rolling)); err != nil || n != len(c.people.asked)+1 {
		return errors.Join(fmt.Errorf("of the asked Services Envoy knows %d", n), err)
	}
	var names []string
	var text strings.Builder
	for i := range s.Pods - 1 { // and the client
		name := fmt.Sprintf("idle-%d", i)
		text.WriteString(clientPod(name, "true"))
		names = append(names, "default/"+name)
	}
	if err := c.Apply(ctx, "default", text.String()); err != nil {
		return err
	}
	return c.AwaitReady(ctx, names...)
}

// measureFirstLoaded is measureFirst while a large Service rolls.
func (c *cluster) measureFirstLoaded(ctx context.Context, cold []*service, s Settings) (First, error) {
	ch := churn(ctx, s.Busy, func(ctx context.Context, i int) error {
		x := *c.people.rolling
		x.endpoints = slices.Clone(x.endpoints)
		part := i % x.slices()
		x.endpoints[part*perSlice+i/x.slices()%perSlice] = elsewhereFar(int(c.moved.Add(1)))
		return put(ctx, c.client, &x, part)
	})
	load := &FirstLoad{
		Asked: len(c.people.asked) + 1, Pods: s.Pods, Endpoints: len(c.people.rolling.endpoints), KubeProxy: c.KubeProxy.PID() != 0,
	}
	if !pause(ctx, 2*time.Second) { // it is on its way
		return First{}, ctx.Err()
	}
	pids := []int{c.Node.AgentPID(), c.Node.EnvoyPID(), c.KubeProxy.PID(), c.APIServer.PID()}
	shares := []*float64{&load.AgentCPU, &load.EnvoyCPU, &load.ProxyCPU, &load.ServerCPU}
	before, err := cpuOf(pids)
	if err != nil {
		return First{}, err
	}
	began, rolled := time.Now(), ch.n.Load()
	f, err := c.measureFirst(ctx, cold)
	took := time.Since(began)
	load.Rolled = float64(ch.n.Load()-rolled) / took.Seconds()
	after, cpuErr := cpuOf(pids)
	for i := range shares {
		*shares[i] = float64(after[i]-before[i]) / float64(took)
	}
	f.Load = load
	_, churnErr := ch.end()
	return f, errors.Join(err, cpuErr, churnErr)
}

// cpuOf reads the CPU time of processes, 0 of those that do not run.
func cpuOf(pids []int) ([]time.Duration, error) {
	out := make([]time.Duration, len(pids))
	for i, pid := range pids {
		if pid == 0 {
			continue
		}
		var err error
		if out[i], err = figure.CPUTime(pid); err != nil {
			return out, err
		}
	}
	return out, nil
}
