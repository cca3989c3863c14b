// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestSockets: a captured connection notices a dead peer and is never cut for
// being quiet. Most of it is waiting, so it runs beside others that wait.
func TestSockets(t *testing.T) {
	t.Parallel()
	n := upReady(t, passedThroughWorld())
	pod := fmt.Sprintf("%s:%d", n.PodIP("web"), portEcho)
	byService := n.live(t, "alice", "10.96.0.10:7", "to a Service")
	byIP := n.live(t, "alice", pod, "to a pod")
	quiet := []live{
		n.greeted(t, "alice", "203.0.113.80:80", "website"),
		n.greeted(t, "alice", "10.96.0.21:80", "optedout"),
	}

	t.Run("keepalive and user timeout", func(t *testing.T) {
		for what, l := range map[string]live{"service": byService, "passthrough": byIP} {
			down, up := 0, 0
			for _, s := range n.envoySockets(t) {
				switch {
				case s.remote.String() == l.c.LocalAddr().String():
					down++
				case s.remote.String() == pod:
					up++
					if s.userTimeout != 30_000 {
						t.Errorf("%s: TCP_USER_TIMEOUT upstream is %d ms, want 30000", what, s.userTimeout)
					}
				default:
					continue
				}
				if !s.keepalive || s.idle != 15 || s.every != 5 || s.probes != 3 {
					t.Errorf("%s: socket %s → %s has keepalive %t %d s, %d s, %d; want 15 s, 5 s, 3",
						what, s.local, s.remote, s.keepalive, s.idle, s.every, s.probes)
				}
			}
			if down != 1 || up != 2 {
				t.Errorf("%s: %d sockets to the client and %d to the server, want 1 and, for both connections, 2", what, down, up)
			}
		}
	})
	t.Run("no idle timeout is configured", func(t *testing.T) { checkIdleTimeouts(t, n) })
	t.Run("a dead peer", func(t *testing.T) {
		// What the server sends, its acknowledgements too, is lost. Alice's
		// kernel has long had Envoy's word that her bytes arrived, so hers can
		// notice nothing; Envoy's does: by the user timeout where bytes are on
		// their way, by keepalive where it is quiet.
		defer n.drop(t, "web", "ip daddr "+n.PodIP("alice").String())()
		if _, err := fmt.Fprintln(byService.c, "hello?"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for _, l := range []live{byService, byIP} {
			if err := l.c.SetReadDeadline(began.Add(50 * time.Second)); err != nil {
				t.Fatal(err)
			}
			_, err := l.c.Read(make([]byte, 1))
			took := time.Since(began)
			// Envoy 1.40 relays a reset, and ends a connection that timed out as
			// if the server had closed it.
			if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) || took > deadPeerWithin {
				t.Errorf("%s: %v after %v, want its end within %v", l.what, err, took, deadPeerWithin)
			}
			if took < 20*time.Second {
				t.Errorf("%s: ended after %v: 20 s of silence are no reason", l.what, took)
			}
			t.Logf("%s: %v after %.1f s", l.what, err, took.Seconds())
		}
		for _, l := range quiet {
			l.check(t, fmt.Sprintf("after %.0f s of silence", time.Since(began).Seconds()))
		}
	})
}

// checkIdleTimeouts reads what Envoy runs with, not what it was sent.
func checkIdleTimeouts(t *testing.T, n *node) {
	t.Helper()
	b, err := n.AdminGet(t.Context(), "/config_dump?resource=dynamic_listeners")
	if err != nil {
		t.Fatal(err)
	}
	var dump any
	if err := json.Unmarshal(b, &dump); err != nil {
		t.Fatal(err)
	}
	proxies := 0
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			if kind, _ := v["@type"].(string); strings.HasSuffix(kind, "tcp_proxy.v3.TcpProxy") {
				proxies++
				if got := v["idle_timeout"]; got != "0s" {
					t.Errorf("a tcp_proxy has idle_timeout %v, want 0s", got)
				}
			}
			for _, e := range v {
				walk(e)
			}
		}
	}
	walk(dump)
	if want := 4 * len(n.listeners(t)); proxies != want {
		t.Errorf("Envoy runs %d tcp_proxy filters, want %d: four chains for each pod", proxies, want)
	}
}
