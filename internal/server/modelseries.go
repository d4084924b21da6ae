// SPDX-License-Identifier: Apache-2.0

package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// modelSeriesLife is how long lookups of a model are shown after its last key
// and its last lookup.
const modelSeriesLife = 10 * time.Minute

// modelSeries finds the models whose lookups need no longer be shown. The
// caller synchronizes its methods.
type modelSeries struct {
	// quiet holds the models without keys by label.
	quiet map[string]quietModel
}

// quietModel has been asked for calls times and no more since then.
type quietModel struct {
	calls uint64
	since time.Time
}

// expired returns the labels whose life is over. gone are those of models
// that lost their last key, calls counts the lookups of each shown label.
func (s *modelSeries) expired(gone []string, calls map[string]uint64, now time.Time) (labels []string) {
	quiet := make(map[string]quietModel, len(gone))
	for _, label := range gone {
		n, shown := calls[label]
		if !shown {
			continue
		}
		before, known := s.quiet[label]
		switch {
		case !known || before.calls != n:
			quiet[label] = quietModel{calls: n, since: now}
		case now.Sub(before.since) < modelSeriesLife:
			quiet[label] = before
		default:
			labels = append(labels, label)
		}
	}
	s.quiet = quiet
	return labels
}

// callsByModel counts the lookups of each model label that is shown.
func (m *lookupMetrics) callsByModel() map[string]uint64 {
	series := make(chan prometheus.Metric)
	go func() {
		defer close(series)
		m.latency.Collect(series)
	}()
	calls := make(map[string]uint64)
	for metric := range series {
		var out dto.Metric
		if metric.Write(&out) == nil {
			calls[out.GetLabel()[0].GetValue()] = out.GetHistogram().GetSampleCount()
		}
	}
	return calls
}

// forgetModel deletes the series of a model label.
func (m *lookupMetrics) forgetModel(label string) {
	m.calls.DeletePartialMatch(prometheus.Labels{"model": label})
	m.latency.DeleteLabelValues(label)
}
