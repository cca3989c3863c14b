// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/sandbox"
	"aether.io/aether/test/bench/figure"
)

// MemorySettings say of how many the cost of one is taken: each time after a few
// that are not counted.
type MemorySettings struct {
	Names       int `json:"names"`
	Listeners   int `json:"listeners"`
	Connections int `json:"connections"`
}

// Memory is what one more of something costs Envoy, KiB, with two workers.
type Memory struct {
	// BaseMiB is Envoy's resident memory with one pod and nothing asked.
	BaseMiB float64      `json:"baseMiB"`
	Costs   []MemoryCost `json:"costs"`
}

// MemoryCost is of one kind of thing.
type MemoryCost struct {
	What  string `json:"what"`
	Count int    `json:"count"`
	// Allocated is by the allocator's count, Resident by the kernel's.
	Allocated float64 `json:"allocatedKiB"`
	Resident  float64 `json:"residentKiB"`
}

// What is measured; report.go has their bars.
const (
	costListener    = "capture listener"
	costService     = "Service port, 3 endpoints"
	costEndpoint    = "further endpoint"
	costEmpty       = "Service port without endpoints"
	costRefused     = "name of no Service, refused"
	costPassthrough = "name passed through"
	costConnection  = "idle connection"
)

const (
	// uncounted come before those that are counted: the first ones pay for what
	// all share.
	uncounted = 10
	// manyEndpoints is how many a Service has from which the cost of one is taken.
	manyEndpoints = 23
)

// names of the memory section: a block of VIPs each.
func memoryVIPs(block, n int) []netip.Addr {
	all := coldVIPs((block + 1) * n)
	return all[block*n:]
}

func memoryObjects(n int) string {
	var b strings.Builder
	add := func(block int, kind, annotations string, endpoints ...netip.Addr) {
		for i, vip := range memoryVIPs(block, n) {
			name := fmt.Sprintf("%s-%d", kind, i)
			b.WriteString(serviceAlone(name, vip, annotations))
			if len(endpoints) > 0 {
				b.WriteString(slice(name, name, serverPort, endpoints...))
			}
		}
	}
	add(0, "three", "", servers...)
	add(1, "many", "", append(farEndpoints(0, manyEndpoints-len(servers)), servers...)...)
	add(2, "empty", "")
	add(3, "passed", `aether.io/service-egress: passthrough`, servers...)
	b.WriteString(serviceAlone("greet", movingVIP, "") + slice("greet", "greet", greetPort, servers...))
	return b.String()
}

func (b *bench) measureMemory(ctx context.Context, s MemorySettings) (Memory, error) {
	var m Memory
	spec := nodeSpec{
		source: "pod", pods: pods(), objects: map[string]string{"objects.yaml": memoryObjects(s.Names + uncounted)},
		// Names of no Service are answered as they come.
		agent: []string{"--no-service-hold", "1ms"},
	}
	err := b.withNode(ctx, spec, func(n *sandbox.Node, _, _ string) (err error) {
		g := grower{node: n, say: b.say, memory: &m}
		if g.envoy, err = envoyOf(ctx, n); err != nil {
			return err
		}
		if m.BaseMiB, err = figure.ResidentMiB(g.envoy); err != nil {
			return err
		}
		names := func(block int) func(from, to int) error {
			vips := memoryVIPs(block, s.Names+uncounted)
			return func(from, to int) error { return g.askAll(ctx, vips[from:to]) }
		}
		defer g.removePods()
		for _, step := range []struct {
			what string
			n    int
			add  func(from, to int) error
		}{
			{costListener, s.Listeners, func(from, to int) error { return g.addPods(ctx, from, to) }},
			{costService, s.Names, names(0)},
			{costEndpoint, s.Names, names(1)},
			{costEmpty, s.Names, names(2)},
			{costPassthrough, s.Names, names(3)},
			{costRefused, s.Names, names(4)}, // of no Service
		} {
			if err := g.grow(ctx, step.what, step.n, step.add); err != nil {
				return fmt.Errorf("%s: %w", step.what, err)
			}
		}
		m.perEndpoint()
		return g.holdConnections(ctx, s.Connections)
	})
	return m, err
}

// perEndpoint makes the cost of one endpoint out of that of a Service with many.
func (m *Memory) perEndpoint() {
	var three MemoryCost
	for i, c := range m.Costs {
		switch c.What {
		case costService:
			three = c
		case costEndpoint:
			further := float64(manyEndpoints - len(servers))
			m.Costs[i].Allocated = (c.Allocated - three.Allocated) / further
			m.Costs[i].Resident = (c.Resident - three.Resident) / further
		}
	}
}

// grower adds things to a node and looks at what they cost its Envoy.
type grower struct {
	node   *sandbox.Node
	envoy  int
	say    func(format string, args ...any)
	memory *Memory
	spaces []string // network namespaces of pods that were added
	conns  []net.Conn
}

