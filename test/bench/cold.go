// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"aether.io/aether/internal/sandbox"
	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/bench/figure"
)

// FirstConnections compares the first connection to a Service port that this
// node was never asked for with later ones, in one source mode. All times are
// milliseconds from connect to the end of the first answer.
type FirstConnections struct {
	Source string `json:"source"`
	figure.First
	// Others is the share of the machine, 0 to 1, that went to something else.
	Others float64 `json:"others"`
}

const (
	warmPerName = 5
	// warmUp connections to another Service come first: they are the client's own
	// start, and are not counted.
	warmUp = 20
	// coldPause between two connections lets every process go back to sleep, as
	// it would between two connections of an idle pod.
	coldPause = 5 * time.Millisecond
)

// measureFirstConnections dials each name for the first time, then again, name
// after name, from one process in the client pod.
func measureFirstConnections(ctx context.Context, node *sandbox.Node, source string, names int) (FirstConnections, error) {
	f := FirstConnections{Source: source}
	return f, f.dial(ctx, node, targetsOf(coldVIPs(names)))
}

// dial measures on names that Envoy must not know yet.
func (f *FirstConnections) dial(ctx context.Context, node *sandbox.Node, cold []string) error {
	if known, err := knownOf(ctx, node, cold); err != nil || known != 0 {
		return errors.Join(fmt.Errorf("names that should be cold and that Envoy knows: %d", known), err)
	}
	targets := slices.Repeat([]string{netip.AddrPortFrom(webVIP, webPort).String()}, warmUp)
	for _, target := range cold {
		targets = append(targets, slices.Repeat([]string{target}, 1+warmPerName)...)
	}
	processes, err := processesOf(ctx, node)
	if err != nil {
		return err
	}
	began, err := figure.UsageOf(processes)
	if err != nil {
		return err
	}
	argv := append([]string{"aether-client", "--path", answerPath, "--pause", coldPause.String(), "http"}, targets...)
	out, err := node.Output(ctx, clientPod, argv...)
	if err != nil {
		_, which := coldSamples(out, targets)
		return errors.Join(fmt.Errorf("dial %d cold names: %w", len(cold), err), which)
	}
	ended, err := figure.UsageOf(processes)
	if err != nil {
		return err
	}
	f.Others = ended.OthersSince(began, runtime.NumCPU())
	if f.Samples, err = coldSamples(out, targets); err != nil {
		return err
	}
	known, err := knownOf(ctx, node, cold)
	if err != nil {
		return err
	}
	if known != len(cold) {
		return fmt.Errorf("dialled %d names, of which Envoy knows %d", len(cold), known)
	}
	f.Summarise()
	return nil
}

// coldSamples reads the client's verdicts, which must be those of the targets in
// their order, all answered.
func coldSamples(out []byte, targets []string) ([]figure.ColdSample, error) {
	var samples []figure.ColdSample
	verdicts := json.NewDecoder(bytes.NewReader(out))
	for i, target := range targets {
		var v echo.Verdict
		if err := verdicts.Decode(&v); err != nil {
			return nil, fmt.Errorf("read verdict %d of %d: %w", i+1, len(targets), err)
		}
		if v.Target != target || v.Outcome != echo.OK {
			return nil, fmt.Errorf("connection %d went to %s and ended as %s (%s), want %s and ok", i+1, v.Target, v.Outcome, v.Error, target)
		}
		took := v.ConnectMS + v.LatencyMS
		switch {
		case i < warmUp:
		case len(samples) == 0 || samples[len(samples)-1].Target != target:
			samples = append(samples, figure.ColdSample{Target: target, Cold: took})
		default:
			last := &samples[len(samples)-1]
			last.Warm = append(last.Warm, took)
		}
	}
	return samples, nil
}

// knownOf counts the targets that Envoy has a cluster for.
func knownOf(ctx context.Context, node *sandbox.Node, targets []string) (int, error) {
	text, err := node.AdminGet(ctx, "/clusters")
	if err != nil {
		return 0, err
	}
	has := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		name, _, _ := strings.Cut(line, "::")
		has[name] = true
	}
	known := 0
	for _, target := range targets {
		if has["svc:"+target] {
			known++
		}
	}
	return known, nil
}

// lastLine returns the last line of a program's output.
func lastLine(out []byte) []byte {
	out = bytes.TrimSpace(out)
	return out[bytes.LastIndexByte(out, '\n')+1:]
}
