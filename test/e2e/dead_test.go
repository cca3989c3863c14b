// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"aether.io/aether/internal/sandbox/echo"
)

// TestDeadEndpoints is about endpoints that slices call ready and that are not.
func TestDeadEndpoints(t *testing.T) {
	n := up(t, server("good", "app: good")+client("dead")+client("client"))
	good, dead := n.PodIP("good").String(), n.PodIP("dead").String()
	yaml := service("silent", "10.96.3.1", `ports: [{name: http, port: 80}]`) +
		slice("silent-1", "silent", "http", portHTTP, good, "198.51.100.7") // nothing has that address, nothing says so
	yaml += oneGood("long", "10.96.4.1", 5, good, dead)
	serial := func(endpoints int) string { return fmt.Sprintf("10.96.1.%d:80", endpoints) }
	crowd := func(endpoints int) string { return fmt.Sprintf("10.96.2.%d:80", endpoints) }
	counts := []int{2, 3, 4, 5}
	for _, endpoints := range counts {
		yaml += oneGood(fmt.Sprintf("serial-%d", endpoints), fmt.Sprintf("10.96.1.%d", endpoints), endpoints, good, dead)
		yaml += oneGood(fmt.Sprintf("crowd-%d", endpoints), fmt.Sprintf("10.96.2.%d", endpoints), endpoints, good, dead)
	}
	n.write(t, "services.yaml", yaml)
	n.awaitUsed(t, "10.96.3.1:80", 2)
	n.awaitUsed(t, "10.96.4.1:80", 5)
	for _, endpoints := range counts {
		n.awaitUsed(t, serial(endpoints), endpoints)
		n.awaitUsed(t, crowd(endpoints), endpoints)
	}

	var long sync.WaitGroup
	defer long.Wait()
	long.Go(func() { // as long as it takes for ejected endpoints to come back
		noneAfterFirstSecond(t, n.client(t, "client", "--mode", "http", "--duration", "18s", "--concurrency", "4", "--pause", "20ms", "10.96.4.1:80"))
	})
	t.Run("all but one refuse, one client", func(t *testing.T) {
		var wg sync.WaitGroup
		for _, endpoints := range counts {
			wg.Go(func() {
				noneAfterFirstSecond(t, n.client(t, "client", "--mode", "http", "--duration", "2500ms", "--pause", "5ms", serial(endpoints)))
			})
		}
		wg.Wait()
	})
	for _, endpoints := range counts {
		t.Run(fmt.Sprintf("all but one of %d refuse, 16 clients", endpoints), func(t *testing.T) {
			noneAfterFirstSecond(t, n.client(t, "client", "--mode", "http", "--duration", "2500ms", "--concurrency", "16", "--pause", "10ms", crowd(endpoints)))
		})
	}
	t.Run("one of two is silent", func(t *testing.T) { testSilent(t, n, "10.96.3.1:80") })
}

// oneGood is a Service by hand with one endpoint that serves and others that
// refuse.
func oneGood(name, vip string, endpoints int, good, dead string) string {
	yaml := service(name, vip, `ports: [{name: http, port: 80}]`) + slice(name+"-good", name, "http", portHTTP, good)
	for i := range endpoints - 1 {
		yaml += slice(fmt.Sprintf("%s-dead-%d", name, i), name, "http", 4000+i, dead)
	}
	return yaml
}

// noneAfterFirstSecond reports connections that failed though they were made
// more than a second after the first one.
func noneAfterFirstSecond(t *testing.T, vs []echo.Verdict) {
	t.Helper()
	if len(vs) < 50 {
		t.Errorf("%d connections were made, want many more", len(vs))
		return
	}
	first := slices.MinFunc(vs, func(a, b echo.Verdict) int { return a.Time.Compare(b.Time) }).Time
	failed := 0
	for _, v := range vs {
		if v.Outcome == echo.OK {
			continue
		}
		failed++
		if after := v.Time.Sub(first); after > time.Second {
			t.Errorf("after %v: %s", after, told(v))
		}
	}
	t.Logf("%s: %d of %d connections failed", vs[0].Target, failed, len(vs))
}

// testSilent: whoever meets the silent endpoint waits for its connect timeout,
// twice if others took their turns in between, and is served by the other one.
// Then it is ejected and nobody waits.
func testSilent(t *testing.T, n *node, target string) {
	const connectTimeout = 2000.0 // milliseconds
	vs := n.dialAll(t, "client", 12, echo.Client{Mode: "http", Target: target, Timeout: 8 * time.Second})
	wantAllOK(t, vs)
	slow := 0
	for _, v := range vs {
		if v.ConnectMS+v.LatencyMS > connectTimeout/2 {
			slow++
		}
		if v.ConnectMS+v.LatencyMS > 2*connectTimeout+500 {
			t.Errorf("a connection took %.0f ms, more than two connect timeouts", v.ConnectMS+v.LatencyMS)
		}
	}
	if slow == 0 {
		t.Error("no connection met the silent endpoint: this shows nothing")
	}
	for range 10 {
		if v := n.dial(t, "client", echo.Client{Mode: "http", Target: target}); v.Outcome != echo.OK || v.ConnectMS+v.LatencyMS > connectTimeout/2 {
			t.Errorf("after the silent endpoint failed three times: %s after %.0f ms", told(v), v.ConnectMS+v.LatencyMS)
		}
	}
	t.Logf("%d of %d connections waited for the silent endpoint", slow, len(vs))
}
