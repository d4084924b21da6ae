// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/defaults"
	"github.com/inferencecache/inference-cache/internal/routing"
	"github.com/inferencecache/inference-cache/internal/trace"
)

// errOtherLeg ends a leg because the other one failed or needs it no more.
var errOtherLeg = errors.New("the other leg of the request failed")

const (
	// maxPrefillAnswer bounds the answer of a prefill engine.
	maxPrefillAnswer = 4 << 20
	// prefillGrace is how long a prefill leg may outlive the decode leg.
	prefillGrace = time.Second
	// blameWait is how long a failed decode leg waits for word of a prefill leg
	// that may be the cause.
	blameWait = 100 * time.Millisecond
)

// legs are the attempts of one try at a decode replica, and at a prefill
// replica where there are two.
type legs struct {
	exchange *exchange
	decode   *attempt
	prefill  *attempt // nil for one leg
	// bootstrap runs both at once; otherwise decode follows prefill.
	bootstrap bool
	// nothing is set when the prefill had nothing to pass on, computed when it
	// had, and sent when the decode engine was asked to take it.
	nothing, computed, sent bool
	// drained is closed when a prefill leg that runs beside has ended; stopped
	// is set if it was made to.
	drained chan struct{}
	stopped bool
	once    sync.Once
	usage   *usage // the prefill engine's
	status  int    // of its answer
}

// run makes the legs up to the first byte of an answer. It returns the attempt
// with the answer or with the failure; the other one has ended.
func (l *legs) run(ctx context.Context) *attempt {
	switch {
	case l.prefill == nil:
		l.exchange.run(l.decode)
		return l.decode
	case l.bootstrap:
		return l.runBoth()
	default:
		return l.runInTurn(ctx)
	}
}

// runInTurn has vLLM engines compute the prompt on one and decode on the other.
func (l *legs) runInTurn(ctx context.Context) *attempt {
	x, p, d := l.exchange, l.prefill, l.decode
	var err error
	if p.body, err = prefillBody(x.body); err != nil { // the body was parsed before
		p.kind, p.fault = kindReset, invalidRequest("", "the body is not a JSON object")
		return l.only(p)
	}
	x.run(p)
	if p.response != nil && p.response.StatusCode == http.StatusOK {
		l.computed = true
	}
	if p.kind != "" || !l.computed {
		l.countOrphan(ctx)
		return l.only(p)
	}
	transfer, err := l.readTransfer()
	switch {
	case errors.Is(err, errNoTransfer):
		l.endPrefill()
		l.nothing, p.code = true, codeNothing
		return l.only(nil)
	case errors.Is(err, errExpired):
		p.code = codeExpired
		p.kind, p.retryable, p.fault = kindReset, true, upstreamFailed()
	case err != nil:
		p.fail(err)
	case ctx.Err() != nil:
		p.kind, p.fault = kindReset, upstreamFailed()
	}
	if p.kind != "" {
		l.countOrphan(ctx)
		return l.only(p)
	}
	l.endPrefill()
	l.sent = true
	d.body = withMember(x.body, `"kv_transfer_params":`+string(transfer))
	x.run(d)
	l.checkFirst()
	return d
}

// readTransfer reads the prefill engine's answer to its end.
func (l *legs) readTransfer() (transfer []byte, err error) {
	p := l.prefill
	answer := bytes.Clone(p.first)
	if !p.ended {
		rest, err := io.ReadAll(io.LimitReader(p.response.Body, maxPrefillAnswer+1))
		if err != nil {
			return nil, err
		}
		answer = append(answer, rest...)
	}
	if len(answer) > maxPrefillAnswer {
		return nil, errors.New("the prefill engine's answer is too long")
	}
	l.noteUsage(answer)
	return transferOf(answer, time.Now())
}

func (l *legs) noteUsage(answer []byte) {
	var told struct {
		Usage *usage `json:"usage"`
	}
	if json.Unmarshal(answer, &told) == nil && told.Usage != nil && told.Usage.PromptTokens >= 0 {
		l.usage = told.Usage
	}
}

// checkFirst takes a stream that begins with an error for a failure: nothing of
// the answer has come.
func (l *legs) checkFirst() {
	d := l.decode
	if d.kind == "" && isErrorEvent(d.first) {
		d.kind, d.retryable, d.fault = kindStatus5xx, true, upstreamFailed()
	}
}

