// SPDX-License-Identifier: Apache-2.0

package refuse

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// bootstrap is an Envoy that sends every connection to the refuser, with a PROXY
// v2 header in front.
const bootstrap = `
admin: {address: {pipe: {path: %[1]s/admin.sock}}}
static_resources:
  listeners:
  - name: refused
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: tcp_proxy
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: refused
          cluster: refuser
  clusters:
  - name: refuser
    connect_timeout: 1s
    circuit_breakers: {thresholds: [{max_connections: 100000, max_pending_requests: 100000}]}
    load_assignment:
      cluster_name: refuser
      endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: %[1]s/refuse.sock}}}}]}]
    transport_socket:
      name: envoy.transport_sockets.upstream_proxy_protocol
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport
        config: {version: V2}
        transport_socket:
          name: raw
          typed_config: {"@type": type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer}
`

// envoyBinary finds Envoy as the product does: AETHER_ENVOY, PATH, the build
// folder.
func envoyBinary(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("AETHER_ENVOY"); path != "" {
		return path
	}
	if path, err := exec.LookPath("envoy"); err == nil {
		return path
	}
	built, err := filepath.Abs("../../.build/envoy/envoy")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(built); err != nil {
		t.Fatalf("no envoy (%v): run `make envoy`", err)
	}
	return built
}

// startEnvoy runs an Envoy and returns the address that it refuses.
func startEnvoy(t *testing.T, dir string) string {
	t.Helper()
	config := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, bootstrap, dir), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "envoy.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(envoyBinary(t), "-c", config, "--concurrency", "2", "--disable-hot-restart", "-l", "warning")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
		log.Close()
		if t.Failed() {
			said, _ := os.ReadFile(log.Name())
			t.Logf("envoy said:\n%s", said)
		}
	})
	var addr string
	eventually(t, "Envoy listens", func() (ok bool) {
		addr, ok = listenerAddress(filepath.Join(dir, "admin.sock"))
		return ok
	})
	return addr
}

// listenerAddress asks Envoy's admin interface where it listens.
func listenerAddress(admin string) (string, bool) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", admin)
		},
	}}
	resp, err := client.Get("http://envoy/listeners?format=json")
	if err != nil {
		return "", false
	}
	defer resp.Body.Close()
	var listeners struct {
		Statuses []struct {
			Address struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if json.NewDecoder(resp.Body).Decode(&listeners) != nil || len(listeners.Statuses) == 0 {
		return "", false
	}
	a := listeners.Statuses[0].Address.Socket
	return fmt.Sprintf("%s:%d", a.Address, a.Port), a.Port != 0
}

// Envoy relays the refuser's reset to clients that are silent, that have said
// something, and that are still talking.
func TestEnvoyRelaysTheReset(t *testing.T) {
	dir, err := os.MkdirTemp("", "refuse-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ln, err := net.Listen("unix", filepath.Join(dir, "refuse.sock"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- New(Config{}).Serve(ctx, ln) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	addr := startEnvoy(t, dir)
	for _, client := range []struct {
		name string
		send []byte
	}{
		{"silent", nil},
		{"said 27 bytes", make([]byte, 27)},
		{"talks on", make([]byte, 200_000)},
	} {
		t.Run(client.name, func(t *testing.T) {
			const times = 200
			resets := 0
			var took []time.Duration
			for range times {
				began := time.Now()
				err := talk(addr, client.send)
				took = append(took, time.Since(began))
				switch {
				case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
					resets++
				case !errors.Is(err, io.EOF):
					t.Fatalf("neither reset nor closed: %v", err)
				}
			}
			slices.Sort(took)
			t.Logf("%d of %d were reset, p50 %s, p99 %s", resets, times, took[times/2], took[times*99/100])
			if resets < times*95/100 {
				t.Errorf("%d of %d were reset", resets, times)
			}
		})
	}
}

// talk sends what it is given and reads until the connection ends.
func talk(addr string, send []byte) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write(send); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	return err
}
