// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// leavePause is the least time from one endpoint that leaves to the next.
	leavePause = 610 * time.Millisecond
	// plainPause is between two dials of the pod beside: its waits are long, and a
	// coarser look makes its times shorter, not longer.
	plainPause = 4 * time.Millisecond
	// unseen is how long an endpoint must not have been reached to count as left, and
	// how many connections must have gone elsewhere.
	unseenTimes                 = 40
	unseenCaptured, unseenPlain = 250 * time.Millisecond, 1500 * time.Millisecond
	// leastPlain is how long the pod beside is watched at least: kube-proxy may take
	// its second, and then its time.
	leastPlain = 3 * time.Second
)

// watched is what one pod sees of an endpoint that leaves.
type watched struct {
	last      time.Time // connection to it
	elsewhere int       // connections since
	seen      bool
}

// measureLeave turns an endpoint of a Service of two not ready, while other Services
// change, and times its last connection each way.
func (c *cluster) measureLeave(ctx context.Context, samples int) (Times, error) {
	found := newCollector()
	free := make(chan *service, len(c.people.leaving))
	for _, s := range c.people.leaving {
		free <- s
	}
	others, err := c.whileOthersChange(ctx, func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		for range samples {
			if !pause(ctx, leavePause) {
				break
			}
			var s *service
			select {
			case s = <-free:
			case <-ctx.Done():
				return g.Wait()
			}
			g.Go(func() error {
				defer func() { free <- s }()
				return c.leave(ctx, s, found)
			})
		}
		return g.Wait()
	})
	t := found.result()
	t.Others = others
	return t, err
}

// leave takes one sample: both pods dial, the slice is written, both go on until the
// endpoint counts as left; then it comes back and is awaited.
func (c *cluster) leave(ctx context.Context, s *service, found *collector) error {
	ctx, cancel := context.WithTimeout(ctx, mostWait)
	defer cancel()
	gone := s.endpoints[0].pod
	if err := c.reached(ctx, s, gone); err != nil { // the name is asked for, too
		return err
	}
	var began time.Time
	var views [2]watched
	var mu sync.Mutex // of began and views
	g, gctx := errgroup.WithContext(ctx)
	for k, w := range []Way{ours, theirs} {
		rest, quietFor, least := retryPause, unseenCaptured, time.Duration(0)
		if w == theirs {
			rest, quietFor, least = plainPause, unseenPlain, leastPlain
		}
		g.Go(func() error {
			return c.dialLoop(gctx, podOf(w), s.target(), rest, func(d dialled) bool {
				mu.Lock()
				defer mu.Unlock()
				v := &views[k]
				switch {
				case d.err != nil:
					found.fails(w, d.err)
				case d.by == gone:
					*v = watched{last: d.began, seen: true}
				default:
					v.elsewhere++
				}
				since := time.Since(v.last)
				return began.IsZero() || v.elsewhere < unseenTimes || since < quietFor || time.Since(began) < least
			})
		})
	}
	err := func() error {
		if !pause(gctx, 20*time.Millisecond) { // both dial
			return gctx.Err()
		}
		mu.Lock()
		began = time.Now()
		mu.Unlock()
		s.endpoints[0].notReady = true
		return put(gctx, c.client, s, 0)
	}()
	written := time.Since(began)
	if err := errors.Join(err, g.Wait()); err != nil {
		return err
	}
	since := func(v watched) float64 { return max(0, ms(v.last.Sub(began))) }
	found.add(Sample{Ours: since(views[0]), Theirs: since(views[1]), Written: ms(written)})
	s.endpoints[0].notReady = false
	return put(ctx, c.client, s, 0)
}

// reached waits until both pods reach an endpoint of a Service.
func (c *cluster) reached(ctx context.Context, s *service, by string) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, w := range []Way{ours, theirs} {
		g.Go(func() error {
			err := c.dialLoop(ctx, podOf(w), s.target(), plainPause, func(d dialled) bool { return d.err != nil || d.by != by })
			if err != nil {
				return fmt.Errorf("wait until %s reaches %s at %s: %w", w, by, s.target(), err)
			}
			return nil
		})
	}
	return g.Wait()
}
