// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/inferencecache/inference-cache/internal/chatform"
	"github.com/inferencecache/inference-cache/internal/finding"
	"github.com/inferencecache/inference-cache/internal/routing"
)

// relay passes an answer on to the client, piece by piece, and ends the
// attempt.
func (x *exchange) relay(a *attempt) {
	defer a.release()
	header := x.writer.Header()
	copyAnswerHeader(header, a.response.Header)
	header.Set(headerRequestID, x.rootID)
	x.exposeDecision(header)
	x.countUpstreamTrace(a.response.Header)
	x.traceHeader(header, a.trace)
	r := &relay{
		exchange: x, attempt: a,
		control: http.NewResponseController(x.writer),
		events:  isEventStream(a.response.Header),
		counts:  x.route.generates && a.response.StatusCode == http.StatusOK,
	}
	x.relayed = r
	x.writer.WriteHeader(a.response.StatusCode)
	defer func() { _ = r.control.SetWriteDeadline(time.Time{}) }()
	err := r.run()
	if r.done {
		err = nil // whatever happens to either connection after that
	}
	a.timer.Stop()
	_ = a.response.Body.Close()
	gone := errors.Is(err, errClientGone)
	outcome := a.outcome(gone)
	if err != nil && !gone {
		outcome = routing.Failed
	}
	if errors.Is(err, errShutdown) || errors.Is(err, errDrained) || errors.Is(err, errOtherLeg) {
		outcome = routing.Ignored
	}
	a.guard.End(time.Now(), outcome)
	a.legs.settle(err)
	x.account(r)
	x.traceOutcome(r, err)
	if err != nil && !gone {
		r.breakOff(err)
	}
	if gone {
		panic(http.ErrAbortHandler) // nobody reads the rest; close the connection
	}
}

// errClientGone ends a relay whose client left.
var errClientGone = errors.New("client is gone")

func isEventStream(header http.Header) bool {
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	return err == nil && kind == "text/event-stream"
}

// relay is the state of an answer on its way.
type relay struct {
	exchange *exchange
	attempt  *attempt
	control  *http.ResponseController
	// events is set for server-sent events, counts for answers whose usage
	// is of interest.
	events, counts bool

	// pending is the beginning of a line of events whose end has not come.
	pending []byte
	// midEvent is set while the last complete line is not an empty one.
	midEvent bool
	// done is set once the client has the last event of a complete stream.
	done bool
	// dropBlank is set after an event was removed, up to its last line.
	dropBlank       bool
	usage           usageReader
	firstAt, lastAt time.Time
}

// maxPendingBytes bounds a line that is held back.
const maxPendingBytes = 1 << 20

func (r *relay) run() error {
	a := r.attempt
	if err := r.pass(a.first); err != nil {
		return err
	}
	idle := r.exchange.gateway.options.Timeouts.Idle
	a.timer.Stop()
	a.timer = time.AfterFunc(idle, func() { a.cancel(errIdle) })
	for !a.ended {
		n, err := a.response.Body.Read(*a.buffer)
		a.timer.Reset(idle)
		if passErr := r.pass((*a.buffer)[:n]); passErr != nil {
			return passErr
		}
		switch {
		case errors.Is(err, io.EOF):
			a.ended = true
		case err != nil:
			return r.upstreamError(err)
		}
	}
	rest := r.pending
	if r.exchange.usageAdded {
		rest = r.withoutUsage(rest)
	}
	return r.write(rest)
}

// upstreamError tells a replica that failed from a client that left.
func (r *relay) upstreamError(err error) error {
	switch cause := context.Cause(r.attempt.ctx); {
	case cause == nil:
		return err
	case errors.Is(cause, errIdle), errors.Is(cause, errFirstByte), errors.Is(cause, errShutdown), errors.Is(cause, errDrained), errors.Is(cause, errOtherLeg):
		return cause
	default:
		return errClientGone
	}
}

// pass hands a piece to the client. Of events, only whole lines are passed on:
// a client can use no less, and a failure can then be reported as an event of
// its own.
func (r *relay) pass(piece []byte) error {
	if len(piece) == 0 {
		return nil
	}
	r.lastAt = time.Now()
	if r.firstAt.IsZero() {
		r.firstAt = r.lastAt
		r.attempt.guard.FirstByte(r.firstAt)
		if r.exchange.route.generates {
			r.exchange.gateway.metrics.ttftSeconds.WithLabelValues(r.exchange.route.endpoint).
				Observe(r.firstAt.Sub(r.exchange.started).Seconds())
		}
	}
	if r.counts {
		r.usage.Write(piece)
	}
	if !r.events {
		return r.write(piece)
	}
	end := bytes.LastIndexByte(piece, '\n') + 1
	if end == 0 && len(r.pending)+len(piece) < maxPendingBytes {
		r.pending = append(r.pending, piece...)
		return nil
	}
	if end == 0 {
		end = len(piece)
	}
	whole := piece[:end]
	if len(r.pending) > 0 {
		whole = append(r.pending, whole...)
	}
	if r.exchange.usageAdded {
		whole = r.withoutUsage(whole)
	}
	err := r.write(whole)
	r.done = r.done || err == nil && endsStream(whole)
	r.midEvent = len(whole) > 0 && !bytes.HasSuffix(whole, []byte("\n\n")) && !bytes.HasSuffix(whole, []byte("\n\r\n"))
	r.pending = append(r.pending[:0], piece[end:]...)
	return err
}

// endsStream reports whether lines end with the event that ends a stream.
func endsStream(lines []byte) bool {
	lines = bytes.TrimRight(lines, "\r\n")
	return bytes.Equal(lines, endOfStream) || bytes.HasSuffix(lines, lineEndOfStream)
}

