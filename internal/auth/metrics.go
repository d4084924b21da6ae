// SPDX-License-Identifier: Apache-2.0

package auth

import "github.com/prometheus/client_golang/prometheus"

// Endpoints whose callers are reviewed. Each names a metric label.
const (
	EndpointSnapshot = "snapshot"
	EndpointPolicy   = "policy"
	EndpointProbe    = "probe"
	EndpointIngest   = "ingest"
	EndpointLookup   = "lookup"
)

// Results of a review, and what saved one.
const (
	resultOK          = "ok"
	resultDenied      = "denied"
	resultError       = "error"
	resultLimited     = "limited"
	resultCacheHit    = "cache_hit"
	resultNegativeHit = "negative_hit"
)

// Metrics counts token reviews.
type Metrics struct{ reviews *prometheus.CounterVec }

// NewMetrics registers the family with registerer, which may be nil.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "inferencecache_auth_reviews_total",
		Help: "Reviews of tokens, and what saved one.",
	}, []string{"endpoint", "result"})}
	if registerer != nil {
		registerer.MustRegister(m.reviews)
	}
	for _, endpoint := range []string{EndpointSnapshot, EndpointPolicy, EndpointProbe, EndpointIngest, EndpointLookup} {
		for _, result := range []string{resultOK, resultDenied, resultError, resultLimited, resultCacheHit, resultNegativeHit} {
			m.reviews.WithLabelValues(endpoint, result)
		}
	}
	return m
}
