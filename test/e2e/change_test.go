// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/sandbox/echo"
)

// TestServiceComesAndGoes is about Services that appear and vanish at run time.
// The hold is long, so that what happens during it can be seen.
func TestServiceComesAndGoes(t *testing.T) {
	const hold = 2 * time.Second
	n := up(t, server("web-1", "app: web")+client("client"), withArgs("--no-service-hold", hold.String()))
	web := func(name, vip string) string {
		return service(name, vip, `selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]`)
	}
	t.Run("a Service made while a dial is held is served", func(t *testing.T) {
		const target = "10.96.0.10:80"
		done := make(chan echo.Verdict, 1)
		go func() { done <- n.dial(t, "client", echo.Client{Mode: "http", Target: target}) }()
		n.awaitExplain(t, target, "dialled", func(e api.Explanation) bool { return e.Live != nil && e.Live.Asked })
		n.write(t, "early.yaml", web("early", "10.96.0.10"))
		v := <-done
		if who := answeredBy(t, v); who != "web-1" || v.LatencyMS > float64(hold.Milliseconds()) {
			t.Errorf("answered by %q after %.0f ms, want web-1 before the hold of %v is over", who, v.LatencyMS, hold)
		}
		if l := n.awaitLogged(t, v); l.ServiceName != "early" || l.Outcome != "ok" {
			t.Errorf("logged as %+v", l)
		}
	})
	t.Run("a Service made after the refusal is served", func(t *testing.T) {
		const target = "10.96.0.11:80"
		held := n.dial(t, "client", echo.Client{Mode: "silent", Target: target})
		if ms := held.LatencyMS; held.Outcome != echo.Reset || ms < 0.9*float64(hold.Milliseconds()) || ms > 2900 {
			t.Errorf("the first dial sees %s after %.0f ms, want a reset after the hold of %v", told(held), ms, hold)
		}
		if again := n.dial(t, "client", echo.Client{Mode: "silent", Target: target}); again.Outcome != echo.Reset || again.LatencyMS > 500 {
			t.Errorf("the second dial sees %s after %.0f ms, want a reset at once", told(again), again.LatencyMS)
		}
		n.write(t, "late.yaml", web("late", "10.96.0.11"))
		n.awaitUsed(t, target, 1)
		n.ask(t, "client", target)
	})
	t.Run("a Service that goes is refused, and served again when it is back", func(t *testing.T) {
		const target = "10.96.0.12:80"
		n.write(t, "again.yaml", web("again", "10.96.0.12"))
		n.awaitUsed(t, target, 1)
		n.ask(t, "client", target)
		for range 2 {
			n.remove(t, "again.yaml")
			n.awaitRefused(t, target, "no-service")
			v := n.dial(t, "client", echo.Client{Mode: "silent", Target: target})
			if l := n.awaitLogged(t, v); v.Outcome != echo.Reset || l.Reason != "no-service" || l.ServiceName != "" {
				t.Errorf("without its Service the client sees %s, logged as %+v", told(v), l)
			}
			n.write(t, "again.yaml", web("again", "10.96.0.12"))
			n.awaitUsed(t, target, 1)
			if who := n.ask(t, "client", target); who != "web-1" {
				t.Errorf("with its Service back, answered by %q", who)
			}
		}
	})
}
