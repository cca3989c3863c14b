// SPDX-License-Identifier: Apache-2.0

package xds_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	setstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	setfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/set_filter_state/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"aether.io/aether/internal/xds"
)

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

const bootstrap = `
node: {id: xdstest, cluster: xdstest}
admin: {address: {pipe: {path: %[1]s/admin.sock}}}
dynamic_resources:
  ads_config:
    api_type: DELTA_GRPC
    transport_api_version: V3
    grpc_services: [{envoy_grpc: {cluster_name: xds}}]
    set_node_on_first_message_only: true
  cds_config: {resource_api_version: V3, ads: {}}
  lds_config: {resource_api_version: V3, ads: {}}
static_resources:
  clusters:
  - name: xds
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: xds
      endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: %[1]s/xds.sock}}}}]}]
`

// realEnvoy is an Envoy process with a namespace for its listeners and an
// upstream that answers every connection with a greeting and an echo.
type realEnvoy struct {
	t         *testing.T
	dir       string
	namespace string
	cmd       *exec.Cmd
	log       *os.File
}

func newRealEnvoy(t *testing.T) *realEnvoy {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, for a network namespace")
	}
	e := &realEnvoy{t: t, dir: socketDir(t), namespace: fmt.Sprintf("xdstest-%d", os.Getpid())}
	if err := e.makeNamespace(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.DeleteNamed(e.namespace); err != nil {
			t.Error(err)
		}
	})
	e.upstream()
	config := filepath.Join(e.dir, "envoy.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, bootstrap, e.dir), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if e.log, err = os.Create(filepath.Join(e.dir, "envoy.log")); err != nil {
		t.Fatal(err)
	}
	e.cmd = exec.Command(envoyBinary(t), "-c", config, "--concurrency", "2", "--disable-hot-restart", "-l", "warning", "--ignore-unknown-dynamic-fields")
	e.cmd.Stdout, e.cmd.Stderr = e.log, e.log
	return e
}

func (e *realEnvoy) start() {
	e.t.Helper()
	if err := e.cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		_ = e.cmd.Process.Signal(syscall.SIGTERM)
		killed := time.AfterFunc(5*time.Second, func() { _ = e.cmd.Process.Kill() })
		_ = e.cmd.Wait()
		killed.Stop()
		_ = e.log.Close()
		if e.t.Failed() {
			said, _ := os.ReadFile(e.log.Name())
			e.t.Logf("envoy said last:\n%s", said[max(0, len(said)-4000):])
		}
	})
}

// inside runs f on a thread that is in the listeners' namespace.
func (e *realEnvoy) inside(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
		ns, err := netns.GetFromName(e.namespace)
		if err == nil {
			err = errors.Join(netns.Set(ns), ns.Close())
		}
		if err == nil {
			err = f()
		}
		result <- err
	}()
	return <-result
}

func (e *realEnvoy) makeNamespace() error {
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // the new namespace stays on this thread, which ends
		ns, err := netns.NewNamed(e.namespace)
		if err == nil {
			err = ns.Close()
		}
		made <- err
	}()
	if err := <-made; err != nil {
		return fmt.Errorf("make the namespace %s: %w", e.namespace, err)
	}
	return e.inside(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
}

func (e *realEnvoy) upstream() {
	l, err := net.Listen("unix", filepath.Join(e.dir, "up.sock"))
	if err != nil {
		e.t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				if _, err := io.WriteString(c, "hello\n"); err == nil {
					_, _ = io.Copy(c, c)
				}
			})
		}
	})
	e.t.Cleanup(func() {
		_ = l.Close()
		conns.Wait()
	})
}

// dial opens a connection inside the namespace.
func (e *realEnvoy) dial(addr string) (c net.Conn, err error) {
	err = e.inside(func() error {
		c, err = net.DialTimeout("tcp", addr, 5*time.Second)
		return err
	})
	return c, err
}

