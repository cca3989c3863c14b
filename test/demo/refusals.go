// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"aether.io/aether/internal/sandbox/echo"
)

func refusing() []claim {
	claims := []struct{ reason, text, address, service string }{
		{"no-endpoints", "a Service whose only pod is not ready is refused as no-endpoints", "10.96.0.30:80", "shop/orders"},
		{"no-local-endpoints", "a Service that wants local endpoints and has none here is refused as no-local-endpoints", "10.96.0.40:80", "shop/stock"},
		{"port-not-declared", "a port that the Service does not declare is refused as port-not-declared", "10.96.0.10:81", "shop/web"},
		{"no-service", "an address of the range that is nobody's is refused as no-service", "10.96.77.77:80", ""},
	}
	var out []claim
	for _, c := range claims {
		out = append(out, claim{
			"refused-" + c.reason, c.text + ": a reset, logged once and counted once each",
			func(ctx context.Context, d *demo) (string, error) {
				return seeRefused(ctx, d, c.reason, c.address, c.service)
			},
		})
	}
	return out
}

// seeRefused dials once in silence and once talking.
func seeRefused(ctx context.Context, d *demo, reason, address, service string) (string, error) {
	labels := map[string]string{"reason": reason, "source_service_account": "client"}
	if ns, name, ok := strings.Cut(service, "/"); ok {
		labels["namespace"], labels["service"] = ns, name
	}
	before, err := d.counter(ctx, "aether_proxy_svc_refused", labels)
	if err != nil {
		return "", err
	}
	var vs []echo.Verdict
	for _, mode := range []string{"silent", "talk"} {
		v, err := d.dial(ctx, "shop/client", "--mode", mode, "--timeout", "5s", address)
		if err != nil {
			return "", err
		}
		vs = append(vs, v...)
	}
	lines, logErr := d.logged(ctx, 2, func(l logLine) bool {
		named := service == "" && l.Service == "" || l.Namespace+"/"+l.Service == service
		return l.Dialled == address && l.Reason == reason && l.Outcome == "refused" && named
	})
	after, err := d.counter(ctx, "aether_proxy_svc_refused", labels)
	if err != nil {
		return "", err
	}
	e, err := d.explain(ctx, address)
	if err != nil {
		return "", err
	}
	seen := fmt.Sprintf("silent client: %s, talking client: %s; %d log lines, counter +%g; explain: %s %s",
		vs[0].Outcome, vs[1].Outcome, len(lines), after-before, e.Answer, e.Reason)
	if e.Answer != "refuse" || e.Reason != reason {
		return seen, errors.New("explain tells another story")
	}
	if len(lines) != 2 || after-before != 2 {
		return seen, errors.Join(errors.New("want 2 log lines and 2 counts for 2 connections"), logErr)
	}
	return seen, want(vs, echo.Reset)
}

func passing() []claim {
	return []claim{
		{"api-server", "the API server's Service is passed through and needs no agent", func(ctx context.Context, d *demo) (string, error) {
			return seePassed(ctx, d, "10.96.0.1:443", "apiserver", "api-server")
		}},
		{"external", "an address outside the Service range is passed through", func(ctx context.Context, d *demo) (string, error) {
			return seePassed(ctx, d, "203.0.113.80:80", "website", "external")
		}},
		{"second-range", "a second ServiceCIDR is served at once, and drops no connection", seeSecondRange},
		{"capture-port", "the capture port cannot be dialled from outside the pod", seeCapturePort},
	}
}

func seePassed(ctx context.Context, d *demo, address, pod, class string) (string, error) {
	vs, err := d.dial(ctx, "shop/client", "--mode", "http", address)
	if err != nil {
		return "", err
	}
	e, err := d.explain(ctx, address)
	if err != nil {
		return "", err
	}
	pods, _ := answered(vs)
	seen := fmt.Sprintf("%s answered; explain: %s, class %s", strings.Join(pods, ", "), e.Answer, e.Class)
	if e.Answer != "passthrough" || e.Class != class || len(pods) != 1 || pods[0] != pod {
		return seen, fmt.Errorf("want %s to answer and class %s", pod, class)
	}
	return seen, want(vs, echo.OK)
}

func seeSecondRange(ctx context.Context, d *demo) (string, error) {
	type held struct {
		vs  []echo.Verdict
		err error
	}
	live := make(chan held, 1)
	go func() {
		vs, err := d.dial(ctx, "shop/client", "--mode", "server-first", "--exchanges", "20", "--interval", "100ms", "ledger.shop:5432")
		live <- held{vs, err}
	}()
	began := time.Now()
	if err := d.apply("second-range.yaml", secondRange); err != nil {
		return "", err
	}
	err := eventually(ctx, 5*time.Second, func() error {
		e, err := d.explain(ctx, "198.51.100.10:80")
		if err == nil && e.Answer != "balance" {
			err = fmt.Errorf("198.51.100.10:80 is still answered with %s", e.Answer)
		}
		return err
	})
	known := time.Since(began)
	vs, dialErr := d.dial(ctx, "shop/client", "--mode", "server-first", "--timeout", "2s", "198.51.100.10:80")
	h := <-live
	if err := errors.Join(err, dialErr, h.err); err != nil {
		return "", err
	}
	seen := fmt.Sprintf("known %d ms after the manifest was written; first dial: %s in %.1f ms; the connection open meanwhile: %s, %d exchanges",
		known.Milliseconds(), vs[0].Outcome, vs[0].TotalMS, h.vs[0].Outcome, h.vs[0].Exchanges)
	return seen, want(append(vs, h.vs...), echo.OK)
}

func seeCapturePort(_ context.Context, d *demo) (string, error) {
	target := net.JoinHostPort(d.node.PodIP("shop/client").String(), "18001")
	var dialErr error
	err := d.node.InNode(func() error {
		// A plain connect on this thread, for the socket must be the node's.
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer syscall.Close(fd)
		sa := &syscall.SockaddrInet4{Port: 18001, Addr: d.node.PodIP("shop/client").As4()}
		dialErr = syscall.Connect(fd, sa)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("dial from the node: %w", err)
	}
	seen := fmt.Sprintf("dial of %s from the node: %v", target, dialErr)
	if !errors.Is(dialErr, syscall.ECONNREFUSED) {
		return seen, errors.New("want connection refused")
	}
	return seen, nil
}
