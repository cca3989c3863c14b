// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"aether.io/aether/test/bench/figure"
)

// Way is how a pod reaches Services.
type Way string

// The ways.
const (
	ours   Way = "agent"      // the captured pod's
	theirs Way = "kube-proxy" // of the pod beside it
)

func podOf(w Way) string {
	if w == ours {
		return capturedPod
	}
	return plainPod
}

// Times are milliseconds, of each way.
type Times struct {
	Ours   figure.Distribution `json:"agent"`
	Theirs figure.Distribution `json:"kubeProxy"`
	// Written is how long the API server took to write what the time begins with;
	// OursAfter and TheirsAfter are the times less that of the same sample.
	Written     figure.Distribution `json:"written"`
	OursAfter   figure.Distribution `json:"agentAfter"`
	TheirsAfter figure.Distribution `json:"kubeProxyAfter"`
	// Failed is how many connections ended otherwise before the first answer, by how.
	OursFailed   map[string]int `json:"agentFailed,omitempty"`
	TheirsFailed map[string]int `json:"kubeProxyFailed,omitempty"`
	Others       float64        `json:"others"`
	Samples      []Sample       `json:"samples,omitempty"`
}

// Sample is one Service that appeared, or one endpoint that left.
type Sample struct {
	Ours    float64 `json:"agentMs"`
	Theirs  float64 `json:"kubeProxyMs"`
	Written float64 `json:"writtenMs"`
}

const (
	// appearPause is the least time from one new Service to the next: kube-proxy
	// gathers changes for a second, and every moment of it is to be met alike.
	appearPause = 470 * time.Millisecond
	// atOnce bounds how many Services are waited for.
	atOnce = 8
	// retryPause is between two dials.
	retryPause = time.Millisecond
	// mostWait bounds a sample.
	mostWait = 60 * time.Second
	// elsewhere is how often other Services change meanwhile, per second.
	elsewhere = 5
)

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// collector gathers samples of goroutines.
type collector struct {
	mu     sync.Mutex
	times  Times
	failed [2]map[string]int
}

func newCollector() *collector {
	return &collector{failed: [2]map[string]int{{}, {}}}
}

func (c *collector) fails(w Way, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := 0
	if w == theirs {
		i = 1
	}
	c.failed[i][kindOf(err)]++
}

func (c *collector) add(s Sample) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times.Samples = append(c.times.Samples, s)
}

// result summarises what was gathered.
func (c *collector) result() Times {
	t := c.times
	t.OursFailed, t.TheirsFailed = c.failed[0], c.failed[1]
	t.summarise()
	return t
}

func (t *Times) summarise() {
	of := func(value func(Sample) float64) figure.Distribution {
		var all []float64
		for _, s := range t.Samples {
			all = append(all, value(s))
		}
		return figure.Of(all)
	}
	t.Ours, t.Theirs = of(func(s Sample) float64 { return s.Ours }), of(func(s Sample) float64 { return s.Theirs })
	t.Written = of(func(s Sample) float64 { return s.Written })
	t.OursAfter = of(func(s Sample) float64 { return s.Ours - s.Written })
	t.TheirsAfter = of(func(s Sample) float64 { return s.Theirs - s.Written })
}

// measureAppear writes new Services with one ready endpoint each, while others
// change, and times the first answer each way.
func (c *cluster) measureAppear(ctx context.Context, samples int) (Times, error) {
	found := newCollector()
	others, err := c.whileOthersChange(ctx, func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(atOnce)
		for i := range samples {
			if !pause(ctx, appearPause) {
				break
			}
			g.Go(func() error { return c.appear(ctx, i, found) })
		}
		return g.Wait()
	})
	t := found.result()
	t.Others = others
	return t, err
}

// whileOthersChange does something while other Services change, and returns what
// share of the machine went to something else.
func (c *cluster) whileOthersChange(ctx context.Context, do func(context.Context) error) (float64, error) {
	before, err := figure.UsageOf(c.processes())
	if err != nil {
		return 0, err
	}
	ch := churn(ctx, elsewhere, c.moveEndpoint)
	err = do(ctx)
	_, churnErr := ch.end()
	if err := errors.Join(err, churnErr); err != nil {
		return 0, err
	}
	after, err := figure.UsageOf(c.processes())
	return after.OthersSince(before, runtime.NumCPU()), err
}

// fresh counts the Services that came and went in this run: no address is used twice.
func (c *cluster) freshService() *service {
	c.freshMu.Lock()
	defer c.freshMu.Unlock()
	i := c.fresh
	c.fresh++
	return &service{
		namespace: fmt.Sprintf("space-%d", i%spaces), name: fmt.Sprintf("fresh-%d", i), vip: vipOf(freshBlock, i), port: serverPort,
	}
}

// appear takes one sample: both pods begin to dial, the Service is written, and
// then its slice.
func (c *cluster) appear(ctx context.Context, i int, found *collector) error {
	ctx, cancel := context.WithTimeout(ctx, mostWait)
	defer cancel()
	s := c.freshService()
	s.endpoints = []endpoint{c.servers[i%len(c.servers)]}
	var first [2]time.Time
	g, gctx := errgroup.WithContext(ctx)
	began := time.Now()
	for k, w := range []Way{ours, theirs} {
		g.Go(func() error {
			err := c.dialLoop(gctx, podOf(w), s.target(), retryPause, func(d dialled) bool {
				if d.err != nil {
					found.fails(w, d.err)
					return true
				}
				first[k] = d.ended
				return false
			})
			if err != nil {
				return fmt.Errorf("wait for the first answer of %s at %s: %w", w, s.target(), err)
			}
			return nil
		})
	}
	err := write(gctx, c.client, s)
	written := time.Since(began)
	if err := errors.Join(err, g.Wait()); err != nil {
		return err
	}
	found.add(Sample{Ours: ms(first[0].Sub(began)), Theirs: ms(first[1].Sub(began)), Written: ms(written)})
	return remove(ctx, c.client, s)
}

// pause reports whether ctx has not ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
