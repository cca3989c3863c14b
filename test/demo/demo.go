// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/sandbox"
	"aether.io/aether/internal/sandbox/echo"
)

// demo is the node under the claims and the ways to look at it.
type demo struct {
	node   *sandbox.Node
	ctl    string // the aetherctl binary
	extra  string // manifest folder for what is added at run time
	shop   string
	report *report
}

// dial runs the client program in a pod and returns one verdict per connection.
// A connection that fails is a verdict, not an error.
func (d *demo) dial(ctx context.Context, pod string, args ...string) ([]echo.Verdict, error) {
	out, runErr := d.node.Output(ctx, pod, append([]string{"aether-client"}, args...)...)
	var vs []echo.Verdict
	dec := json.NewDecoder(bytes.NewReader(out))
	for dec.More() {
		var v echo.Verdict
		if err := dec.Decode(&v); err != nil {
			return nil, fmt.Errorf("read the client's verdict: %w", err)
		}
		vs = append(vs, v)
	}
	if len(vs) == 0 {
		return nil, fmt.Errorf("the client in pod %s said nothing: %w", pod, runErr)
	}
	return vs, nil
}

// want fails when a verdict is not the outcome.
func want(vs []echo.Verdict, outcome echo.Outcome) error {
	for _, v := range vs {
		if v.Outcome != outcome {
			return fmt.Errorf("a connection to %s ended as %s (%s %s), want %s", v.Target, v.Outcome, v.Phase, v.Error, outcome)
		}
	}
	return nil
}

// identities decodes who answered.
func identities(vs []echo.Verdict) []echo.Identity {
	var ids []echo.Identity
	for _, v := range vs {
		var id echo.Identity
		if json.Unmarshal([]byte(v.Answer), &id) == nil && id.Pod != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// answered lists the pods that answered, each once, with the address they saw.
func answered(vs []echo.Verdict) (pods, seen []string) {
	for _, id := range identities(vs) {
		pods = append(pods, id.Pod)
		host, _, _ := strings.Cut(id.Remote, ":")
		seen = append(seen, host)
	}
	slices.Sort(pods)
	slices.Sort(seen)
	return slices.Compact(pods), slices.Compact(seen)
}

// explain asks aetherctl, as a person would.
func (d *demo) explain(ctx context.Context, address string) (api.Explanation, error) {
	var e api.Explanation
	out, err := d.aetherctl(ctx, "explain", address, "-o", "json")
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(out, &e); err != nil {
		return e, fmt.Errorf("read explain's answer: %w", err)
	}
	return e, nil
}

func (d *demo) aetherctl(ctx context.Context, args ...string) ([]byte, error) {
	args = append(args, "--agent-socket", d.node.Status().Paths.AgentSocket)
	out, err := exec.CommandContext(ctx, d.ctl, args...).Output()
	if err != nil {
		var ee *exec.ExitError
		if errors.As(err, &ee) {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(ee.Stderr))
		}
		return nil, fmt.Errorf("aetherctl %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

// counter sums the samples of a Prometheus counter whose labels all match.
func (d *demo) counter(ctx context.Context, name string, labels map[string]string) (float64, error) {
	text, err := d.node.AdminGet(ctx, "/stats?format=prometheus&filter=aether")
	if err != nil {
		return 0, err
	}
	sum := 0.0
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), "envoy_"+name+"{")
		if !ok {
			continue
		}
		set, value, ok := strings.Cut(rest, "} ")
		if !ok {
			continue
		}
		all := true
		for k, v := range labels {
			all = all && strings.Contains(","+set, ","+k+"="+strconv.Quote(v))
		}
		if n, err := strconv.ParseFloat(value, 64); all && err == nil {
			sum += n
		}
	}
	return sum, lines.Err()
}

// logLine is what the demo reads of the access log.
type logLine struct {
	Source    string `json:"source"`
	Dialled   string `json:"dialled"`
	Namespace string `json:"service_namespace"`
	Service   string `json:"service_name"`
	Port      string `json:"service_port"`
	Endpoint  string `json:"endpoint"`
	Attempts  int    `json:"attempts"`
	Outcome   string `json:"outcome"`
	Reason    string `json:"reason"`
}

// logged returns the access log's lines for which keep holds, as soon as there
// are n of them, or what there is when the time is over.
func (d *demo) logged(ctx context.Context, n int, keep func(logLine) bool) ([]logLine, error) {
	var found []logLine
	err := eventually(ctx, 3*time.Second, func() error {
		b, err := os.ReadFile(d.node.Status().Paths.AccessLog)
		if err != nil {
			return fmt.Errorf("read the access log: %w", err)
		}
		found = found[:0]
		for _, line := range bytes.Split(b, []byte("\n")) {
			var l logLine
			if len(line) > 0 && json.Unmarshal(line, &l) == nil && keep(l) {
				found = append(found, l)
			}
		}
		if len(found) < n {
			return fmt.Errorf("%d lines in the access log, want %d", len(found), n)
		}
		return nil
	})
	return found, err
}

// apply writes a manifest into the watched folder, whole or not at all.
func (d *demo) apply(name, yaml string) error {
	tmp := filepath.Join(d.extra, "."+name)
	if err := os.WriteFile(tmp, []byte(yaml), 0o644); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	if err := os.Rename(tmp, filepath.Join(d.extra, name)); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	return nil
}

// eventually tries until f succeeds or the time is over; it returns f's last error.
func eventually(ctx context.Context, limit time.Duration, f func() error) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return fmt.Errorf("not within %s: %w", limit, err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
