// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// requestSpans is the span of a request; the zero value is none.
type requestSpans struct {
	ctx  context.Context
	span oteltrace.Span
}

// attemptSpan is the span of a dispatched attempt; the zero value is none.
type attemptSpan struct {
	ctx  context.Context
	span oteltrace.Span
}

// ContextOf returns a context with the span that the headers of a request name.
func ContextOf(ctx context.Context, header http.Header) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(header))
}

func (r *Recorder) startSpans(info Info, join *Join) requestSpans {
	ctx := info.Context
	if ctx == nil {
		ctx = context.Background()
	}
	var s requestSpans
	s.ctx, s.span = r.options.Tracer.Start(ctx, "route "+info.Endpoint,
		oteltrace.WithSpanKind(oteltrace.SpanKindServer), oteltrace.WithTimestamp(r.options.Now()),
		oteltrace.WithAttributes(
			attribute.String("inferencecache.root_id", join.RootID),
			attribute.String("inferencecache.root_id_source", join.RootIDSource),
			attribute.String("inferencecache.endpoint", join.Endpoint),
			attribute.String("inferencecache.mode", join.Mode),
		))
	return s
}

func (s *requestSpans) end() {
	if s.span != nil {
		s.span.End()
	}
}

// startSpan begins the span of an attempt with an event for each selection.
func (a *Attempt) startSpan(record *Record, now time.Time) {
	q := a.request
	if q.spans.span == nil || !q.spans.span.IsRecording() {
		return
	}
	q.spans.span.SetAttributes(attribute.String("gen_ai.request.model", record.Model))
	a.span.ctx, a.span.span = q.recorder.options.Tracer.Start(q.spans.ctx, "dispatch",
		oteltrace.WithSpanKind(oteltrace.SpanKindClient), oteltrace.WithTimestamp(now),
		oteltrace.WithAttributes(
			attribute.String("inferencecache.dispatch_id", string(record.DispatchID)),
			attribute.Int("inferencecache.attempt", record.Attempt.Value),
		))
	for i := range record.Dispatch.Selections {
		a.span.span.AddEvent("selection", oteltrace.WithTimestamp(now),
			oteltrace.WithAttributes(q.choiceAttributes(&record.Dispatch.Selections[i])...))
	}
}

// choiceAttributes tells a selection's result. What is unknown is left out.
func (q *Request) choiceAttributes(c *Choice) []attribute.KeyValue {
	out := []attribute.KeyValue{
		attribute.String("inferencecache.role", string(c.Role)),
		attribute.String("inferencecache.policy", c.Policy),
		attribute.String("inferencecache.origin", c.Origin),
		attribute.Int("inferencecache.candidates", c.CandidatesTotal),
	}
	if name := q.spanName(c.Replica); name != "" {
		out = append(out, attribute.String("inferencecache.replica", name))
	}
	p := c.Prediction
	if p == nil {
		return out
	}
	out = append(out, attribute.String("inferencecache.prediction.source", p.Source),
		attribute.String("inferencecache.prediction.branch", p.Branch))
	if p.ReasonCode != "" {
		out = append(out, attribute.String("inferencecache.reason_code", string(p.ReasonCode)))
	}
	for name, value := range map[string]Maybe[int]{
		"overlap_blocks": p.OverlapBlocks, "best_overlap_blocks": p.BestOverlapBlocks,
		"request_blocks": p.RequestBlocks, "block_size": p.BlockSize,
	} {
		if value.Known {
			out = append(out, attribute.Int("inferencecache.prediction."+name, value.Value))
		}
	}
	return out
}

// spanName returns a replica's name as spans may hold it.
func (q *Request) spanName(name Text) string {
	switch {
	case name == "" || q.switches.ReplicaNames == NamesNone:
		return ""
	case q.switches.ReplicaNames == NamesHash:
		return hashName(q.recorder.nameKey, string(name))
	default:
		return string(name)
	}
}

// failSpan notes a failure. Before a dispatch it belongs to the request. The
// span of an attempt that will get no outcome ends here.
func (a *Attempt) failSpan(record *Record) {
	f := record.Failure
	span := a.span.span
	if span == nil {
		if span = a.request.spans.span; span == nil {
			return
		}
	}
	span.AddEvent("failure", oteltrace.WithTimestamp(time.Unix(0, record.TSUnixNS)), oteltrace.WithAttributes(
		attribute.String("inferencecache.phase", f.Phase),
		attribute.String("inferencecache.error_code", f.ErrorCode),
		attribute.Int("http.response.status_code", f.Status),
		attribute.Bool("inferencecache.will_retry", f.WillRetry),
	))
	if !f.WillRetry {
		a.request.spans.span.SetStatus(codes.Error, f.ErrorCode)
	}
	if a.span.span == nil {
		return
	}
	a.span.span.SetStatus(codes.Error, f.ErrorCode)
	if f.Phase != PhaseStream && f.Phase != PhaseBody {
		a.span.span.End(oteltrace.WithTimestamp(time.Unix(0, record.TSUnixNS)))
	}
}

// endSpan ends the span of an attempt with the engine's own figures, if it
// told any.
func (a *Attempt) endSpan(record *Record) {
	if a.span.span == nil || record.Outcome.Partial {
		return
	}
	o := record.Outcome
	out := []attribute.KeyValue{
		attribute.Int("http.response.status_code", o.Status), attribute.Bool("inferencecache.aborted", o.Aborted),
	}
	if o.PromptTokens.Known {
		out = append(out, attribute.Int("gen_ai.usage.input_tokens", o.PromptTokens.Value))
	}
	if o.EngineCachedTokens.Known {
		out = append(out, attribute.Int("inferencecache.engine_cached_tokens", o.EngineCachedTokens.Value))
	}
	a.span.span.SetAttributes(out...)
	a.span.span.End(oteltrace.WithTimestamp(time.Unix(0, record.TSUnixNS)))
}

// Inject names the attempt's span in the headers of a request to an engine.
// Without one the headers stay as they are.
func (a *Attempt) Inject(header http.Header) {
	if a == nil {
		return
	}
	a.request.mu.Lock()
	defer a.request.mu.Unlock()
	if a.span.ctx == nil {
		return
	}
	propagation.TraceContext{}.Inject(a.span.ctx, propagation.HeaderCarrier(header))
}
