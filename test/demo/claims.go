// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"aether.io/aether/internal/sandbox/echo"
)

// claims lists what the demo shows, in order.
func claims() []claim {
	return slices.Concat(serving(), refusing(), passing(), surviving())
}

func serving() []claim {
	return []claim{
		{"resolved-by-the-proxy", "a captured pod reaches a Service that no kernel rule translates; an uncaptured pod beside it does not", seeResolved},
		{"balanced", "both pods of Service shop/web answer, each on its own target port, and see the caller's own address", seeBalanced},
		{"server-first", "a protocol in which the server speaks first is not held up", seeServerFirst},
		{"hand-made-slice", "a Service without selector is served from an EndpointSlice written by hand", seeHandMade},
		{"named", "the connection is logged and counted with its Service and the caller's SPIFFE ID", seeNamed},
		{"cold", "the first connection to a Service nobody has dialled is served, and costs little", seeCold},
		{"retried", "with one of two endpoints dead, no connection fails after the first second", seeRetried},
		{"not-ready", "an endpoint that turns not ready gets no new connection", seeNotReady},
	}
}

func seeResolved(ctx context.Context, d *demo) (string, error) {
	in, err := d.dial(ctx, "shop/client", "--mode", "http", "web.shop:80")
	if err != nil {
		return "", err
	}
	// web-2 is not captured. Its dial of the VIP finds no route at all.
	out, err := d.dial(ctx, "shop/web-2", "--mode", "http", "--timeout", "2s", "10.96.0.10:80")
	if err != nil {
		return "", err
	}
	seen := fmt.Sprintf("captured: %s from %s; uncaptured: %s in phase %s", in[0].Outcome, in[0].Remote, out[0].Outcome, out[0].Phase)
	if out[0].Outcome == echo.OK {
		return seen, errors.New("the uncaptured pod reached the Service too: something else translates its address")
	}
	return seen, want(in, echo.OK)
}

func seeBalanced(ctx context.Context, d *demo) (string, error) {
	vs, err := d.dial(ctx, "shop/client", "--mode", "http", "--count", "20", "web.shop:80")
	if err != nil {
		return "", err
	}
	pods, from := answered(vs)
	own := d.node.PodIP("shop/client").String()
	seen := fmt.Sprintf("20 connections answered by %s, which saw %s", strings.Join(pods, " and "), strings.Join(from, ", "))
	switch {
	case !slices.Equal(pods, []string{"web-1", "web-2"}):
		return seen, errors.New("not both pods answered")
	case !slices.Equal(from, []string{own}):
		return seen, fmt.Errorf("the caller's own address is %s", own)
	}
	return seen, want(vs, echo.OK)
}

func seeServerFirst(ctx context.Context, d *demo) (string, error) {
	vs, err := d.dial(ctx, "shop/client", "--mode", "server-first", "web.shop:7000")
	if err != nil {
		return "", err
	}
	seen := fmt.Sprintf("greeted %.1f ms after connect", vs[0].LatencyMS)
	if vs[0].LatencyMS > 1000 {
		return seen, errors.New("the greeting was held up")
	}
	return seen, want(vs, echo.OK)
}

func seeHandMade(ctx context.Context, d *demo) (string, error) {
	vs, err := d.dial(ctx, "shop/client", "--mode", "server-first", "ledger.shop:5432")
	if err != nil {
		return "", err
	}
	e, err := d.explain(ctx, "10.96.0.20:5432")
	if err != nil {
		return "", err
	}
	seen := fmt.Sprintf("%s; explain says %s over %d endpoint(s)", vs[0].Outcome, e.Answer, len(e.Endpoints))
	if e.Answer != "balance" || len(e.Endpoints) != 1 || !e.Endpoints[0].Used {
		return seen, errors.New("explain tells another story")
	}
	return seen, want(vs, echo.OK)
}

