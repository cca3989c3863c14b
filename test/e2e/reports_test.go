// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"aether.io/aether/internal/sandbox/echo"
)

// TestReports has the rows of test/cases that are about Envoy and the kernel:
// what others met when they built on the same parts.
func TestReports(t *testing.T) {
	const several = 16
	vip := func(i int) string { return fmt.Sprintf("10.96.1.%d", i+1) }
	var yaml strings.Builder
	for i := range 2 * several {
		yaml.WriteString(service(fmt.Sprint("new-", i), vip(i), `selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]`))
	}
	n := up(t, server("web-1", "app: web")+client("dead")+client("client")+yaml.String())
	good, dead := n.PodIP("web-1").String(), n.PodIP("dead").String()
	byHand := func(name, ip, endpoint string, port int) string {
		return service(name, ip, `ports: [{name: tcp, port: 7}]`) + slice(name+"-1", name, "tcp", port, endpoint)
	}
	n.write(t, "hand.yaml", byHand("sole", "10.96.2.1", dead, 4000)+byHand("self", "10.96.2.2", n.PodIP("client").String(), 4001)+
		oneGood("three", "10.96.2.3", 3, good, dead)+oneGood("five", "10.96.2.5", 5, good, dead))
	n.awaitUsed(t, "10.96.2.1:7", 1)
	n.awaitUsed(t, "10.96.2.2:7", 1)
	n.awaitUsed(t, "10.96.2.3:80", 3)
	n.awaitUsed(t, "10.96.2.5:80", 5)

	// envoyproxy/envoy#20633, #20409: connections that wait for one name share its
	// timer, so no name may be left to that timer.
	t.Run("L-2 nobody waits for Envoy's own timer", func(t *testing.T) {
		for _, v := range n.dialAll(t, "client", 8, echo.Client{Mode: "silent", Target: "10.96.9.9:80"}) {
			if v.Outcome != echo.Reset || v.ConnectMS+v.LatencyMS > coldLimit {
				t.Errorf("an unknown address: %s after %.0f ms", told(v), v.ConnectMS+v.LatencyMS)
			}
		}
	})
	// envoyproxy/envoy#30305
	t.Run("L-3 new names one after the other", func(t *testing.T) {
		for i := range several {
			n.ask(t, "client", vip(i)+":80")
		}
	})
	// envoyproxy/envoy#24726
	t.Run("L-4 new names at once", func(t *testing.T) {
		var wg sync.WaitGroup
		for i := range several {
			wg.Go(func() { n.ask(t, "client", vip(several+i)+":80") })
		}
		wg.Wait()
	})
	// istio/istio#20135, envoyproxy/envoy#10770
	t.Run("L-5 the only endpoint fails and comes back", func(t *testing.T) { testSoleEndpoint(t, n) })
	// istio-ecosystem/admiral#205, envoyproxy/envoy#3058
	for id, target := range map[string]string{"L-6 two of three refuse": "10.96.2.3:80", "L-7 four of five refuse": "10.96.2.5:80"} {
		t.Run(id, func(t *testing.T) {
			noneAfterFirstSecond(t, n.client(t, "client", "--mode", "http", "--duration", "2500ms", "--pause", "5ms", target))
		})
	}
	// istio/ztunnel#621: kube-proxy's IPVS mode gives the node every ClusterIP. A
	// pod's capture is in its own namespace.
	t.Run("L-8 the node has the ClusterIP as its own", func(t *testing.T) {
		n.inNode(t, "", "ip", "address", "add", vip(0)+"/32", "dev", "lo")
		for range 5 {
			if by := n.ask(t, "client", vip(0)+":80"); by != "web-1" {
				t.Errorf("answered by %s", by)
			}
		}
		if v := n.dial(t, "client", echo.Client{Mode: "silent", Target: vip(0) + ":22"}); v.Outcome != echo.Reset {
			t.Errorf("a port that is not declared: %s", told(v))
		}
	})
	// cloudnativelabs/kube-router#9
	t.Run("L-9 a pod reaches itself through its Service", func(t *testing.T) {
		n.serve(t, "client", 4001, echoes)
		wantAllOK(t, []echo.Verdict{n.dial(t, "client", echo.Client{Mode: "half-close", Target: "10.96.2.2:7", Bytes: 100})})
	})
}

// echoes sends everything back and ends when the other side has.
func echoes(c *net.TCPConn) {
	defer c.Close()
	_, _ = io.Copy(c, c) // the client sees what is missing
}

// testSoleEndpoint: while it refuses it is ejected again and again, which is no
// reason to refuse by name, and it is used as soon as it serves.
func testSoleEndpoint(t *testing.T, n *node) {
	const target = "10.96.2.1:7"
	once := func() echo.Verdict {
		return n.dial(t, "client", echo.Client{Mode: "half-close", Target: target, Bytes: 100})
	}
	for range 10 {
		if v := once(); v.Outcome == echo.OK {
			t.Fatalf("nobody serves there: %s", told(v))
		}
	}
	if e := n.explain(t, target); e.Answer != "balance" {
		t.Errorf("an endpoint that refuses is answered with %s", decision(e))
	}
	n.serve(t, "dead", 4000, echoes)
	eventually(t, 2*time.Second, "the endpoint is used again", func() error {
		if v := once(); v.Outcome != echo.OK {
			return fmt.Errorf("%s", told(v))
		}
		return nil
	})
	for range 10 {
		wantAllOK(t, []echo.Verdict{once()})
	}
}
