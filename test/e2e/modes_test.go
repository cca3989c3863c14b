// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/sandbox"
	"aether.io/aether/internal/sandbox/echo"
)

// modeWorld has one address for each thing a mode may change. Each is a VIP, and
// each is held by a pod of the external world too, which stands for the node's
// other balancer and greets as "kube-proxy": what arrives there was passed
// through.
func modeWorld() string {
	yaml := firstRange + client("alice") + server("web", "app: web") +
		service("served", "10.96.1.1", "selector: {app: web}, ports: [{name: greet, port: 80, targetPort: 9001}]") +
		service("empty", "10.96.1.2", "selector: {app: nobody}, ports: [{name: greet, port: 80, targetPort: 9001}]")
	return yaml + worldServer("kube-proxy-1", "10.96.1.1", 80, 81) +
		worldServer("kube-proxy-2", "10.96.1.2", 80) + worldServer("kube-proxy-3", "10.96.1.3", 80)
}

// modeTable says who answers what in which mode: a server's name, or the reason
// of a refusal.
var modeTable = []struct {
	what, address                 string
	passthrough, balance, enforce string
}{
	{"a Service with endpoints", "10.96.1.1:80", "kube-proxy-1", "web", "web"},
	{"a Service without endpoints", "10.96.1.2:80", "kube-proxy-2", "kube-proxy-2", "no-endpoints"},
	{"nobody's address", "10.96.1.3:80", "kube-proxy-3", "kube-proxy-3", "no-service"},
	{"an undeclared port", "10.96.1.1:81", "kube-proxy-1", "kube-proxy-1", "port-not-declared"},
}

func (n *node) setMode(t *testing.T, mode string) {
	t.Helper()
	var got api.Mode
	if err := n.callAgent(t.Context(), http.MethodPut, "/v1/mode", api.Mode{Mode: mode}, &got); err != nil {
		t.Fatal(err)
	}
	if got.Mode != mode {
		t.Fatalf("set mode %s: the agent says %s", mode, got.Mode)
	}
}

// checkMode dials everything of the table and compares with the mode's column.
// Envoy has a new mode some milliseconds after the agent: the first dials wait.
func (n *node) checkMode(t *testing.T, mode string) {
	t.Helper()
	if got := n.agentStatus(t).Mode; got != mode {
		t.Errorf("the agent's status says mode %s, want %s", got, mode)
	}
	for _, row := range modeTable {
		want := map[string]string{"passthrough": row.passthrough, "balance": row.balance, "enforce": row.enforce}[mode]
		eventually(t, settled, fmt.Sprintf("mode %s: %s: %s", mode, row.what, want), func() error {
			v := n.dial(t, "alice", serverFirst(row.address))
			got := v.Answer
			switch v.Outcome {
			case echo.OK:
				got = answeredBy(t, v)
			case echo.Reset:
				got = n.awaitLogged(t, v).Reason
			}
			if got != want {
				return fmt.Errorf("%s, %q", told(v), got)
			}
			return nil
		})
	}
}

// TestModes walks through the modes at run time, with connections that were made
// in each of them and must outlive every change.
func TestModes(t *testing.T) {
	n := upReady(t, modeWorld(), func(c *sandbox.Config) { c.Mode = "passthrough" })
	envoyPID := n.EnvoyPID()
	var lives []live
	enter := func(mode string) {
		t.Helper()
		n.checkMode(t, mode)
		for _, l := range lives {
			l.check(t, "in mode "+mode)
		}
		row := modeTable[0]
		holder := map[string]string{"passthrough": row.passthrough, "balance": row.balance, "enforce": row.enforce}[mode]
		lives = append(lives, n.greeted(t, "alice", row.address, holder))
	}

	enter("passthrough")
	if s := n.agentStatus(t).Names; s.Services != 0 || s.Other != 0 {
		t.Errorf("in mode passthrough Envoy asked for names: %+v", s)
	}
	for _, stat := range []string{"on_demand_cluster_attempt", "on_demand_cluster_missing", "on_demand_cluster_success", "on_demand_cluster_timeout"} {
		if got := n.gauge(t, "tcp.cap_svc."+stat); got != 0 {
			t.Errorf("in mode passthrough tcp.cap_svc.%s is %d, want 0", stat, got)
		}
	}
	if got := n.gauge(t, "cluster.passthrough_service_range.upstream_cx_total"); got == 0 {
		t.Error("in mode passthrough nothing is counted for cluster passthrough_service_range")
	}
	for _, mode := range []string{"balance", "enforce", "balance", "passthrough", "enforce", "passthrough"} {
		n.setMode(t, mode)
		enter(mode)
	}
	n.noListenerDrained(t)

	t.Run("under load", func(t *testing.T) {
		load := n.meanwhile(t, "alice", "--mode", "server-first", "--duration", "1500ms", "--concurrency", "4", modeTable[0].address)
		for _, mode := range []string{"balance", "enforce", "passthrough", "enforce"} {
			n.setMode(t, mode)
			time.Sleep(200 * time.Millisecond) // the load is what is looked at
		}
		wantAllOK(t, load())
	})
	t.Run("the agent started with another one", func(t *testing.T) {
		for _, mode := range []string{"passthrough", "balance"} {
			if err := n.RestartAgent(t.Context(), sandbox.AgentSettings{Mode: mode}); err != nil {
				t.Fatal(err)
			}
			enter(mode)
		}
		n.setMode(t, "enforce")
		enter("enforce")
		if err := n.KillAgent(); err != nil {
			t.Fatal(err)
		}
		eventually(t, settled, "the agent is back", func() error {
			if n.AgentPID() == 0 {
				return fmt.Errorf("no agent")
			}
			var m api.Mode
			return n.callAgent(t.Context(), http.MethodGet, "/v1/mode", nil, &m)
		})
		n.expectUnclean("the agent was killed")
		enter("balance") // what it was started with; a mode that was set lasts until a restart
		if pid := n.EnvoyPID(); pid != envoyPID {
			t.Errorf("Envoy is process %d, was %d: a mode must not restart it", pid, envoyPID)
		}
		n.noListenerDrained(t)
	})
	t.Run("one that is none", func(t *testing.T) {
		if err := n.callAgent(t.Context(), http.MethodPut, "/v1/mode", api.Mode{Mode: "off"}, new(api.Mode)); err == nil {
			t.Error("mode off was taken")
		}
		n.checkMode(t, "balance")
	})
}

// greeting reads the line a server greets with, and not a byte more.
func greeting(t *testing.T, c net.Conn) echo.Identity {
	t.Helper()
	var id echo.Identity
	if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Error(err)
	}
	var line []byte
	for b := make([]byte, 1); len(line) == 0 || line[len(line)-1] != '\n'; line = append(line, b...) {
		if _, err := c.Read(b); err != nil {
			t.Errorf("read the greeting of %s: %v", c.RemoteAddr(), err)
			return id
		}
	}
	if err := json.Unmarshal(line, &id); err != nil {
		t.Errorf("%s greets with %q: %v", c.RemoteAddr(), line, err)
	}
	return id
}
