// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/inferencecache/inference-cache/internal/admission"
	"github.com/inferencecache/inference-cache/internal/routing"
)

// bytesPerToken is the estimate used before a prompt was tokenized.
const bytesPerToken = 4

// live are the options that may change while the gateway runs.
type live struct {
	// hedgePercentile is 0 without hedging.
	hedgePercentile int
	// shedAbove is 0 without shedding.
	shedAbove time.Duration
	// policy and fallback are the names they were made from.
	policy, fallback string
	// pdMinUncached as in Options, from 0.
	pdMinUncached int
}

func (o *Options) live() *live {
	return &live{
		hedgePercentile: o.HedgePercentile, shedAbove: o.ShedTTFT, policy: o.Policy, fallback: o.Fallback,
		pdMinUncached: max(o.PDMinUncached, 0),
	}
}

func (o *Options) admission() admission.Settings {
	return admission.Settings{MaxInflight: o.MaxInflight, QueueLimit: o.QueueLimit, QueueTimeout: o.Timeouts.Queue}
}

// Apply makes the gateway go on with other options. Replicas, Policy, Fallback,
// MaxInflight, QueueLimit, Timeouts.Queue, ShedTTFT, HedgePercentile, PDMinUncached and
// Trace.Switches take effect, all others need a new gateway. On an error, which
// is an ErrOptions, nothing changes.
func (g *Gateway) Apply(options Options) error {
	options = options.withDefaults()
	if err := options.validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrOptions, err)
	}
	policy, err := routing.NewPolicy(options.Policy, routing.PolicyOptions{Fallback: options.Fallback})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrOptions, err)
	}
	g.applying.Lock()
	defer g.applying.Unlock()
	if err := g.trace.Set(options.Trace.Switches); err != nil {
		return fmt.Errorf("%w: %w", ErrOptions, err)
	}
	if err := g.SetReplicas(options.Replicas); err != nil {
		return err
	}
	before := g.live.Swap(options.live())
	if before.policy != options.Policy || before.fallback != options.Fallback {
		g.fleet.SetPolicy(policy)
	}
	g.gate.Set(options.admission())
	return nil
}

// admit waits for a place among the requests under way.
func (x *exchange) admit(ctx context.Context) (*admission.Ticket, *apiError) {
	g := x.gateway
	queue := g.metrics.queue.WithLabelValues(x.route.endpoint)
	queue.Inc()
	defer queue.Dec()
	ticket, err := g.gate.Enter(ctx, admission.Request{
		Caller: x.caller.Tenant,
		Limits: admission.Limits{MaxInflight: x.caller.Limits.MaxInflight, TokensPerMinute: x.caller.Limits.TokensPerMinute},
		Tokens: int(max(x.request.ContentLength, 0) / bytesPerToken),
	})
	var refusal *admission.Refusal
	switch {
	case err == nil:
		return ticket, nil
	case errors.As(err, &refusal):
		return nil, refused(refusal)
	case errors.Is(context.Cause(ctx), errShutdown):
		return nil, draining()
	default:
		panic(http.ErrAbortHandler) // the client is gone
	}
}

// refused is the answer to a request that was not admitted.
func refused(r *admission.Refusal) *apiError {
	fault := overloaded()
	fault.retryAfterSeconds = int(math.Ceil(r.RetryAfter.Seconds()))
	switch r.Reason {
	case admission.CallerInflight:
		fault.code, fault.reason, fault.message = codeRateLimited, rejectRate, "you have too many requests under way"
	case admission.CallerTokens:
		fault.code, fault.reason, fault.message = codeRateLimited, rejectRate, "you have used up your tokens per minute"
	default:
		fault.reason = rejectQueue
	}
	return fault
}

// noPlace is the answer when no replica was chosen.
func (x *exchange) noPlace() *apiError {
	switch {
	case x.decision.Shed:
		fault := overloaded()
		fault.message = "every replica would make this request wait too long"
		over := x.decision.MinWait - x.gateway.live.Load().shedAbove
		fault.retryAfterSeconds = max(int(math.Ceil(over.Seconds())), 1)
		return fault
	case x.decision.AtCapacity:
		fault := overloaded()
		fault.message = "every replica has as many requests as it may"
		return fault
	default:
		return noReadyReplica()
	}
}
