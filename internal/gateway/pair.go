// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/inferencecache/inference-cache/internal/chatform"
	"github.com/inferencecache/inference-cache/internal/engines"
	"github.com/inferencecache/inference-cache/internal/routing"
	"github.com/inferencecache/inference-cache/internal/trace"
)

// Outcomes of requests with a decode replica, beside the modes of a pair.
const (
	pdOrphaned  = "orphaned"
	pdLegFailed = "leg_failed"
)

var pdOutcomes = []string{
	string(routing.PairTwoLegs), string(routing.PairShort), string(routing.PairNoPrefill), string(routing.PairUnsupported),
	pdOrphaned, pdLegFailed,
}

// Results of a leg.
const (
	legOK        = "ok"
	legFailed    = "failed"
	legCancelled = "cancelled"
)

var legResults = []string{legOK, legFailed, legCancelled}

// pairing is what an exchange knows of its pair.
type pairing struct {
	// mode is that of the latest attempt, empty without a decode replica;
	// prefill names the replica that computed the prompt for another one.
	mode    routing.PairMode
	prefill string
	rules   routing.PairRules
	shape   shape
	known   bool // rules and shape are
}

// reason is what x-inference-cache-reason says of it.
func (p *pairing) reason() string {
	switch {
	case p.mode == routing.PairNone:
		return ""
	case p.prefill == "":
		return "; pd=" + string(p.mode)
	default:
		return "; pd=" + string(p.mode) + "; prefill=" + p.prefill
	}
}

// pdLocal says whether a selection is that of a decode replica which computes
// the prompt itself.
func (x *exchange) pdLocal(request *routing.Request) bool {
	mode := x.pairing.mode
	return request.Role == routing.RoleDecode && mode != routing.PairNone && mode != routing.PairTwoLegs
}

// eligible returns the replicas that may have a part in the request, and gives
// it the role of a decode leg if one that decodes may get it.
func (x *exchange) eligible(request *routing.Request) []string {
	fleet := x.gateway.fleet
	if !fleet.HasPairs(request) {
		return fleet.Eligible(nil, request)
	}
	request.Role = routing.RoleDecode
	prefill, single := *request, *request
	prefill.Role, prefill.Target = routing.RolePrefill, ""
	single.Role = routing.RoleSingle
	return fleet.Eligible(fleet.Eligible(fleet.Eligible(nil, request), &prefill), &single)
}

// pairRules says when this request takes two legs.
func (x *exchange) pairRules() *routing.PairRules {
	p := &x.pairing
	if !p.known {
		p.known = true
		p.shape = shapeOf(x.body)
		p.rules = routing.PairRules{
			Local: x.route.form != chatform.None || p.shape.several || p.shape.prompts > 1,
			Given: x.fields.transfer,
		}
	}
	p.rules.MinUncached = x.gateway.live.Load().pdMinUncached
	return &p.rules
}

// decidePair takes the decision for one attempt with a decode replica and
// counts it.
func (x *exchange) decidePair(request *routing.Request) routing.Pair {
	request.Now = time.Now()
	pair := x.gateway.fleet.DecidePair(request, x.pairRules())
	if unfit := x.unfit(); pair.Decode.Guard == nil && len(request.Exclude) > len(unfit) {
		request.Exclude = unfit // nobody else is left: try those that failed again
		pair = x.gateway.fleet.DecidePair(request, x.pairRules())
	}
	if pair.Decode.Guard == nil {
		return pair
	}
	request.ShedAbove = 0 // it was let in
	x.gateway.metrics.selectSeconds.Observe(time.Since(request.Now).Seconds())
	x.gateway.metrics.pd.WithLabelValues(string(pair.Mode)).Inc()
	x.pairing.mode, x.pairing.prefill = pair.Mode, pair.Prefill.Decision.Replica
	mode := trace.ModeRegular
	if pair.Mode == routing.PairTwoLegs {
		mode = trace.ModePD
	}
	x.tracing.request.SetMode(mode)
	x.traceAttempt()
	if pair.Asked {
		x.traceSelection(&pair.Prefill.Request, &pair.Prefill.Decision)
		x.countDecision(&pair.Prefill.Decision)
	}
	x.traceSelection(&pair.Decode.Request, &pair.Decode.Decision)
	x.countDecision(&pair.Decode.Decision)
	x.decision = pair.Decode.Decision
	x.noteTarget(&x.decision)
	return pair
}

