// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/routing"
	"github.com/inferencecache/inference-cache/internal/trace"
)

// Kinds of failed attempts.
const (
	kindConnect   = "connect"
	kindTimeout   = "timeout"
	kindReset     = "reset"
	kindStatus5xx = "status_5xx"
	kindStatus429 = "status_429"
	kindMidStream = "mid_stream"
)

// What became of failed attempts.
const (
	retryOK           = "ok"
	retryFailed       = "failed"
	retryExhausted    = "exhausted"
	retryNotRetryable = "not_retryable"
)

// attempt is one try at one replica, up to the first byte of the answer.
type attempt struct {
	guard *routing.Guard
	// upstream is nil if the replica left before anything was sent.
	upstream *upstream
	// uncut ends the watch for the replica's end.
	uncut func() bool
	// decision is what led to it.
	decision routing.Decision
	// role is that of its leg. mark tells the engine ids of two legs apart.
	role routing.Role
	mark string
	// body is sent in place of the client's, if it is set.
	body []byte
	// legs are those that it belongs to, nil for one alone.
	legs *legs
	// announced is set once the trace has its dispatch; retry500 also retries
	// answers 500.
	announced, retry500 bool
	// trace records it under dispatchID.
	trace      *trace.Attempt
	dispatchID string
	cancel     context.CancelCauseFunc
	ctx        context.Context
	timer      *time.Timer

	// response is nil if there was none. first is the beginning of its body
	// in buffer, and ended says that there is no more.
	response *http.Response
	buffer   *[]byte
	first    []byte
	ended    bool

	// kind classifies a failure; empty for an answer that may be relayed.
	kind string
	// code is a finer cause, for the trace; default kind.
	code      string
	retryable bool
	fault     *apiError
}

// dispatch sends the request until an attempt gives an answer to relay.
func (x *exchange) dispatch(ctx context.Context, request *routing.Request) {
	var last *attempt
	begin := time.Now()
	defer func() { x.abandon(last) }() // a no-op unless something panicked
	for number := 1; ; number++ {
		guard := x.decide(request)
		if guard == nil {
			fault := x.noReplica()
			x.traceNotPlaced(fault)
			x.giveUp(last, fault)
			return
		}
		x.discard(last)
		if last = x.newAttempt(ctx, guard); number == 1 {
			last = x.runHedged(ctx, last, request)
		} else {
			x.run(last)
		}
		if last.kind == "" {
			if x.route.generates {
				x.latenciesOf().note(time.Since(begin))
			}
			if number > 1 {
				x.gateway.metrics.retries.WithLabelValues(retryOK).Inc()
			}
			x.relay(last)
			return
		}
		x.noteFailure(ctx, last)
		retry, wait := x.mayRetry(ctx, last, number), backoffTime(number)
		x.traceFailure(ctx, last, retry, wait)
		if !retry || !pause(ctx, wait) {
			x.giveUp(last, last.fault)
			return
		}
		id, _ := last.guard.Replica()
		request.Exclude = append(request.Exclude, id)
	}
}

// newAttempt prepares a try at the replica of guard.
func (x *exchange) newAttempt(ctx context.Context, guard *routing.Guard) *attempt {
	a := &attempt{guard: guard, decision: x.decision, trace: x.tracing.attempt, dispatchID: trace.NewID(time.Now())}
	a.ctx, a.cancel = context.WithCancelCause(ctx)
	a.timer = time.AfterFunc(x.gateway.options.Timeouts.FirstByte, func() { a.cancel(errFirstByte) })
	return a
}

// run makes an attempt, up to the first byte of an answer.
func (x *exchange) run(a *attempt) {
	id, uid := a.guard.Replica()
	u := x.gateway.roster.get(id)
	if u == nil || u.uid != uid || !u.tenure.begin() {
		a.kind, a.retryable, a.fault = kindConnect, true, upstreamFailed()
		return
	}
	a.upstream = u
	a.uncut = context.AfterFunc(u.cutting, func() { a.cancel(errDrained) })
	x.traceDispatch(a)
	response, err := x.send(a, u)
	if err != nil {
		a.fail(err)
		return
	}
	a.response = response
	if a.classifyStatus(response.StatusCode, x.gateway.options.Retry500 || a.retry500); a.kind != "" {
		return
	}
	a.buffer = buffers.Get().(*[]byte)
	n, err := readSome(response.Body, *a.buffer)
	a.first, a.ended = (*a.buffer)[:n], errors.Is(err, io.EOF)
	if err != nil && !a.ended && n == 0 {
		a.fail(err)
	}
}

// buffers hold pieces of answers.
var buffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// readSome reads until there is something or an error.
func readSome(r io.Reader, p []byte) (int, error) {
	for {
		if n, err := r.Read(p); n > 0 || err != nil {
			return n, err
		}
	}
}

// engineRequest builds the request to a replica.
func (x *exchange) engineRequest(ctx context.Context, a *attempt, u *upstream) *http.Request {
	body := x.body
	if a.body != nil {
		body = a.body
	}
	body = u.pinned(body)
	target := *u.base
	target.Path = x.route.path
	request := &http.Request{
		Method: http.MethodPost, URL: &target, Host: target.Host,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        engineHeader(x.request.Header, x.engineID(a), x.forwardsAuthorization()),
		ContentLength: int64(len(body)),
		Body:          io.NopCloser(bytes.NewReader(body)),
		// With it, the transport resends on a fresh connection when an idle
		// one was closed before anything was written.
		GetBody: func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(body)), nil
		},
	}
	a.trace.Inject(request.Header)
	if u.Rank != nil {
		request.Header[headerRank] = []string{strconv.Itoa(*u.Rank)}
	}
	return request.WithContext(ctx)
}

