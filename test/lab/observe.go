// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/accesslog"
)

// LogLine is one line of our node's access log: one captured connection.
type LogLine = accesslog.Line

// AccessLog returns all lines of our node's access log so far.
func (c *Cluster) AccessLog() ([]LogLine, error) { return c.access.Read() }

// Logged waits for the line of a connection that Dial made from a captured pod.
func (c *Cluster) Logged(ctx context.Context, v echo.Verdict) (LogLine, error) {
	var found LogLine
	err := Poll(ctx, "the connection to "+v.Target+" is in the access log", func(context.Context) error {
		lines, err := c.AccessLog()
		if err != nil {
			return err
		}
		for _, l := range lines {
			// A client that is told of a reset before it is told that it had been
			// connected does not know its own port: then the target decides.
			its := l.Client == v.Local && l.Dialled == v.Remote || v.Local == "" && l.Dialled == v.Target
			if its && !l.Time.Before(v.Time.Truncate(time.Millisecond)) {
				found = l
				return nil
			}
		}
		return fmt.Errorf("%d other lines are", len(lines))
	})
	return found, err
}

// Refusals is Envoy's counter of refused connections, by "reason namespace/service".
// For an address of no Service, which has no labels, the name is "/".
func (c *Cluster) Refusals(ctx context.Context) (map[string]int, error) {
	samples, err := c.EnvoyMetric(ctx, "envoy_aether_proxy_svc_refused")
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	for _, s := range samples {
		out[s.Labels["reason"]+" "+s.Labels["namespace"]+"/"+s.Labels["service"]] += int(s.Value)
	}
	return out, nil
}

// Sample is one value of a metric.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// EnvoyMetric reads one of Envoy's metrics, by its name in Prometheus' form.
func (c *Cluster) EnvoyMetric(ctx context.Context, name string) ([]Sample, error) {
	b, err := c.Node.AdminGet(ctx, "/stats/prometheus")
	if err != nil {
		return nil, err
	}
	return samplesOf(b, name)
}

// AgentMetric reads one of the agent's metrics.
func (c *Cluster) AgentMetric(ctx context.Context, name string) ([]Sample, error) {
	b, err := call(ctx, clientIn(c.nodeNS()), http.MethodGet, "http://127.0.0.1:18090/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("ask the agent for its metrics: %w", err)
	}
	return samplesOf(b, name)
}

// KubeProxyMetric reads one of kube-proxy's metrics.
func (c *Cluster) KubeProxyMetric(ctx context.Context, name string) ([]Sample, error) {
	b, err := call(ctx, clientIn(c.nodeNS()), http.MethodGet, "http://"+kubeProxyMetrics+"/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("ask kube-proxy for its metrics: %w", err)
	}
	return samplesOf(b, name)
}

var labelPattern = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"`)

// samplesOf reads the samples of one metric from Prometheus' text format.
func samplesOf(text []byte, name string) ([]Sample, error) {
	var out []Sample
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		s := Sample{Labels: map[string]string{}}
		for _, m := range labelPattern.FindAllStringSubmatch(rest[:strings.LastIndexByte(rest, '}')+1], -1) {
			s.Labels[m[1]] = m[2]
		}
		fields := strings.Fields(rest[strings.LastIndexByte(rest, '}')+1:])
		if len(fields) == 0 {
			return nil, errors.New("read metrics: no value in line " + line)
		}
		v, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			return nil, fmt.Errorf("read metrics: %w", err)
		}
		s.Value = v
		out = append(out, s)
	}
	return out, lines.Err()
}

// AgentStatus asks our node's agent for its status.
func (c *Cluster) AgentStatus(ctx context.Context) (api.Status, error) {
	var st api.Status
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", c.Node.Paths().AgentSocket)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	b, err := call(ctx, client, http.MethodGet, "http://unix/v1/status", nil)
	if err == nil {
		err = json.Unmarshal(b, &st)
	}
	if err != nil {
		return st, fmt.Errorf("ask the agent for its status: %w", err)
	}
	return st, nil
}
