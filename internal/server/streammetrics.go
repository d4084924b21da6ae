// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/inferencecache/inference-cache/internal/ingest"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// maxMetricStreams bounds the streams that are served at a time.
const maxMetricStreams = 16

// StreamMetrics implements pb.InferenceCacheServer: all series of the wanted
// families at once and then at every interval. A slow client skips intervals.
func (c *contract) StreamMetrics(in *pb.StreamMetricsRequest, stream pb.InferenceCache_StreamMetricsServer) error {
	s := c.server
	if !takePlace(&s.observers.metricStreams, maxMetricStreams) {
		return status.Errorf(codes.ResourceExhausted, "%d metric streams are open, no more are served", maxMetricStreams)
	}
	defer s.observers.metricStreams.Add(-1)
	defer s.observers.streams.StreamOpened(ingest.StreamMetrics)()
	sent := s.detached(func() error { return s.sendMetrics(stream.Context(), in.GetNames(), stream) })
	select {
	case err := <-sent:
		return err
	case <-s.stopping:
		return errStopping
	}
}

// takePlace counts one more unless there are too many.
func takePlace(taken *atomic.Int32, most int32) bool {
	if taken.Add(1) <= most {
		return true
	}
	taken.Add(-1)
	return false
}

func (s *Server) sendMetrics(ctx context.Context, names []string, stream pb.InferenceCache_StreamMetricsServer) error {
	ticker := time.NewTicker(s.options.StreamMetricsInterval)
	defer ticker.Stop()
	for {
		// What could be gathered counts, as on the metrics page.
		families, _ := s.options.Registry.Gather()
		at := s.options.Now().UnixMicro()
		for _, family := range families {
			if len(names) > 0 && !slices.Contains(names, family.GetName()) {
				continue
			}
			if err := s.sendFamily(stream, family, at); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-ticker.C:
		}
	}
}

func (s *Server) sendFamily(stream pb.InferenceCache_StreamMetricsServer, family *dto.MetricFamily, atMicros int64) error {
	for _, metric := range family.GetMetric() {
		if tenant := tenantOf(metric); s.guard.visibleTenant(stream.Context(), tenant) != tenant {
			continue
		}
		for _, series := range seriesOf(family, metric, atMicros) {
			if err := stream.Send(series); err != nil {
				return err
			}
		}
	}
	return nil
}

// tenantOf returns the tenant that a metric is about, or "".
func tenantOf(metric *dto.Metric) string {
	for _, pair := range metric.GetLabel() {
		if name := pair.GetName(); (name == "tenant" || name == "tenant_id") && pair.GetValue() != otherLabel {
			return pair.GetValue()
		}
	}
	return ""
}

// seriesOf renders one metric: a histogram as its cumulative buckets, its sum
// and its count, as on the metrics page.
func seriesOf(family *dto.MetricFamily, metric *dto.Metric, atMicros int64) []*pb.Metric {
	name := family.GetName()
	var series []*pb.Metric
	add := func(kind, suffix string, value float64, extra ...string) {
		labels := make(map[string]string, len(metric.GetLabel())+1)
		for _, pair := range metric.GetLabel() {
			labels[pair.GetName()] = pair.GetValue()
		}
		if len(extra) == 2 {
			labels[extra[0]] = extra[1]
		}
		series = append(series, &pb.Metric{Name: name + suffix, Type: kind, Labels: labels, Value: value, TimestampUs: atMicros})
	}
	switch family.GetType() {
	case dto.MetricType_COUNTER:
		add("counter", "", metric.GetCounter().GetValue())
	case dto.MetricType_GAUGE:
		add("gauge", "", metric.GetGauge().GetValue())
	case dto.MetricType_HISTOGRAM:
		h := metric.GetHistogram()
		for _, bucket := range h.GetBucket() {
			if !math.IsInf(bucket.GetUpperBound(), 1) {
				add("histogram", "_bucket", float64(bucket.GetCumulativeCount()), "le", formatBound(bucket.GetUpperBound()))
			}
		}
		add("histogram", "_bucket", float64(h.GetSampleCount()), "le", "+Inf")
		add("histogram", "_sum", h.GetSampleSum())
		add("histogram", "_count", float64(h.GetSampleCount()))
	case dto.MetricType_SUMMARY:
		summary := metric.GetSummary()
		for _, q := range summary.GetQuantile() {
			add("summary", "", q.GetValue(), "quantile", formatBound(q.GetQuantile()))
		}
		add("summary", "_sum", summary.GetSampleSum())
		add("summary", "_count", float64(summary.GetSampleCount()))
	default:
		add("untyped", "", metric.GetUntyped().GetValue())
	}
	return series
}

func formatBound(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
