// SPDX-License-Identifier: Apache-2.0

package server

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/lookup"
)

// Bucket sets of histograms, in seconds.
var (
	rpcBuckets  = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1}
	fastBuckets = []float64{1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, .001, .0025, .01, .1}
	lagBuckets  = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
)

// stageSample is how many lookups share one observation of the stages.
const stageSample = 64

// lookupMetrics counts decisions.
type lookupMetrics struct {
	models, tenants *labels

	calls     *prometheus.CounterVec
	latency   *prometheus.HistogramVec
	invalid   *prometheus.CounterVec
	decision  prometheus.Histogram
	stage     *prometheus.HistogramVec
	sampled   atomic.Uint64
	gates     *prometheus.CounterVec
	allHold   prometheus.Counter
	ratio     prometheus.Histogram
	requested *prometheus.CounterVec
	matched   *prometheus.CounterVec
	blocks    prometheus.Histogram
	holders   prometheus.Histogram
	tier      *prometheus.CounterVec

	tokenized       *prometheus.CounterVec
	tokenizeSeconds *prometheus.HistogramVec
}

func newLookupMetrics(f family, models, tenants *labels) *lookupMetrics {
	m := &lookupMetrics{
		models:  models,
		tenants: tenants,
		calls:   f.counters("lookup_route_calls_total", "Answers to LookupRoute.", "model", "reason_code", "hint_used"),
		latency: f.histograms("lookup_route_latency_seconds", "LookupRoute from entry to response.", rpcBuckets, "model"),
		invalid: f.counters("lookup_invalid_total", "Malformed lookups.", "reason"),
		decision: f.histogram("lookup_decision_seconds",
			"The decision alone, without gRPC and tokenization.", fastBuckets),
		stage: f.histograms("lookup_stage_seconds", "Stages of a decision, sampled 1 in 64.", fastBuckets, "stage"),
		gates: f.counters("lookup_downgrades_total", "Hints withheld, by the gate that did it.", "gate"),
		allHold: f.counter("lookup_floor_all_hold_total",
			"Score floor downgrades in which every serving replica held the prefix."),
		ratio: f.histogram("lookup_match_ratio", "Best matched tokens by effective tokens, before the floors.",
			[]float64{0, .1, .25, .5, .75, .9, .95, .99, 1}),
		requested: f.counters("lookup_requested_tokens_total", "Effective tokens of lookups.", "tenant"),
		matched:   f.counters("lookup_matched_tokens_total", "Tokens matched by the best replica of delivered prefix matches.", "tenant"),
		blocks:    f.histogram("lookup_blocks", "Length of chains looked up.", []float64{1, 4, 16, 64, 256, 1024, 4096, 16384}),
		holders:   f.histogram("lookup_holders", "Scored replicas of a lookup.", []float64{0, 1, 2, 4, 8, 16, 32, 64, 128, 256}),
		tier:      f.counters("lookup_tier_total", "Tier of the top score.", "tier"),
		tokenized: f.counters("tokenize_total", "Prompts tokenized by the server.", "result"),
		tokenizeSeconds: f.histograms("tokenize_seconds",
			"Time to tokenize a prompt.", lagBuckets, "result"),
	}
	m.createClosedSets()
	return m
}

func (m *lookupMetrics) createClosedSets() {
	for _, reason := range lookup.Invalids() {
		m.invalid.WithLabelValues(string(reason))
	}
	for _, stage := range []string{"resolve", "match", "rank", "fallback"} {
		m.stage.WithLabelValues(stage)
	}
	for _, gate := range lookup.AllGates() {
		m.gates.WithLabelValues(gate.String())
	}
	for _, tier := range []index.Tier{index.TierT1, index.TierT2, index.TierT3, index.TierOther} {
		m.tier.WithLabelValues(tierName(tier))
	}
	for _, result := range lookup.TokenizeResults() {
		m.tokenized.WithLabelValues(string(result))
		m.tokenizeSeconds.WithLabelValues(string(result))
	}
}

// answered counts one LookupRoute call.
func (m *lookupMetrics) answered(model string, modelKnown bool, reason lookup.Reason, hintUsed bool, took time.Duration) {
	model = m.models.of(model, modelKnown)
	m.calls.WithLabelValues(model, string(reason), strconv.FormatBool(hintUsed)).Inc()
	m.latency.WithLabelValues(model).Observe(took.Seconds())
}

// decided counts what is inside one decision.
func (m *lookupMetrics) decided(tenant string, d *lookup.Decision) {
	if d.Invalid != lookup.Valid {
		m.invalid.WithLabelValues(string(d.Invalid)).Inc()
	}
	if d.Tokenized != lookup.NotTokenized {
		m.tokenized.WithLabelValues(string(d.Tokenized)).Inc()
		m.tokenizeSeconds.WithLabelValues(string(d.Tokenized)).Observe(d.Timings.Tokenize.Seconds())
	}
	m.gatesFired(d)
	m.decision.Observe((d.Timings.Total - d.Timings.Tokenize).Seconds())
	if m.sampled.Add(1)%stageSample == 1 {
		m.stages(d)
	}
	if d.Blocks > 0 {
		m.blocks.Observe(float64(d.Blocks))
	}
	if d.Asked {
		m.found(tenant, d)
	}
}

func (m *lookupMetrics) gatesFired(d *lookup.Decision) {
	if d.AllHold {
		m.allHold.Inc()
	}
	if d.Gates == 0 {
		return
	}
	for _, gate := range lookup.AllGates() {
		if d.Gates.Has(gate) {
			m.gates.WithLabelValues(gate.String()).Inc()
		}
	}
}

func (m *lookupMetrics) stages(d *lookup.Decision) {
	m.stage.WithLabelValues("resolve").Observe((d.Timings.Resolve - d.Timings.Tokenize).Seconds())
	if d.Asked {
		m.stage.WithLabelValues("match").Observe(d.Timings.Match.Seconds())
		m.stage.WithLabelValues("rank").Observe(d.Timings.Rank.Seconds())
	}
	if d.Timings.Fallback > 0 {
		m.stage.WithLabelValues("fallback").Observe(d.Timings.Fallback.Seconds())
	}
}

func (m *lookupMetrics) found(tenant string, d *lookup.Decision) {
	m.holders.Observe(float64(len(d.Ranked)))
	tenant = m.tenants.of(tenant, d.TenantKnown)
	if d.EffectiveTokens > 0 {
		m.ratio.Observe(min(float64(d.BestMatchedTokens())/float64(d.EffectiveTokens), 1))
		m.requested.WithLabelValues(tenant).Add(float64(d.EffectiveTokens))
	}
	if !d.HintUsed() {
		return
	}
	m.tier.WithLabelValues(tierName(d.Scores[0].Tier)).Inc()
	if d.Reason == lookup.PrefixMatch {
		m.matched.WithLabelValues(tenant).Add(float64(max(d.Scores[0].MatchedTokens, 0)))
	}
}

func tierName(tier index.Tier) string {
	switch tier {
	case index.TierT1:
		return "t1"
	case index.TierT2:
		return "t2"
	case index.TierT3:
		return "t3"
	default:
		return "unspecified"
	}
}
