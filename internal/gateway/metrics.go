// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/caller"
	"github.com/inferencecache/inference-cache/internal/routing"
	"github.com/inferencecache/inference-cache/internal/tokenize"
	"github.com/inferencecache/inference-cache/internal/version"
)

const (
	namespace = "inferencecache"
	// face tells this proxy from other users of the routing metrics.
	face = "http"
)

// Buckets of the histograms.
var (
	rpcBuckets   = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1}
	fastBuckets  = []float64{1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, .001, .0025, .01, .1}
	lagBuckets   = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	httpBuckets  = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
	ratioBuckets = []float64{0, .1, .25, .5, .75, .9, .95, .99, 1}
	tokenBuckets = []float64{0, 16, 64, 256, 1024, 4096, 16384}
)

// Values of closed label sets that no other package owns.
var (
	allOrigins = []string{
		"index_hint", "policy", "sticky_hit", "sticky_new", "sticky_stale", "sticky_respill", "target_header",
		"single_candidate", "warmup_slice", "warmup_divert", "load_spill", "kv_pressure", "random_fallback",
		"first_healthy_fallback", "none_eligible",
	}
	allHintOutcomes = []string{"followed", "unhealthy", "overloaded", "unplaceable", "spilled", "draining"}
	allSources      = []string{"index_lookup", "local_events", "approx_tree", "hash_placement", "speculative", "none"}
	lookupReasons   = []string{
		"PREFIX_MATCH", "TENANT_HOT", "AFFINITY_HINT", "NO_HINT", "TIMEOUT", "POLICY_REQUIRES_CHAIN",
		"UNKNOWN_TENANT", "UNKNOWN_MODEL", "UNKNOWN_HASH_SCHEME",
		reasonClientTimeout, reasonUnavailable, reasonBreakerOpen, reasonSkipped, reasonOther,
	}
	upstreamErrorKinds = []string{kindConnect, kindTimeout, kindReset, kindStatus5xx, kindStatus429, kindMidStream}
	retryResults       = []string{retryOK, retryFailed, retryExhausted, retryNotRetryable}
	rejectReasons      = []string{rejectAuth, rejectRate, rejectQueue, rejectBody, rejectNoBackend, rejectShed, rejectBad}
	tokenKinds         = []string{"prompt", "best_overlap", "chosen_overlap", "engine_cached", "engine_unknown"}
)

const (
	rejectAuth      = "auth"
	rejectRate      = "rate_limit"
	rejectQueue     = "queue_full"
	rejectBody      = "body_too_large"
	rejectNoBackend = "no_backend"
	rejectShed      = "shed"
	rejectBad       = "bad_request"
)

// metrics are what a gateway counts as it goes; see collector for the rest.
type metrics struct {
	decisions     *prometheus.CounterVec // origin, branch
	lookups       *prometheus.CounterVec // reason_code
	lookupSeconds *prometheus.HistogramVec
	hints         *prometheus.CounterVec // outcome
	predictions   *prometheus.CounterVec // source
	moves         *prometheus.CounterVec // outcome
	tokens        *prometheus.CounterVec // kind
	parity        *prometheus.CounterVec // check, result
	errorTokens   *prometheus.HistogramVec
	pd            *prometheus.CounterVec // outcome
	pdLegs        *prometheus.CounterVec // leg, result
	matchRatio    prometheus.Observer
	selectSeconds prometheus.Observer

	requests        *prometheus.CounterVec // endpoint, code
	requestSeconds  *prometheus.HistogramVec
	overheadSeconds *prometheus.HistogramVec
	ttftSeconds     *prometheus.HistogramVec
	tpotSeconds     *prometheus.HistogramVec
	inflight        *prometheus.GaugeVec
	queue           *prometheus.GaugeVec
	hedges          *prometheus.CounterVec // result
	resends         prometheus.Counter
	upstreamErrors  *prometheus.CounterVec // kind
	retries         *prometheus.CounterVec // result
	rejected        *prometheus.CounterVec // reason
	stripped        *prometheus.CounterVec // header
	forbidden       *prometheus.CounterVec // field
	authentications *prometheus.CounterVec // method, result
	targets         *prometheus.CounterVec // outcome
	tokenize        *prometheus.CounterVec // source, result
	tokenizeSeconds *prometheus.HistogramVec
	panics          *prometheus.CounterVec // component
	accessDropped   prometheus.Counter
}