// only ends the legs but for one, which says how the try went.
func (l *legs) only(kept *attempt) *attempt {
	for _, a := range []*attempt{l.prefill, l.decode} {
		if a != kept {
			l.exchange.abandon(a)
		}
	}
	switch kept {
	case nil:
		return l.prefill
	case l.prefill:
		l.once.Do(func() {}) // there is nothing left to settle
		l.count(routing.RoleDecode, legCancelled)
		if kept.kind == "" {
			l.count(routing.RolePrefill, legFailed) // its answer is an error, for the client
		}
	}
	return kept
}

// endPrefill notes that the prefill leg did its part.
func (l *legs) endPrefill() {
	p, now := l.prefill, time.Now()
	p.timer.Stop()
	p.guard.FirstByte(now)
	p.guard.End(now, routing.Succeeded)
	l.count(routing.RolePrefill, legOK)
	id, _ := p.guard.Replica()
	ended := trace.Outcome{
		Status: p.response.StatusCode, Role: trace.RolePrefill, Replica: trace.Text(id), Partial: true,
		DurationMS: milliseconds(now.Sub(l.exchange.started)),
	}
	if l.usage != nil {
		ended.PromptTokens = trace.Known(l.usage.PromptTokens)
		if cached, known := l.usage.cachedTokens(); known {
			ended.EngineCachedTokens = trace.Known(max(cached, 0))
		}
	}
	p.trace.Outcome(&ended)
	l.exchange.discard(p)
}

// runBoth sends the request to both SGLang engines at once.
func (l *legs) runBoth() *attempt {
	x, p, d := l.exchange, l.prefill, l.decode
	meeting, ok := l.meeting()
	if !ok {
		p.kind, p.retryable, p.fault = kindConnect, true, upstreamFailed()
		return l.only(p)
	}
	p.body, d.body = meeting.body(x.body), meeting.decodeBody(x.body)
	l.drained, l.sent = make(chan struct{}), true
	go func() {
		defer close(l.drained)
		l.drain()
	}()
	decoded := make(chan struct{})
	go func() {
		defer close(decoded)
		x.run(d)
		l.checkFirst()
	}()
	<-decoded // a prefill leg that fails ends it
	if l.decodes() {
		return d
	}
	l.awaitPrefill(blameWait)
	if p.kind != "" && !l.stopped || l.status >= http.StatusBadRequest {
		return l.only(p)
	}
	if p.kind == "" {
		l.endPrefill()
	} else {
		l.count(routing.RolePrefill, legCancelled)
	}
	l.drained = nil
	return l.only(d)
}

// decodes says whether the decode leg has an answer to begin with.
func (l *legs) decodes() bool {
	return l.decode.kind == "" && l.decode.response.StatusCode < http.StatusBadRequest
}

// drain runs the prefill leg and drops its answer. Its failure ends the decode
// leg.
func (l *legs) drain() {
	p := l.prefill
	l.exchange.run(p)
	if p.kind == "" {
		l.status = p.response.StatusCode
		if l.status < http.StatusBadRequest {
			l.drainAnswer()
		}
	}
	if p.kind != "" || l.status >= http.StatusBadRequest {
		l.decode.cancel(errOtherLeg)
	}
}

func (l *legs) drainAnswer() {
	p := l.prefill
	var reader usageReader
	reader.Write(p.first)
	for !p.ended {
		n, err := p.response.Body.Read(*p.buffer)
		reader.Write((*p.buffer)[:n])
		switch {
		case errors.Is(err, io.EOF):
			p.ended = true
		case err != nil:
			p.fail(err)
			return
		}
	}
	l.usage = reader.last
	if isErrorEvent(p.first) {
		p.kind, p.retryable, p.fault = kindStatus5xx, true, upstreamFailed()
	}
}

// meeting is where the engines meet; false if the prefill engine has left.
func (l *legs) meeting() (*bootstrap, bool) {
	id, uid := l.prefill.guard.Replica()
	u := l.exchange.gateway.roster.get(id)
	if u == nil || u.uid != uid {
		return nil, false
	}
	b := &bootstrap{host: u.base.Hostname(), port: u.BootstrapPort, prefillRank: u.Rank}
	if ip := net.ParseIP(b.host); ip != nil && ip.To4() == nil {
		b.host = "[" + b.host + "]"
	}
	defaults.Set(&b.port, defaultBootstrapPort)
	prompts := l.exchange.pairing.shape.prompts
	b.batch = prompts > 0
	for range max(prompts, 1) {
		b.rooms = append(b.rooms, newRoom())
	}
	return b, true
}