// grow adds a few and then n, and notes what those cost.
func (g *grower) grow(ctx context.Context, what string, n int, add func(from, to int) error) error {
	if err := add(0, uncounted); err != nil {
		return err
	}
	before, err := g.read(ctx)
	if err != nil {
		return err
	}
	if err := add(uncounted, uncounted+n); err != nil {
		return err
	}
	after, err := g.read(ctx)
	if err != nil {
		return err
	}
	c := MemoryCost{
		What: what, Count: n,
		Allocated: (after.allocated - before.allocated) / float64(n) / 1024,
		Resident:  (after.resident - before.resident) / float64(n) * 1024,
	}
	g.memory.Costs = append(g.memory.Costs, c)
	g.say("  %-10s %d × %s: %.1f KiB allocated, %.1f resident", rowMemory, n, what, c.Allocated, c.Resident)
	return nil
}

// footprint is Envoy's memory: bytes that its allocator has given out, MiB that
// the kernel has.
type footprint struct{ allocated, resident float64 }

// read waits until the allocator's count keeps still.
func (g *grower) read(ctx context.Context) (f footprint, err error) {
	const still, within = 10, 64 << 10
	steady := 0
	err = eventually(ctx, 20*time.Second, func() error {
		text, err := g.node.AdminGet(ctx, "/memory")
		if err != nil {
			return err
		}
		var m struct {
			Allocated float64 `json:"allocated,string"`
		}
		if err := json.Unmarshal(text, &m); err != nil {
			return fmt.Errorf("read Envoy's memory: %w", err)
		}
		if d := m.Allocated - f.allocated; d < -within || d > within {
			steady = 0
		}
		f.allocated = m.Allocated
		if steady++; steady < still {
			return errors.New("envoy's memory does not keep still")
		}
		return nil
	})
	if err == nil {
		f.resident, err = figure.ResidentMiB(g.envoy)
	}
	return f, err
}

// askAll dials names and waits until Envoy has a cluster for each.
func (g *grower) askAll(ctx context.Context, vips []netip.Addr) error {
	before, err := clusterCount(ctx, g.node)
	if err != nil {
		return err
	}
	if err := ask(ctx, g.node, targetsOf(vips)); err != nil {
		return err
	}
	return awaitClusters(ctx, g.node, before+len(vips))
}

// addPods tells the agent of pods, as the CNI plugin does, each with a network
// namespace of its own in which nothing runs.
func (g *grower) addPods(ctx context.Context, from, to int) error {
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", g.node.Paths().RunDir+"/cni.sock")
	}}}
	defer client.CloseIdleConnections()
	for i := from; i < to; i++ {
		name := fmt.Sprintf("idle-%d", i)
		space := "benchmemory-" + name
		if err := g.node.InNode(func() error { return newNetNS(space) }); err != nil {
			return fmt.Errorf("make network namespace %s: %w", space, err)
		}
		g.spaces = append(g.spaces, space)
		body, err := json.Marshal(api.Pod{
			Namespace: "default", Name: name, UID: name, ServiceAccount: name,
			IP: farEndpoints(i, 1)[0].String(), NetNS: "/run/netns/" + space,
		})
		if err != nil {
			return fmt.Errorf("write a pod: %w", err)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/v1/pods", bytes.NewReader(body))
		if err != nil {
			return fmt.Errorf("tell the agent of a pod: %w", err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return fmt.Errorf("tell the agent of a pod: %w", err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("the agent says %s to pod %s", resp.Status, name)
		}
	}
	return nil
}

// newNetNS makes a named network namespace with its loopback up. The thread it
// runs on is back in its own afterwards.
func newNetNS(name string) error {
	home, err := netns.Get()
	if err != nil {
		return err
	}
	defer home.Close()
	made, err := netns.NewNamed(name)
	if err != nil {
		return err
	}
	defer made.Close()
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	return errors.Join(err, netns.Set(home))
}

func (g *grower) removePods() {
	for _, space := range g.spaces {
		_ = netns.DeleteNamed(space) // it was made
	}
}

// holdConnections measures connections that say nothing.
func (g *grower) holdConnections(ctx context.Context, n int) error {
	target := netip.AddrPortFrom(movingVIP, webPort).String()
	defer func() {
		for _, c := range g.conns {
			c.Close()
		}
	}()
	add := func(from, to int) error {
		return g.node.InPod(clientPod, func() error {
			for range to - from {
				c, err := net.DialTimeout("tcp4", target, 5*time.Second)
				if err != nil {
					return fmt.Errorf("dial %s: %w", target, err)
				}
				g.conns = append(g.conns, c)
				// The greeting has come through: the connection stands on both sides.
				if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
					return err
				}
				if _, err := c.Read(make([]byte, 512)); err != nil {
					return fmt.Errorf("wait for the greeting of %s: %w", target, err)
				}
			}
			return nil
		})
	}
	return g.grow(ctx, costConnection, n, add)
}