// place sends the request, in two legs if there are replicas for that.
func (x *exchange) place(ctx context.Context, request *routing.Request) {
	if request.Role == routing.RoleDecode {
		x.dispatchPairs(ctx, request)
		return
	}
	x.dispatch(ctx, request)
}

// dispatchPairs is dispatch for requests with a decode replica.
func (x *exchange) dispatchPairs(ctx context.Context, request *routing.Request) {
	var last *attempt
	begin := time.Now()
	defer func() { x.abandon(last) }() // a no-op unless something panicked
	for number := 1; ; number++ {
		pair := x.decidePair(request)
		if pair.Decode.Guard == nil {
			x.withoutPair(ctx, request, last, &pair)
			return
		}
		x.discard(last)
		l := x.newLegs(ctx, &pair)
		last = l.run(ctx)
		if l.nothing { // the engine did not fail, so it costs no attempt
			x.pairing.rules.Local = true
			x.traceFailure(ctx, last, true, 0)
			number--
			continue
		}
		if last.kind == "" {
			x.latenciesOf().note(time.Since(begin))
			if number > 1 {
				x.gateway.metrics.retries.WithLabelValues(retryOK).Inc()
			}
			defer l.settle(errClientGone) // in case the relay panics
			x.relay(last)
			return
		}
		x.noteFailure(ctx, last)
		l.noteFailure(ctx, last)
		retry, wait := x.mayRetry(ctx, last, number), backoffTime(number)
		x.traceFailure(ctx, last, retry, wait)
		if !retry || !pause(ctx, wait) {
			l.countOrphan(ctx)
			x.giveUp(last, last.fault)
			return
		}
		id, _ := last.guard.Replica()
		request.Exclude = append(request.Exclude, id)
	}
}

// withoutPair serves a request whose decode replicas are gone, or cannot do
// without a prefill replica, at replicas that do both.
func (x *exchange) withoutPair(ctx context.Context, request *routing.Request, last *attempt, pair *routing.Pair) {
	single := *request
	single.Role = routing.RoleSingle
	x.pairing.mode, x.pairing.prefill = routing.PairNone, ""
	x.tracing.request.SetMode(trace.ModeRegular)
	if last == nil && len(x.gateway.fleet.Eligible(nil, &single)) > 0 {
		x.dispatch(ctx, &single)
		return
	}
	x.traceAttempt()
	if pair.Asked {
		x.traceSelection(&pair.Prefill.Request, &pair.Prefill.Decision)
	}
	x.traceSelection(&pair.Decode.Request, &pair.Decode.Decision)
	x.decision = pair.Decode.Decision
	x.countDecision(&x.decision)
	x.noteTarget(&x.decision)
	fault := x.noReplica()
	if pair.Asked && fault.status == http.StatusServiceUnavailable {
		fault.message = "no prefill replica is ready, and the decode replicas cannot do without one"
	}
	x.traceNotPlaced(fault)
	x.giveUp(last, fault)
}

// newLegs prepares the attempts of one try.
func (x *exchange) newLegs(ctx context.Context, pair *routing.Pair) *legs {
	l := &legs{exchange: x, decode: x.newAttempt(ctx, pair.Decode.Guard)}
	l.decode.role = routing.RoleDecode
	if pair.Prefill.Guard == nil {
		return l
	}
	l.prefill = x.newAttempt(ctx, pair.Prefill.Guard)
	l.prefill.timer.Stop()
	l.prefill.timer = time.AfterFunc(x.gateway.options.Timeouts.PDPrefill, func() { l.prefill.cancel(errFirstByte) })
	l.prefill.role, l.prefill.decision = routing.RolePrefill, pair.Prefill.Decision
	l.prefill.dispatchID = l.decode.dispatchID
	l.prefill.mark, l.decode.mark = "-p", "-d"
	l.decode.legs, l.decode.retry500 = l, true
	l.bootstrap = pair.Prefill.Request.Transport == engines.SGLang
	l.prefill.announced, l.decode.announced = true, true
	l.decode.trace.Dispatch(&trace.Sent{DispatchID: l.decode.dispatchID, IDs: []trace.EngineID{
		{ID: x.engineID(l.prefill), Role: trace.RolePrefill}, {ID: x.engineID(l.decode), Role: trace.RoleDecode},
	}})
	return l
}

// clientLeft says whether a request ended because its client did.
func clientLeft(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(context.Cause(ctx), errShutdown)
}