// newRoom returns a random number of 63 bits.
func newRoom() int64 {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return int64(binary.BigEndian.Uint64(random[:]) & math.MaxInt64)
}

// settle notes how the decode leg's answer ended, nil for a whole one, and ends
// a prefill leg that runs beside: at once, or when it has had time to end by
// itself. It may be called more than once, and on nil.
func (l *legs) settle(err error) {
	if l == nil {
		return
	}
	l.once.Do(func() {
		l.settleDecode(err)
		if l.drained != nil {
			wait := time.Duration(0)
			if err == nil || errors.Is(err, errOtherLeg) { // then it has ended, or is about to
				wait = prefillGrace
			}
			l.awaitPrefill(wait)
			l.settlePrefill()
		}
	})
}

func (l *legs) settleDecode(err error) {
	d := l.decode
	switch {
	case d.kind != "": // it was counted, and its answer is passed on for want of a better one
	case errors.Is(err, errClientGone), errors.Is(err, errShutdown), errors.Is(err, errOtherLeg):
		l.count(routing.RoleDecode, legCancelled)
	case err != nil:
		l.noteFailure(l.exchange.request.Context(), d)
	case d.response.StatusCode >= http.StatusBadRequest:
		l.count(routing.RoleDecode, legFailed) // its answer is an error, for the client
	default:
		l.count(routing.RoleDecode, legOK)
	}
}

// settlePrefill says how a leg ended that ran beside.
func (l *legs) settlePrefill() {
	x, p, ctx := l.exchange, l.prefill, l.exchange.request.Context()
	switch {
	case p.kind == "" && l.status < http.StatusBadRequest:
		l.endPrefill()
	case l.stopped, clientLeft(ctx):
		l.count(routing.RolePrefill, legCancelled)
		x.abandon(p)
	default:
		p.kind = cmp.Or(p.kind, kindStatus5xx)
		x.noteFailure(ctx, p)
		l.noteFailure(ctx, p)
		x.traceFailure(ctx, p, false, 0)
		x.discard(p)
	}
}

// awaitPrefill waits for the end of a prefill leg that runs beside, and brings
// it about after a time.
func (l *legs) awaitPrefill(wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-l.drained:
	case <-timer.C:
		l.stopped = true
		l.prefill.cancel(errOtherLeg)
		<-l.drained
	}
}

// reuse is what is known of the prompt's computation: the choice of its
// replica, and the engine's own figures.
func (l *legs) reuse() (*routing.Decision, *routing.Guard, *usage) {
	return &l.prefill.decision, l.prefill.guard, l.usage
}

// noteFailure counts a leg that failed.
func (l *legs) noteFailure(ctx context.Context, failed *attempt) {
	if l.prefill == nil || clientLeft(ctx) {
		return
	}
	l.exchange.gateway.metrics.pd.WithLabelValues(pdLegFailed).Inc()
	l.count(failed.role, legFailed)
	id, _ := failed.guard.Replica()
	l.exchange.gateway.logger.Warn("a leg of a request failed", "request_id", l.exchange.rootID, "leg", failed.role.String(),
		"replica", id, "kind", failed.kind)
}

// countOrphan counts a client that left when its prompt was computed and no
// decode engine asked to take it. The prefill engine keeps the blocks until
// they expire.
func (l *legs) countOrphan(ctx context.Context) {
	if l.prefill == nil || !l.computed || l.sent || !clientLeft(ctx) {
		return
	}
	l.computed = false // so that it counts once
	l.exchange.gateway.metrics.pd.WithLabelValues(pdOrphaned).Inc()
	l.exchange.gateway.logger.Info("client left between the legs of its request",
		"request_id", l.exchange.rootID, "engine_id", strings.ToValidUTF8(l.exchange.engineID(l.prefill), ""))
}

func (l *legs) count(leg routing.Role, result string) {
	if l.prefill != nil {
		l.exchange.gateway.metrics.pdLegs.WithLabelValues(leg.String(), result).Inc()
	}
}
