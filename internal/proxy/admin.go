// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	adminTimeout = 2 * time.Second
	maxAdmin     = 1 << 20
)

// admin asks Envoy's admin interface.
type admin struct{ client *http.Client }

func newAdmin(socket string) admin {
	return admin{&http.Client{
		Timeout: adminTimeout,
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			},
			DisableKeepAlives: true, // another epoch may answer the next one
		},
	}}
}

// serverInfo is of Envoy's /server_info what is needed here.
type serverInfo struct {
	Version    string `json:"version"`
	State      string `json:"state"`
	HotRestart string `json:"hot_restart_version"`
	Options    struct {
		BaseID json.Number `json:"base_id"` // a 64-bit integer: in quotes
		Epoch  int         `json:"restart_epoch"`
	} `json:"command_line_options"`
}

// serving asks whether the Envoy of that base id and epoch serves: it is live, and
// its workers accept connections.
func (a admin) serving(ctx context.Context, base uint32, number int) (serverInfo, bool) {
	var info serverInfo
	if err := a.get(ctx, "/server_info", &info); err != nil {
		return info, false
	}
	if info.State != "LIVE" || info.Options.Epoch != number || info.Options.BaseID.String() != fmt.Sprint(base) {
		return info, false
	}
	var stats struct {
		Stats []struct {
			Value uint64 `json:"value"`
		} `json:"stats"`
	}
	err := a.get(ctx, "/stats?format=json&filter=^listener_manager.workers_started$", &stats)
	// A bootstrap may leave statistics out.
	return info, err == nil && (len(stats.Stats) == 0 || stats.Stats[0].Value == 1)
}

func (a admin) get(ctx context.Context, path string, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://envoy"+path, nil)
	if err != nil {
		return fmt.Errorf("ask envoy's admin interface: %w", err)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return fmt.Errorf("ask envoy's admin interface: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("ask envoy's admin interface: %s", resp.Status)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAdmin)).Decode(out); err != nil {
		return fmt.Errorf("ask envoy's admin interface: %w", err)
	}
	return nil
}
