// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"aether.io/aether/test/bench/figure"
	"aether.io/aether/test/lab"
)

// Pods of the clients, and how many servers there are.
const (
	capturedPod = "default/captured"
	plainPod    = "default/plain"
	servers     = 3
)

// patience bounds what the cluster has to do before something can be measured.
const patience = 3 * time.Minute

// cluster is a lab and who lives in it.
type cluster struct {
	*lab.Cluster
	client  kubernetes.Interface
	servers []endpoint
	people  population
	say     func(format string, args ...any)

	freshMu sync.Mutex
	fresh   int          // Services that came and went
	moved   atomic.Int64 // endpoints
}

// pods are the clients on our node and the servers on another.
func pods() string {
	var b strings.Builder
	for name, managed := range map[string]string{"captured": "true", "plain": "false"} {
		b.WriteString(clientPod(name, managed))
	}
	for i := range servers {
		fmt.Fprintf(&b, `
apiVersion: v1
kind: Pod
metadata: {name: server-%d, labels: {app: server}}
spec:
  nodeName: n2
  terminationGracePeriodSeconds: 0
  containers: [{name: echo, image: aether/echo, args: [--server-first, ":%d"]}]
---`, i, serverPort)
	}
	return b.String()
}

func clientPod(name, managed string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {aether.io/managed: %q}}
spec:
  nodeName: n1
  terminationGracePeriodSeconds: 0
  containers: [{name: client, image: aether/client}]
---`, name, managed)
}

// up brings a cluster up with the pods and no Services.
func up(ctx context.Context, name string, say func(string, ...any)) (*cluster, error) {
	l, err := lab.Up(ctx, lab.Config{Name: name, Progress: func(s string) { say("  %s", s) }})
	if err != nil {
		return nil, err
	}
	c := &cluster{Cluster: l, say: say}
	if err := c.settle(ctx); err != nil {
		return nil, errors.Join(err, l.Down(context.WithoutCancel(ctx)))
	}
	return c, nil
}

func (c *cluster) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var err error
	if c.client, err = fastClient(c.RESTConfig()); err != nil {
		return err
	}
	if err := c.Apply(ctx, "default", pods()); err != nil {
		return err
	}
	all := []string{capturedPod, plainPod}
	for i := range servers {
		all = append(all, fmt.Sprintf("default/server-%d", i))
	}
	if err := c.AwaitReady(ctx, all...); err != nil {
		return err
	}
	for i := range servers {
		name := fmt.Sprintf("server-%d", i)
		c.servers = append(c.servers, endpoint{ip: c.Node.PodIP("default/" + name), pod: name})
	}
	return makeSpaces(ctx, c.client)
}

// grow writes Services until there are n, and waits until both sides know them.
func (c *cluster) grow(ctx context.Context, n, endpoints int, small bool, s Settings) error {
	was := map[netip.Addr]*service{}
	for _, x := range c.people.all() {
		was[x.vip] = x
	}
	c.people = populate(n, endpoints, small, s, c.servers)
	var missing []*service
	for _, x := range c.people.all() {
		if before, there := was[x.vip]; there {
			x.uid = before.uid
		} else {
			missing = append(missing, x)
		}
	}
	began := time.Now()
	if err := fill(ctx, c.client, missing); err != nil {
		return err
	}
	filled := time.Since(began)
	err := c.awaitKnown(ctx)
	c.say("  %s Services with %s endpoints: written in %.0f s, known to both after %.0f s more",
		figure.Thousands(len(c.people.all())), figure.Thousands(c.people.endpoints()), filled.Seconds(), (time.Since(began) - filled).Seconds())
	return err
}

// awaitKnown waits until both sides are done with the Services, and looks whether
// they know them.
func (c *cluster) awaitKnown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	all := c.people.all()
	return lab.Poll(ctx, "agent and kube-proxy know all Services", func(ctx context.Context) error {
		if err := c.quiet(ctx); err != nil {
			return err
		}
		synced, err := c.AgentMetric(ctx, "aether_agent_sources_synced")
		if err != nil || len(synced) != 1 || synced[0].Value != 1 {
			return errors.Join(errors.New("the agent has not listed everything"), err)
		}
		for _, s := range []*service{all[0], all[len(all)-1]} {
			rules, err := c.ServiceRules(ctx, s.vip)
			if err != nil || len(rules) == 0 {
				return errors.Join(fmt.Errorf("kube-proxy has no rules for %s", s.vip), err)
			}
		}
		return nil
	})
}

// quiet waits until neither side has anything left to do: agent and kube-proxy use
// next to no CPU for a while.
func (c *cluster) quiet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return lab.Poll(ctx, "agent and kube-proxy are idle", func(ctx context.Context) error {
		var shares [2]float64
		g, ctx := errgroup.WithContext(ctx)
		for i, pid := range []int{c.Node.AgentPID(), c.KubeProxy.PID()} {
			g.Go(func() (err error) {
				shares[i], err = figure.CPUShare(ctx, pid, quietLook)
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		if shares[0] > quietShare || shares[1] > quietShare {
			return fmt.Errorf("agent and kube-proxy use %.2f and %.2f of a core", shares[0], shares[1])
		}
		return nil
	})
}

const (
	quietLook  = 2 * time.Second
	quietShare = 0.05
)

// processes are all that have a part in what is measured and run, beside this one.
func (c *cluster) processes() []int {
	all := []int{c.Node.AgentPID(), c.Node.EnvoyPID(), c.KubeProxy.PID(), c.APIServer.PID(), c.Etcd.PID()}
	return slices.DeleteFunc(all, func(pid int) bool { return pid == 0 })
}

// kubernetes is the version that kube-apiserver says.
func (c *cluster) kubernetes() (string, error) {
	v, err := c.client.Discovery().ServerVersion()
	if err != nil {
		return "", fmt.Errorf("ask kube-apiserver for its version: %w", err)
	}
	return v.GitVersion, nil
}
