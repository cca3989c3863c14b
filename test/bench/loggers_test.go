// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadLoggers(t *testing.T) {
	const dump = `{"configs": [
  {"name": "capture:default/other", "active_state": {"listener": {"access_log": [{"name": "wrong"}]}}},
  {"name": "capture:default/client", "active_state": {"listener": {
    "access_log": [{"name": "file"}, {"name": "stats"}],
    "filter_chains": [
      {"name": "cap_closed", "filters": [{"name": "envoy.filters.network.tcp_proxy", "typed_config": {"access_log": []}}]},
      {"name": "cap_svc", "filters": [{"name": "envoy.filters.network.set_filter_state"},
        {"name": "envoy.filters.network.tcp_proxy", "typed_config": {"access_log": [{"name": "records"}], "access_log_options": {"access_log_flush_interval": "10s"}}}]}
    ]}}}
]}`
	l, err := readLoggers([]byte(dump), "capture:default/client")
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Listener) != 2 || len(l.Proxy) != 1 || l.Options == nil {
		t.Errorf("loggers %+v", l)
	}
	_, err = readLoggers([]byte(dump), "capture:default/nobody")
	wantError(t, err, "no listener capture:default/nobody")
	_, err = readLoggers([]byte(dump), "capture:default/other")
	wantError(t, err, "no listener capture:default/other with an access log and chain cap_svc")
	_, err = readLoggers([]byte("{"), "")
	wantError(t, err, "read Envoy's listeners")
}

func TestLoggersWithRates(t *testing.T) {
	rated := func(source object) loggers {
		return loggers{Listener: []any{object{"filter": object{"or_filter": object{"filters": []any{
			object{"typed_config": object{"dynamic_config": object{"resource_name": "x", "config_source": source}}},
		}}}}}}
	}
	file := filepath.Join(t.TempDir(), "rates.json")
	before := rated(object{"ads": object{}})
	after, err := before.withRates(file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(after)
	if err != nil || !strings.Contains(string(text), file) || strings.Contains(string(text), `"ads"`) {
		t.Errorf("the rates are not from the file: %s, %v", text, err)
	}
	if text, _ := json.Marshal(before); !strings.Contains(string(text), `"ads"`) {
		t.Error("the original was changed")
	}
	var rates struct {
		Resources []struct {
			Name     string
			Resource struct {
				MaxTokens int `json:"maxTokens"`
			}
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &rates); err != nil || len(rates.Resources) == 0 || rates.Resources[0].Resource.MaxTokens == 0 {
		t.Errorf("rates %s: %v", b, err)
	}
	_, err = loggers{Listener: []any{object{"else": object{"ads": object{}}}}}.withRates(file)
	wantError(t, err, "need the agent for something else")
}
