// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/gate"
	"github.com/inferencecache/inference-cache/internal/policy"
)

// endpointName is the label of a path.
type endpointName string

const (
	endpointSnapshot   endpointName = "snapshot"
	endpointPolicy     endpointName = "policy"
	endpointExtensions endpointName = "extensions"
	endpointProbe      endpointName = "probe"
	endpointStatus     endpointName = "status"
	endpointOther      endpointName = "other"
)

// audience says under which name the verdicts of a gate are counted.
type audience string

const (
	audienceSnapshot audience = "snapshot"
	audiencePolicy   audience = "policy"
	audienceProbe    audience = "probe"
)

// kindName is the label of a pushed body.
type kindName string

const (
	kindPolicy     kindName = "policy"
	kindExtensions kindName = "extensions"
)

// pushResult is the label of how a push ended.
type pushResult string

const (
	resultApplied      pushResult = "applied"
	resultUnchanged    pushResult = "unchanged"
	resultBadJSON      pushResult = "bad_json"
	resultUnknownField pushResult = "unknown_field"
	resultVersion      pushResult = "version"
	resultTooLarge     pushResult = "too_large"
	resultRevision     pushResult = "revision"
)

const otherCode = "other"

// codes are the status codes this package answers with.
var codes = []int{
	http.StatusOK, http.StatusNoContent, http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden,
	http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusUnsupportedMediaType,
	http.StatusInternalServerError, http.StatusServiceUnavailable,
}

// revisionLabelBytes is how much of a revision stands in a label.
const revisionLabelBytes = 12

// lagBuckets are in seconds.
var lagBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

type metrics struct {
	auth          map[audience]*prometheus.CounterVec
	pushes        *prometheus.CounterVec
	lastApplied   *prometheus.GaugeVec
	schemaVersion prometheus.Gauge
	entries       *prometheus.GaugeVec
	bodyBytes     *prometheus.GaugeVec
	revision      *prometheus.GaugeVec
	removals      prometheus.Counter
	requests      *prometheus.CounterVec
	seconds       *prometheus.HistogramVec
}

func newMetrics(registry prometheus.Registerer) *metrics {
	const prefix = "inferencecache_"
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
		registry.MustRegister(v)
		return v
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help}, labels)
		registry.MustRegister(v)
		return v
	}
	m := &metrics{
		auth: map[audience]*prometheus.CounterVec{
			audienceSnapshot: counters("snapshot_auth_total", "Callers of /snapshot and /status.", "result"),
			audiencePolicy:   counters("policy_auth_total", "Callers of /policy and /policy/extensions.", "result"),
			audienceProbe:    counters("probe_auth_total", "Callers of /probe.", "result"),
		},
		pushes:        counters("policy_pushes_total", "Pushed bodies.", "kind", "result"),
		lastApplied:   gauges("policy_last_applied_timestamp_seconds", "Time of the last push in force, 0 = none.", "kind"),
		schemaVersion: gauges("policy_schema_version", "Schema version of the policy in force.").WithLabelValues(),
		entries:       gauges("policy_entries", "Entries in force.", "kind"),
		bodyBytes:     gauges("policy_body_bytes", "Plain size of the body in force.", "kind"),
		revision:      gauges("policy_revision_info", "Start of the revision of the policy in force.", "revision"),
		removals:      counters("policy_removals_total", "Policies that vanished in a push.").WithLabelValues(),
		requests:      counters("internal_requests_total", "Answers of the internal listener.", "endpoint", "code"),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "internal_seconds", Help: "Time to answer on the internal listener.", Buckets: lagBuckets,
		}, []string{"endpoint", "code"}),
	}
	registry.MustRegister(m.seconds)
	m.createClosedSets()
	return m
}

func (m *metrics) createClosedSets() {
	for _, verdicts := range m.auth {
		for _, verdict := range gate.Verdicts() {
			verdicts.WithLabelValues(string(verdict))
		}
	}
	for _, kind := range []kindName{kindPolicy, kindExtensions} {
		for _, result := range []pushResult{
			resultApplied, resultUnchanged, resultBadJSON, resultUnknownField, resultVersion, resultTooLarge, resultRevision,
		} {
			m.pushes.WithLabelValues(string(kind), string(result))
		}
		m.lastApplied.WithLabelValues(string(kind))
		m.bodyBytes.WithLabelValues(string(kind))
	}
	for _, kind := range []string{"policy", "tenant", "template", "topology"} {
		m.entries.WithLabelValues(kind)
	}
	for _, endpoint := range []endpointName{
		endpointSnapshot, endpointPolicy, endpointExtensions, endpointProbe, endpointStatus, endpointOther,
	} {
		for _, code := range codes {
			m.requests.WithLabelValues(string(endpoint), strconv.Itoa(code))
		}
		m.requests.WithLabelValues(string(endpoint), otherCode)
	}
}

func (m *metrics) checked(who audience, verdict gate.Verdict) {
	if !slices.Contains(gate.Verdicts(), verdict) {
		verdict = gate.Error
	}
	m.auth[who].WithLabelValues(string(verdict)).Inc()
}

func (m *metrics) answered(endpoint endpointName, code int, took time.Duration) {
	label := otherCode
	if slices.Contains(codes, code) {
		label = strconv.Itoa(code)
	}
	m.requests.WithLabelValues(string(endpoint), label).Inc()
	m.seconds.WithLabelValues(string(endpoint), label).Observe(took.Seconds())
}

func (m *metrics) pushed(kind kindName, result pushResult) {
	m.pushes.WithLabelValues(string(kind), string(result)).Inc()
}

func (m *metrics) policyApplied(before, after *policy.View) {
	origin := after.Origin()
	m.applied(kindPolicy, origin)
	m.schemaVersion.Set(float64(origin.Version))
	m.entries.WithLabelValues("policy").Set(float64(after.Policies()))
	m.entries.WithLabelValues("tenant").Set(float64(after.Quotas()))
	m.removals.Add(float64(before.Removed(after)))
	m.revision.WithLabelValues(revisionLabel(origin)).Set(1)
	if old := revisionLabel(before.Origin()); old != revisionLabel(origin) {
		m.revision.DeleteLabelValues(old)
	}
}

func revisionLabel(origin policy.Origin) string {
	return origin.Revision[:min(len(origin.Revision), revisionLabelBytes)]
}

func (m *metrics) extensionsApplied(after *policy.View) {
	m.applied(kindExtensions, after.ExtensionsOrigin())
	m.entries.WithLabelValues("template").Set(float64(len(after.Templates())))
	m.entries.WithLabelValues("topology").Set(float64(len(after.Topologies())))
}

func (m *metrics) applied(kind kindName, origin policy.Origin) {
	m.lastApplied.WithLabelValues(string(kind)).Set(float64(origin.AppliedAt.UnixMilli()) / 1000)
	m.bodyBytes.WithLabelValues(string(kind)).Set(float64(origin.Bytes))
}
