// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const bareBootstrap = `{
  "admin": {"address": {"pipe": {"path": "/run/x/envoy-admin.sock"}}},
  "dynamic_resources": {"ads_config": {}},
  "static_resources": {"clusters": [{"name": "xds"}]},
  "stats_config": {"kept": true}, "layered_runtime": {"kept": true}, "overload_manager": {"kept": true}
}`

// bareLogs are the loggers of a capture listener, in short.
func bareLogs() loggers {
	return loggers{
		Listener: []any{
			object{"name": "file", "filter": object{"kept": true}, "typed_config": object{"path": "/run/x/access.log", "log_format": object{}}},
			object{"name": "stats", "typed_config": object{"counters": []any{}}},
		},
		Proxy:   []any{object{"name": "records"}},
		Options: object{"access_log_flush_interval": "10s"},
	}
}

func TestBareConfig(t *testing.T) {
	bind := map[string]any{"source_address": map[string]any{"address": "0.0.0.0"}}
	text, err := bareConfig([]byte(bareBootstrap), bareLogs(), "/run/netns/pod", "/tmp", bind)
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		Dynamic  any            `json:"dynamic_resources"`
		Stats    map[string]any `json:"stats_config"`
		Runtime  map[string]any `json:"layered_runtime"`
		Overload map[string]any `json:"overload_manager"`
		Static   struct {
			Listeners []struct {
				Name    string
				Address struct {
					Socket struct {
						Address string
						NetNS   string `json:"network_namespace_filepath"`
					} `json:"socket_address"`
				}
				AccessLog []struct {
					Filter map[string]any
					Config struct{ Path string } `json:"typed_config"`
				} `json:"access_log"`
				Chains []struct {
					Filters []struct {
						Name   string
						Config struct {
							AccessLog []any `json:"access_log"`
							Options   any   `json:"access_log_options"`
						} `json:"typed_config"`
					}
				} `json:"filter_chains"`
			}
			Clusters []struct {
				Name string
				Bind any `json:"upstream_bind_config"`
			}
		} `json:"static_resources"`
	}
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	if c.Dynamic != nil || c.Stats == nil || c.Runtime == nil || c.Overload == nil {
		t.Errorf("the bootstrap is not kept, or the control plane is:\n%s", text)
	}
	var clusters []string
	for _, cl := range c.Static.Clusters {
		clusters = append(clusters, cl.Name)
		if (cl.Bind != nil) != (cl.Name == barePodName) {
			t.Errorf("cluster %s binds with %v", cl.Name, cl.Bind)
		}
	}
	if diff := cmp.Diff([]string{"xds", bareName, barePodName}, clusters); diff != "" {
		t.Errorf("clusters (-want +got):\n%s", diff)
	}
	if len(c.Static.Listeners) != 2 {
		t.Fatalf("%d listeners, want two", len(c.Static.Listeners))
	}
	for i, want := range []struct {
		name    string
		filters int
	}{{bareName, 1}, {barePodName, 2}} {
		l := c.Static.Listeners[i]
		if l.Name != want.name || len(l.Chains) != 1 || len(l.Chains[0].Filters) != want.filters || len(l.AccessLog) != 2 {
			t.Errorf("listener %+v, want %+v with both loggers", l, want)
			continue
		}
		if l.AccessLog[0].Config.Path != "/tmp/"+want.name+".log" || l.AccessLog[0].Filter == nil {
			t.Errorf("the log %+v, want it as it was but for its file", l.AccessLog[0])
		}
		if p := l.Chains[0].Filters[want.filters-1]; p.Name != tcpProxy || len(p.Config.AccessLog) != 1 || p.Config.Options == nil {
			t.Errorf("its proxy is %+v, want a tcp_proxy with the capture listener's logger", p)
		}
		if s := l.Address.Socket; s.Address != "127.0.0.1" || s.NetNS != "/run/netns/pod" {
			t.Errorf("it listens on %+v, want loopback in the pod's namespace", s)
		}
	}
}

func TestBareConfigWithout(t *testing.T) {
	text, err := bareConfig([]byte(bareBootstrap), bareLogs(), "/run/netns/pod", "/tmp", nil)
	if err != nil || bytes.Contains(text, []byte(barePodName)) {
		t.Errorf("node-sourced there is a listener for pods, or %v", err)
	}

	_, err = bareConfig([]byte("{"), bareLogs(), "", "", nil)
	wantError(t, err, "read the node's bootstrap")
	none, two := bareLogs(), bareLogs()
	none.Listener = none.Listener[1:]
	two.Listener = append(two.Listener, bareLogs().Listener...)
	_, err = bareConfig([]byte(bareBootstrap), none, "", "", nil)
	wantError(t, err, "0 file access logs")
	_, err = bareConfig([]byte(bareBootstrap), two, "", "", nil)
	wantError(t, err, "2 file access logs")
}
