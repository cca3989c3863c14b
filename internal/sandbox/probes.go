// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// probeTiming is a probe's timing with the API's defaults filled in.
type probeTiming struct {
	initialDelay, period, timeout time.Duration
	success, failure              int
}

func timingOf(p *corev1.Probe) probeTiming {
	seconds := func(n, def int32) time.Duration { return time.Duration(cmp.Or(n, def)) * time.Second }
	return probeTiming{
		initialDelay: time.Duration(p.InitialDelaySeconds) * time.Second,
		period:       seconds(p.PeriodSeconds, 10),
		timeout:      seconds(p.TimeoutSeconds, 1),
		success:      int(cmp.Or(p.SuccessThreshold, 1)),
		failure:      int(cmp.Or(p.FailureThreshold, 3)),
	}
}

// probeState counts results. A container starts not ready; so many results of
// one kind in a row turn it.
type probeState struct {
	ready     bool
	row       int // results of the same kind in a row
	lastGood  bool
	everKnown bool
	everGood  bool
}

// result takes one result and returns the state after it.
func (s probeState) result(good bool, t probeTiming) probeState {
	if s.everKnown && s.lastGood == good {
		s.row++
	} else {
		s.row = 1
	}
	s.everKnown, s.lastGood, s.everGood = true, good, s.everGood || good
	if good && s.row >= t.success {
		s.ready = true
	}
	if !good && s.row >= t.failure {
		s.ready = false
	}
	return s
}

// eagerPeriod is how often a container is probed before its first good result,
// if its period is longer: until then more results change nothing but how soon
// it becomes ready.
const eagerPeriod = 100 * time.Millisecond

// probe runs check until ctx ends: first after the initial delay, then every
// period. report is told every state that differs from the one before, and why.
func probe(ctx context.Context, t probeTiming, check func(context.Context) error, report func(ready bool, reason string)) {
	if t.initialDelay > 0 {
		select {
		case <-time.After(t.initialDelay):
		case <-ctx.Done():
			return
		}
	}
	tick := time.NewTicker(min(t.period, eagerPeriod))
	defer tick.Stop()
	var s probeState
	lastReason := ""
	for {
		err := within(ctx, t.timeout, check)
		if ctx.Err() != nil {
			return
		}
		reason := ""
		if err != nil {
			reason = err.Error()
		}
		next := s.result(err == nil, t)
		if next.ready != s.ready || reason != lastReason {
			report(next.ready, reason)
		}
		if next.lastGood && !s.everGood {
			tick.Reset(t.period)
		}
		s, lastReason = next, reason
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func within(ctx context.Context, d time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return check(ctx)
}

// checker returns what one probe of a container does, nil for a kind that is not
// done here. Network probes come from the node, as the kubelet's do.
func (n *Node) checker(p *corev1.Probe, c *corev1.Container, podIP netip.Addr,
	run func(ctx context.Context, argv []string) error,
) (func(context.Context) error, error) {
	port := func(v intstr.IntOrString) (uint16, error) {
		if v.Type == intstr.Int {
			if v.IntVal < 1 || v.IntVal > 65535 {
				return 0, fmt.Errorf("container %s: probe port %d: want 1 to 65535", c.Name, v.IntVal)
			}
			return uint16(v.IntVal), nil
		}
		return containerPort(c, v.StrVal)
	}
	switch {
	case p.TCPSocket != nil:
		number, err := port(p.TCPSocket.Port)
		addr := net.JoinHostPort(cmp.Or(p.TCPSocket.Host, podIP.String()), fmt.Sprint(number))
		return func(ctx context.Context) error {
			conn, err := n.dialFromNode(ctx, "tcp", addr)
			if err != nil {
				return err
			}
			return conn.Close()
		}, err
	case p.HTTPGet != nil:
		number, err := port(p.HTTPGet.Port)
		return n.httpCheck(p.HTTPGet, podIP, number), err
	case p.Exec != nil:
		return func(ctx context.Context) error { return run(ctx, p.Exec.Command) }, nil
	}
	return nil, nil
}

// httpCheck asks for a path; a status from 200 to 399 is good. Certificates are
// not verified and redirects not followed to other hosts, as the kubelet does.
func (n *Node) httpCheck(g *corev1.HTTPGetAction, podIP netip.Addr, port uint16) func(context.Context) error {
	u := url.URL{
		Scheme: strings.ToLower(string(cmp.Or(g.Scheme, corev1.URISchemeHTTP))),
		Host:   net.JoinHostPort(cmp.Or(g.Host, podIP.String()), fmt.Sprint(port)),
	}
	path, query, _ := strings.Cut(cmp.Or(g.Path, "/"), "?")
	u.Path, u.RawQuery = path, query
	client := &http.Client{
		Transport: &http.Transport{
			DialContext:       n.dialFromNode,
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // a probe asks for life, not for identity
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
		if err != nil {
			return fmt.Errorf("make probe request: %w", err)
		}
		req.Header.Set("User-Agent", "kube-probe/sandbox")
		for _, h := range g.HTTPHeaders {
			if strings.EqualFold(h.Name, "Host") {
				req.Host = h.Value
				continue
			}
			req.Header.Add(h.Name, h.Value)
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode < 200 || resp.StatusCode >= 400 {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	}
}

// dialFromNode connects from the node's namespace. The address holds an IP: a
// name would be looked up outside of it.
func (n *Node) dialFromNode(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	nsErr := inNetNS(n.nodeNS, func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		return nil
	})
	if nsErr != nil {
		return nil, fmt.Errorf("enter the node: %w", nsErr)
	}
	return conn, err
}
