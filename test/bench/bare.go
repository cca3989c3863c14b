// SPDX-License-Identifier: Apache-2.0

package main

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
	"strconv"
	"time"

	"aether.io/aether/internal/sandbox"
)

const (
	barePort    = 19001
	bareCluster = "bare"
	// workers is the concurrency of both Envoys.
	workers = 2
)

// bare is a second Envoy on the node: one static listener in the client pod's
// namespace, a tcp_proxy, a static cluster of the same servers, and nothing else
// but what counts and logs: its log, its counters, its bootstrap are the captured
// listener's own, read from the node's Envoy.
type bare struct {
	cmd *exec.Cmd
	log string
}

// object is a JSON object.
type object = map[string]any

// startBare starts it with its files in dir and waits until it serves.
func startBare(ctx context.Context, node *sandbox.Node, envoy, dir string) (*bare, error) {
	b := &bare{log: filepath.Join(dir, "bare.log")}
	admin, config := filepath.Join(dir, "bare.sock"), filepath.Join(dir, "bare.json")
	logs, err := captureLogs(ctx, node)
	if err != nil {
		return nil, err
	}
	bootstrap, err := os.ReadFile(node.Paths().Bootstrap)
	if err != nil {
		return nil, fmt.Errorf("read the node's bootstrap: %w", err)
	}
	text, err := bareConfig(bootstrap, logs, clientNetNS(node), admin, b.log)
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
	if err := awaitAdmin(ctx, admin); err != nil {
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

func (b *bare) lane() lane {
	return lane{
		name: "bare", url: fmt.Sprintf("http://127.0.0.1:%d%s", barePort, answerPath),
		cluster: bareCluster, log: b.log, pid: func() int { return b.cmd.Process.Pid },
	}
}

// captureLane is the way through the node's Envoy.
func captureLane(node *sandbox.Node) lane {
	return lane{
		name: "capture", url: fmt.Sprintf("http://%s:%d%s", webVIP, webPort, answerPath),
		cluster: clusterOf(webVIP, webPort), log: node.Paths().AccessLog, pid: node.EnvoyPID,
	}
}

func clientNetNS(node *sandbox.Node) string {
	for _, p := range node.Status().Pods {
		if p.Name == clientPod {
			return p.NetNS
		}
	}
	return ""
}

// captureLogs returns the access loggers of the client pod's capture listener.
func captureLogs(ctx context.Context, node *sandbox.Node) ([]any, error) {
	text, err := node.AdminGet(ctx, "/config_dump?resource=dynamic_listeners")
	if err != nil {
		return nil, err
	}
	var dump struct {
		Configs []struct {
			Name        string `json:"name"`
			ActiveState struct {
				Listener struct {
					AccessLog []any `json:"access_log"`
				} `json:"listener"`
			} `json:"active_state"`
		} `json:"configs"`
	}
	if err := json.Unmarshal(text, &dump); err != nil {
		return nil, fmt.Errorf("read Envoy's listeners: %w", err)
	}
	for _, l := range dump.Configs {
		if l.Name == "capture:default/"+clientPod && len(l.ActiveState.Listener.AccessLog) > 0 {
			return l.ActiveState.Listener.AccessLog, nil
		}
	}
	return nil, errors.New("the client pod has no capture listener with an access log")
}

// bareConfig makes the bare Envoy's configuration out of the node's bootstrap and
// the capture listener's access loggers.
func bareConfig(bootstrap []byte, logs []any, netns, admin, log string) ([]byte, error) {
	var c object
	if err := json.Unmarshal(bootstrap, &c); err != nil {
		return nil, fmt.Errorf("read the node's bootstrap: %w", err)
	}
	if err := logTo(logs, log); err != nil {
		return nil, err
	}
	delete(c, "dynamic_resources")
	c["admin"] = object{"address": object{"pipe": object{"path": admin}}}
	var endpoints []object
	for _, ip := range servers {
		endpoints = append(endpoints, object{"endpoint": object{"address": socketAddress(ip.String(), serverPort)}})
	}
	listen := socketAddress("127.0.0.1", barePort)
	listen["socket_address"].(object)["network_namespace_filepath"] = netns
	c["static_resources"] = object{
		"listeners": []object{{
			"name": "bare", "address": listen, "access_log": logs,
			"filter_chains": []object{{"filters": []object{{
				"name": "envoy.filters.network.tcp_proxy",
				"typed_config": object{
					"@type":       "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
					"stat_prefix": "bare", "cluster": bareCluster,
				},
			}}}},
		}},
		"clusters": []object{{
			"name": bareCluster, "type": "STATIC", "connect_timeout": "2s",
			// The labels of the captured Service, so that its counters cost the same.
			"metadata": object{"filter_metadata": object{"aether": object{
				"namespace": "default", "service": webService, "port": "http",
			}}},
			"load_assignment": object{"cluster_name": bareCluster, "endpoints": []object{{"lb_endpoints": endpoints}}},
		}},
	}
	out, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the bare Envoy's configuration: %w", err)
	}
	return out, nil
}

func socketAddress(host string, port int) object {
	return object{"socket_address": object{"address": host, "port_value": port}}
}

// logTo sends the one file logger among them to another file.
func logTo(logs []any, path string) error {
	files := 0
	for _, l := range logs {
		l, _ := l.(object)
		config, _ := l["typed_config"].(object)
		if _, ok := config["path"]; ok {
			config["path"] = path
			files++
		}
	}
	if files != 1 {
		return fmt.Errorf("the capture listener has %d file access logs, want one", files)
	}
	return nil
}

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
