// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"aether.io/aether/internal/plan"
	"aether.io/aether/internal/plan/demand"
	"aether.io/aether/internal/xds"
)

// Metrics are the agent's own. All labels come from closed sets.
type Metrics struct {
	rangeKnown  prometheus.Gauge
	synced      prometheus.Gauge
	connected   prometheus.Gauge
	mode        *prometheus.GaugeVec
	names       *prometheus.GaugeVec
	overLimit   prometheus.Counter
	compactions *prometheus.CounterVec
	malformed   prometheus.Counter
	nacks       *prometheus.CounterVec
	pods        *prometheus.GaugeVec
	problems    prometheus.Gauge
	damaged     *prometheus.GaugeVec
	unsaved     *prometheus.GaugeVec
	publish     prometheus.Histogram
	answer      prometheus.Histogram
	lag         prometheus.Histogram
	looks       lookMetrics

	turnedAway uint64 // overLimit so far
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(r prometheus.Registerer) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "aether_agent_" + name, Help: help})
	}
	gauges := func(name, label, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "aether_agent_" + name, Help: help}, []string{label})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "aether_agent_" + name, Help: help})
	}
	seconds := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "aether_agent_" + name, Help: help,
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5},
		})
	}
	m := &Metrics{
		rangeKnown: gauge("service_range_known", "1 when the Service range is known; while it is not, every Service address is passed through."),
		synced:     gauge("sources_synced", "1 when Services and EndpointSlices are complete; nothing is answered before."),
		connected:  gauge("envoy_connected", "Envoy processes that are connected to the agent now."),
		mode:       gauges("mode", "mode", "1 for the mode that is in force."),
		names:      gauges("names", "kind", "Names that Envoy asked for or that are remembered, by where they stand."),
		overLimit:  counter("names_over_limit_total", "Names that were turned away because the budget of names that are no Service port's was used up."),
		malformed:  counter("names_malformed_total", "Names that were asked for and are none; they are never answered."),
		nacks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "aether_agent_nacks_total",
			Help: "Resources that Envoy rejected.",
		}, []string{"type"}),
		compactions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "aether_agent_compactions_total",
			Help: "Hot restarts of Envoy that were asked for so that it forgets names, by what the supervisor said.",
		}, []string{"result"}),
		pods:     gauges("pods", "listener", "Captured pods of this node, by the state of their listener."),
		problems: gauge("problems", "Things that a person should look at; the status lists them."),
		damaged:  gauges("state_file_damaged", "file", "1 when the file was damaged at the start and was set aside."),
		unsaved:  gauges("state_file_unsaved", "file", "1 while the file cannot be written."),
		publish:  seconds("publish_seconds", "Time to hand one turn's resources to the xDS server."),
		answer:   seconds("answer_seconds", "Time from Envoy's ask to the end of the turn that took it in."),
		lag:      seconds("source_lag_seconds", "Time from a change of a source to its publication."),
	}
	for _, t := range []xds.Type{xds.Cluster, xds.Assignment, xds.Listener} {
		m.nacks.WithLabelValues(t.String())
	}
	for _, result := range []string{"done", "scheduled", "failed"} {
		m.compactions.WithLabelValues(result)
	}
	m.looks = newLookMetrics(r)
	r.MustRegister(m.compactions, m.rangeKnown, m.synced, m.connected, m.mode, m.names, m.overLimit, m.malformed, m.nacks,
		m.pods, m.problems, m.damaged, m.unsaved, m.publish, m.answer, m.lag)
	return m
}

// observe brings the metrics up to date after a turn.
func (l *loop) observe(t *turn) {
	m, now := l.meter, l.clock.Now()
	for _, at := range t.asked {
		m.answer.Observe(now.Sub(at).Seconds())
	}
	if !t.changed.IsZero() {
		m.lag.Observe(now.Sub(t.changed).Seconds())
	}
	m.rangeKnown.Set(number(l.state.RangeKnown()))
	m.synced.Set(number(l.synced))
	m.connected.Set(float64(len(l.envoys)))
	for _, mode := range []plan.Mode{plan.ModePassthrough, plan.ModeBalance, plan.ModeEnforce} {
		m.mode.WithLabelValues(string(mode)).Set(number(mode == l.settings.Mode))
	}
	for _, k := range demand.Kinds() {
		m.names.WithLabelValues(k.String()).Set(float64(l.demand.Count(k)))
	}
	m.overLimit.Add(float64(l.demand.OverLimit() - m.turnedAway))
	m.turnedAway = l.demand.OverLimit()
	pods := map[string]int{}
	for _, p := range l.pods.byName {
		pods[p.listener]++
	}
	for _, s := range []string{listenerPending, listenerReady, listenerRejected} {
		m.pods.WithLabelValues(s).Set(float64(pods[s]))
	}
	problems := len(l.problems) + len(l.nacks)
	if l.compaction.problem(l.askedNames()) != nil {
		problems++
	}
	for _, f := range l.files {
		m.damaged.WithLabelValues(f.name).Set(number(f.damaged != ""))
		m.unsaved.WithLabelValues(f.name).Set(number(f.failing()))
		if f.damaged != "" {
			problems++
		}
		if f.failing() {
			problems++
		}
	}
	if _, blind := l.blindProblem(); blind {
		problems++
	}
	m.looks.behind.Set(number(l.demand.IsBehind()))
	m.problems.Set(float64(problems))
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
