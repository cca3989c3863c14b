// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"aether.io/aether/internal/sandbox"
)

const (
	barePort = 19001
	bareName = "bare" // of the lane and of its cluster
	// The listener whose connections leave by the client pod's namespace.
	barePodPort = 19002
	barePodName = "bare-pod"
	// workers is the concurrency of both Envoys.
	workers = 2
)

// bare is a second Envoy on the node: static listeners in the client pod's
// namespace, each a tcp_proxy with a static cluster of the same servers, and
// nothing else but what counts and logs: its logs, its counters, its bootstrap are
// the captured listener's own, read from the node's Envoy. One listener dials from
// the node. In source mode pod there is a second that dials from the pod's
// namespace, as the Service's cluster does.
type bare struct {
	cmd    *exec.Cmd
	dir    string // of its logs, one of each listener
	source string
}

func bareLog(dir, listener string) string { return filepath.Join(dir, listener+".log") }

// object is a JSON object.
type object = map[string]any

// startBare starts it with its files in dir and waits until it serves.
func startBare(ctx context.Context, node *sandbox.Node, source, envoy, dir string) (*bare, error) {
	b := &bare{dir: dir, source: source}
	config := filepath.Join(dir, "bare.json")
	logs, err := captureLogs(ctx, node)
	if err != nil {
		return nil, err
	}
	if logs, err = logs.withRates(filepath.Join(dir, "rates.json")); err != nil {
		return nil, err
	}
	var bind any
	if source == "pod" {
		if bind, err = serviceBind(ctx, node); err != nil {
			return nil, err
		}
	}
	bootstrap, err := os.ReadFile(node.Paths().Bootstrap)
	if err != nil {
		return nil, fmt.Errorf("read the node's bootstrap: %w", err)
	}
	text, err := bareConfig(bootstrap, logs, netNSOf(node, clientPod), dir, bind)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(config, text, 0o644); err != nil {
		return nil, fmt.Errorf("write the bare Envoy's configuration: %w", err)
	}
	errs, err := os.Create(filepath.Join(dir, "bare.stderr"))
	if err != nil {
		return nil, fmt.Errorf("open the bare Envoy's log: %w", err)
	}
	defer errs.Close()
	b.cmd = exec.Command(envoy, "-c", config, "--concurrency", strconv.Itoa(workers), "--log-level", "warning",
		"--file-flush-interval-msec", "100", "--disable-hot-restart")
	b.cmd.Stderr = errs
	if err := node.InNode(b.cmd.Start); err != nil {
		return nil, fmt.Errorf("start the bare Envoy: %w", err)
	}
	if err := awaitAdmin(ctx, bareAdmin(dir)); err != nil {
		b.stop()
		said, _ := os.ReadFile(errs.Name())
		return nil, fmt.Errorf("wait for the bare Envoy: %w: %s", err, lastLine(said))
	}
	return b, nil
}

func (b *bare) stop() {
	_ = b.cmd.Process.Kill() // it may have ended
	_ = b.cmd.Wait()         // killed
}

// lanes are the ways through it, from the client pod.
func (b *bare) lanes() []lane {
	way := func(name string, port int) lane {
		return lane{
			name: name, pod: clientPod, url: fmt.Sprintf("http://127.0.0.1:%d%s", port, answerPath),
			log: bareLog(b.dir, name), mark: onCluster(name), pid: func() int { return b.cmd.Process.Pid },
		}
	}
	out := []lane{way(bareName, barePort)}
	if b.source == "pod" {
		out = append(out, way(barePodName, barePodPort))
	}
	return out
}

// captureName is the lane through the node's Envoy.
const captureName = "capture"

func captureLane(node *sandbox.Node, envoy int) lane {
	return lane{
		name: captureName, pod: clientPod, url: fmt.Sprintf("http://%s:%d%s", webVIP, webPort, answerPath),
		log: node.Paths().AccessLog, mark: onCluster(clusterOf(webVIP, webPort)), pid: func() int { return envoy },
	}
}

// onCluster is what an access log line says of a connection to a cluster.
func onCluster(name string) string { return `"cluster":` + strconv.Quote(name) }

func netNSOf(node *sandbox.Node, pod string) string {
	for _, p := range node.Status().Pods {
		if p.Name == pod {
			return p.NetNS
		}
	}
	return ""
}

