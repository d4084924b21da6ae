// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/inferencecache/inference-cache/internal/caller"
	"github.com/inferencecache/inference-cache/internal/routing"
	"github.com/inferencecache/inference-cache/internal/trace"
)

// Trace says what becomes of the record of each decision. The zero value keeps
// the latest records in memory and no more.
type Trace struct {
	// Switches may change while the gateway runs, see Gateway.Apply.
	Switches trace.Switches
	// File takes all records as lines of JSON; it is rotated. Default none.
	File string
	// Tracer makes spans; default none.
	Tracer oteltrace.Tracer
	// Problem is told of records that break the rules of their format; default
	// nobody.
	Problem func(string)
}

// openTrace builds the recorder.
func (g *Gateway) openTrace() error {
	t := &g.options.Trace
	options := trace.Options{
		Switches: t.Switches, Log: trace.NewLogSink(g.logger), Tracer: t.Tracer, Registerer: g.options.Registry, Problem: t.Problem,
	}
	if t.File != "" {
		file, err := trace.OpenFile(t.File, trace.FileOptions{})
		if err != nil {
			return err
		}
		options.File = file
	}
	recorder, err := trace.New(options)
	if err != nil {
		return fmt.Errorf("open the trace: %w", err)
	}
	g.trace = recorder
	switch header := recorder.Switches().Header; {
	case header == trace.HeaderAny:
		g.logger.Warn("the trace header goes to untrusted clients too: they learn engine ids and policy predictions")
	case header == trace.HeaderTrusted && g.options.Access.TrustedListen == "":
		g.logger.Warn("nobody gets the trace header: there is no trusted listener")
	}
	return nil
}

// tracing is the trace of an exchange. It belongs to the exchange's goroutine.
type tracing struct {
	request *trace.Request
	// phase is where a failure before any attempt happens.
	phase string
	// attempt is the one of the latest decision, attempts counts them.
	attempt  *trace.Attempt
	attempts int
}

// beginTrace starts the trace of an exchange.
func (x *exchange) beginTrace(root *rootIdentity) {
	g := x.gateway
	info := trace.Info{
		Endpoint: x.route.endpoint, Mode: trace.ModeRegular, RootID: root.id, RootIDSource: root.source,
		RootIDTruncated: root.truncated, Trusted: x.trusted,
	}
	if g.options.Trace.Tracer != nil {
		info.Context = trace.ContextOf(context.Background(), x.request.Header)
	}
	x.tracing.request, x.tracing.phase = g.trace.Begin(info), trace.PhaseIngress
}

// traceInbound takes trace headers of the client. One that asks for this
// request's header counts only if that is granted; all others are removed.
func (x *exchange) traceInbound(method caller.Method) {
	tenant := ""
	if method == caller.MethodKey || method == caller.MethodCertificate || method == caller.MethodToken {
		tenant = x.caller.Tenant
	}
	own := http.CanonicalHeaderKey(x.gateway.trace.Switches().HeaderName)
	stripped := 0
	for _, name := range []string{trace.HeaderName, trace.HeaderAlias} {
		for _, value := range x.request.Header[name] {
			asks := value == "1" && (name == trace.HeaderName || name == own)
			if !asks || !x.tracing.request.AskHeader(tenant) {
				stripped++
			}
		}
	}
	x.gateway.trace.CountStripped(trace.SideInbound, stripped)
}

// traceBody adds what the body told.
func (x *exchange) traceBody() {
	x.tracing.request.Describe(cmp.Or(x.model.name, x.model.base, x.fields.model), x.fields.callerID)
}

// traceNotPlaced records that no replica was chosen.
func (x *exchange) traceNotPlaced(fault *apiError) {
	phase := trace.PhaseSelection
	if x.decision.Shed || x.decision.AtCapacity {
		phase = trace.PhaseAcquire
	}
	x.tracing.attempt.Fail(&trace.Failed{Phase: phase, Status: fault.status, ErrorCode: fault.code})
}

// traceRejection records a failure before any attempt.
func (x *exchange) traceRejection(fault *apiError) {
	if x.tracing.attempts == 0 {
		x.tracing.request.Attempt(0).Fail(&trace.Failed{Phase: x.tracing.phase, Status: fault.status, ErrorCode: fault.code})
	}
	x.traceHeader(x.writer.Header(), nil)
}

