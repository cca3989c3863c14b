// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"aether.io/aether/internal/sandbox"
	"aether.io/aether/internal/sandbox/echo"
)

// dial makes one connection from a pod, in this process: fast, and to literal
// addresses only.
func (n *node) dial(t *testing.T, pod string, c echo.Client) echo.Verdict {
	t.Helper()
	var v echo.Verdict
	if err := n.InPod(pod, func() error {
		v = c.Do(t.Context())
		return nil
	}); err != nil {
		t.Errorf("dial from pod %s: %v", pod, err)
	}
	n.enter(pod, v)
	return v
}

// dialAll makes the same connection several times at once.
func (n *node) dialAll(t *testing.T, pod string, times int, c echo.Client) []echo.Verdict {
	t.Helper()
	out := make([]echo.Verdict, times)
	var wg sync.WaitGroup
	for i := range out {
		wg.Go(func() { out[i] = n.dial(t, pod, c) })
	}
	wg.Wait()
	return out
}

// ask is dial in mode http, and returns the name of the pod that answered; a
// connection that does not go ok is an error of the test.
func (n *node) ask(t *testing.T, pod, target string) string {
	t.Helper()
	return answeredBy(t, n.dial(t, pod, echo.Client{Mode: "http", Target: target}))
}

// askMany asks again and again, one after the other, and counts who answered.
func (n *node) askMany(t *testing.T, pod, target string, times int) map[string]int {
	t.Helper()
	out := map[string]int{}
	for range times {
		out[n.ask(t, pod, target)]++
	}
	return out
}

// identity reads who answered, in modes http and server-first.
func identity(t *testing.T, v echo.Verdict) echo.Identity {
	t.Helper()
	var id echo.Identity
	if v.Outcome != echo.OK {
		t.Errorf("%s: %s in phase %q: %s", v.Target, v.Outcome, v.Phase, v.Error)
		return id
	}
	if err := json.Unmarshal([]byte(v.Answer), &id); err != nil {
		t.Errorf("%s answered %q: %v", v.Target, v.Answer, err)
	}
	return id
}

func answeredBy(t *testing.T, v echo.Verdict) string {
	t.Helper()
	return identity(t, v).Pod
}

// client runs aether-client inside a pod, where Service names resolve, and
// returns its verdicts. Flags are those of echo.ClientMain.
func (n *node) client(t *testing.T, pod string, args ...string) []echo.Verdict {
	t.Helper()
	var out []echo.Verdict
	for line := range bytes.Lines(n.clientOutput(t, pod, args)) {
		var v echo.Verdict
		if err := json.Unmarshal(line, &v); err != nil {
			t.Errorf("client in %s: %s: %v", pod, line, err)
			continue
		}
		out = append(out, v)
	}
	n.enter(pod, out...)
	return out
}

// clientOutput runs the client to its end. Its exit code only repeats what the
// verdicts say, but for 2: wrong flags.
func (n *node) clientOutput(t *testing.T, pod string, args []string) []byte {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code, err := n.Exec(t.Context(), pod, append([]string{"aether-client"}, args...), sandbox.Stdio{Out: &stdout, Err: &stderr})
	if err != nil || code > 1 {
		t.Errorf("client in %s: exit code %d, %v: %s", pod, code, err, stderr.Bytes())
	}
	return stdout.Bytes()
}

// conn opens a connection from a pod that the test itself uses. It is closed
// when the test ends.
func (n *node) conn(t *testing.T, pod, target string) *net.TCPConn {
	t.Helper()
	var c net.Conn
	if err := n.InPod(pod, func() (err error) {
		c, err = (&net.Dialer{}).DialContext(t.Context(), "tcp4", target)
		return err
	}); err != nil {
		t.Fatalf("connect from pod %s: %v", pod, err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// exchange sends a line over an echoing connection and wants it back.
func exchange(c net.Conn, line string) error {
	if _, err := fmt.Fprintln(c, line); err != nil {
		return err
	}
	got := make([]byte, len(line)+1)
	for n := 0; n < len(got); {
		k, err := c.Read(got[n:])
		if err != nil {
			return err
		}
		n += k
	}
	if string(got) != line+"\n" {
		return fmt.Errorf("sent %q, got back %q", line, got)
	}
	return nil
}

// serve runs a server of the test's own on a port of a pod, until the test ends.
// handle owns the connection.
func (n *node) serve(t *testing.T, pod string, port uint16, handle func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	target := netip.AddrPortFrom(n.PodIP(pod), port)
	var l net.Listener
	if err := n.InPod(pod, func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp4", target.String())
		return err
	}); err != nil {
		t.Fatalf("listen in pod %s: %v", pod, err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			wg.Go(func() { handle(c.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return target
}

// outcomes counts how connections went.
func outcomes(vs []echo.Verdict) map[echo.Outcome]int {
	out := map[echo.Outcome]int{}
	for _, v := range vs {
		out[v.Outcome]++
	}
	return out
}

// wantAllOK reports every connection that did not go ok.
func wantAllOK(t *testing.T, vs []echo.Verdict) {
	t.Helper()
	if len(vs) == 0 {
		t.Error("no connection was made")
	}
	for _, v := range vs {
		if v.Outcome != echo.OK {
			t.Errorf("%s: %s in phase %q: %s", v.Target, v.Outcome, v.Phase, v.Error)
		}
	}
}

// told says what a verdict holds, in one line.
func told(v echo.Verdict) string {
	parts := []string{v.Target, v.Mode, string(v.Outcome)}
	if v.Error != "" {
		parts = append(parts, v.Phase, v.Error)
	}
	return strings.Join(parts, " ")
}
