// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"aether.io/aether/internal/sandbox"
	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/bench/figure"
)

// ScaleSettings say with how many objects the agent is measured.
type ScaleSettings struct {
	Services []int `json:"services"` // sizes, ascending
	Changes  int   `json:"changes"`  // timed ones at each size
	// PerSecond is the rate of changes while the agent's CPU time is taken, and
	// Seconds how long it is taken, idle and busy.
	PerSecond int     `json:"perSecond"`
	Seconds   float64 `json:"seconds"`
}

// Scale is what a number of Services costs. Times are milliseconds.
type Scale struct {
	Services  int `json:"services"`
	Endpoints int `json:"endpoints"`
	// Start is how long the agent took from its start until it was connected with
	// everything read, seconds; MiB the size of the manifests.
	Start float64 `json:"startSeconds"`
	MiB   float64 `json:"manifestMiB"`
	// Told is from when the source tells of a change until Envoy acknowledges the
	// endpoint set: the agent's and Envoy's part. Published is the agent's alone.
	Told      figure.Distribution `json:"toldToAcknowledged"`
	Published figure.Distribution `json:"toldToPublished"`
	// Renamed is from the rename of the file until a connection has reached the
	// new endpoint and back, Told within it: it has the manifest source's part too.
	Renamed figure.Distribution `json:"renamedToServed"`
	// IdleMiB and BusyMiB are the agent's resident memory; HeapMiB what of it Go
	// holds in live and not yet collected objects when idle.
	IdleMiB float64 `json:"idleMiB"`
	BusyMiB float64 `json:"busyMiB"`
	HeapMiB float64 `json:"heapMiB"`
	// IdleCPU and BusyCPU are shares of one core, Replaced the changes per second.
	IdleCPU  float64 `json:"idleCPU"`
	BusyCPU  float64 `json:"busyCPU"`
	Replaced float64 `json:"replacedPerSecond"`
	Others   float64 `json:"others"`
}

const (
	perService = 10 // endpoints
	perFile    = 100
	churned    = 50 // Services that change, each asked for
	movingName = "moving"
)

var movingVIP = netip.MustParseAddr("10.96.0.40")

func churnFile(i int) string { return fmt.Sprintf("churn-%d.yaml", i) }

// churnSlice is the slice of a churned Service at a moment.
func churnSlice(i, step int) string {
	endpoints := farEndpoints(i*perService, perService)
	endpoints[0] = farEndpoints(1<<20+step, 1)[0]
	return slice(fmt.Sprintf("s-%d", i), fmt.Sprintf("s-%d", i), serverPort, endpoints...)
}

// scaleObjects returns the files of n Services: one that moves, some that are
// churned, and the others.
func scaleObjects(n int) map[string]string {
	files := map[string]string{"moving.yaml": serviceAlone(movingName, movingVIP, ""), "moving-slice.yaml": movingSlice(0)}
	vips := coldVIPs(n - 1)
	var b strings.Builder
	for i, vip := range vips {
		name := fmt.Sprintf("s-%d", i)
		b.WriteString(serviceAlone(name, vip, ""))
		if i < churned {
			files[churnFile(i)] = churnSlice(i, 0)
		} else {
			b.WriteString(slice(name, name, serverPort, farEndpoints(i*perService, perService)...))
		}
		if (i+1)%perFile == 0 || i == len(vips)-1 {
			files[fmt.Sprintf("services-%d.yaml", i/perFile)] = b.String()
			b.Reset()
		}
	}
	return files
}

// movingSlice is the slice of the Service that moves between two servers.
func movingSlice(step int) string {
	return slice(movingName, movingName, greetPort, servers[step%2])
}

func (b *bench) measureScale(ctx context.Context, size int, s ScaleSettings) (Scale, error) {
	r := Scale{Services: size, Endpoints: (size-1)*perService + 1}
	objects := scaleObjects(size)
	for _, text := range objects {
		r.MiB += float64(len(text)) / (1 << 20)
	}
	spec := nodeSpec{source: "pod", pods: pods(), objects: objects}
	began := time.Now()
	err := b.withNode(ctx, spec, func(n *sandbox.Node, dir, _ string) error {
		r.Start = time.Since(began).Seconds()
		agent := newAgentClient(n)
		defer agent.close()
		if err := ask(ctx, n, targetsOf(coldVIPs(min(churned, size-1)))); err != nil {
			return err
		}
		processes, err := processesOf(ctx, n)
		if err != nil {
			return err
		}
		began, err := figure.UsageOf(processes)
		if err != nil {
			return err
		}
		if err := r.cost(ctx, n, agent, dir, s); err != nil {
			return err
		}
		if err := r.changes(ctx, n, agent, dir, s.Changes); err != nil {
			return err
		}
		ended, err := figure.UsageOf(processes)
		r.Others = ended.OthersSince(began, runtime.NumCPU())
		return err
	})
	return r, err
}

