// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// event is what a reflector hands on. The set is closed.
type event string

const (
	eventList     event = "list"
	eventAdd      event = "add"
	eventUpdate   event = "update"
	eventDelete   event = "delete"
	eventBookmark event = "bookmark"
)

func events() []event {
	return []event{eventList, eventAdd, eventUpdate, eventDelete, eventBookmark}
}

// metrics are the source's own. All labels come from closed sets.
type metrics struct {
	freshness func() Freshness

	events   *prometheus.CounterVec
	failures *prometheus.CounterVec
	lags     *prometheus.HistogramVec

	contact, stale, absent *prometheus.Desc
}

// lagged are the kinds whose objects say when they changed.
func lagged() []Kind { return []Kind{Services, EndpointSlices, ServiceCIDRs, ServiceImports} }

func newMetrics(freshness func() Freshness) *metrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("aether_kube_"+name, help, []string{"kind"}, nil)
	}
	m := &metrics{
		freshness: freshness,
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "aether_kube_events_total", Help: "Complete lists, events and bookmarks of the API server, by kind.",
		}, []string{"kind", "event"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "aether_kube_failures_total", Help: "Requests to the API server that failed, by kind and by what came of them.",
		}, []string{"kind", "failure"}),
		lags: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "aether_kube_watch_lag_seconds",
			Help: "Time from what caused a change to the arrival of its event: EndpointSlices by the time their controller notes, others from the creation of new objects, which is kept in whole seconds.",
			Buckets: []float64{
				.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60,
			},
		}, []string{"kind"}),
		contact: desc("last_contact_timestamp_seconds", "When a list, the start of a watch, an event or a bookmark of the kind came last, in Unix seconds; 0 for never."),
		stale:   desc("stale", "1 while what is known of the kind may be out of date."),
		absent:  desc("absent", "1 while the API server does not serve the kind."),
	}
	for _, k := range Kinds() {
		for _, e := range events() {
			m.events.WithLabelValues(string(k), string(e))
		}
		for _, f := range failures() {
			m.failures.WithLabelValues(string(k), string(f))
		}
	}
	for _, k := range lagged() {
		m.lags.WithLabelValues(string(k))
	}
	return m
}

// Describe is prometheus.Collector's.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	m.events.Describe(ch)
	m.failures.Describe(ch)
	m.lags.Describe(ch)
	ch <- m.contact
	ch <- m.stale
	ch <- m.absent
}

// Collect is prometheus.Collector's.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.events.Collect(ch)
	m.failures.Collect(ch)
	m.lags.Collect(ch)
	for _, k := range m.freshness().Kinds {
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, string(k.Kind))
		}
		contact := 0.0
		if !k.LastContact.IsZero() {
			contact = float64(k.LastContact.UnixMilli()) / 1000
		}
		gauge(m.contact, contact)
		gauge(m.stale, number(k.Stale))
		gauge(m.absent, number(k.Absent))
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (m *metrics) event(k Kind, e event)    { m.events.WithLabelValues(string(k), string(e)).Inc() }
func (m *metrics) failed(k Kind, f failure) { m.failures.WithLabelValues(string(k), string(f)).Inc() }

// lag notes how long an event took. Clocks differ: one that comes before its
// cause took no time.
func (m *metrics) lag(k Kind, d time.Duration) {
	m.lags.WithLabelValues(string(k)).Observe(max(0, d.Seconds()))
}