// serviceBind returns the bind configuration of the Service's cluster, which one
// connection makes Envoy ask for.
func serviceBind(ctx context.Context, node *sandbox.Node) (any, error) {
	target := netip.AddrPortFrom(webVIP, webPort).String()
	if out, err := node.Output(ctx, clientPod, "aether-client", "--path", answerPath, "http", target); err != nil {
		return nil, fmt.Errorf("dial %s: %w: %s", target, err, lastLine(out))
	}
	text, err := node.AdminGet(ctx, "/config_dump?resource=dynamic_active_clusters")
	if err != nil {
		return nil, err
	}
	var dump struct {
		Configs []struct {
			Cluster struct {
				Name string `json:"name"`
				Bind any    `json:"upstream_bind_config"`
			} `json:"cluster"`
		} `json:"configs"`
	}
	if err := json.Unmarshal(text, &dump); err != nil {
		return nil, fmt.Errorf("read Envoy's clusters: %w", err)
	}
	for _, c := range dump.Configs {
		if c.Cluster.Name == clusterOf(webVIP, webPort) && c.Cluster.Bind != nil {
			return c.Cluster.Bind, nil
		}
	}
	return nil, fmt.Errorf("the cluster of %s has no bind configuration", target)
}

// bareConfig makes the bare Envoy's configuration out of the node's bootstrap and
// the capture listener's access loggers. With bind there is a second listener, in
// the same namespace, whose cluster binds so.
func bareConfig(bootstrap []byte, logs loggers, netns, dir string, bind any) ([]byte, error) {
	var c object
	if err := json.Unmarshal(bootstrap, &c); err != nil {
		return nil, fmt.Errorf("read the node's bootstrap: %w", err)
	}
	delete(c, "dynamic_resources")
	c["admin"] = object{"address": object{"pipe": object{"path": bareAdmin(dir)}}}
	// The bootstrap's own clusters stay: the loggers may send to them.
	static, _ := c["static_resources"].(object)
	clusters, _ := static["clusters"].([]any)
	own, err := logs.to(bareLog(dir, bareName))
	if err != nil {
		return nil, err
	}
	listeners := []object{bareListener(bareName, barePort, netns, own, nil)}
	clusters = append(clusters, bareCluster(bareName, nil))
	if bind != nil {
		enter := object{
			"name": "envoy.filters.network.set_filter_state",
			"typed_config": object{
				"@type": "type.googleapis.com/envoy.extensions.filters.network.set_filter_state.v3.Config",
				"on_new_connection": []object{{
					"object_key":           "envoy.network.upstream_bind_override.network_namespace",
					"factory_key":          "envoy.string",
					"format_string":        object{"text_format_source": object{"inline_string": netns}},
					"shared_with_upstream": "ONCE",
				}},
			},
		}
		own, err := logs.to(bareLog(dir, barePodName))
		if err != nil {
			return nil, err
		}
		listeners = append(listeners, bareListener(barePodName, barePodPort, netns, own, []object{enter}))
		clusters = append(clusters, bareCluster(barePodName, bind))
	}
	c["static_resources"] = object{"listeners": listeners, "clusters": clusters}
	out, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the bare Envoy's configuration: %w", err)
	}
	return out, nil
}

// bareListener leads to the cluster of its name.
func bareListener(name string, port int, netns string, logs loggers, before []object) object {
	listen := socketAddress("127.0.0.1", port)
	listen["socket_address"].(object)["network_namespace_filepath"] = netns
	return object{
		"name": name, "address": listen, "access_log": logs.Listener,
		"filter_chains": []object{{"filters": append(before, object{
			"name": tcpProxy,
			"typed_config": object{
				"@type":       "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
				"stat_prefix": name, "cluster": name,
				"access_log": logs.Proxy, "access_log_options": logs.Options,
			},
		})}},
	}
}

func bareCluster(name string, bind any) object {
	var endpoints []object
	for _, ip := range servers {
		endpoints = append(endpoints, object{"endpoint": object{"address": socketAddress(ip.String(), serverPort)}})
	}
	c := object{
		"name": name, "type": "STATIC", "connect_timeout": "2s",
		// The labels of the captured Service, so that its counters cost the same.
		"metadata": object{"filter_metadata": object{"aether": object{
			"namespace": "default", "service": webService, "port": "http",
		}}},
		"load_assignment": object{"cluster_name": name, "endpoints": []object{{"lb_endpoints": endpoints}}},
	}
	if bind != nil {
		c["upstream_bind_config"] = bind
	}
	return c
}

func socketAddress(host string, port int) object {
	return object{"socket_address": object{"address": host, "port_value": port}}
}

func bareAdmin(dir string) string { return filepath.Join(dir, "bare.sock") }

// awaitAdmin waits until an Envoy says it serves.
func awaitAdmin(ctx context.Context, socket string) error {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, Timeout: time.Second}
	return eventually(ctx, 15*time.Second, func() error {
		resp, err := client.Get("http://envoy/ready")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("not ready: %s", text)
		}
		return err
	})
}
