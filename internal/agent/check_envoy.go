// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"aether.io/aether/internal/agent/api"
	"aether.io/aether/internal/check"
)

const (
	// proxySocket is the supervisor's, in the run directory.
	proxySocket = "proxy.sock"
	// askTimeout bounds one question of a check, to Envoy or its supervisor.
	askTimeout = 2 * time.Second
	// maxAdminReply bounds what a check reads of Envoy at a time.
	maxAdminReply = 1 << 20
	// warmingPatience is how long something may warm before it is said.
	warmingPatience = time.Second
)

// lookAtEnvoy asks the admin interface, the supervisor and the kernel.
func (k *looker) lookAtEnvoy(ctx context.Context, e *check.Envoy) {
	e.PodLimit = k.cfg.Envoy.PodConnectionLimit
	e.Supervisor = lookAtSupervisor(ctx, k.cfg.run(proxySocket))
	socket := k.cfg.AdminSocket()
	admin := newUnixHTTP(socket, askTimeout)
	e.Server = check.Saw(serverInfo(ctx, admin))
	e.MaxConnections = check.Saw(maxConnections(ctx, admin))
	e.Stats = check.Saw(checkStats(ctx, admin))
	if w := e.Stats.Value.Warming; w != (check.Warming{}) {
		e.StillWarming = stillWarming(ctx, admin, w)
	}
	var err error
	pid := e.Supervisor.Value.PID
	if pid == 0 {
		pid, err = peerPID(ctx, socket)
	}
	e.PID = check.Saw(pid, err)
	if e.PID.Err == "" {
		e.Files = check.Saw(processFiles(pid))
	}
}

func serverInfo(ctx context.Context, admin unixHTTP) (check.Server, error) {
	var info struct {
		Version string `json:"version"` // revision/1.40.0/Clean/RELEASE/BoringSSL
		State   string `json:"state"`
		Uptime  string `json:"uptime_current_epoch"`
	}
	if err := admin.decode(ctx, "/server_info", maxAdminReply, &info); err != nil {
		return check.Server{}, err
	}
	s := check.Server{Version: info.Version, State: info.State}
	if parts := strings.Split(info.Version, "/"); len(parts) > 1 {
		s.Version = parts[1]
	}
	uptime, err := time.ParseDuration(info.Uptime)
	if err != nil {
		return s, fmt.Errorf("read envoy's uptime %q: %w", info.Uptime, err)
	}
	s.Uptime = uptime
	return s, nil
}

// maxConnections reads the limit of connections out of Envoy's bootstrap.
func maxConnections(ctx context.Context, admin unixHTTP) (uint64, error) {
	var dump struct {
		Configs []struct {
			Bootstrap struct {
				OverloadManager struct {
					ResourceMonitors []struct {
						TypedConfig struct {
							Max string `json:"max_active_downstream_connections"`
						} `json:"typed_config"`
					} `json:"resource_monitors"`
				} `json:"overload_manager"`
			} `json:"bootstrap"`
		} `json:"configs"`
	}
	if err := admin.decode(ctx, "/config_dump?mask=bootstrap.overload_manager", maxAdminReply, &dump); err != nil {
		return 0, err
	}
	for _, c := range dump.Configs {
		for _, m := range c.Bootstrap.OverloadManager.ResourceMonitors {
			if m.TypedConfig.Max != "" {
				return strconv.ParseUint(m.TypedConfig.Max, 10, 64)
			}
		}
	}
	return 0, nil // none is set
}

// checkedStats are the statistics a check reads, and where they go.
var checkedStats = map[string]func(*check.Stats) *uint64{
	"cluster_manager.warming_clusters":               func(s *check.Stats) *uint64 { return &s.Warming.Clusters },
	"listener_manager.total_listeners_warming":       func(s *check.Stats) *uint64 { return &s.Warming.Listeners },
	"listener.capture.downstream_cx_active":          func(s *check.Stats) *uint64 { return &s.Connections },
	"listener.capture.downstream_global_cx_overflow": func(s *check.Stats) *uint64 { return &s.NodeOverflow },
	"connection_limit.capture.limited_connections":   func(s *check.Stats) *uint64 { return &s.PodLimited },
	"server.stats_overflow.counter":                  func(s *check.Stats) *uint64 { return &s.StatsOverflow },
	"filesystem.write_failed":                        func(s *check.Stats) *uint64 { return &s.LogWriteFailed },
	"filesystem.reopen_failed":                       func(s *check.Stats) *uint64 { return &s.LogReopenFailed },
	"access_log.process_ratelimit.denied":            func(s *check.Stats) *uint64 { return &s.LogDropped },
	"access_logs.grpc_access_log.logs_dropped":       func(s *check.Stats) *uint64 { return &s.RecordsDropped },
	"tcp.cap_svc.on_demand_cluster_timeout":          func(s *check.Stats) *uint64 { return &s.OnDemandTimeouts },
}