var (
	lineEndOfStream = []byte("\ndata: [DONE]")
	endOfStream     = lineEndOfStream[1:]
)

// write sends bytes to the client at once.
func (r *relay) write(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	x := r.exchange
	_ = r.control.SetWriteDeadline(time.Now().Add(x.gateway.options.Timeouts.Idle))
	_, err := x.writer.Write(p)
	if err == nil {
		err = r.control.Flush()
	}
	if err != nil {
		return errClientGone
	}
	return nil
}

// breakOff tells the client that the answer is incomplete: by an event in a
// stream of events, else by closing the connection.
func (r *relay) breakOff(err error) {
	x := r.exchange
	x.gateway.metrics.upstreamErrors.WithLabelValues(kindMidStream).Inc()
	id, _ := r.attempt.guard.Replica()
	x.gateway.logger.Warn("answer broke off", "request_id", x.rootID, "replica", id, "error", err)
	if !r.events {
		panic(http.ErrAbortHandler)
	}
	fault := brokenAnswer(err)
	var event []byte
	if r.midEvent {
		event = append(event, '\n')
	}
	if x.route.form != chatform.None {
		event = append(event, "event: error\n"...) // these APIs name their events
	}
	event = append(append(append(event, "data: "...), fault.body()...), "\n\n"...)
	_ = r.write(event)
}

// brokenAnswer is what a client is told of an answer that broke off.
func brokenAnswer(err error) *apiError {
	switch {
	case errors.Is(err, errShutdown):
		return draining()
	case errors.Is(err, errIdle), errors.Is(err, errFirstByte):
		return upstreamTimeout()
	default:
		fault := upstreamFailed()
		fault.message = "the replica failed in the middle of its answer"
		return fault
	}
}

// account compares what was predicted with what the engine reports.
func (x *exchange) account(r *relay) {
	m := x.gateway.metrics
	if !r.counts {
		return
	}
	decision, guard, reported := &x.decision, r.attempt.guard, r.usage.last
	if r.attempt.legs != nil { // what is reused, is reused where the prompt is computed
		decision, guard, reported = r.attempt.legs.reuse()
	}
	prompt := x.promptTokens
	if prompt == 0 && reported != nil {
		prompt = reported.PromptTokens
	}
	prediction := &decision.Prediction
	m.tokens.WithLabelValues("prompt").Add(float64(prompt))
	m.tokens.WithLabelValues("best_overlap").Add(float64(prediction.BestOverlapTokens))
	overlap := prediction.OverlapTokens
	if prediction.Source != routing.SourceIndexLookup {
		overlap = 0 // a guess is no hit
	}
	m.tokens.WithLabelValues("chosen_overlap").Add(float64(overlap))
	if prompt > 0 {
		m.matchRatio.Observe(float64(overlap) / float64(prompt))
	}
	cached, known := 0, false
	if reported != nil {
		cached, known = reported.cachedTokens()
	}
	if !known {
		m.tokens.WithLabelValues("engine_unknown").Add(float64(prompt))
	} else {
		m.tokens.WithLabelValues("engine_cached").Add(float64(max(cached, 0)))
	}
	x.checkParity(decision, reported, cached, known)
	if known && !x.batch && !x.fields.several {
		x.checkHonesty(guard, cached)
	}
	if told := r.usage.last; told != nil && told.CompletionTokens > 1 && r.events {
		perToken := r.lastAt.Sub(r.firstAt).Seconds() / float64(told.CompletionTokens-1)
		m.tpotSeconds.WithLabelValues(x.route.endpoint).Observe(perToken)
	}
}

// checkHonesty tells the fleet what the engine had, and people what follows.
func (x *exchange) checkHonesty(guard *routing.Guard, cached int) {
	dishonest, changed := guard.Cached(cached)
	if !changed {
		return
	}
	id, _ := guard.Replica()
	g := x.gateway
	if !dishonest {
		g.found.Clear(finding.ReplicaDishonest, id)
		g.logger.Info("the engine has what the index claims again", "replica", id)
		return
	}
	const what = "the engine has less than half of what the index claims"
	g.found.Raise(finding.Finding{
		Code: finding.ReplicaDishonest, Where: id, What: what,
		Action: "compare block size, salt and prefix caching of the engine with its publisher's; " +
			"its prefixes get no credit until 1,000 answers are better",
	}, time.Now())
	g.logger.Warn(what+"; its prefixes get no credit", "finding", finding.ReplicaDishonest, "replica", id)
}

func (x *exchange) checkParity(decision *routing.Decision, reported *usage, cached int, cachedKnown bool) {
	m := x.gateway.metrics
	result := "skipped"
	comparable := !x.batch && !x.fields.several
	if reported != nil && x.promptTokens > 0 && comparable {
		result = verdict(reported.PromptTokens == x.promptTokens)
		if of, known := x.gateway.pools.Load().byReplica[decision.Replica]; known {
			x.gateway.parity.noteCount(of, reported.PromptTokens != x.promptTokens)
		}
	}
	m.parity.WithLabelValues(checkCount, result).Inc()

	result = "skipped"
	prediction := &decision.Prediction
	if cachedKnown && comparable && prediction.ReasonCode == routing.ReasonPrefixMatch {
		difference := prediction.OverlapTokens - cached
		sign := "over"
		if difference < 0 {
			sign, difference = "under", -difference
		}
		m.errorTokens.WithLabelValues(sign).Observe(float64(difference))
		result = verdict(difference <= prediction.BlockSize)
	}
	m.parity.WithLabelValues(checkCached, result).Inc()
}

func verdict(ok bool) string {
	if ok {
		return "ok"
	}
	return "mismatch"
}
