// SPDX-License-Identifier: Apache-2.0

package xds

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the collectors of a Server; register it as one collector. The label
// type is one of cluster, assignment, listener and other.
type Metrics struct {
	streams    prometheus.Gauge
	opened     prometheus.Counter
	requests   *prometheus.CounterVec
	responses  *prometheus.CounterVec
	sent       *prometheus.CounterVec
	removed    *prometheus.CounterVec
	bytes      *prometheus.CounterVec
	rejections *prometheus.CounterVec
	answered   *prometheus.HistogramVec
	hold       *prometheus.HistogramVec
	resources  *prometheus.Desc
	rejected   *prometheus.Desc

	server atomic.Pointer[Server] // read for resources and rejected
}

// NewMetrics makes the collectors of one Server.
func NewMetrics() *Metrics {
	byType := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"type"})
	}
	descByType := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"type"}, nil)
	}
	m := &Metrics{
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "aether_xds_streams", Help: "Streams of Envoys that are open now.",
		}),
		opened: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "aether_xds_streams_opened_total", Help: "Streams that Envoy opened.",
		}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "aether_xds_requests_total",
			Help: "What Envoy's requests did: the first of a type on a stream, ask for more names, ack, nack, or unserved for a type nobody serves.",
		}, []string{"type", "kind"}),
		responses:  byType("aether_xds_responses_total", "Responses sent."),
		sent:       byType("aether_xds_resources_sent_total", "Resources sent, each version of each on each stream."),
		removed:    byType("aether_xds_resources_removed_total", "Removals sent."),
		bytes:      byType("aether_xds_sent_bytes_total", "Bytes of resources sent."),
		rejections: byType("aether_xds_rejections_total", "Resources that an Envoy rejected."),
		answered: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "aether_xds_acknowledge_seconds",
			Help:    "Time from sending a response to Envoy's verdict on it.",
			Buckets: prometheus.ExponentialBuckets(0.00025, 4, 9), // 0.25 ms to 16 s
		}, []string{"type"}),
		hold: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "aether_xds_first_request_hold_seconds",
			Help:    "How long first requests were held, by whether they were answered in time.",
			Buckets: prometheus.ExponentialBuckets(0.00025, 4, 9),
		}, []string{"outcome"}),
		resources: descByType("aether_xds_resources", "Resources that are published."),
		rejected:  descByType("aether_xds_resources_rejected", "Published resources that an Envoy rejected and none has accepted since."),
	}
	for _, t := range offerOrder {
		for _, kind := range []string{"first", "ask", "ack", "nack"} {
			m.requests.WithLabelValues(t.String(), kind)
		}
		for _, c := range []*prometheus.CounterVec{m.responses, m.sent, m.removed, m.bytes, m.rejections} {
			c.WithLabelValues(t.String())
		}
	}
	return m
}

func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{
		m.streams, m.opened, m.requests, m.responses, m.sent, m.removed, m.bytes, m.rejections, m.answered, m.hold,
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(ch)
	}
	ch <- m.resources
	ch <- m.rejected
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(ch)
	}
	s := m.server.Load()
	if s == nil {
		return
	}
	published, rejected := map[Type]int{}, map[Type]int{}
	s.mu.Lock()
	for k, e := range s.ledger {
		published[k.Type]++
		if !e.nack.none() {
			rejected[k.Type]++
		}
	}
	s.mu.Unlock()
	for _, t := range offerOrder {
		ch <- prometheus.MustNewConstMetric(m.resources, prometheus.GaugeValue, float64(published[t]), t.String())
		ch <- prometheus.MustNewConstMetric(m.rejected, prometheus.GaugeValue, float64(rejected[t]), t.String())
	}
}
