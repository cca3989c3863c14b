// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"testing"
)

func TestBareConfig(t *testing.T) {
	const bootstrap = `{
  "admin": {"address": {"pipe": {"path": "/run/x/envoy-admin.sock"}}},
  "dynamic_resources": {"ads_config": {}},
  "static_resources": {"clusters": [{"name": "xds"}]},
  "stats_config": {"kept": true}, "layered_runtime": {"kept": true}, "overload_manager": {"kept": true}
}`
	logs := func() []any {
		return []any{
			object{"name": "file", "filter": object{"kept": true}, "typed_config": object{"path": "/run/x/access.log", "log_format": object{}}},
			object{"name": "stats", "typed_config": object{"counters": []any{}}},
		}
	}
	text, err := bareConfig([]byte(bootstrap), logs(), "/run/netns/pod", "/tmp/bare.sock", "/tmp/bare.log")
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
			}
			Clusters []struct{ Name string }
		} `json:"static_resources"`
	}
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	if c.Dynamic != nil || c.Stats == nil || c.Runtime == nil || c.Overload == nil {
		t.Errorf("the bootstrap is not kept, or the control plane is:\n%s", text)
	}
	if len(c.Static.Clusters) != 1 || c.Static.Clusters[0].Name != bareCluster {
		t.Errorf("clusters %+v", c.Static.Clusters)
	}
	if len(c.Static.Listeners) != 1 || len(c.Static.Listeners[0].AccessLog) != 2 {
		t.Fatalf("listeners %+v, want one with both loggers", c.Static.Listeners)
	}
	l := c.Static.Listeners[0]
	if l.AccessLog[0].Config.Path != "/tmp/bare.log" || l.AccessLog[0].Filter == nil {
		t.Errorf("the log %+v, want it as it was but for its file", l.AccessLog[0])
	}

	if s := l.Address.Socket; s.Address != "127.0.0.1" || s.NetNS != "/run/netns/pod" {
		t.Errorf("it listens on %+v, want loopback in the pod's namespace", s)
	}

	_, err = bareConfig([]byte("{"), logs(), "", "", "")
	wantError(t, err, "read the node's bootstrap")
	_, err = bareConfig([]byte(bootstrap), logs()[1:], "", "", "")
	wantError(t, err, "0 file access logs")
	_, err = bareConfig([]byte(bootstrap), append(logs(), logs()...), "", "", "")
	wantError(t, err, "2 file access logs")
}
