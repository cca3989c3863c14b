// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

const (
	// exposeTimeout bounds one reading of Envoy's metrics; it is below the ten
	// seconds that Prometheus waits by default.
	exposeTimeout = 8 * time.Second
	// maxExpose bounds one reading: some 300,000 series.
	maxExpose = 64 << 20
)

// exposed are the statistics of Envoy that are given to Prometheus, by the regular
// expressions of their names. Their number is bounded whatever pods dial: the
// counters of connections by their scopes (45,000 series), the rest by the number
// of statistics, some 60.
var exposed = []string{
	`aether_(egress|proxy)_.*`,
	`cluster\.(passthrough[a-z_]*|refused)\.upstream_cx_(total|active)`,
	`cluster_manager\.(active|warming)_clusters`,
	`connection_limit\.capture\.(limited|active)_connections`,
	`control_plane\.connected_state`,
	`filesystem\.(write_failed|reopen_failed|write_total_buffered)`,
	`listener\.capture\.downstream_(cx_total|cx_active|cx_overflow|global_cx_overflow)`,
	`listener_manager\.(listener_create_failure|listener_in_place_updated|total_filter_chains_draining|total_listeners_(active|warming|draining))`,
	`server\.(concurrency|hot_restart_epoch|live|memory_(allocated|heap_size|physical_size)|state|stats_overflow\.(counter|gauge)|uptime)`,
	`tcp\.cap_[a-z_]+\.(downstream_cx_total|on_demand_cluster_(attempt|success|missing|timeout))`,
	`access_log\.process_ratelimit\.(allowed|denied)`,
	`access_logs\.grpc_access_log\.(logs_written|logs_dropped)`,
}

// exposedOfServices are those of each asked Service port: five series a port, on
// request only.
var exposedOfServices = []string{
	`cluster\.svc\..*\.(upstream_cx_active|upstream_cx_connect_fail|upstream_cx_connect_attempts_exceeded|membership_healthy|outlier_detection\.ejections_active)`,
}

// detailServices is the value of the query parameter detail that adds them.
const detailServices = "services"

// envoyMetrics gives Envoy's metrics, read from its admin socket for each request,
// and says in the agent's own whether that works. It also counts, in them, what
// Envoy's process uses.
type envoyMetrics struct {
	admin   unixHTTP
	log     *slog.Logger
	failing prometheus.Gauge

	one chan struct{} // holds a value during a reading: Envoy writes it on its main thread

	mu  sync.Mutex
	bad bool
}

func newEnvoyMetrics(socket string, pid func() (int, error), r prometheus.Registerer, log *slog.Logger) *envoyMetrics {
	e := &envoyMetrics{
		admin: newUnixHTTP(socket, exposeTimeout), log: log, one: make(chan struct{}, 1),
		failing: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "aether_agent_envoy_metrics_failing",
			Help: "1 when Envoy's metrics could not be read the last time they were asked for.",
		}),
	}
	r.MustRegister(e.failing, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{PidFn: pid, Namespace: "aether_envoy"}))
	return e
}

// envoyProcess returns the process that serves the admin socket.
func envoyProcess(socket string) func() (int, error) {
	return func() (int, error) {
		ctx, cancel := context.WithTimeout(context.Background(), freshTimeout)
		defer cancel()
		return peerPID(ctx, socket)
	}
}

func (e *envoyMetrics) serve(w http.ResponseWriter, r *http.Request) {
	detail := r.URL.Query().Get("detail")
	if detail != "" && detail != detailServices {
		http.Error(w, fmt.Sprintf("detail %q: want nothing or %s", detail, detailServices), http.StatusBadRequest)
		return
	}
	select {
	case e.one <- struct{}{}:
		defer func() { <-e.one }()
	case <-r.Context().Done():
		return // nobody waits any more
	}
	body, err := e.read(r.Context(), detail == detailServices)
	e.tell(err)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(body) // the peer is gone
}

func (e *envoyMetrics) read(ctx context.Context, services bool) ([]byte, error) {
	names := exposed
	if services {
		names = slices.Concat(exposed, exposedOfServices)
	}
	query := url.Values{"filter": {"^(" + strings.Join(names, "|") + ")$"}}
	body, err := e.admin.get(ctx, "/stats/prometheus?"+query.Encode(), maxExpose)
	if err != nil {
		return nil, fmt.Errorf("read envoy's metrics: %w", err)
	}
	return body, nil
}

// tell notes how a reading went, and logs when that changes.
func (e *envoyMetrics) tell(err error) {
	e.failing.Set(number(err != nil))
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err != nil && !e.bad:
		e.log.Warn("envoy's metrics are not read", "err", err)
	case err == nil && e.bad:
		e.log.Info("envoy's metrics are read again")
	}
	e.bad = err != nil
}