// fail classifies an attempt that ended without a byte.
func (a *attempt) fail(err error) {
	var operation *net.OpError
	switch cause := context.Cause(a.ctx); {
	case errors.Is(cause, errFirstByte):
		a.kind, a.fault = kindTimeout, upstreamTimeout()
	case errors.Is(cause, errShutdown):
		a.kind, a.fault = kindReset, draining()
	case errors.Is(cause, errDrained), errors.Is(cause, errOtherLeg):
		a.kind, a.retryable, a.fault = kindReset, true, upstreamFailed()
	case cause != nil:
		a.kind, a.fault = kindReset, upstreamFailed() // the client is gone
	case errors.As(err, &operation) && operation.Op == "dial":
		a.kind, a.retryable, a.fault = kindConnect, true, upstreamFailed()
	default:
		a.kind, a.retryable, a.fault = kindReset, true, upstreamFailed()
	}
}

func (a *attempt) classifyStatus(status int, retry500 bool) {
	switch {
	case status < 200, status >= 300 && status < 400:
		// Nobody asked for another protocol, and redirects are not followed.
		a.kind, a.fault = kindReset, upstreamFailed()
	case status == http.StatusTooManyRequests:
		a.kind, a.retryable = kindStatus429, true
	case status == http.StatusBadGateway, status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout:
		a.kind, a.retryable = kindStatus5xx, true
	case status == http.StatusInternalServerError && retry500, status == http.StatusRequestTimeout && retry500:
		a.kind, a.retryable = kindStatus5xx, true
	}
}

// outcome says what a finished attempt proves about its replica.
func (a *attempt) outcome(clientGone bool) routing.Outcome {
	switch {
	case clientGone:
		return routing.Ignored
	case a.kind == kindStatus429, a.upstream == nil, errors.Is(context.Cause(a.ctx), errDrained), errors.Is(context.Cause(a.ctx), errOtherLeg):
		return routing.Ignored
	case a.kind != "":
		return routing.Failed
	case a.response.StatusCode >= http.StatusInternalServerError:
		return routing.Failed
	case a.response.StatusCode >= http.StatusBadRequest:
		return routing.Ignored
	default:
		return routing.Succeeded
	}
}

// noteFailure gives the attempt's load back and counts it.
func (x *exchange) noteFailure(ctx context.Context, a *attempt) {
	a.timer.Stop()
	gone := ctx.Err() != nil
	a.guard.End(time.Now(), a.outcome(gone))
	if gone {
		return
	}
	x.gateway.metrics.upstreamErrors.WithLabelValues(a.kind).Inc()
	id, _ := a.guard.Replica()
	if a.upstream != nil && (a.kind == kindConnect || a.kind == kindReset) {
		a.upstream.probeSoon()
	}
	x.gateway.logger.Debug("attempt failed", "request_id", x.rootID, "replica", id, "kind", a.kind)
}

func (x *exchange) mayRetry(ctx context.Context, a *attempt, number int) bool {
	m := x.gateway.metrics
	switch {
	case ctx.Err() != nil:
		return false
	case !a.retryable:
		m.retries.WithLabelValues(retryNotRetryable).Inc()
		return false
	case number == maxAttempts:
		m.retries.WithLabelValues(retryFailed).Inc()
		return false
	case !x.gateway.budget.takeRetry(time.Now()):
		m.retries.WithLabelValues(retryExhausted).Inc()
		return false
	default:
		return true
	}
}

// discard drops an attempt whose answer is not wanted.
func (x *exchange) discard(a *attempt) {
	if a == nil {
		return
	}
	a.timer.Stop()
	if a.response != nil {
		_ = a.response.Body.Close()
	}
	a.release()
}

// release gives back what the attempt holds, once.
func (a *attempt) release() {
	a.cancel(nil)
	if a.uncut != nil {
		a.uncut()
		a.uncut = nil
		a.upstream.tenure.end()
	}
	if a.buffer != nil {
		buffers.Put(a.buffer)
		a.buffer = nil
	}
}

// abandon ends an attempt that nobody ended, without a verdict.
func (x *exchange) abandon(a *attempt) {
	if a == nil {
		return
	}
	a.guard.End(time.Now(), routing.Ignored)
	x.discard(a)
}

// giveUp relays the last attempt's answer if it has one, else sends fault. A
// client that left gets neither, and counts as one that left.
func (x *exchange) giveUp(last *attempt, fault *apiError) {
	if x.request.Context().Err() != nil {
		x.discard(last)
		panic(http.ErrAbortHandler)
	}
	if last == nil {
		x.reject(fault)
		return
	}
	if last.response == nil || last.fault != nil {
		x.discard(last)
		x.reject(fault)
		return
	}
	last.buffer = buffers.Get().(*[]byte)
	n, err := readSome(last.response.Body, *last.buffer)
	last.first, last.ended = (*last.buffer)[:n], err != nil
	x.relay(last)
}
