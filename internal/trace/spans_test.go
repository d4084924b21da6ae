// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/inferencecache/inference-cache/internal/trace"
)

// spanned is a recorder whose spans are kept.
func spanned(t *testing.T, switches trace.Switches) (*fixture, *tracetest.SpanRecorder) {
	t.Helper()
	kept := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(kept))
	return newFixture(t, switches, func(o *trace.Options) { o.Tracer = provider.Tracer("test") }), kept
}

func attributes(span sdktrace.ReadOnlySpan) string {
	var out strings.Builder
	for _, a := range span.Attributes() {
		out.WriteString(string(a.Key) + "=" + a.Value.String() + " ")
	}
	for _, e := range span.Events() {
		out.WriteString("[" + e.Name)
		for _, a := range e.Attributes {
			out.WriteString(" " + string(a.Key) + "=" + a.Value.String())
		}
		out.WriteString("] ")
	}
	return out.String()
}

func TestSpans(t *testing.T) {
	f, kept := spanned(t, trace.Switches{})
	const parent = "4bf92f3577b34da6a3ce929d0e0e4736"
	ctx := trace.ContextOf(t.Context(), http.Header{"Traceparent": {"00-" + parent + "-00f067aa0ba902b7-01"}})
	q := f.Begin(trace.Info{Endpoint: "completions", Mode: trace.ModeRegular, RootID: "root", Context: ctx})
	q.Describe("m", "")
	first := q.Attempt(0)
	choose(first, trace.RoleSingle, 2)
	send(first, "e-0")
	first.Fail(&trace.Failed{Phase: trace.PhaseDispatch, ErrorCode: "connect", WillRetry: true})
	second := q.Attempt(1)
	choose(second, trace.RoleSingle, 2)
	send(second, "e-1")
	header := http.Header{"Traceparent": {"of the client"}}
	second.Inject(header)
	second.Outcome(&trace.Outcome{Status: 200, PromptTokens: trace.Known(64), EngineCachedTokens: trace.Known(48)})
	q.End()

	ended := kept.Ended()
	if len(ended) != 3 {
		t.Fatalf("%d spans, want 3", len(ended))
	}
	failed, answered, root := ended[0], ended[1], ended[2]
	for _, span := range ended {
		if span.SpanContext().TraceID().String() != parent {
			t.Errorf("span %s is not of the client's trace", span.Name())
		}
	}
	if got := header.Get("Traceparent"); !strings.Contains(got, answered.SpanContext().SpanID().String()) {
		t.Errorf("the engine is told of %q, want the span of the attempt", got)
	}
	if failed.Status().Code != codes.Error || answered.Status().Code == codes.Error || root.Status().Code == codes.Error {
		t.Errorf("status %v, %v, %v", failed.Status(), answered.Status(), root.Status())
	}
	contains(t, attributes(root), "inferencecache.root_id=root", "gen_ai.request.model=m")
	contains(t, attributes(failed), "inferencecache.attempt=0", "[failure inferencecache.phase=dispatch inferencecache.error_code=connect")
	contains(t, attributes(answered), "inferencecache.attempt=1", "inferencecache.origin=index_hint", "inferencecache.replica=pod-0",
		"inferencecache.prediction.overlap_blocks=4", "inferencecache.engine_cached_tokens=48", "gen_ai.usage.input_tokens=64")
}

func TestSpansOfFailures(t *testing.T) {
	f, kept := spanned(t, trace.Switches{ReplicaNames: trace.NamesNone})
	q := f.begin("root")
	q.Attempt(0).Fail(&trace.Failed{Phase: trace.PhaseSelection, Status: 503, ErrorCode: "no_ready_replica"})
	a := q.Attempt(1)
	choose(a, trace.RoleSingle, 1)
	send(a, "e")
	a.Fail(&trace.Failed{Phase: trace.PhaseStream, ErrorCode: "upstream_failed"})
	a.Outcome(&trace.Outcome{Status: 200, Aborted: true})
	q.End()
	ended := kept.Ended()
	if len(ended) != 2 || ended[1].Status().Code != codes.Error {
		t.Fatalf("spans %v", ended)
	}
	contains(t, attributes(ended[0]), "[failure inferencecache.phase=stream", "inferencecache.aborted=true")
	contains(t, attributes(ended[1]), "[failure inferencecache.phase=selection inferencecache.error_code=no_ready_replica")
	if strings.Contains(attributes(ended[0]), "pod-") {
		t.Error("a hidden name is in a span")
	}
}

func TestWithoutSpansHeadersStay(t *testing.T) {
	f := newFixture(t, trace.Switches{})
	a := f.begin("root").Attempt(0)
	send(a, "e")
	header := http.Header{"Traceparent": {"of the client"}}
	a.Inject(header)
	if got := header.Get("Traceparent"); got != "of the client" {
		t.Errorf("traceparent %q", got)
	}
}
