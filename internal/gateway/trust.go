// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/inferencecache/inference-cache/internal/caller"
	"github.com/inferencecache/inference-cache/internal/routing"
)

// Headers by which trusted clients steer.
const (
	headerTarget = "X-Inference-Cache-Target"
	headerTTFT   = "X-Inference-Cache-Ttft-Ms"
)

// Outcomes of requests that name a replica.
const (
	targetFollowed   = "followed"
	targetUnknown    = "unknown"
	targetIneligible = "ineligible"
)

var targetOutcomes = []string{targetFollowed, targetUnknown, targetIneligible}

const codeAuthUnavailable = "authentication_unavailable"

// Results of authentication.
const (
	authOK          = "ok"
	authRefused     = "refused"
	authForbidden   = "forbidden"
	authUnavailable = "unavailable"
)

// steering is what a trusted client asks for.
type steering struct {
	// target is the only replica allowed; empty allows all.
	target string
	// ttftMillis is the time to first token it hopes for; 0 says nothing.
	ttftMillis int32
	// counted is set once it is known what became of target.
	counted bool
}

// identify finds out the caller of a request and counts control headers that
// are not believed.
func (g *Gateway) identify(ctx context.Context, request *http.Request, trusted bool) (Caller, caller.Method, *apiError) {
	if !trusted {
		g.metrics.countStripped(request.Header)
	}
	found, method, err := g.resolver.Resolve(ctx, &caller.Shown{Header: request.Header, TLS: request.TLS, Trusted: trusted})
	var fault *apiError
	result := authOK
	switch {
	case err == nil:
	case errors.Is(err, caller.ErrForbidden):
		result, fault = authForbidden, &apiError{status: http.StatusForbidden, code: "forbidden", message: err.Error()}
	case errors.Is(err, caller.ErrUnavailable):
		result, fault = authUnavailable, &apiError{status: http.StatusServiceUnavailable, code: codeAuthUnavailable,
			message: err.Error(), retryAfterSeconds: 1}
	case errors.Is(err, caller.ErrInvalid):
		result, fault = authRefused, invalidRequest("", err.Error())
	default:
		result, fault = authRefused, unauthenticated(err.Error())
	}
	g.metrics.authentications.WithLabelValues(string(method), result).Inc()
	return found, method, fault
}

// admitted guards an endpoint that is answered here.
func (g *Gateway) admitted(trusted bool, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, request *http.Request) {
		if _, _, fault := g.identify(request.Context(), request, trusted); fault != nil {
			g.metrics.countRejection(fault)
			fault.write(w)
			return
		}
		next(w, request)
	}
}

// authenticate finds out the caller and, if it is trusted, what it asks for.
func (x *exchange) authenticate(ctx context.Context) *apiError {
	var fault *apiError
	x.caller, x.foundBy, fault = x.gateway.identify(ctx, x.request, x.trusted)
	x.traceInbound(x.foundBy)
	if fault != nil || !x.trusted {
		return fault
	}
	x.steering, fault = steeringOf(x.request.Header)
	return fault
}

// steeringOf reads the control headers of a trusted client.
func steeringOf(header http.Header) (steering, *apiError) {
	asked := steering{target: header.Get(headerTarget)}
	if text := header.Get(headerTTFT); text != "" {
		millis, err := strconv.ParseInt(text, 10, 32)
		if err != nil || millis < 1 {
			return steering{}, invalidRequest("", "x-inference-cache-ttft-ms: expected milliseconds from 1")
		}
		asked.ttftMillis = int32(millis)
	}
	return asked, nil
}

// noteTarget counts what became of a replica that the client named.
func (x *exchange) noteTarget(decision *routing.Decision) {
	if x.steering.target == "" || x.steering.counted {
		return
	}
	x.steering.counted = true
	outcome := targetFollowed
	if decision.Replica == "" {
		outcome = targetUnknown
		if x.gateway.roster.get(x.steering.target) != nil {
			outcome = targetIneligible
		}
	}
	x.gateway.metrics.targets.WithLabelValues(outcome).Inc()
}

// noReplica is the fault of a request that no replica may get.
func (x *exchange) noReplica() *apiError {
	if unfit := len(x.unfit()); unfit > 0 && unfit == len(x.gateway.roster.all()) && x.gateway.anyReady() {
		return notFound("no replica offers this endpoint")
	}
	fault := x.noPlace()
	if x.steering.target != "" {
		fault = noReadyReplica()
		fault.message = "the replica that the request names is unknown or cannot take it now"
	}
	return fault
}

// forwardsAuthorization reports whether engines get the client's Authorization
// header. An API key of the gateway is not for them.
func (x *exchange) forwardsAuthorization() bool {
	return x.gateway.options.ForwardAuthorization && x.foundBy != caller.MethodKey
}

// partition separates what the gateway remembers of one caller tenant from
// what it remembers of others.
func (x *exchange) partition() string {
	if x.gateway.options.Access.Salt == SaltOff {
		return ""
	}
	return x.caller.Tenant
}
