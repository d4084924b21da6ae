// SPDX-License-Identifier: Apache-2.0

package server

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/version"
)

// family makes the metrics of this role in one registry.
type family struct{ registerer prometheus.Registerer }

const namespace = "inferencecache"

func (f family) counters(name, help string, labels ...string) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	f.registerer.MustRegister(v)
	return v
}

func (f family) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
	f.registerer.MustRegister(c)
	return c
}

func (f family) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
	f.registerer.MustRegister(g)
	return g
}

func (f family) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels)
	f.registerer.MustRegister(v)
	return v
}

func (f family) gaugeFunc(name, help string, value func() float64) {
	f.registerer.MustRegister(prometheus.NewGaugeFunc(
		prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, value))
}

func (f family) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets})
	f.registerer.MustRegister(h)
	return h
}

func (f family) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, labels)
	f.registerer.MustRegister(v)
	return v
}

// processMetrics are those of the role as a whole.
type processMetrics struct {
	up          prometheus.Gauge
	tlsEnabled  prometheus.Gauge
	panics      *prometheus.CounterVec
	requests    *prometheus.CounterVec
	critical    map[string]prometheus.Observer
	waits       map[index.WaitSide]prometheus.Observer
	maintenance map[string]prometheus.Observer
}

// Components whose panics are counted.
const (
	componentGRPC    = "grpc"
	componentLookup  = "lookup"
	componentControl = "control"
	componentProbe   = "probe"
)

// emittedCodes are the gRPC codes this server answers with.
var emittedCodes = []codes.Code{
	codes.OK, codes.Canceled, codes.InvalidArgument, codes.DeadlineExceeded,
	codes.PermissionDenied, codes.ResourceExhausted, codes.Unimplemented,
	codes.Internal, codes.Unavailable, codes.Unauthenticated,
}

// otherValue stands for what a closed list does not name.
const otherValue = "other"

// taskExpire is the maintenance task that the server itself drives.
const taskExpire = "expire"

func newProcessMetrics(f family) *processMetrics {
	m := &processMetrics{
		up:         f.gauge("server_up", "1 while serving."),
		tlsEnabled: f.gauge("server_grpc_tls_enabled", "1 when gRPC is served with TLS."),
		panics:     f.counters("panics_total", "Recovered panics.", "component"),
		requests:   f.counters("grpc_requests_total", "Finished calls.", "method", "code"),
		critical:   make(map[string]prometheus.Observer),

		maintenance: make(map[string]prometheus.Observer),
	}
	f.gauge("server_memory_limit_bytes", "Memory the process may use: the container's limit, else the machine's; 0 = unknown.").
		Set(float64(memoryLimitBytes()))
	f.registerer.MustRegister(version.Collector("server"))
	for _, component := range []string{componentGRPC, componentLookup, componentControl, componentProbe} {
		m.panics.WithLabelValues(component)
	}
	for _, method := range methods {
		for _, code := range emittedCodes {
			m.requests.WithLabelValues(method, code.String())
		}
		m.requests.WithLabelValues(method, otherValue)
	}
	critical := f.histograms("index_critical_seconds", "Exclusive sections of the index.", fastBuckets, "op")
	for _, op := range []string{"apply", "evict", "clear", "expire", "cap", "quota", "snapshot", "policy", otherValue} {
		m.critical[op] = critical.WithLabelValues(op)
	}
	waits := f.histograms("index_wait_seconds", "Waits for the index's locks, sampled 1 in 64.", fastBuckets, "side")
	m.waits = map[index.WaitSide]prometheus.Observer{
		index.WaitRead: waits.WithLabelValues("read"), index.WaitWrite: waits.WithLabelValues("write"),
	}
	maintenance := f.histograms("index_maintenance_seconds", "Whole runs of index maintenance.", lagBuckets, "task")
	for _, task := range []string{taskExpire, "cap", "quota", "snapshot", otherValue} {
		m.maintenance[task] = maintenance.WithLabelValues(task)
	}
	return m
}

// observeCritical is called by the index after each exclusive section.
func (m *processMetrics) observeCritical(op string, took time.Duration) {
	observe(m.critical, op, took)
}

// observeRun is called after each whole run of a maintenance task.
func (m *processMetrics) observeRun(task string, took time.Duration) {
	observe(m.maintenance, task, took)
}

func observe(closed map[string]prometheus.Observer, value string, took time.Duration) {
	observer, ok := closed[value]
	if !ok {
		observer = closed[otherValue]
	}
	observer.Observe(took.Seconds())
}

// observeWait is called by the index for some of its waits.
func (m *processMetrics) observeWait(side index.WaitSide, waited time.Duration) {
	m.waits[side].Observe(waited.Seconds())
}

// finished counts a call by its code.
func (m *processMetrics) finished(method string, code codes.Code) {
	label := otherValue
	if slices.Contains(emittedCodes, code) {
		label = code.String()
	}
	m.requests.WithLabelValues(method, label).Inc()
}