func newMetrics(registry *prometheus.Registry) *metrics {
	plain := factory{registry}
	faced := factory{prometheus.WrapRegistererWith(prometheus.Labels{"face": face}, registry)}
	m := &metrics{
		decisions:     faced.counters("routing_decisions_total", "Final choices of a replica.", "origin", "branch"),
		lookups:       faced.counters("routing_lookups_total", "Index lookups by answer.", "reason_code"),
		lookupSeconds: faced.histograms("routing_lookup_seconds", "Time of an index lookup.", rpcBuckets, "result"),
		hints:         faced.counters("routing_hints_total", "What became of hints that named replicas.", "outcome"),
		predictions:   faced.counters("routing_predictions_total", "What choices were based on.", "source"),
		moves: faced.counters("routing_prefix_moves_total",
			"Requests by whether their longest remembered prefix last went to the same replica.", "outcome"),
		tokens: faced.counters("routing_tokens_total", "Prompt tokens, predicted reuse and the engines' own count.", "kind"),
		parity: faced.counters("routing_parity_total", "Checks of our tokens against the engines'.", "check", "result"),
		errorTokens: faced.histograms("routing_prediction_error_tokens",
			"Difference between predicted and reported reuse.", tokenBuckets, "sign"),
		pd: faced.counters("routing_pd_total",
			"Requests with a decode replica by how they were served, and what went wrong between two legs.", "outcome"),
		pdLegs:        plain.counters("gateway_pd_legs_total", "Legs of requests with two, by how they ended.", "leg", "result"),
		matchRatio:    faced.histogram("routing_match_ratio", "Predicted reuse over prompt length.", ratioBuckets),
		selectSeconds: faced.histogram("routing_select_seconds", "Time to choose, without the lookup.", fastBuckets),

		requests:        plain.counters("gateway_requests_total", "Requests by status.", "endpoint", "code"),
		requestSeconds:  plain.histograms("gateway_request_seconds", "Time of a request.", httpBuckets, "endpoint"),
		overheadSeconds: plain.histograms("gateway_overhead_seconds", "The gateway's own time before it sends.", rpcBuckets, "endpoint"),
		ttftSeconds:     plain.histograms("gateway_ttft_seconds", "Time to the first byte of content.", httpBuckets, "endpoint"),
		tpotSeconds:     plain.histograms("gateway_tpot_seconds", "Time per output token after the first.", lagBuckets, "endpoint"),
		inflight:        plain.gauges("gateway_inflight", "Requests under way.", "endpoint"),
		queue:           plain.gauges("gateway_queue", "Requests that wait for a place.", "endpoint"),
		hedges:          plain.counters("gateway_hedges_total", "Second attempts because the first was slow to answer.", "result"),
		resends: plain.counters("gateway_resends_total",
			"Requests sent again because a pooled connection was closed.").WithLabelValues(),
		upstreamErrors:  plain.counters("gateway_upstream_errors_total", "Failed attempts.", "kind"),
		retries:         plain.counters("gateway_retries_total", "What became of failed attempts.", "result"),
		rejected:        plain.counters("gateway_rejected_total", "Requests the gateway refused.", "reason"),
		stripped:        plain.counters("gateway_headers_stripped_total", "Control headers of clients removed.", "header"),
		forbidden:       plain.counters("gateway_forbidden_fields_total", "Control fields of clients refused.", "field"),
		authentications: plain.counters("gateway_authentications_total", "Callers by how they were found out.", "method", "result"),
		targets:         plain.counters("gateway_targets_total", "Requests of trusted clients that named a replica.", "outcome"),
		tokenize:        plain.counters("gateway_tokenize_total", "Prompts tokenized.", "source", "result"),
		tokenizeSeconds: plain.histograms("gateway_tokenize_seconds", "Time to tokenize a prompt.", lagBuckets, "source"),
		panics:          plain.counters("panics_total", "Recovered panics.", "component"),
		accessDropped:   plain.counter("gateway_access_log_dropped_total", "Lines that did not reach the access log."),
	}
	m.createClosedSets()
	registry.MustRegister(version.Collector("gateway"))
	return m
}

