// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"aether.io/aether/internal/sandbox/echo"
)

func surviving() []claim {
	return []claim{
		{"agent-down", "while the agent is down, known Services work and refusals are still counted", seeAgentDown},
		{"agent-killed", "killing the agent under load fails no connection to a known Service", seeAgentKilled},
		{"envoy-killed", "when Envoy is killed, pods work again by themselves", seeEnvoyKilled},
	}
}

func seeAgentDown(ctx context.Context, d *demo) (string, error) {
	if err := d.node.StopAgent(ctx); err != nil {
		return "", err
	}
	labels := map[string]string{"reason": "no-endpoints", "service": "orders"}
	served, dialErr := d.dial(ctx, "shop/client", "--mode", "http", "--count", "10", "web.shop:80")
	before, err1 := d.counter(ctx, "aether_proxy_svc_refused", labels)
	refused, refErr := d.dial(ctx, "shop/client", "--mode", "silent", "--timeout", "5s", "10.96.0.30:80")
	after, err2 := d.counter(ctx, "aether_proxy_svc_refused", labels)
	startErr := d.node.StartAgent(ctx)
	if err := errors.Join(dialErr, refErr, err1, err2, startErr); err != nil {
		return "", err
	}
	seen := fmt.Sprintf("%d connections to shop/web served; the refused one ended as %s and was counted %g times",
		len(served), refused[0].Outcome, after-before)
	if o := refused[0].Outcome; after-before != 1 || (o != echo.Closed && o != echo.Reset) {
		return seen, errors.New("want the refused client closed or reset, and counted once")
	}
	return seen, want(served, echo.OK)
}

func seeAgentKilled(ctx context.Context, d *demo) (string, error) {
	type load struct {
		vs  []echo.Verdict
		err error
	}
	done := make(chan load, 1)
	go func() {
		vs, err := d.dial(ctx, "shop/client", "--mode", "http", "--concurrency", "4", "--pause", "5ms", "--duration", "3s", "web.shop:80")
		done <- load{vs, err}
	}()
	old := d.node.AgentPID()
	err := d.node.KillAgent()
	if err == nil {
		err = eventually(ctx, 10*time.Second, func() error {
			if pid := d.node.AgentPID(); pid == 0 || pid == old {
				return errors.New("the agent is not back")
			}
			return nil
		})
	}
	l := <-done
	if err = errors.Join(err, l.err); err != nil {
		return "", err
	}
	seen := fmt.Sprintf("%d connections in 3 s around the kill, agent back by itself", len(l.vs))
	return seen, want(l.vs, echo.OK)
}

func seeEnvoyKilled(ctx context.Context, d *demo) (string, error) {
	if err := d.node.KillEnvoy(); err != nil {
		return "", err
	}
	began := time.Now()
	err := eventually(ctx, 10*time.Second, func() error {
		vs, err := d.dial(ctx, "shop/client", "--mode", "http", "--timeout", "1s", "web.shop:80")
		if err != nil {
			return err
		}
		return want(vs, echo.OK)
	})
	return fmt.Sprintf("served again %d ms after the kill", time.Since(began).Milliseconds()), err
}
