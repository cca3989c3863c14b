// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"aether.io/aether/test/bench/figure"
)

// Cost is what the programs use, side by side over the same time: idle, and while
// Services change.
type Cost struct {
	Services  int `json:"services"`
	Endpoints int `json:"endpoints"`
	// Asked is how many Service ports the node was asked for.
	Asked    int             `json:"asked"`
	Programs []ProgramCost   `json:"programs"`
	Changes  float64         `json:"changesPerSecond"`
	WriteMS  float64         `json:"writeMs"`
	Windows  [2]WindowOthers `json:"windows"` // idle, busy
}

// WindowOthers is how long one was, and what share of the machine something else used.
type WindowOthers struct {
	Seconds float64 `json:"seconds"`
	Others  float64 `json:"others"`
}

// ProgramCost is one program's. MiB are of resident memory, the most that was seen
// in a window; CPU is a share of one core.
type ProgramCost struct {
	Program  string  `json:"program"`
	StartMiB float64 `json:"startMiB"` // the most since its start, as the kernel noted it
	IdleMiB  float64 `json:"idleMiB"`
	BusyMiB  float64 `json:"busyMiB"`
	IdleCPU  float64 `json:"idleCPU"`
	BusyCPU  float64 `json:"busyCPU"`
}

// Names of the programs.
const (
	agentName     = "agent"
	envoyName     = "Envoy"
	kubeProxyName = "kube-proxy"
	apiServerName = "kube-apiserver"
	etcdName      = "etcd"
)

// measureCost starts agent and kube-proxy anew, so that both have listed the same
// cluster, and looks at them idle and busy.
func (c *cluster) measureCost(ctx context.Context, s Settings) (*Cost, error) {
	if err := c.restartBoth(ctx); err != nil {
		return nil, err
	}
	r := &Cost{Services: len(c.people.all()), Endpoints: c.people.endpoints()}
	names, err := c.AgentStatus(ctx)
	if err != nil {
		return nil, err
	}
	r.Asked = names.Names.Services
	for name, pid := range c.programs() {
		most, err := figure.MostResidentMiB(pid)
		if err != nil {
			return nil, err
		}
		r.Programs = append(r.Programs, ProgramCost{Program: name, StartMiB: most})
	}
	r.sort()
	if err := c.window(ctx, r, 0, s.Idle); err != nil {
		return nil, err
	}
	ch := churn(ctx, s.Busy, c.moveEndpoint)
	began := time.Now()
	err = c.window(ctx, r, 1, s.Window)
	took := time.Since(began)
	n, churnErr := ch.end()
	r.Changes = float64(n) / took.Seconds()
	r.WriteMS = float64(ch.took.Load()) / 1e6 / float64(max(1, n))
	return r, errors.Join(err, churnErr)
}

// restartBoth starts agent and kube-proxy anew and waits until they are idle.
func (c *cluster) restartBoth(ctx context.Context) error {
	if err := c.Node.StopAgent(ctx); err != nil {
		return fmt.Errorf("stop the agent: %w", err)
	}
	if err := c.Node.StartAgent(ctx); err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	if err := c.KubeProxy.Restart(ctx); err != nil {
		return err
	}
	return c.awaitKnown(ctx)
}

func (c *cluster) programs() map[string]int {
	return map[string]int{
		agentName: c.Node.AgentPID(), envoyName: c.Node.EnvoyPID(), kubeProxyName: c.KubeProxy.PID(),
		apiServerName: c.APIServer.PID(), etcdName: c.Etcd.PID(),
	}
}

// programOrder is that of the tables.
var programOrder = []string{agentName, kubeProxyName, envoyName, apiServerName, etcdName}

// sort puts the programs into their order.
func (r *Cost) sort() {
	var out []ProgramCost
	for _, name := range programOrder {
		for _, p := range r.Programs {
			if p.Program == name {
				out = append(out, p)
			}
		}
	}
	r.Programs = out
}

// of returns a program's cost.
func (r *Cost) of(name string) ProgramCost {
	for _, p := range r.Programs {
		if p.Program == name {
			return p
		}
	}
	return ProgramCost{}
}

// window looks at all programs for some seconds.
func (c *cluster) window(ctx context.Context, r *Cost, which int, seconds float64) error {
	pids := c.programs()
	before := map[string]time.Duration{}
	var err error
	for name, pid := range pids {
		if before[name], err = figure.CPUTime(pid); err != nil {
			return err
		}
	}
	used, err := figure.UsageOf(c.processes())
	if err != nil {
		return err
	}
	began := time.Now()
	most := map[string]float64{}
	for time.Since(began).Seconds() < seconds {
		if !pause(ctx, min(time.Second, time.Duration(seconds*float64(time.Second)))) {
			return ctx.Err()
		}
		for name, pid := range pids {
			mib, err := figure.ResidentMiB(pid)
			if err != nil {
				return err
			}
			most[name] = max(most[name], mib)
		}
	}
	took := time.Since(began)
	for i := range r.Programs {
		p := &r.Programs[i]
		after, err := figure.CPUTime(pids[p.Program])
		if err != nil {
			return err
		}
		share := float64(after-before[p.Program]) / float64(took)
		if which == 0 {
			p.IdleMiB, p.IdleCPU = most[p.Program], share
		} else {
			p.BusyMiB, p.BusyCPU = most[p.Program], share
		}
	}
	after, err := figure.UsageOf(c.processes())
	r.Windows[which] = WindowOthers{Seconds: took.Seconds(), Others: after.OthersSince(used, runtime.NumCPU())}
	return err
}
