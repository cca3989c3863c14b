// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/sandbox"
	"aether.io/aether/internal/sandbox/echo"
)

// ctl runs aetherctl against the node and returns its
// output. It ends the test when the command fails.
func (n *node) ctl(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(t, "aetherctl"), append(args, "--agent-socket", n.Paths().AgentSocket)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("aetherctl %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return stdout.String()
}

// ctlJSON is ctl with -o json.
func (n *node) ctlJSON(t *testing.T, into any, args ...string) {
	t.Helper()
	out := n.ctl(t, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		t.Fatalf("aetherctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// awaitObserved returns the connection that a client made, as observe shows it,
// once it is there.
func (n *node) awaitObserved(t *testing.T, v echo.Verdict, args ...string) api.Connection {
	t.Helper()
	var found api.Connection
	eventually(t, settled, "observed: "+told(v), func() error {
		var o api.Observation
		n.ctlJSON(t, &o, append([]string{"observe"}, args...)...)
		for _, c := range o.Connections {
			if c.Client == v.Local && c.Dialled == v.Remote {
				found = c
				return nil
			}
		}
		return fmt.Errorf("not among %d", len(o.Connections))
	})
	return found
}

// TestObserve: what people are shown of connections is what happened to them,
// also of one that stays open, while they watch, and across a restart of the agent.
func TestObserve(t *testing.T) {
	n := upReady(t, modeWorld()+worldServer("outside", "203.0.113.9", 80), withArgs("--record-interval", "300ms"))
	for _, tc := range []struct{ target, verdict, outcome, reason, service string }{
		{"10.96.1.1:80", "balance", "ok", "", "served"},
		{"10.96.1.2:80", "refuse", "refused", "no-endpoints", "empty"},
		{"10.96.1.3:80", "refuse", "refused", "no-service", ""},
		{"10.96.1.1:81", "refuse", "refused", "port-not-declared", "served"},
		{"203.0.113.9:80", "passthrough", "ok", "", ""},
	} {
		c := n.awaitObserved(t, n.dial(t, "alice", serverFirst(tc.target)))
		service := ""
		if c.Service != nil {
			service = c.Service.Name
		}
		if c.Verdict != tc.verdict || c.Outcome != tc.outcome || c.Reason != tc.reason || service != tc.service ||
			c.Source.Pod != "alice" || c.Source.SPIFFE != "spiffe://aether.internal/ns/default/sa/"+c.Source.ServiceAccount {
			t.Errorf("%s: want %+v, is %+v", tc.target, tc, c)
		}
		if c.Outcome == "ok" && (c.BytesReceived == 0 || c.Endpoint == "" || c.WaitUs == nil) {
			t.Errorf("%s: %+v", tc.target, c)
		}
	}
	text := n.ctl(t, "observe", "--refused", "--to", "10.96.1.2")
	if lines := strings.Split(strings.TrimSpace(text), "\n"); len(lines) != 2 || !strings.Contains(lines[1], "no-endpoints") ||
		!strings.Contains(lines[1], "default/alice") || !strings.Contains(lines[1], "empty.default:greet (10.96.1.2:80)") || strings.Contains(text, "\x1b") {
		t.Errorf("observe --refused --to 10.96.1.2:\n%s", text)
	}
	n.followAndInterrupt(t)
	n.openConnection(t)
}

func (n *node) followAndInterrupt(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), program(t, "aetherctl"), "observe", "-f", "-n", "0", "-o", "json", "--refused", "--agent-socket", n.Paths().AgentSocket)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	first := make(chan []byte, 1)
	go func() {
		b, _ := lines.ReadBytes('\n')
		first <- b
	}()
	var got api.ObserveLine
	eventually(t, settled, "it is told of while it is watched", func() error {
		n.dial(t, "alice", serverFirst("10.96.1.1:80"))
		n.dial(t, "alice", serverFirst("10.96.1.3:80"))
		select {
		case b := <-first:
			return json.Unmarshal(b, &got)
		default:
			return io.EOF
		}
	})
	if c := got.Connection; c == nil || c.Reason != "no-service" || c.Dialled != "10.96.1.3:80" {
		t.Errorf("followed: %+v", c)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(lines)
	if err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("interrupted: %v", err)
	}
	all := bytes.Split(bytes.TrimSpace(rest), []byte("\n"))
	var last api.ObserveLine
	if err := json.Unmarshal(all[len(all)-1], &last); err != nil || last.Missing == nil || !last.Missing.Counted {
		t.Errorf("the last line is %s: %v", all[len(all)-1], err)
	}
}

// openConnection holds a connection through a restart of the agent: it is shown
// open, with its bytes so far, before and after.
func (n *node) openConnection(t *testing.T) {
	c := n.conn(t, "alice", "10.96.1.1:80")
	id := greeting(t, c)
	if id.Pod != "web" {
		t.Errorf("%s answered", id.Pod)
	}
	v := echo.Verdict{Target: "10.96.1.1:80", Local: c.LocalAddr().String(), Remote: "10.96.1.1:80"}
	sent := uint64(0)
	for round := range 2 {
		for range 2 {
			if err := exchange(c, "hello"); err != nil {
				t.Fatal(err)
			}
			sent += 6
			eventually(t, settled, "its bytes so far are shown", func() error {
				got := n.awaitObserved(t, v, "--open", "--service", "served.default", "--pod", "alice")
				if got.State != "open" || got.Outcome != "" || got.BytesSent != sent || got.BytesReceived <= got.BytesSent {
					return fmt.Errorf("%+v", got)
				}
				return nil
			})
		}
		if round == 0 {
			if err := n.RestartAgent(t.Context(), sandbox.AgentSettings{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, settled, "it has ended", func() error {
		if got := n.awaitObserved(t, v); got.State != "ended" || got.Outcome != "ok" || got.BytesSent != sent {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
}

// TestObserveRate: beyond the rate connections are not shown, and counted to the
// last one.
func TestObserveRate(t *testing.T) {
	const dials = 60
	n := upReady(t, modeWorld(), withArgs("--record-rate", "1")) // a busy machine makes few dials a second
	for range dials {
		if v := n.dial(t, "alice", serverFirst("10.96.1.1:80")); v.Outcome != echo.OK {
			t.Error(told(v))
		}
	}
	eventually(t, settled, "all are counted", func() error {
		var m api.Missing
		var o api.Observation
		n.ctlJSON(t, &o, "observe", "-n", "1000")
		m = o.Missing
		shown := uint64(len(o.Connections))
		if !m.Counted || m.Told != shown || m.Told+m.NotTold != dials || m.NotTold == 0 {
			return fmt.Errorf("%d shown: %+v", shown, m)
		}
		return nil
	})
}

// TestPreview: what preview says of enforce is what happens once that is the mode,
// for everything that was dialled.
func TestPreview(t *testing.T) {
	n := upReady(t, modeWorld()+worldServer("outside", "203.0.113.9", 80), func(c *sandbox.Config) { c.Mode = "passthrough" },
		withArgs("--record-interval", "300ms"))
	const outside = "203.0.113.9:80"
	targets := []string{outside}
	for _, row := range modeTable {
		targets = append(targets, row.address)
	}
	for _, target := range targets {
		if v := n.dial(t, "alice", serverFirst(target)); v.Outcome != echo.OK {
			t.Errorf("in mode passthrough: %s", told(v))
		}
	}
	var p api.Preview
	eventually(t, settled, "all that was dialled is looked at", func() error {
		n.ctlJSON(t, &p, "preview")
		if len(p.Changes)+p.Unchanged != len(targets) {
			return fmt.Errorf("%d and %d", len(p.Changes), p.Unchanged)
		}
		return nil
	})
	if p.Mode != "passthrough" || p.Preview != "enforce" || p.Unchanged != 1 || !p.Missing.Counted || p.Missing.NotTold != 0 {
		t.Errorf("%+v", p)
	}
	then := map[string]api.PreviewRow{outside: {Then: "passthrough"}}
	for _, r := range p.Changes {
		then[r.Dialled] = r
		if r.Now != "passthrough" || r.Times == 0 || r.Namespace != "default" {
			t.Errorf("%+v", r)
		}
	}
	if text := n.ctl(t, "preview"); !strings.Contains(text, "4 of 5 destinations would take another path, 3 of them would be refused") ||
		!strings.Contains(text, "port-not-declared") {
		t.Errorf("preview:\n%s", text)
	}
	n.ctl(t, "mode", "enforce")
	for _, target := range targets {
		eventually(t, settled, target+" as predicted", func() error {
			c := n.awaitObserved(t, n.dial(t, "alice", serverFirst(target)))
			if want := then[target]; c.Verdict != want.Then || c.Reason != want.Reason {
				return fmt.Errorf("predicted %+v, is %+v", want, c)
			}
			return nil
		})
	}
	if text := n.ctl(t, "preview", "--mode", "balance"); !strings.Contains(text, "From mode enforce to balance: 3 of 5") {
		t.Errorf("preview --mode balance:\n%s", text)
	}
	n.checkTop(t, slices.Sorted(slices.Values(targets)))
}

// checkTop: who dialled, and what, is in top by name.
func (n *node) checkTop(t *testing.T, targets []string) {
	var top api.Top
	n.ctlJSON(t, &top, "top", "--window", "5m")
	if len(top.Rows) != 1 || top.Rows[0].Name != "default/alice" || top.Rows[0].Connections <= 0 || top.Rows[0].Refused <= 0 || top.Rows[0].DurationP50Ms == nil {
		t.Errorf("top: %+v", top)
	}
	text := n.ctl(t, "top", "--by", "service", "--window", "5m")
	for _, want := range []string{"default/served:greet", "default/empty:greet", "10.96.1.3:80"} {
		if !strings.Contains(text, want) {
			t.Errorf("top --by service says nothing of %s (%d were dialled):\n%s", want, len(targets), text)
		}
	}
	err := n.callAgent(t.Context(), http.MethodGet, "/v1/top?by=colour", nil, new(api.Top))
	if err == nil || !strings.Contains(err.Error(), "want one of pod, service, sa") {
		t.Errorf("top by colour: %v", err)
	}
}
