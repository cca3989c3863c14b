// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"aether.io/aether/internal/sandbox/echo"
)

// Bounds on how long a first connection to a Service never dialled takes, here,
// where the agent has the race detector and the machine other things to do: few
// may exceed the first, none the second. How long it does take is for `make bench`
// to say.
const (
	coldBound = 250.0  // milliseconds
	coldLimit = 2000.0 // Envoy itself would give up after 3000
)

// TestCold is about the first connection to a Service port that this node was
// never asked for.
func TestCold(t *testing.T) {
	const services = 70
	var yaml strings.Builder
	target := func(i, port int) string {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 1, byte(i + 1)}), uint16(port)).String()
	}
	for i := range services {
		yaml.WriteString(service(fmt.Sprintf("cold-%d", i), netip.MustParseAddrPort(target(i, 1)).Addr().String(),
			`selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}, {name: echo, port: 7, targetPort: 9000}, {name: greeting, port: 25, targetPort: 9001}]`))
	}
	n := up(t, server("web-1", "app: web")+client("client")+yaml.String())

	t.Run("first and second connection", func(t *testing.T) {
		var cold, warm []float64
		slow := 0
		for i := range 50 {
			for _, times := range []*[]float64{&cold, &warm} {
				v := n.dial(t, "client", echo.Client{Mode: "http", Target: target(i, 80)})
				answeredBy(t, v)
				*times = append(*times, v.ConnectMS+v.LatencyMS)
			}
			if cold[i] > coldBound {
				slow++
			}
			if cold[i] > coldLimit {
				t.Errorf("the first connection to %s took %.1f ms", target(i, 80), cold[i])
			}
			if l := n.services(t)[target(i, 80)]; l.Demand != "asked" || l.Answer != "balance" {
				t.Errorf("%s was dialled and is listed as %+v", target(i, 80), l)
			}
		}
		if slow > len(cold)/10 {
			t.Errorf("%d of %d first connections took more than %.0f ms", slow, len(cold), coldBound)
		}
		t.Logf("first: p50 %.1f ms, p99 %.1f ms; second: p50 %.1f ms, p99 %.1f ms",
			rank(cold, 50), rank(cold, 99), rank(warm, 50), rank(warm, 99))
	})
	t.Run("ten clients at once", func(t *testing.T) {
		for i := 50; i < 60; i++ {
			vs := n.dialAll(t, "client", 10, echo.Client{Mode: "http", Target: target(i, 80)})
			wantAllOK(t, vs)
			for _, v := range vs {
				if v.ConnectMS+v.LatencyMS > coldLimit {
					t.Errorf("one of ten first connections to %s took %.1f ms", v.Target, v.ConnectMS+v.LatencyMS)
				}
			}
		}
	})
	t.Run("half-close while it waits", func(t *testing.T) {
		for i := 60; i < 65; i++ {
			const size = 20 << 10
			v := n.dial(t, "client", echo.Client{Mode: "half-close", Target: target(i, 7), Bytes: size})
			wantAllOK(t, []echo.Verdict{v})
			if v.Received != size {
				t.Errorf("sent %d bytes and a FIN while the name was asked for, %d came back", size, v.Received)
			}
		}
	})
	t.Run("server first", func(t *testing.T) {
		for i := 65; i < 70; i++ {
			answeredBy(t, n.dial(t, "client", echo.Client{Mode: "server-first", Target: target(i, 25)}))
		}
	})
}

// rank is the nearest-rank percentile.
func rank(values []float64, percent float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(1, int(math.Ceil(percent/100*float64(len(sorted)))))-1]
}
