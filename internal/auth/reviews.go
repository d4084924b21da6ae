// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/inferencecache/inference-cache/internal/gate"
)

const (
	// maxTokenBytes is longer than any token a cluster issues.
	maxTokenBytes = 16 << 10
	// maxLoggedBytes bounds what is logged of a reviewer's text.
	maxLoggedBytes = 256
)

// Review is what a reviewer says of a token.
type Review struct {
	Authenticated bool
	Username      string
	// UID, Groups and Extra are what else the API server knows of the user.
	UID    string
	Groups []string
	Extra  map[string][]string
	// Pod and PodUID are those of the pod the token is bound to, if any.
	Pod, PodUID string
	// Audiences are those of the ones asked for that the token is good for.
	Audiences []string
	// Reason explains a refusal.
	Reason string
}

// Reviewer judges tokens. An error means that it could not.
type Reviewer interface {
	Review(ctx context.Context, token, audience string) (Review, error)
}

// ReviewOptions of Reviews. Reviewer and Audience are required.
type ReviewOptions struct {
	Reviewer Reviewer
	// Audience must be among those that the token was issued for.
	Audience string
	// Username is the one user admitted, others are Forbidden. Default all.
	Username string
	// Permit decides about users once their token is good, and may complete
	// their identity. It may block until ctx ends. Default all.
	Permit func(ctx context.Context, id *Identity) gate.Verdict
	// Elsewhere reports tokens that another judge takes: they are refused
	// without a review or a line in the log. Default none.
	Elsewhere func(token string) bool
	// MaxAdmitted bounds the admitted tokens remembered. Default 32.
	MaxAdmitted int
	// RefreshAhead reviews a token in use again this long before it would be
	// forgotten, so that no caller waits. Default never.
	RefreshAhead time.Duration
	// Endpoint is the label of the metrics. Default EndpointSnapshot.
	Endpoint string
	// Metrics counts reviews. Default nowhere.
	Metrics *Metrics
	// Logger takes refusals and failures. Default none.
	Logger *slog.Logger
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

func (o ReviewOptions) withDefaults() ReviewOptions {
	if o.MaxAdmitted <= 0 {
		o.MaxAdmitted = 32
	}
	if o.Endpoint == "" {
		o.Endpoint = EndpointSnapshot
	}
	if o.Permit == nil {
		o.Permit = func(context.Context, *Identity) gate.Verdict { return gate.OK }
	}
	if o.Elsewhere == nil {
		o.Elsewhere = func(string) bool { return false }
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Reviews judges the tokens of one endpoint by a Reviewer. It remembers what
// was admitted for 30 s and what was denied for 5 s, reviews a token once at a
// time, and lets each source address cause 10 reviews a second. Who cannot be
// reviewed is not admitted. It is safe for concurrent use.
type Reviews struct {
	options ReviewOptions
	logger  *slog.Logger
	sources *sources // guarded by the memo's lock
	memo    *memo[tokenSum, shownToken, Identity]
}

// shownToken is a token and the address it came from.
type shownToken struct{ source, token string }

// NewReviews returns Reviews, which Close ends.
func NewReviews(options ReviewOptions) *Reviews {
	options = options.withDefaults()
	r := &Reviews{
		options: options,
		logger:  options.Logger.With("endpoint", options.Endpoint),
		sources: newSources(reviewsPerSecond, reviewBurst),
	}
	r.memo = newMemo[tokenSum](memoOptions[shownToken, Identity]{
		maxAdmitted:  options.MaxAdmitted,
		refreshAhead: options.RefreshAhead,
		now:          options.Now,
		allow:        func(t shownToken, now time.Time) bool { return r.sources.allow(t.source, now) },
		ask:          r.review,
		count:        r.count,
	})
	return r
}

// Close ends the reviews under way and refuses new ones.
func (r *Reviews) Close() { r.memo.close() }

// Check judges the bearer of a request.
func (r *Reviews) Check(request *http.Request) gate.Verdict {
	token, ok := gate.Bearer(request)
	if !ok {
		return gate.Unauthenticated
	}
	_, verdict := r.Authenticate(request.Context(), sourceOf(request), token)
	return verdict
}

// sourceOf returns the address of a caller.
func sourceOf(request *http.Request) string {
	source, _, err := net.SplitHostPort(request.RemoteAddr)
	if err != nil {
		return request.RemoteAddr
	}
	return source
}

// Authenticate returns whose token it is. source is the caller's address. The
// identity is good only with OK. It waits for a review at most until ctx ends.
func (r *Reviews) Authenticate(ctx context.Context, source, token string) (Identity, gate.Verdict) {
	if len(token) > maxTokenBytes {
		return Identity{}, gate.Unauthenticated
	}
	return r.memo.get(ctx, sumOf(token), shownToken{source, token})
}

// review asks the reviewer.
func (r *Reviews) review(ctx context.Context, t shownToken) (Identity, gate.Verdict) {
	if r.options.Elsewhere(t.token) {
		return Identity{}, gate.Unauthenticated
	}
	review, err := r.options.Reviewer.Review(ctx, t.token, r.options.Audience)
	if err != nil {
		r.count(resultError)
		r.logger.Warn("a token could not be reviewed", "error", loggable(err.Error(), t.token))
		return Identity{}, gate.Error
	}
	identity, verdict := r.judge(ctx, review, t.token)
	switch verdict {
	case gate.OK:
		r.count(resultOK)
	case gate.Error:
		r.count(resultError)
	default:
		r.count(resultDenied)
	}
	return identity, verdict
}

func (r *Reviews) judge(ctx context.Context, review Review, token string) (Identity, gate.Verdict) {
	switch {
	case !review.Authenticated:
		r.logger.Warn("a token was refused", "reason", loggable(review.Reason, token))
		return Identity{}, gate.Unauthenticated
	case !slices.Contains(review.Audiences, r.options.Audience):
		r.logger.Warn("a token was refused", "reason", "the review does not confirm the audience")
		return Identity{}, gate.Unauthenticated
	case r.options.Username != "" && review.Username != r.options.Username:
		r.logger.Warn("a caller is not the one admitted", "caller", loggable(review.Username, token))
		return Identity{}, gate.Forbidden
	}
	identity := identityOf(review)
	verdict := r.options.Permit(ctx, &identity)
	switch verdict {
	case gate.OK:
		return identity, verdict
	case gate.Forbidden:
		r.logger.Warn("a caller is not one admitted", "caller", loggable(review.Username, token))
	}
	return Identity{}, verdict
}

func (r *Reviews) count(result string) {
	r.options.Metrics.reviews.WithLabelValues(r.options.Endpoint, result).Inc()
}

// loggable shortens a text and takes the token out of it.
func loggable(text, token string) string {
	if token != "" {
		text = strings.ReplaceAll(text, token, "(token)")
	}
	return strings.ToValidUTF8(text[:min(len(text), maxLoggedBytes)], "")
}