// createClosedSets makes counters exist before their first event.
func (m *metrics) createClosedSets() {
	for _, origin := range allOrigins {
		m.decisions.WithLabelValues(origin, string(routing.BranchNone))
	}
	for _, branch := range []routing.Branch{
		routing.BranchNoHint, routing.BranchMiss, routing.BranchTimeout, routing.BranchShortRequest,
		routing.BranchTokenizerUnavailable, routing.BranchParityFailed,
	} {
		m.decisions.WithLabelValues(string(routing.OriginPolicy), string(branch))
	}
	for _, branch := range []routing.Branch{routing.BranchHit, routing.BranchAffinity, routing.BranchTenantHot} {
		m.decisions.WithLabelValues(string(routing.OriginIndexHint), string(branch))
	}
	m.decisions.WithLabelValues(string(routing.OriginLoadSpill), string(routing.BranchSpill))
	create(m.lookups, lookupReasons)
	create(m.hints, allHintOutcomes)
	create(m.pd, pdOutcomes)
	for _, leg := range []routing.Role{routing.RolePrefill, routing.RoleDecode} {
		for _, result := range legResults {
			m.pdLegs.WithLabelValues(leg.String(), result)
		}
	}
	create(m.predictions, allSources)
	for i := range routes {
		m.queue.WithLabelValues(routes[i].endpoint)
	}
	create(m.moves, []string{string(routing.MoveSame), string(routing.MoveMoved), string(routing.MoveNew)})
	create(m.hedges, hedgeResults)
	create(m.tokens, tokenKinds)
	create(m.upstreamErrors, upstreamErrorKinds)
	create(m.retries, retryResults)
	create(m.rejected, rejectReasons)
	create(m.stripped, controlHeaders[:])
	create(m.forbidden, forbiddenFields)
	create(m.targets, targetOutcomes)
	for _, method := range caller.Methods() {
		for _, result := range []string{authOK, authRefused, authForbidden, authUnavailable} {
			m.authentications.WithLabelValues(string(method), result)
		}
	}
	create(m.panics, []string{componentHandler})
	for _, check := range []string{checkCount, checkCanary, checkCached} {
		for _, result := range []string{"ok", "mismatch", "skipped"} {
			m.parity.WithLabelValues(check, result)
		}
	}
	m.tokenize.WithLabelValues(string(tokenize.SourceCache), "ok")
	m.tokenize.WithLabelValues(string(tokenize.SourceClient), "ok")
	for _, source := range []tokenize.Source{tokenize.SourceEngine, tokenize.SourceLocal} {
		m.tokenize.WithLabelValues(string(source), "ok")
		for _, reason := range tokenize.Reasons() {
			m.tokenize.WithLabelValues(string(source), string(reason))
		}
	}
	for _, result := range []string{"ok", "timeout", "error"} {
		m.lookupSeconds.WithLabelValues(result)
	}
	for _, sign := range []string{"over", "under"} {
		m.errorTokens.WithLabelValues(sign)
	}
}

// newTLSNotAfter makes the gauge of the clients' certificate.
func (m *metrics) newTLSNotAfter(registry *prometheus.Registry) prometheus.Gauge {
	plain := factory{registry}
	return plain.gauges("tls_not_after_timestamp_seconds", "End of the certificate's validity.", "listener").
		WithLabelValues("clients")
}

// countRejection counts a request that the gateway refused.
func (m *metrics) countRejection(fault *apiError) {
	reason := fault.reason
	switch fault.status {
	case http.StatusUnauthorized, http.StatusForbidden:
		reason = rejectAuth
	case http.StatusRequestEntityTooLarge:
		reason = rejectBody
	case http.StatusBadRequest, http.StatusNotFound:
		reason = rejectBad
	case http.StatusServiceUnavailable:
		reason = rejectNoBackend
	case http.StatusTooManyRequests:
		reason = cmp.Or(reason, rejectShed)
	}
	if fault.code == codeAuthUnavailable {
		reason = rejectAuth
	}
	if reason != "" {
		m.rejected.WithLabelValues(reason).Inc()
	}
}

func create(counters *prometheus.CounterVec, values []string) {
	for _, value := range values {
		counters.WithLabelValues(value)
	}
}

// factory makes and registers metrics.
type factory struct{ registerer prometheus.Registerer }

func (f factory) counters(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	f.registerer.MustRegister(v)
	return v
}

func (f factory) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
	f.registerer.MustRegister(c)
	return c
}

func (f factory) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
	f.registerer.MustRegister(v)
	return v
}

func (f factory) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(
		prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, labels)
	f.registerer.MustRegister(v)
	return v
}

func (f factory) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets})
	f.registerer.MustRegister(h)
	return h
}
