// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferencecache/inference-cache/internal/kvevents"
)

const (
	// maxFieldNames bounds the label values of unknown fields; further names
	// count as otherField.
	maxFieldNames     = 16
	maxFieldNameBytes = 64
	otherField        = "other"
)

// lagBuckets are those of every lag histogram, in seconds.
var lagBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// metrics turns the status of a Publisher into series at each scrape, and
// keeps what has no place in a status.
type metrics struct {
	p         *Publisher
	send      *prometheus.HistogramVec
	snapshots *prometheus.CounterVec
	scrapes   *prometheus.CounterVec
	overflows prometheus.Counter

	mu     sync.Mutex
	fields map[string]bool // names that have their own series
}

var (
	_ prometheus.Collector = (*metrics)(nil)
	_ HubObserver          = (*metrics)(nil)
)

func newMetrics(p *Publisher) *metrics {
	m := &metrics{
		p: p,
		send: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "inferencecache_publisher_send_seconds", Buckets: lagBuckets,
			Help: "Time from sending a delta to its acknowledgement.",
		}, []string{"result"}),
		snapshots: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "inferencecache_publisher_snapshots_total", Help: "Full-state transfers to servers.",
		}, []string{"result"}),
		scrapes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "inferencecache_publisher_stats_scrapes_total", Help: "Readings of the engine's load.",
		}, []string{"result"}),
		overflows: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "inferencecache_publisher_queue_overflows_total", Help: "Queues to a server that were given up for a snapshot.",
		}),
		fields: map[string]bool{},
	}
	m.send.WithLabelValues("ok")
	for _, result := range []SnapshotResult{SnapshotApplied, SnapshotAborted, SnapshotSuperseded} {
		m.snapshots.WithLabelValues(string(result))
	}
	for _, result := range scrapeResults() {
		m.scrapes.WithLabelValues(string(result))
	}
	return m
}

// DeltaAcked implements HubObserver.
func (m *metrics) DeltaAcked(took time.Duration) {
	m.send.WithLabelValues("ok").Observe(took.Seconds())
}

// QueueOverflowed implements HubObserver.
func (m *metrics) QueueOverflowed() { m.overflows.Inc() }

// SnapshotEnded implements HubObserver.
func (m *metrics) SnapshotEnded(result SnapshotResult) {
	m.snapshots.WithLabelValues(string(result)).Inc()
}

func (m *metrics) scraped(result scrapeResult) { m.scrapes.WithLabelValues(string(result)).Inc() }

// desc describes one family computed at the scrape.
func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("inferencecache_publisher_"+name, help, labels, nil)
}

var (
	descConnected    = desc("engine_connected", "1 while the event socket is up.", "rank")
	descStreams      = desc("streams", "Event sockets that are up.")
	descExpected     = desc("streams_expected", "Event sockets there should be.")
	descView         = desc("view", "1 for the current trust in the mirror, of the worst rank.", "state")
	descBatches      = desc("batches_total", "Batches taken from the engine.")
	descEvents       = desc("events_total", "Events taken from the engine.", "type")
	descSkipped      = desc("events_skipped_total", "Events that could not be used.", "reason")
	descFields       = desc("unknown_fields_total", "Fields of events that nobody knows.", "field")
	descParked       = desc("parked_blocks", "Blocks that wait for their parent.")
	descResets       = desc("resets_total", "Times the state of the engine was dropped.", "cause")
	descGaps         = desc("gaps_total", "Gaps in the engine's sequence.", "rank")
	descMissed       = desc("missed_batches_total", "Batches missing in those gaps.", "rank")
	descReplays      = desc("replays_total", "Replays asked for.", "result")
	descResident     = desc("resident_blocks", "Blocks the engine is known to hold.", "tier")
	descLastEvent    = desc("last_event_timestamp_seconds", "Engine's time of its newest event.", "rank")
	descQueue        = desc("queue_frames", "Frames that servers have not acknowledged.")
	descServers      = desc("servers", "Links to servers.", "state")
	descStale        = desc("load_signal_stale", "1 after three failed readings of the engine's load in a row.")
	descRunning      = desc("engine_running_requests", "Running requests at the last reading.")
	descWaiting      = desc("engine_waiting_requests", "Waiting requests at the last reading.")
	descBlockSize    = desc("block_size", "Tokens per block, learned from the engine; 0 before that.")
	scrapeTimeFamily = []*prometheus.Desc{
		descConnected, descStreams, descExpected, descView, descBatches, descEvents, descSkipped, descFields,
		descParked, descResets, descGaps, descMissed, descReplays, descResident, descLastEvent, descQueue,
		descServers, descStale, descRunning, descWaiting, descBlockSize,
	}
)

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.kept() {
		c.Describe(ch)
	}
	for _, d := range scrapeTimeFamily {
		ch <- d
	}
}

