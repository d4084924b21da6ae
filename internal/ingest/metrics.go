// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/index"
)

// Values of the source label.
const (
	sourceContract = "contract"
	sourceSync     = "sync"
)

// Values of the rpc label of open streams.
const (
	StreamReport  = "ReportCacheState"
	StreamSync    = "CacheSync"
	StreamEvents  = "StreamCacheEvents"
	StreamMetrics = "StreamMetrics"
)

// Results of a snapshot.
const (
	snapshotApplied    = "applied"
	snapshotAborted    = "aborted"
	snapshotSuperseded = "superseded"
	snapshotRejected   = "rejected"
)

var (
	fastBuckets = []float64{1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, .001, .0025, .01, .1}
	lagBuckets  = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
)

// Metrics counts what is taken in. One value serves a Contract and a
// SyncServer of the same index.
type Metrics struct {
	updates, blocks, dropped *prometheus.CounterVec
	lag, apply               *prometheus.HistogramVec
	streams                  *prometheus.GaugeVec
	denied                   *prometheus.CounterVec
	throttled                prometheus.Counter

	snapshots       *prometheus.CounterVec
	snapshotSeconds prometheus.Histogram
	gaps            prometheus.Counter
	missedFrames    prometheus.Counter
	resyncs         *prometheus.CounterVec

	registerer prometheus.Registerer
}

// NewMetrics registers the families with registerer, which may be nil.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	if registerer == nil {
		registerer = prometheus.NewRegistry()
	}
	m := &Metrics{registerer: registerer}
	m.updates = m.counterVec("inferencecache_ingest_updates_total", "Messages taken in.", "source", "kind")
	m.blocks = m.counterVec("inferencecache_ingest_blocks_total", "Memberships touched.", "source", "op")
	m.dropped = m.counterVec("inferencecache_ingest_dropped_total", "Parts of messages dropped.", "source", "reason")
	m.denied = m.counterVec("inferencecache_ingest_denied_total", "Writes refused by authorisation.", "reason")
	m.snapshots = m.counterVec("inferencecache_sync_snapshots_total", "Full-state transfers.", "result")
	m.resyncs = m.counterVec("inferencecache_sync_resyncs_total", "Resync requests.", "reason")
	m.lag = m.histogramVec("inferencecache_ingest_lag_seconds", "Server time minus producer timestamp.", lagBuckets)
	m.apply = m.histogramVec("inferencecache_ingest_apply_seconds", "Time to apply one update.", fastBuckets)
	m.streams = register(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "inferencecache_ingest_streams", Help: "Open streams.",
	}, []string{"rpc"}))
	m.snapshotSeconds = register(m, prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "inferencecache_sync_snapshot_seconds", Help: "Snapshot begin to visible.", Buckets: lagBuckets,
	}))
	m.gaps = register(m, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "inferencecache_sync_gaps_total", Help: "Gaps in the sequence of a session.",
	}))
	m.throttled = register(m, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "inferencecache_sync_throttled_total", Help: "Pauses of publishers that send more than their rate.",
	}))
	m.missedFrames = register(m, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "inferencecache_sync_missed_frames_total", Help: "Frames missing in gaps.",
	}))
	m.createClosedSets()
	return m
}

func (m *Metrics) createClosedSets() {
	for _, source := range []string{sourceContract, sourceSync} {
		for _, kind := range []string{"prefixes", "stats", "both", "event"} {
			m.updates.WithLabelValues(source, kind)
		}
		for _, op := range []string{"store", "refresh", "move_tier", "remove", "clear"} {
			m.blocks.WithLabelValues(source, op)
		}
		for _, reason := range contractReasons {
			m.dropped.WithLabelValues(source, string(reason))
		}
		m.lag.WithLabelValues(source)
		m.apply.WithLabelValues(source)
	}
	for _, reason := range syncReasons {
		m.dropped.WithLabelValues(sourceSync, string(reason))
	}
	for _, reason := range []DenyReason{DenyUnauthenticated, DenyTenant, DenyReplica, DenyScope} {
		m.denied.WithLabelValues(string(reason))
	}
	for _, rpc := range []string{StreamReport, StreamSync, StreamEvents, StreamMetrics} {
		m.streams.WithLabelValues(rpc)
	}
	for _, result := range []string{snapshotApplied, snapshotAborted, snapshotSuperseded, snapshotRejected} {
		m.snapshots.WithLabelValues(result)
	}
	for _, reason := range resyncReasons {
		m.resyncs.WithLabelValues(string(reason))
	}
}

func register[C prometheus.Collector](m *Metrics, collector C) C {
	m.registerer.MustRegister(collector)
	return collector
}

func (m *Metrics) counterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return register(m, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
}

func (m *Metrics) histogramVec(name, help string, buckets []float64) *prometheus.HistogramVec {
	return register(m, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
	}, []string{"source"}))
}

// StreamOpened counts a stream of rpc until the function it returns is called.
func (m *Metrics) StreamOpened(rpc string) (closed func()) {
	gauge := m.streams.WithLabelValues(rpc)
	gauge.Inc()
	return gauge.Dec
}

// Denied counts a write that was refused before it was read.
func (m *Metrics) Denied(reason DenyReason) { m.denied.WithLabelValues(string(reason)).Inc() }

// sourceMetrics are the children of one source, looked up once.
type sourceMetrics struct {
	metrics                                  *Metrics
	source                                   string
	store, refresh, moveTier, removed, clear prometheus.Counter
	lag, apply                               prometheus.Observer
}

func (m *Metrics) of(source string) *sourceMetrics {
	op := func(name string) prometheus.Counter { return m.blocks.WithLabelValues(source, name) }
	return &sourceMetrics{
		metrics:  m,
		source:   source,
		store:    op("store"),
		refresh:  op("refresh"),
		moveTier: op("move_tier"),
		removed:  op("remove"),
		clear:    op("clear"),
		lag:      m.lag.WithLabelValues(source),
		apply:    m.apply.WithLabelValues(source),
	}
}

func (s *sourceMetrics) update(kind string) { s.metrics.updates.WithLabelValues(s.source, kind).Inc() }

func (s *sourceMetrics) drop(reason Reason) {
	s.metrics.dropped.WithLabelValues(s.source, string(reason)).Inc()
}

// observeLag measures a timestamp that was not after now.
func (s *sourceMetrics) observeLag(timestampUs, nowUs int64) {
	if timestampUs > 0 && timestampUs <= nowUs {
		s.lag.Observe(float64(nowUs-timestampUs) / 1e6)
	}
}

// applied counts what the index did and returns how many parts it refused.
func (s *sourceMetrics) applied(a index.Applied) (dropped int) {
	add(s.store, a.Stored)
	add(s.refresh, a.Refreshed)
	add(s.moveTier, a.MovedTier)
	add(s.removed, a.Removed)
	add(s.clear, a.Cleared)
	if a.Expired > 0 {
		s.metrics.dropped.WithLabelValues(s.source, string(ReasonTimestampExpired)).Add(float64(a.Expired))
	}
	if a.ScopeLimit > 0 {
		s.metrics.dropped.WithLabelValues(s.source, string(ReasonScopeLimit)).Add(float64(a.ScopeLimit))
	}
	return a.Expired + a.ScopeLimit
}

func add(counter prometheus.Counter, n int) {
	if n > 0 {
		counter.Add(float64(n))
	}
}