// hello dials and waits for the upstream's greeting.
func (e *realEnvoy) hello(addr string) (net.Conn, time.Duration, error) {
	begun := time.Now()
	c, err := e.dial(addr)
	if err != nil {
		return nil, 0, err
	}
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	line, err := bufio.NewReader(c).ReadString('\n')
	took := time.Since(begun)
	if err == nil && line != "hello\n" {
		err = fmt.Errorf("got %q", line)
	}
	if err != nil {
		return nil, took, errors.Join(err, c.Close())
	}
	return c, took, nil
}

// admin asks Envoy's admin interface.
func (e *realEnvoy) admin(path string) (string, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(e.dir, "admin.sock"))
		},
	}}
	resp, err := client.Get("http://envoy" + path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

// stats returns Envoy's counters and gauges whose name starts with prefix.
func (e *realEnvoy) stats(prefix string) map[string]string {
	e.t.Helper()
	text, err := e.admin("/stats")
	if err != nil {
		e.t.Fatal(err)
	}
	stats := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && strings.HasPrefix(name, prefix) {
			stats[name] = value
		}
	}
	return stats
}

func packed(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func ads() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
}

// onDemandListener takes connections to address:port inside the namespace and
// asks for the cluster svc:<dialled address>.
func (e *realEnvoy) onDemandListener(name, address string, port uint32) xds.Resource {
	e.t.Helper()
	dialled := &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_TextFormatSource{
		TextFormatSource: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: "svc:%DOWNSTREAM_LOCAL_ADDRESS%"}},
	}}
	state := &setfilterv3.Config{OnNewConnection: []*setstatev3.FilterStateValue{{
		Key:   &setstatev3.FilterStateValue_ObjectKey{ObjectKey: "envoy.tcp_proxy.cluster"},
		Value: &setstatev3.FilterStateValue_FormatString{FormatString: dialled},
	}}}
	proxy := &tcpproxyv3.TcpProxy{
		StatPrefix:       "xdstest",
		ClusterSpecifier: &tcpproxyv3.TcpProxy_Cluster{Cluster: "none"},
		OnDemand:         &tcpproxyv3.TcpProxy_OnDemand{OdcdsConfig: ads(), Timeout: durationpb.New(3 * time.Second)},
		IdleTimeout:      durationpb.New(0),
	}
	return xds.Resource{Type: xds.Listener, Name: name, Message: &listenerv3.Listener{
		Name: name,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address:                  address,
			PortSpecifier:            &corev3.SocketAddress_PortValue{PortValue: port},
			NetworkNamespaceFilepath: "/var/run/netns/" + e.namespace,
		}}},
		FilterChains: []*listenerv3.FilterChain{{Name: "svc", Filters: []*listenerv3.Filter{
			{Name: "state", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(e.t, state)}},
			{Name: "proxy", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(e.t, proxy)}},
		}}},
	}}
}

// service is a cluster and its assignment with the upstream as its endpoint.
func (e *realEnvoy) service(name string) []xds.Resource {
	c := cluster(name, 0)
	c.Message.(*clusterv3.Cluster).ConnectTimeout = durationpb.New(2 * time.Second)
	return []xds.Resource{c, {Type: xds.Assignment, Name: name, Message: &endpointv3.ClusterLoadAssignment{
		ClusterName: name,
		Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: filepath.Join(e.dir, "up.sock")}}},
			}},
		}}}},
	}}}
}

// weigh changes the bytes of an assignment.
func weigh(a xds.Resource, weight uint32) {
	a.Message.(*endpointv3.ClusterLoadAssignment).Endpoints[0].LbEndpoints[0].LoadBalancingWeight = wrapperspb.UInt32(weight)
}

// updates are the counters that move when Envoy takes over anything new.
func (e *realEnvoy) updates() map[string]string {
	e.t.Helper()
	all := e.stats("cluster_manager.cluster_")
	maps.Copy(all, e.stats("listener_manager.listener_"))
	return all
}