func checkStats(ctx context.Context, admin unixHTTP) (check.Stats, error) {
	var s check.Stats
	var names []string
	for name := range checkedStats {
		names = append(names, strings.ReplaceAll(name, ".", `\.`))
	}
	query := url.Values{"format": {"json"}, "filter": {"^(" + strings.Join(names, "|") + ")$"}}
	var body struct {
		Stats []struct {
			Name  string          `json:"name"`
			Value json.RawMessage `json:"value"`
		} `json:"stats"`
	}
	if err := admin.decode(ctx, "/stats?"+query.Encode(), maxAdminReply, &body); err != nil {
		return s, err
	}
	for _, x := range body.Stats {
		field, known := checkedStats[x.Name]
		if !known {
			continue
		}
		n, err := strconv.ParseUint(string(x.Value), 10, 64)
		if err != nil {
			return s, fmt.Errorf("read envoy's statistics: %s: %w", x.Name, err)
		}
		*field(&s) = n
	}
	return s, nil
}

// stillWarming reads again after a moment, for what warms now is usually done
// then. When it cannot be read, the first reading stands.
func stillWarming(ctx context.Context, admin unixHTTP, first check.Warming) check.Warming {
	select {
	case <-time.After(warmingPatience):
	case <-ctx.Done():
		return first
	}
	again, err := checkStats(ctx, admin)
	if err != nil {
		return first
	}
	return again.Warming
}

// processFiles reads a process's limit of descriptors and how many it has open.
func processFiles(pid int) (check.Files, error) {
	var f check.Files
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return f, fmt.Errorf("read its limits: %w", err)
	}
	f.Limit, err = openFilesLimit(string(limits))
	if err != nil {
		return f, err
	}
	d, err := os.Open(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return f, fmt.Errorf("count its descriptors: %w", err)
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(1024)
		f.Open += uint64(len(names))
		if errors.Is(err, io.EOF) {
			return f, nil
		}
		if err != nil {
			return f, fmt.Errorf("count its descriptors: %w", err)
		}
	}
}

// openFilesLimit reads the soft limit out of /proc/PID/limits.
func openFilesLimit(limits string) (uint64, error) {
	for line := range strings.Lines(limits) {
		rest, found := strings.CutPrefix(line, "Max open files")
		if !found {
			continue
		}
		if fields := strings.Fields(rest); len(fields) > 0 {
			if fields[0] == "unlimited" {
				return 1 << 62, nil
			}
			return strconv.ParseUint(fields[0], 10, 64)
		}
	}
	return 0, errors.New("read its limits: there is no line `Max open files`")
}

// lookAtRefuser makes a real connection to the refuser, which must be reset.
func lookAtRefuser(ctx context.Context, socket string) check.Look[time.Duration] {
	begun := time.Now()
	c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return check.NotLooked[time.Duration](err.Error())
	}
	defer c.Close()
	until := begun.Add(3 * time.Second)
	if d, ok := ctx.Deadline(); ok && d.Before(until) {
		until = d
	}
	if err := c.SetDeadline(until); err != nil {
		return check.NotLooked[time.Duration](err.Error())
	}
	if _, err := c.Write([]byte("PROXY UNKNOWN\r\n")); err != nil {
		return check.NotLooked[time.Duration](err.Error())
	}
	_, err = c.Read(make([]byte, 1))
	switch {
	case errors.Is(err, syscall.ECONNRESET):
		return check.Saw(time.Since(begun), nil)
	case err == nil:
		return check.NotLooked[time.Duration]("it sent something")
	case errors.Is(err, io.EOF):
		return check.NotLooked[time.Duration]("it was closed without a reset")
	}
	return check.NotLooked[time.Duration](err.Error())
}

// lookAtSupervisor asks the supervisor, if there is one.
func lookAtSupervisor(ctx context.Context, socket string) check.Look[check.Supervisor] {
	if _, err := os.Lstat(socket); errors.Is(err, fs.ErrNotExist) {
		return check.Saw(check.Supervisor{Absent: true}, nil)
	}
	return check.Saw(supervisorStatus(ctx, newUnixHTTP(socket, askTimeout)))
}

// supervisorStatus reads what a check needs of the supervisor's state.
func supervisorStatus(ctx context.Context, supervisor unixHTTP) (check.Supervisor, error) {
	var st api.ProxyStatus
	if err := supervisor.decode(ctx, "/v1/status", maxAdminReply, &st); err != nil {
		return check.Supervisor{}, err
	}
	return check.Supervisor{Restarts: st.Restarts, LastExit: st.LastExit, Epochs: len(st.Epochs), State: st.State, PID: st.PID}, nil
}
