// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"aether.io/aether/internal/sandbox"
	"aether.io/aether/test/bench/figure"
)

// RollingSettings say what goes on while first connections are measured.
type RollingSettings struct {
	Asked     int `json:"asked"`     // names that Envoy holds
	Endpoints int `json:"endpoints"` // of the Service that rolls
	Pods      int `json:"pods"`      // captured ones
	Names     int `json:"names"`     // cold ones, dialled meanwhile
	PerSecond int `json:"perSecond"` // slices replaced
}

// Rolling are first connections on a node that holds many names, while a large
// Service rolls.
type Rolling struct {
	FirstConnections
	Settings RollingSettings `json:"settings"`
	// Replaced is how many slices were replaced per second, Told how many turns of
	// the agent they made per second, Sent how many assignments of the rolling
	// Service Envoy got per second, KiB the mean size of what it got.
	Replaced float64 `json:"replacedPerSecond"`
	Told     float64 `json:"turnsPerSecond"`
	Sent     float64 `json:"assignmentsPerSecond"`
	KiB      float64 `json:"assignmentKiB"`
	// Answer is the agent's mean time from an ask to its answer, Acknowledge
	// Envoy's from a cluster to its verdict, milliseconds.
	Answer      float64 `json:"answerms"`
	Acknowledge float64 `json:"acknowledgems"`
	// AgentCPU and EnvoyCPU are shares of one core.
	AgentCPU float64 `json:"agentCPU"`
	EnvoyCPU float64 `json:"envoyCPU"`
}

const (
	rollingService = "rolling"
	perSlice       = 100 // endpoints, as a cluster's controller makes them
	// beat is how often slices are replaced: the manifest source tells what has
	// been still for 20 ms, so that every beat becomes a batch of its own.
	beat = 25 * time.Millisecond
)

var rollingVIP = netip.MustParseAddr("10.96.0.30")

// rollingSlice is slice i of the rolling Service at a moment: one of its endpoints
// moves with every step.
func rollingSlice(i, size, step int) string {
	endpoints := farEndpoints(i*perSlice, size)
	endpoints[step%size] = farEndpoints(1<<20+step, 1)[0]
	return slice(fmt.Sprintf("%s-%d", rollingService, i), rollingService, serverPort, endpoints...)
}

func rollingFile(i int) string { return fmt.Sprintf("rolling-%d.yaml", i) }

// churner replaces files at a rate until it is stopped.
type churner struct {
	stop context.CancelFunc
	done chan error
	n    atomic.Int64 // replaced so far
}

// churn calls step for the running number of each change, perSecond times per
// second, in beats, for at most limit.
func churn(ctx context.Context, perSecond int, limit time.Duration, step func(i int) error) *churner {
	ctx, cancel := context.WithTimeout(ctx, limit)
	c := &churner{stop: cancel, done: make(chan error, 1)}
	go func() {
		tick := time.NewTicker(beat)
		defer tick.Stop()
		began := time.Now()
		for {
			select {
			case <-tick.C:
				for due := int64(time.Since(began).Seconds() * float64(perSecond)); c.n.Load() < due; c.n.Add(1) {
					if err := step(int(c.n.Load())); err != nil {
						c.done <- err
						return
					}
				}
			case <-ctx.Done():
				c.done <- nil
				return
			}
		}
	}()
	return c
}

// end stops it and returns how many changes it made; it is called once.
func (c *churner) end() (int, error) {
	c.stop()
	err := <-c.done
	return int(c.n.Load()), err
}

// rollingVIPs are the asked names' and the cold ones'.
func rollingVIPs(s RollingSettings) (asked, cold []netip.Addr) {
	all := coldVIPs(s.Names + s.Asked)
	return all[s.Names:], all[:s.Names]
}

