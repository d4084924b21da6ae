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
	EndpointOperator = "operator"
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

// Metrics counts reviews of tokens and of access.
type Metrics struct{ reviews, access *prometheus.CounterVec }

// NewMetrics registers the families with registerer, which may be nil.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		reviews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "inferencecache_auth_reviews_total",
			Help: "Reviews of tokens, and what saved one.",
		}, []string{"endpoint", "result"}),
		access: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "inferencecache_auth_access_reviews_total",
			Help: "Reviews of what readers and operators may see, and what saved one.",
		}, []string{"resource", "result"}),
	}
	if registerer != nil {
		registerer.MustRegister(m.reviews, m.access)
	}
	for _, result := range []string{resultOK, resultDenied, resultError, resultLimited, resultCacheHit, resultNegativeHit} {
		for _, endpoint := range []string{
			EndpointSnapshot, EndpointPolicy, EndpointProbe, EndpointIngest, EndpointLookup, EndpointOperator,
		} {
			m.reviews.WithLabelValues(endpoint, result)
		}
		for _, resource := range []string{ResourceLookups, ResourceOperators} {
			m.access.WithLabelValues(resource, result)
		}
	}
	return m
}