func seeNamed(ctx context.Context, d *demo) (string, error) {
	labels := map[string]string{
		"namespace": "shop", "service": "web", "port": "http",
		"source_namespace": "shop", "source_service_account": "batch", "outcome": "ok",
	}
	before, err := d.counter(ctx, "aether_egress_connections", labels)
	if err != nil {
		return "", err
	}
	vs, err := d.dial(ctx, "shop/batch", "--mode", "http", "--count", "3", "web.shop:80")
	if err != nil {
		return "", err
	}
	const id = "spiffe://aether.internal/ns/shop/sa/batch"
	lines, logErr := d.logged(ctx, 3, func(l logLine) bool {
		return l.Source == id && l.Namespace == "shop" && l.Service == "web" && l.Port == "http"
	})
	after, err := d.counter(ctx, "aether_egress_connections", labels)
	if err != nil {
		return "", err
	}
	seen := fmt.Sprintf("3 connections: %d log lines of %s to shop/web port http, counter went up by %g", len(lines), id, after-before)
	if after-before != 3 || len(lines) != 3 {
		return seen, errors.Join(errors.New("want exactly 3 of each"), logErr)
	}
	return seen, want(vs, echo.OK)
}

func seeCold(ctx context.Context, d *demo) (string, error) {
	const names = 20
	if err := d.apply("cold.yaml", coldServices(names)); err != nil {
		return "", err
	}
	last := fmt.Sprintf("10.96.1.%d:80", names)
	if err := eventually(ctx, 5*time.Second, func() error {
		e, err := d.explain(ctx, last)
		if err == nil && e.Answer != "balance" {
			err = fmt.Errorf("%s is still answered with %s", last, e.Answer)
		}
		return err
	}); err != nil {
		return "", err
	}
	var cold, warm []float64
	for i := 1; i <= names; i++ {
		vs, err := d.dial(ctx, "shop/client", "--mode", "server-first", "--count", "2", fmt.Sprintf("10.96.1.%d:80", i))
		if err != nil {
			return "", err
		}
		if err := want(vs, echo.OK); err != nil {
			return "", err
		}
		cold, warm = append(cold, vs[0].TotalMS), append(warm, vs[1].TotalMS)
	}
	slices.Sort(cold)
	slices.Sort(warm)
	seen := fmt.Sprintf("%d Services: first connection %.1f ms, next one %.1f ms (medians); slowest first %.1f ms",
		names, cold[names/2], warm[names/2], cold[names-1])
	if cold[names-1] > 1000 {
		return seen, errors.New("a first connection took more than a second")
	}
	return seen, nil
}

func seeRetried(ctx context.Context, d *demo) (string, error) {
	if err := d.apply("half-dead.yaml", halfDead); err != nil {
		return "", err
	}
	if err := eventually(ctx, 5*time.Second, func() error {
		e, err := d.explain(ctx, "10.96.0.50:80")
		if err == nil && len(e.Endpoints) != 2 {
			err = fmt.Errorf("%d endpoints known, want 2", len(e.Endpoints))
		}
		return err
	}); err != nil {
		return "", err
	}
	vs, err := d.dial(ctx, "shop/client", "--mode", "server-first", "--concurrency", "4", "--pause", "5ms", "--duration", "3s", "10.96.0.50:80")
	if err != nil {
		return "", err
	}
	failed, late := 0, 0
	for _, v := range vs {
		if v.Outcome != echo.OK {
			failed++
			if v.Time.Sub(vs[0].Time) > time.Second {
				late++
			}
		}
	}
	seen := fmt.Sprintf("%d connections in 3 s, %d failed, %d of them after the first second", len(vs), failed, late)
	if late > 0 || len(vs) < 100 {
		return seen, errors.New("want none failed after the first second, and at least 100 connections")
	}
	return seen, nil
}

func seeNotReady(ctx context.Context, d *demo) (string, error) {
	if err := d.node.SetReady("shop/web-1", "", false); err != nil {
		return "", err
	}
	defer func() { _ = d.node.ResetReady("shop/web-1", "") }()
	began := time.Now()
	if err := eventually(ctx, 5*time.Second, func() error {
		e, err := d.explain(ctx, "10.96.0.10:80")
		if err != nil {
			return err
		}
		for _, ep := range e.Endpoints {
			if !ep.Ready && !ep.Used {
				return nil
			}
		}
		return errors.New("every endpoint is still in use")
	}); err != nil {
		return "", err
	}
	learned := time.Since(began)
	vs, err := d.dial(ctx, "shop/client", "--mode", "http", "--count", "20", "web.shop:80")
	if err != nil {
		return "", err
	}
	pods, _ := answered(vs)
	seen := fmt.Sprintf("known after %d ms; then 20 connections answered by %s", learned.Milliseconds(), strings.Join(pods, " and "))
	if !slices.Equal(pods, []string{"web-2"}) {
		return seen, errors.New("want all answered by web-2")
	}
	return seen, want(vs, echo.OK)
}
