// SPDX-License-Identifier: Apache-2.0

package trace

import "github.com/prometheus/client_golang/prometheus"

const namespace = "inferencecache"

// Sides on which trace headers of others are removed.
const (
	SideInbound  = "inbound"
	SideUpstream = "upstream"
)

// Why a record did not reach a sink.
const (
	droppedSlow  = "sink_slow"
	droppedError = "sink_error"
)

const (
	formLine   = "line"
	formHeader = "header"
)

var sizeBuckets = []float64{256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304}

type metrics struct {
	records    *prometheus.CounterVec // kind
	sampledOut prometheus.Counter
	omitted    *prometheus.CounterVec // reason
	truncated  *prometheus.CounterVec // list
	bytes      *prometheus.HistogramVec
	dropped    *prometheus.CounterVec // reason
	stripped   *prometheus.CounterVec // side
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: namespace, Subsystem: "trace", Name: name, Help: help}
	}
	m := &metrics{
		records:    prometheus.NewCounterVec(counter("records_total", "Trace records handed to the log or the file."), []string{"kind"}),
		sampledOut: prometheus.NewCounter(counter("sampled_out_total", "Requests left out of the log and the file by sampling.")),
		omitted:    prometheus.NewCounterVec(counter("header_omitted_total", "Answers without the trace header they should have had."), []string{"reason"}),
		truncated:  prometheus.NewCounterVec(counter("truncated_total", "Lists of records that met their bound with something left over."), []string{"list"}),
		bytes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: "trace", Name: "bytes", Help: "Length of lines and headers.", Buckets: sizeBuckets,
		}, []string{"form"}),
		dropped:  prometheus.NewCounterVec(counter("dropped_total", "Trace records that did not reach the log or the file."), []string{"reason"}),
		stripped: prometheus.NewCounterVec(counter("header_stripped_total", "Trace headers of others removed."), []string{"side"}),
	}
	registerer.MustRegister(m.records, m.sampledOut, m.omitted, m.truncated, m.bytes, m.dropped, m.stripped)
	for _, kind := range Kinds() {
		m.records.WithLabelValues(string(kind))
	}
	for vector, values := range map[*prometheus.CounterVec][]string{
		m.omitted:   {OmittedSize, OmittedEncoding, OmittedDisabled},
		m.truncated: {"selections", "candidates", "gates", "scores", "ids", "line"},
		m.dropped:   {droppedSlow, droppedError},
		m.stripped:  {SideInbound, SideUpstream},
	} {
		for _, value := range values {
			vector.WithLabelValues(value)
		}
	}
	m.bytes.WithLabelValues(formLine)
	m.bytes.WithLabelValues(formHeader)
	return m
}

// countTruncated counts the lists of a new record that are cut.
func (m *metrics) countTruncated(t Truncated) {
	if !t.any() {
		return
	}
	for list, cut := range map[string]bool{
		"selections": t.Selections, "candidates": t.Candidates, "gates": t.Gates, "scores": t.Scores, "ids": t.IDs,
	} {
		if cut {
			m.truncated.WithLabelValues(list).Inc()
		}
	}
}