// traceHeader adds the trace header of an attempt, or of the last one.
func (x *exchange) traceHeader(header http.Header, of *trace.Attempt) {
	name, value, ok := x.tracing.request.Header(of)
	if ok {
		header[name] = []string{value}
	}
}

// traceDispatch records that an attempt is about to be sent. The load guard is
// held.
func (x *exchange) traceDispatch(a *attempt) {
	if a.announced {
		return
	}
	a.trace.Dispatch(&trace.Sent{
		DispatchID: a.dispatchID, IDs: []trace.EngineID{{ID: x.engineID(a), Role: roleOf(a.role)}},
	})
}

// engineID is the id of an attempt that the engine's logs carry.
func (x *exchange) engineID(a *attempt) string { return x.rootID + a.mark + "-" + a.dispatchID }

// Error codes of failed attempts beside the kinds.
const (
	codeClientGone = "client_gone"
	codeOvertaken  = "overtaken"
	codeDrained    = "replica_left"
	codeExpired    = "transfer_expired"
	codeNothing    = "no_transfer"
)

// traceFailure records that an attempt failed, and what follows.
func (x *exchange) traceFailure(ctx context.Context, a *attempt, willRetry bool, wait time.Duration) {
	failed := trace.Failed{
		Phase: trace.PhaseDispatch, Role: roleOf(a.role), ErrorCode: cmp.Or(a.code, a.kind), Retryable: a.retryable, WillRetry: willRetry, Backoff: wait,
	}
	if a.upstream == nil {
		failed.Phase, failed.ErrorCode = trace.PhaseAcquire, codeDrained
	}
	if a.response != nil {
		failed.Status = a.response.StatusCode
	}
	switch cause := context.Cause(a.ctx); {
	case errors.Is(cause, errHedged):
		failed.ErrorCode = codeOvertaken
	case errors.Is(cause, errDrained):
		failed.ErrorCode = codeDrained
	case ctx.Err() != nil && !errors.Is(context.Cause(ctx), errShutdown):
		failed.ErrorCode = codeClientGone
	}
	a.trace.Fail(&failed)
}

// traceOutcome records how a relayed answer ended. err is nil for a whole one.
func (x *exchange) traceOutcome(r *relay, err error) {
	a, now := r.attempt, time.Now()
	status := a.response.StatusCode
	switch {
	case err != nil && !errors.Is(err, errClientGone):
		phase := trace.PhaseBody
		if r.events {
			phase = trace.PhaseStream
		}
		a.trace.Fail(&trace.Failed{Phase: phase, Role: roleOf(a.role), Status: status, ErrorCode: brokenAnswer(err).code})
	case err == nil && status >= http.StatusInternalServerError:
		a.trace.Fail(&trace.Failed{Phase: trace.PhaseDispatch, Role: roleOf(a.role), Status: status, ErrorCode: kindStatus5xx})
	}
	id, _ := a.guard.Replica()
	outcome := trace.Outcome{
		Status: status, Role: roleOf(a.role), Replica: trace.Text(id), Aborted: err != nil,
		DurationMS: milliseconds(now.Sub(x.started)),
	}
	if !r.firstAt.IsZero() {
		outcome.TTFBMS = trace.Known(milliseconds(r.firstAt.Sub(x.started)))
	}
	if reported := r.usage.last; reported != nil && r.counts {
		outcome.PromptTokens = trace.Known(reported.PromptTokens)
		if cached, known := reported.cachedTokens(); known {
			outcome.EngineCachedTokens = trace.Known(max(cached, 0))
		}
	}
	a.trace.Outcome(&outcome)
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// traceDecision records the selection that led to a decision.
func (x *exchange) traceDecision(request *routing.Request, decision *routing.Decision) {
	x.traceAttempt()
	x.traceSelection(request, decision)
}

// traceAttempt begins the trace of another attempt.
func (x *exchange) traceAttempt() {
	x.tracing.attempt = x.tracing.request.Attempt(x.tracing.attempts)
	x.tracing.attempts++
}

func (x *exchange) traceSelection(request *routing.Request, decision *routing.Decision) {
	if x.tracing.attempt != nil {
		x.recordSelection(x.tracing.attempt, request, decision)
	}
}

// countUpstreamTrace counts trace headers of an engine; the client never gets
// them.
func (x *exchange) countUpstreamTrace(header http.Header) {
	x.gateway.trace.CountStripped(trace.SideUpstream, len(header[trace.HeaderName])+len(header[trace.HeaderAlias]))
}
