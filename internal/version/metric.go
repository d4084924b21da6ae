// SPDX-License-Identifier: Apache-2.0

package version

import "github.com/prometheus/client_golang/prometheus"

// Collector is the metric that names the build of a role.
func Collector(role string) prometheus.Collector {
	build := Get()
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "inferencecache_build_info",
		Help: "The build.",
		ConstLabels: prometheus.Labels{
			"version": build.Version, "commit": build.Commit, "go_version": build.GoVersion, "role": role,
		},
	}, func() float64 { return 1 })
}