func (b *bench) measureRolling(ctx context.Context, source string, s RollingSettings) (Rolling, error) {
	r := Rolling{Settings: s}
	r.Source = source
	var pod, objects strings.Builder
	pod.WriteString(pods())
	for i := range s.Pods - 1 { // and the client
		pod.WriteString(idlePod(fmt.Sprintf("idle-%d", i), true))
	}
	objects.WriteString(service(webService, webVIP, servers...) + serviceAlone(rollingService, rollingVIP, ""))
	asked, cold := rollingVIPs(s)
	for i, vip := range append(asked, cold...) {
		objects.WriteString(service(fmt.Sprintf("s-%d", i), vip, servers...))
	}
	files := map[string]string{"objects.yaml": objects.String()}
	slices := (s.Endpoints + perSlice - 1) / perSlice
	size := s.Endpoints / slices
	for i := range slices {
		files[rollingFile(i)] = rollingSlice(i, size, 0)
	}
	err := b.withNode(ctx, nodeSpec{source: source, pods: pod.String(), objects: files}, func(n *sandbox.Node, dir, _ string) error {
		b.say("  %-10s %d pods are up; asking for %d names", rowRolling, s.Pods, s.Asked)
		before, err := clusterCount(ctx, n)
		if err != nil {
			return err
		}
		if err := ask(ctx, n, append(targetsOf(asked), targetsOf([]netip.Addr{rollingVIP})...)); err != nil {
			return err
		}
		if err := awaitClusters(ctx, n, before+s.Asked+1); err != nil {
			return err
		}
		return r.roll(ctx, n, targetsOf(cold), func(i int) error {
			return replace(filepath.Join(dir, rollingFile(i%slices)), rollingSlice(i%slices, size, i/slices+1))
		})
	})
	return r, err
}

// roll measures while step is called again and again.
func (r *Rolling) roll(ctx context.Context, n *sandbox.Node, cold []string, step func(i int) error) (err error) {
	agent := newAgentClient(n)
	defer agent.close()
	c := churn(ctx, r.Settings.PerSecond, maxRun, step)
	ended := false
	defer func() {
		if !ended {
			_, e := c.end()
			err = errors.Join(err, e)
		}
	}()
	// The rolling is on its way when the agent has seen some of it.
	first, err := agent.metrics(ctx)
	if err != nil {
		return err
	}
	err = eventually(ctx, 10*time.Second, func() error {
		m, err := agent.metrics(ctx)
		if err == nil && m.since(first, lagCount) < 10 {
			err = fmt.Errorf("the agent was told of %g changes", m.since(first, lagCount))
		}
		return err
	})
	if err != nil {
		return err
	}
	before, err := agent.metrics(ctx)
	if err != nil {
		return err
	}
	envoy, err := envoyOf(ctx, n)
	if err != nil {
		return err
	}
	cpu := [2]time.Duration{}
	pids := [2]int{n.AgentPID(), envoy}
	for i, pid := range pids {
		if cpu[i], err = figure.CPUTime(pid); err != nil {
			return err
		}
	}
	began, replaced := time.Now(), c.n.Load()
	if err := r.dial(ctx, n, cold); err != nil {
		return err
	}
	took := time.Since(began)
	for i, pid := range pids {
		after, err := figure.CPUTime(pid)
		if err != nil {
			return err
		}
		*[]*float64{&r.AgentCPU, &r.EnvoyCPU}[i] = float64(after-cpu[i]) / float64(took)
	}
	after, err := agent.metrics(ctx)
	if err != nil {
		return err
	}
	ended = true
	total, err := c.end()
	if err != nil {
		return err
	}
	r.fill(before, after, float64(int64(total)-replaced), took.Seconds())
	return nil
}

// Names of the agent's metrics.
const (
	lagSum   = "aether_agent_source_lag_seconds_sum"
	lagCount = "aether_agent_source_lag_seconds_count"
)

func acknowledged(typ, what string) string {
	return fmt.Sprintf("aether_xds_acknowledge_seconds_%s{type=%q}", what, typ)
}

func (r *Rolling) fill(before, after agentMetrics, replaced, seconds float64) {
	mean := func(sum, count string) float64 {
		if n := after.since(before, count); n > 0 {
			return after.since(before, sum) / n
		}
		return 0
	}
	// Each cold name has an assignment of its own; the others are the rolling
	// Service's.
	sent := after.since(before, `aether_xds_resources_sent_total{type="assignment"}`)
	r.Replaced, r.Told = replaced/seconds, after.since(before, lagCount)/seconds
	r.Sent = max(0, sent-float64(r.Settings.Names)) / seconds
	if sent > 0 {
		r.KiB = after.since(before, `aether_xds_sent_bytes_total{type="assignment"}`) / sent / 1024
	}
	r.Answer = 1000 * mean("aether_agent_answer_seconds_sum", "aether_agent_answer_seconds_count")
	r.Acknowledge = 1000 * mean(acknowledged("cluster", "sum"), acknowledged("cluster", "count"))
}
