// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"

	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/sandbox/echo"
)

// TestLoops: a pod dials itself in every way there is, many times at once. Envoy
// never dials itself: it accepts one connection for each dial, and keeps none.
func TestLoops(t *testing.T) {
	const times = 50
	n := upReady(t, restartWorld()+server("self", "app: self")+
		service("self", "10.96.0.60", "selector: {app: self}, ports: [{name: greet, port: 80, targetPort: 9001}]")+
		service("aimed", "10.96.0.61", "ports: [{name: self, port: 80}]"))
	n.keepAccount()
	self := n.PodIP("self").String()
	n.write(t, "aimed.yaml", slice("aimed", "aimed", "self", envoy.CapturePort, self))
	n.awaitUsed(t, "10.96.0.60:80", 1)
	n.awaitUsed(t, "10.96.0.61:80", 1)
	envoyPID := n.EnvoyPID()
	for _, c := range []struct {
		target   string
		mode     string
		served   bool
		captured int // connections Envoy accepts for one dial
	}{
		{"10.96.0.60:80", "server-first", true, 1},                           // its own VIP
		{self + ":9001", "server-first", true, 0},                            // its own address
		{"0.0.0.0:9001", "server-first", true, 0},                            // the kernel's word for itself
		{"10.96.0.61:80", "silent", false, 1},                                // a VIP whose endpoint is its capture port
		{fmt.Sprintf("127.0.0.1:%d", envoy.CapturePort), "silent", false, 1}, // the listener itself
		{fmt.Sprintf("0.0.0.0:%d", envoy.CapturePort), "silent", false, 1},
		{fmt.Sprintf("10.96.0.60:%d", envoy.CapturePort), "silent", false, 1},
	} {
		t.Run(c.target, func(t *testing.T) {
			before := n.accepted(t)
			vs := n.dialAll(t, "self", times, echo.Client{Mode: c.mode, Target: c.target})
			for _, v := range vs {
				if c.served != (v.Outcome == echo.OK) || !c.served && v.Outcome != echo.Reset && v.Outcome != echo.Closed {
					t.Errorf("%s, want it served: %t", told(v), c.served)
				}
			}
			if got, want := n.accepted(t)-before, c.captured*times; got != want {
				t.Errorf("Envoy accepted %d connections for %d dials, want %d", got, times, want)
			}
		})
	}
	// On the pod's own address nothing listens: no connection, so nothing to
	// account for.
	target := fmt.Sprintf("%s:%d", self, envoy.CapturePort)
	before := n.accepted(t)
	for range times {
		if err := n.InPod("self", func() error {
			if v := (echo.Client{Mode: "silent", Target: target}).Do(t.Context()); v.Outcome != echo.Refused {
				return fmt.Errorf("%s, want it refused", told(v))
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	if got := n.accepted(t) - before; got != 0 {
		t.Errorf("Envoy accepted %d connections for dials of %s", got, target)
	}
	eventually(t, settled, "Envoy keeps none of them", func() error {
		if got := n.gauge(t, "listener.capture.downstream_cx_active"); got != 0 {
			return fmt.Errorf("it has %d", got)
		}
		return nil
	})
	if pid := n.EnvoyPID(); pid != envoyPID {
		t.Errorf("Envoy is process %d, was %d", pid, envoyPID)
	}
}
