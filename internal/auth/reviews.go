// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/gate"
)

const (
	admittedLife  = 30 * time.Second
	deniedLife    = 5 * time.Second
	maxDenied     = 1024
	reviewTimeout = 5 * time.Second
	// maxTokenBytes is longer than any token a cluster issues.
	maxTokenBytes = 16 << 10
	// maxLoggedBytes bounds what is logged of a reviewer's text.
	maxLoggedBytes = 256
)

// Review is what a reviewer says of a token.
type Review struct {
	Authenticated bool
	Username      string
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
	// alive ends at Close; the reviews under way end with it.
	alive   context.Context
	endAll  context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	admitted *expiring[Identity]     // guarded by mu
	denied   *expiring[gate.Verdict] // guarded by mu
	flights  map[tokenSum]*flight    // guarded by mu
	sources  *sources                // guarded by mu
}

// outcome is what is known of a token.
type outcome struct {
	identity Identity
	verdict  gate.Verdict
}

// flight is a review under way. outcome is set before done is closed.
type flight struct {
	done    chan struct{}
	outcome outcome
}

// NewReviews returns Reviews, which Close ends.
func NewReviews(options ReviewOptions) *Reviews {
	options = options.withDefaults()
	r := &Reviews{
		options:  options,
		logger:   options.Logger.With("endpoint", options.Endpoint),
		admitted: newExpiring[Identity](admittedLife, options.MaxAdmitted),
		denied:   newExpiring[gate.Verdict](deniedLife, maxDenied),
		flights:  make(map[tokenSum]*flight),
		sources:  newSources(),
	}
	r.alive, r.endAll = context.WithCancel(context.Background())
	return r
}

// Close ends the reviews under way and refuses new ones.
func (r *Reviews) Close() {
	r.mu.Lock()
	r.endAll()
	r.mu.Unlock()
	r.running.Wait()
}

// Check judges the bearer of a request.
func (r *Reviews) Check(request *http.Request) gate.Verdict {
	token, ok := gate.Bearer(request)
	if !ok {
		return gate.Unauthenticated
	}
	source, _, err := net.SplitHostPort(request.RemoteAddr)
	if err != nil {
		source = request.RemoteAddr
	}
	_, verdict := r.Authenticate(request.Context(), source, token)
	return verdict
}

// Authenticate returns whose token it is. source is the caller's address. The
// identity is good only with OK. It waits for a review at most until ctx ends.
func (r *Reviews) Authenticate(ctx context.Context, source, token string) (Identity, gate.Verdict) {
	if len(token) > maxTokenBytes {
		return Identity{}, gate.Unauthenticated
	}
	known, running := r.begin(sumOf(token), source, token)
	if running == nil {
		return known.identity, known.verdict
	}
	select {
	case <-running.done:
		return running.outcome.identity, running.outcome.verdict
	case <-ctx.Done():
		return Identity{}, gate.Error
	}
}

// begin answers from memory, or joins or starts a review.
func (r *Reviews) begin(key tokenSum, source, token string) (known outcome, running *flight) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.options.Now()
	running = r.flights[key]
	if identity, left, ok := r.admitted.get(key, now); ok {
		r.count(resultCacheHit)
		if running == nil && left < r.options.RefreshAhead && r.mayStartLocked(source, now) {
			r.startLocked(key, token)
		}
		return outcome{identity, gate.OK}, nil
	}
	if verdict, _, ok := r.denied.get(key, now); ok {
		r.count(resultNegativeHit)
		return outcome{verdict: verdict}, nil
	}
	switch {
	case running != nil:
		return outcome{}, running
	case !r.mayStartLocked(source, now):
		r.count(resultLimited)
		return outcome{verdict: gate.Error}, nil
	}
	return outcome{}, r.startLocked(key, token)
}

func (r *Reviews) mayStartLocked(source string, now time.Time) bool {
	return r.alive.Err() == nil && r.sources.allow(source, now)
}

func (r *Reviews) startLocked(key tokenSum, token string) *flight {
	f := &flight{done: make(chan struct{})}
	r.flights[key] = f
	r.running.Go(func() {
		f.outcome.identity, f.outcome.verdict = r.review(token)
		r.finish(key, f.outcome)
		close(f.done)
	})
	return f
}

func (r *Reviews) finish(key tokenSum, o outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.flights, key)
	now := r.options.Now()
	switch o.verdict {
	case gate.OK:
		r.admitted.put(key, o.identity, now)
	case gate.Unauthenticated, gate.Forbidden:
		r.admitted.remove(key)
		r.denied.put(key, o.verdict, now)
	case gate.Error:
	}
}

// review asks the reviewer.
func (r *Reviews) review(token string) (Identity, gate.Verdict) {
	ctx, cancel := context.WithTimeout(r.alive, reviewTimeout)
	defer cancel()
	review, err := r.options.Reviewer.Review(ctx, token, r.options.Audience)
	if err != nil {
		r.count(resultError)
		r.logger.Warn("a token could not be reviewed", "error", loggable(err.Error(), token))
		return Identity{}, gate.Error
	}
	identity, verdict := r.judge(review, token)
	if verdict == gate.OK {
		r.count(resultOK)
	} else {
		r.count(resultDenied)
	}
	return identity, verdict
}

func (r *Reviews) judge(review Review, token string) (Identity, gate.Verdict) {
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
	return identityOf(review), gate.OK
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
