// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"aether.io/aether/internal/sandbox"
	"aether.io/aether/internal/sandbox/echo"
	"aether.io/aether/test/bench/figure"
)

// Neighbour is how a pod fares while another one misbehaves: the same paced dials,
// in turns with nothing, with each misdeed, and with each misdeed done past the
// proxy, which shows what sharing the machine costs by itself.
type Neighbour struct {
	Kinds []NeighbourKind `json:"kinds"`
}

// NeighbourKind is one thing that the other pod does. Milliseconds.
type NeighbourKind struct {
	Name string              `json:"name"`
	P50  figure.Distribution `json:"p50ms"`
	P99  figure.Distribution `json:"p99ms"`
	// Over is each round's p99 over the quiet one's of the same round.
	Over figure.Distribution `json:"p99OverQuiet"`
	// PerSecond is how many connections per second the other pod made.
	PerSecond figure.Distribution `json:"hostilePerSecond"`
}

// NeighbourSettings say how often and for how long.
type NeighbourSettings struct {
	Rounds  int     `json:"rounds"`
	Seconds float64 `json:"seconds"`
}

const (
	hostilePod = "hostile"
	quietName  = "quiet"
	floodName  = "flood"
	stormName  = "retry storm"
	pastName   = "flood past the proxy"
)

// misdeed is what the other pod does in one round.
type misdeed struct {
	name, pod string
	args      []string
	// wants is how its connections must go, so that the misdeed is the one meant.
	wants echo.Outcome
}

// yielding runs a program so that it gets what CPU time nobody else wants, as a pod
// that has used up its share. What the neighbour then suffers from is what is done
// for the other pod, not what it does itself.
func yielding(args ...string) []string { return append([]string{"nice", "-n", "19"}, args...) }

// misdeeds: as many new connections as 64 clients can make, 32 clients that retry a
// refused Service at once, and the first one from a pod that is not captured.
func misdeeds(d time.Duration) []misdeed {
	web := netip.AddrPortFrom(movingVIP, webPort).String()
	refused := netip.AddrPortFrom(dnatVIP, webPort).String()
	direct := netip.AddrPortFrom(servers[2], greetPort).String()
	args := func(mode string, clients int, target string) []string {
		return []string{"--mode", mode, "--duration", d.String(), "--concurrency", strconv.Itoa(clients), "--summary", target}
	}
	return []misdeed{
		{name: quietName},
		{floodName, hostilePod, args("server-first", 64, web), echo.OK},
		{stormName, hostilePod, args("silent", 32, refused), echo.Reset},
		{pastName, directPod, args("server-first", 64, direct), echo.OK},
	}
}

// neighbourPause is between two dials of the neighbour's.
const neighbourPause = 5 * time.Millisecond

func (b *bench) measureNeighbour(ctx context.Context, s NeighbourSettings) (Neighbour, error) {
	length := time.Duration(s.Seconds * float64(time.Second))
	spec := nodeSpec{
		source: "pod", pods: pods() + idlePod(hostilePod, true),
		objects: map[string]string{"objects.yaml": service(webService, webVIP, servers[0]) + serviceAlone("greet", movingVIP, "") +
			slice("greet", "greet", greetPort, servers[1], servers[2]) + serviceAlone("nobody", dnatVIP, "")},
	}
	deeds := misdeeds(length + time.Second)
	kinds := make([]NeighbourKind, len(deeds))
	p50, p99, over, rates := make([][]float64, len(deeds)), make([][]float64, len(deeds)), make([][]float64, len(deeds)), make([][]float64, len(deeds))
	err := b.withNode(ctx, spec, func(n *sandbox.Node, _, _ string) error {
		for round := range s.Rounds {
			var quiet float64
			for i, deed := range deeds {
				own, other, err := beside(ctx, n, deed, length)
				if err != nil {
					return fmt.Errorf("%s: %w", deed.name, err)
				}
				if i == 0 {
					quiet = own.P99
				}
				p50[i], p99[i], over[i] = append(p50[i], own.P50), append(p99[i], own.P99), append(over[i], own.P99/quiet)
				rates[i] = append(rates[i], other.PerSecond)
			}
			b.say("  %-10s %2d/%d   p99 quiet %.2f ms   flood %.2f ms   retry storm %.2f ms   flood past the proxy %.2f ms",
				rowNeighbour, round+1, s.Rounds, p99[0][round], p99[1][round], p99[2][round], p99[3][round])
		}
		return nil
	})
	for i, deed := range deeds {
		kinds[i] = NeighbourKind{
			Name: deed.name, P50: figure.Of(p50[i]), P99: figure.Of(p99[i]),
			Over: figure.Of(over[i]), PerSecond: figure.Of(rates[i]),
		}
	}
	return Neighbour{kinds}, err
}

// beside measures the neighbour while the misdeed goes on.
func beside(ctx context.Context, n *sandbox.Node, deed misdeed, length time.Duration) (own, other echo.Summary, err error) {
	done := make(chan error, 1)
	if deed.pod == "" {
		done <- nil
	} else {
		go func() {
			var err error
			other, err = summaryOf(ctx, n, deed.pod, deed.args)
			done <- err
		}()
		select { // the neighbour begins when the other one is at it
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	own, err = summaryOf(ctx, n, clientPod, []string{
		"--mode", "http", "--path", answerPath, "--duration", length.String(), "--pause", neighbourPause.String(), "--concurrency", "2",
		"--summary", netip.AddrPortFrom(webVIP, webPort).String(),
	})
	err = errors.Join(err, <-done)
	if err == nil && (own.Connections == 0 || own.Outcomes[echo.OK] != own.Connections) {
		err = fmt.Errorf("the neighbour's connections went %v", own.Outcomes)
	}
	if err == nil && deed.pod != "" && other.Outcomes[deed.wants] < other.Connections*9/10 {
		err = fmt.Errorf("the other pod's connections went %v, want nearly all %s", other.Outcomes, deed.wants)
	}
	return own, other, err
}

// summaryOf runs the client in a pod. That some of its connections did not go ok is
// no error.
func summaryOf(ctx context.Context, n *sandbox.Node, pod string, args []string) (echo.Summary, error) {
	var s echo.Summary
	argv := append([]string{"aether-client"}, args...)
	if pod != clientPod {
		argv = yielding(argv...)
	}
	out, err := n.Output(ctx, pod, argv...)
	if e := json.Unmarshal(out, &s); e != nil {
		return s, errors.Join(fmt.Errorf("read the summary of pod %s: %w", pod, e), err)
	}
	return s, nil
}