// cost takes memory and CPU time, idle and busy.
func (r *Scale) cost(ctx context.Context, n *sandbox.Node, agent *agentClient, dir string, s ScaleSettings) error {
	window := time.Duration(s.Seconds * float64(time.Second))
	pid := n.AgentPID()
	var err error
	if r.IdleCPU, err = figure.CPUShare(ctx, pid, window); err != nil {
		return err
	}
	if r.IdleMiB, err = figure.ResidentMiB(pid); err != nil {
		return err
	}
	m, err := agent.metrics(ctx)
	if err != nil {
		return err
	}
	r.HeapMiB = m["go_memstats_heap_alloc_bytes"] / (1 << 20)
	of := min(churned, r.Services-1)
	started := time.Now()
	c := churn(ctx, s.PerSecond, maxRun, func(i int) error {
		return replace(filepath.Join(dir, churnFile(i%of)), churnSlice(i%of, i/of+1))
	})
	share, cpuErr := figure.CPUShare(ctx, pid, window)
	replaced, churnErr := c.end()
	if err := errors.Join(cpuErr, churnErr); err != nil {
		return err
	}
	r.BusyCPU, r.Replaced = share, float64(replaced)/time.Since(started).Seconds()
	r.BusyMiB, err = figure.ResidentMiB(pid)
	return err
}

// changes times changes one after the other.
func (r *Scale) changes(ctx context.Context, n *sandbox.Node, agent *agentClient, dir string, changes int) error {
	var renamed, told, published []float64
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	for i := range changes + 1 {
		before, err := settled(ctx, agent)
		if err != nil {
			return err
		}
		began := time.Now()
		if err := replace(filepath.Join(dir, "moving-slice.yaml"), movingSlice(i+1)); err != nil {
			return err
		}
		served, err := awaitServer(ctx, n, fmt.Sprintf("web-%d", (i+1)%2+1))
		if err != nil {
			return fmt.Errorf("change %d: %w", i+1, err)
		}
		after, err := settled(ctx, agent)
		if err != nil {
			return err
		}
		turns, acks := after.since(before, lagCount), after.since(before, acknowledged("assignment", "count"))
		if i == 0 || turns != 1 || acks != 1 {
			continue // the first dial of that name, or something else happened as well
		}
		lag := 1000 * after.since(before, lagSum)
		renamed = append(renamed, ms(served.Sub(began)))
		published = append(published, lag)
		told = append(told, lag+1000*after.since(before, acknowledged("assignment", "sum")))
	}
	if len(told) < (changes+1)/2 {
		return fmt.Errorf("of %d changes %d could be told apart", changes, len(told))
	}
	r.Renamed, r.Told, r.Published = figure.Of(renamed), figure.Of(told), figure.Of(published)
	return nil
}

// settled reads the agent's metrics once all that was sent to Envoy is acknowledged
// and nothing moves.
func settled(ctx context.Context, agent *agentClient) (m agentMetrics, err error) {
	const sent = `aether_xds_responses_total{type="assignment"}`
	var last agentMetrics
	err = eventually(ctx, 10*time.Second, func() error {
		m, err := agent.metrics(ctx)
		if err != nil {
			return err
		}
		before := last
		last = m
		if before == nil || before[lagCount] != m[lagCount] || m[sent] != m[acknowledged("assignment", "count")] {
			return errors.New("the agent is busy")
		}
		return nil
	})
	return last, err
}

// awaitServer dials the moving Service from the client pod, again and again, until
// that server answers, and returns when it did.
func awaitServer(ctx context.Context, n *sandbox.Node, want string) (at time.Time, err error) {
	target := netip.AddrPortFrom(movingVIP, webPort).String()
	deadline := time.Now().Add(10 * time.Second)
	err = n.InPod(clientPod, func() error {
		for ctx.Err() == nil && time.Now().Before(deadline) {
			who, err := greeting(target)
			if err != nil {
				return fmt.Errorf("dial %s: %w", target, err)
			}
			if who == want {
				at = time.Now()
				return nil
			}
		}
		return fmt.Errorf("%s did not answer at %s", want, target)
	})
	return at, err
}

// greeting dials a greeting server and returns its name.
func greeting(target string) (string, error) {
	c, err := net.DialTimeout("tcp4", target, 2*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return "", err
	}
	var who echo.Identity
	err = json.NewDecoder(c).Decode(&who)
	return who.Pod, err
}
