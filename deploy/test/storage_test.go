// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// queryable holds series whose first value is at start.
func queryable(all []loaded, start time.Time) storage.Queryable {
	return &storage.MockQueryable{MockQuerier: &storage.MockQuerier{
		SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
			set := &seriesSet{}
			for _, series := range all {
				if series.matches(matchers) {
					set.series = append(set.series, series.samples(start))
				}
			}
			return set
		},
	}}
}

// loaded is a series with a value for each evaluation.
type loaded struct {
	labels labels.Labels
	values []parser.SequenceValue
}

func (l loaded) matches(matchers []*labels.Matcher) bool {
	for _, matcher := range matchers {
		if !matcher.Matches(l.labels.Get(matcher.Name)) {
			return false
		}
	}
	return true
}

func (l loaded) samples(start time.Time) storage.Series {
	var all []chunks.Sample
	for i, value := range l.values {
		if !value.Omitted {
			all = append(all, sample{start.Add(time.Duration(i) * evaluation).UnixMilli(), value.Value})
		}
	}
	return storage.NewListSeries(l.labels, all)
}

// sample is a number at a time in milliseconds.
type sample struct {
	millis int64
	value  float64
}

func (s sample) T() int64                      { return s.millis }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.value }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }

// seriesSet iterates over series.
type seriesSet struct {
	series []storage.Series
	next   int
}

func (s *seriesSet) Next() bool                        { s.next++; return s.next <= len(s.series) }
func (s *seriesSet) At() storage.Series                { return s.series[s.next-1] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }
