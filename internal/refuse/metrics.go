// SPDX-License-Identifier: Apache-2.0

package refuse

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the refuser's own. What was refused and why is counted by Envoy.
type metrics struct {
	connections, silent, unheld prometheus.Counter
}

func newMetrics(r prometheus.Registerer, delay func() time.Duration) *metrics {
	m := &metrics{
		connections: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "aether_refuse_connections_total",
			Help: "Connections that Envoy handed over to be reset.",
		}),
		silent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "aether_refuse_silent_total",
			Help: "Connections whose peer sent nothing in time, which are closed and not reset.",
		}),
		unheld: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "aether_refuse_unheld_total",
			Help: "Connections closed at once because too many were held.",
		}),
	}
	if r != nil {
		r.MustRegister(m.connections, m.silent, m.unheld, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "aether_refuse_delay_seconds",
			Help: "How long a connection is held before its reset now; it grows in a storm.",
		}, func() float64 { return delay().Seconds() }))
	}
	return m
}
