// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// version is set by the linker.
var version = "dev"

// Version returns the version this binary was built as; "dev" when the build did
// not say.
func Version() string { return version }

// NewRegistry returns a registry with the metrics of every Go process and
// aether_build_info.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "aether_build_info",
		Help: "Version of the binary and of Go; always 1.",
	}, []string{"version", "go_version"})
	build.WithLabelValues(version, runtime.Version()).Set(1)
	r.MustRegister(
		build,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return r
}
