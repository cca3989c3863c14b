// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	"aether.io/aether/internal/envoy"
	"aether.io/aether/internal/sandbox"
)

// loggers are the access loggers of a capture listener.
type loggers struct {
	Listener []any `json:"access_log"` // of the listener
	Proxy    []any `json:"proxy"`      // of the tcp_proxy of its Service chain
	Options  any   `json:"options"`    // and that one's options
}

const tcpProxy = "envoy.filters.network.tcp_proxy"

// captureLogs returns those of the client pod's capture listener.
func captureLogs(ctx context.Context, node *sandbox.Node) (loggers, error) {
	text, err := node.AdminGet(ctx, "/config_dump?resource=dynamic_listeners")
	if err != nil {
		return loggers{}, err
	}
	return readLoggers(text, "capture:default/"+clientPod)
}

// readLoggers takes a listener's loggers out of a dump of Envoy's configuration.
func readLoggers(text []byte, name string) (loggers, error) {
	type filter struct {
		Name   string `json:"name"`
		Config struct {
			StatPrefix string `json:"stat_prefix"`
			AccessLog  []any  `json:"access_log"`
			Options    any    `json:"access_log_options"`
		} `json:"typed_config"`
	}
	var dump struct {
		Configs []struct {
			Name        string `json:"name"`
			ActiveState struct {
				Listener struct {
					AccessLog []any `json:"access_log"`
					Chains    []struct {
						Name    string   `json:"name"`
						Filters []filter `json:"filters"`
					} `json:"filter_chains"`
				} `json:"listener"`
			} `json:"active_state"`
		} `json:"configs"`
	}
	if err := json.Unmarshal(text, &dump); err != nil {
		return loggers{}, fmt.Errorf("read Envoy's listeners: %w", err)
	}
	for _, c := range dump.Configs {
		l := c.ActiveState.Listener
		if c.Name != name || len(l.AccessLog) == 0 {
			continue
		}
		for _, chain := range l.Chains {
			i := slices.IndexFunc(chain.Filters, func(f filter) bool { return f.Name == tcpProxy })
			if chain.Name == envoy.ChainService && i >= 0 {
				config := chain.Filters[i].Config
				return loggers{Listener: l.AccessLog, Proxy: config.AccessLog, Options: config.Options}, nil
			}
		}
	}
	return loggers{}, fmt.Errorf("there is no listener %s with an access log and chain %s", name, envoy.ChainService)
}

// copied returns a copy that shares nothing.
func (l loggers) copied() (out loggers, err error) {
	text, err := json.Marshal(l)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		return out, fmt.Errorf("copy the access loggers: %w", err)
	}
	return out, nil
}

// to returns a copy whose one file logger writes to path.
func (l loggers) to(path string) (loggers, error) {
	out, err := l.copied()
	if err != nil {
		return out, err
	}
	files := 0
	for _, l := range slices.Concat(out.Listener, out.Proxy) {
		l, _ := l.(object)
		config, _ := l["typed_config"].(object)
		if _, ok := config["path"]; ok {
			config["path"] = path
			files++
		}
	}
	if files != 1 {
		return out, fmt.Errorf("the capture listener has %d file access logs, want one", files)
	}
	return out, nil
}

// withRates returns a copy whose filters take their rates from a file, which it
// writes, and not from the agent: they are the agent's defaults.
func (l loggers) withRates(path string) (loggers, error) {
	limits := envoy.RateLimits(envoy.DefaultSettings())
	const bucket = "type.googleapis.com/envoy.type.v3.TokenBucket"
	var resources []object
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		text, err := protojson.Marshal(limits[name])
		if err != nil {
			return l, fmt.Errorf("write the rate %s: %w", name, err)
		}
		rate := object{}
		if err := json.Unmarshal(text, &rate); err != nil {
			return l, fmt.Errorf("write the rate %s: %w", name, err)
		}
		rate["@type"] = bucket
		resources = append(resources, object{
			"@type": "type.googleapis.com/envoy.service.discovery.v3.Resource",
			"name":  name, "version": "1", "resource": rate,
		})
	}
	text, err := json.MarshalIndent(object{"version_info": "1", "type_url": bucket, "resources": resources}, "", "  ")
	if err != nil {
		return l, fmt.Errorf("write the rates: %w", err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return l, fmt.Errorf("write the rates: %w", err)
	}
	out, err := l.copied()
	if err != nil {
		return out, err
	}
	fromFile(slices.Concat(out.Listener, out.Proxy), path)
	if rest, err := json.Marshal(out); err != nil || strings.Contains(string(rest), `"ads":`) {
		return out, errors.Join(errors.New("the capture listener's loggers need the agent for something else than rates"), err)
	}
	return out, nil
}

// fromFile turns every configuration source below v into a file.
func fromFile(v any, path string) {
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			fromFile(x, path)
		}
	case object:
		if _, ok := v["config_source"]; ok {
			v["config_source"] = object{"path_config_source": object{"path": path}, "resource_api_version": "V3"}
		}
		for _, x := range v {
			fromFile(x, path)
		}
	}
}
