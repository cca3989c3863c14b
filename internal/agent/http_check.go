// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"aether.io/aether/internal/daemon"
)

// cliRoutes is everything on agent.sock: cliHandler's, and
//
//	GET /v1/check       api.Check
//	GET /v1/observe     and what else observeHandler has
//	GET /metrics        the agent's, in Prometheus' text form
//	GET /metrics/envoy  Envoy's of metrics.md; 503 when Envoy does not answer
//
// The metrics are those of the metrics address, which may be out of reach: on the
// loopback of a network namespace.
func (a *Agent) cliRoutes(k *looker, e *envoyMetrics) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", cliHandler{a.mailbox(), a.deps.Scraper}.routes())
	mux.HandleFunc("GET /v1/check", k.serve)
	a.observeRoutes().add(mux)
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.deps.Registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /metrics/envoy", e.serve)
	return jsonErrors(mux)
}

// healthRoutes is everything on the metrics address.
func (a *Agent) healthRoutes(e *envoyMetrics) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", daemon.HealthHandler(a.deps.Registry, daemon.Health{Ready: a.isReady}))
	mux.HandleFunc("GET /metrics/envoy", e.serve)
	return mux
}