func (m *metrics) kept() []prometheus.Collector {
	return []prometheus.Collector{m.send, m.snapshots, m.scrapes, m.overflows}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.kept() {
		c.Collect(ch)
	}
	status := m.p.Status()
	e := emitter{ch}
	e.gauge(descStreams, float64(status.StreamsLive))
	e.gauge(descExpected, float64(status.StreamsExpected))
	e.gauge(descStale, indicator(status.Load.Stale))
	e.gauge(descRunning, status.Load.Running)
	e.gauge(descWaiting, status.Load.Waiting)
	e.ranks(status.Ranks)
	e.totals(status.Ranks)
	e.servers(status.Ranks)
	m.unknownFields(e, status.Ranks)
}

// emitter sends series.
type emitter struct{ ch chan<- prometheus.Metric }

func (e emitter) gauge(d *prometheus.Desc, value float64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func (e emitter) counter(d *prometheus.Desc, value uint64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
}

// ranks sends what has a series per rank.
func (e emitter) ranks(ranks []RankStatus) {
	for _, r := range ranks {
		rank := strconv.Itoa(r.Rank)
		e.gauge(descConnected, indicator(r.Session.Connected), rank)
		e.counter(descGaps, r.Session.Gaps, rank)
		e.counter(descMissed, r.Session.MissedBatches, rank)
		if !r.Session.LastEventAt.IsZero() {
			e.gauge(descLastEvent, float64(r.Session.LastEventAt.UnixMilli())/1000, rank)
		}
	}
}

// totals sends sums over all ranks; closed label sets are complete.
func (e emitter) totals(ranks []RankStatus) {
	var batches uint64
	var parked, blockSize int
	var tiers [3]int
	events := map[kvevents.Kind]uint64{}
	skipped := map[kvevents.Reason]uint64{}
	resets := map[ResetCause]uint64{}
	replays := map[ReplayResult]uint64{}
	for _, r := range ranks {
		s := &r.Session
		batches += s.Batches
		parked += s.ParkedBlocks
		blockSize = max(blockSize, s.BlockSize)
		for i, n := range s.TierBlocks {
			tiers[i] += n
		}
		addTo(events, s.Events)
		addTo(skipped, s.Skipped)
		addTo(resets, s.Resets)
		addTo(replays, s.Replays)
	}
	e.counter(descBatches, batches)
	e.gauge(descParked, float64(parked))
	e.gauge(descBlockSize, float64(blockSize))
	for i, tier := range []string{"t1", "t2", "t3"} {
		e.gauge(descResident, float64(tiers[i]), tier)
	}
	emitSet(e, descEvents, kvevents.Kinds(), events)
	emitSet(e, descSkipped, kvevents.Reasons(), skipped)
	emitSet(e, descResets, ResetCauses(), resets)
	emitSet(e, descReplays, ReplayResults(), replays)
	worst := worstView(ranks)
	for _, view := range []View{ViewComplete, ViewIncomplete, ViewSuspect} {
		e.gauge(descView, indicator(view == worst), string(view))
	}
}

func emitSet[K ~string](e emitter, d *prometheus.Desc, all []K, values map[K]uint64) {
	for _, key := range all {
		e.counter(d, values[key], string(key))
	}
}

func addTo[K comparable](sum, more map[K]uint64) {
	for key, n := range more {
		sum[key] += n
	}
}

// worstView is incomplete while there is nothing to look at.
func worstView(ranks []RankStatus) View {
	order := []View{ViewComplete, ViewIncomplete, ViewSuspect}
	worst := ViewComplete
	for _, r := range ranks {
		if slices.Index(order, r.Session.View) > slices.Index(order, worst) {
			worst = r.Session.View
		}
	}
	if len(ranks) == 0 {
		return ViewIncomplete
	}
	return worst
}

func (e emitter) servers(ranks []RankStatus) {
	states := map[LinkState]int{}
	frames := 0
	for _, r := range ranks {
		for _, l := range r.Servers {
			states[l.State]++
			frames += l.QueueFrames
		}
	}
	e.gauge(descQueue, float64(frames))
	for _, state := range []LinkState{LinkLive, LinkSnapshot, LinkDown} {
		e.gauge(descServers, float64(states[state]), string(state))
	}
}

// unknownFields gives the first names their own series for good.
func (m *metrics) unknownFields(e emitter, ranks []RankStatus) {
	counts := map[string]uint64{}
	for _, r := range ranks {
		addTo(counts, r.Session.UnknownFields)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	series := map[string]uint64{}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		label := strings.ToValidUTF8(name, "?")
		if len(label) > maxFieldNameBytes {
			label = otherField
		}
		if !m.fields[label] && label != otherField {
			if len(m.fields) == maxFieldNames {
				label = otherField
			} else {
				m.fields[label] = true
			}
		}
		series[label] += counts[name]
	}
	for label, n := range series {
		e.counter(descFields, n, label)
	}
}

func indicator(on bool) float64 {
	if on {
		return 1
	}
	return 0
}
