// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/inferencecache/inference-cache/internal/breaker"
	"github.com/inferencecache/inference-cache/internal/routing"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// Values of reason_code for lookups without an answer, and for answers with a
// code of the future.
const (
	reasonClientTimeout = "CLIENT_TIMEOUT"
	reasonUnavailable   = "UNAVAILABLE"
	reasonBreakerOpen   = "BREAKER_OPEN"
	reasonSkipped       = "SKIPPED"
	reasonOther         = "other"
)

const (
	warnInterval = time.Minute
	maxWarnKeys  = 256
)

// NewRemoteLookuper returns a Lookuper that asks a server.
func NewRemoteLookuper(connection grpc.ClientConnInterface) Lookuper {
	return remoteLookuper{pb.NewInferenceCacheClient(connection)}
}

type remoteLookuper struct{ client pb.InferenceCacheClient }

func (r remoteLookuper) LookupRoute(ctx context.Context, request *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
	return r.client.LookupRoute(ctx, request)
}

// pool is a set of replicas whose blocks are found under the same keys.
type pool struct {
	tenant, model, scheme string
	blockSize             int
}

// indexClient asks the index and never fails: what goes wrong becomes a hint
// without scores. It is safe for concurrent use.
type indexClient struct {
	lookuper Lookuper
	timeout  time.Duration
	metrics  *metrics
	logger   *slog.Logger
	warnings *limiter
	sight    *sight

	mu      sync.Mutex
	breaker *breaker.Breaker
}

func newIndexClient(lookuper Lookuper, timeout time.Duration, m *metrics, logger *slog.Logger) *indexClient {
	return &indexClient{
		lookuper: lookuper, timeout: timeout, metrics: m, logger: logger,
		warnings: newLimiter(warnInterval, maxWarnKeys),
		sight:    newSight(),
		breaker:  breaker.New(breaker.Settings{Failures: 5, OpenFor: 2 * time.Second, Successes: 1}),
	}
}

func (c *indexClient) state() breaker.State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.breaker.State(time.Now())
}

// ask looks a chain of keys up in one pool. ttftMillis is the time to first
// token that is hoped for, 0 if none is.
func (c *indexClient) ask(ctx context.Context, p pool, adapter string, ttftMillis int32, keys []uint64) routing.Hint {
	hint := routing.Hint{BlockSize: p.blockSize, RequestBlocks: len(keys)}
	trial, ok := c.admit()
	if !ok {
		c.metrics.lookups.WithLabelValues(reasonBreakerOpen).Inc()
		hint.Without, hint.Down = routing.BranchNoHint, true
		return hint
	}
	request := lookupRequest(p, adapter, keys)
	if ttftMillis > 0 {
		request.Slo = &pb.SLO{TtftMs: ttftMillis}
	}
	begin := time.Now()
	callCtx, cancel := context.WithDeadline(ctx, begin.Add(c.timeout))
	defer cancel()
	answer, err := c.lookuper.LookupRoute(callCtx, request)
	took := time.Since(begin)
	hint.Took = took
	if err != nil || answer == nil {
		hint.Down = true
		hint.Without = c.failed(ctx, callCtx, trial, took)
		return hint
	}
	c.end(func(b *breaker.Breaker) { b.Success(trial) })
	c.metrics.lookupSeconds.WithLabelValues("ok").Observe(took.Seconds())
	c.answered(p, answer.GetReasonCode())
	blind, began := c.sight.note(modelKey{p.tenant, p.model}, answer.GetReasonCode())
	if began {
		c.logger.Warn("index sees nothing of this model; routing by own placements", "tenant", p.tenant, "model", p.model)
	}
	hint.Blind = blind
	hint.Reason = answer.GetReasonCode()
	if hint.Reason == "" {
		hint.Without = routing.BranchNoHint
	}
	hint.Scores = make([]routing.Score, len(answer.GetReplicaScores()))
	for i, score := range answer.GetReplicaScores() {
		hint.Scores[i] = routing.Score{
			Replica: score.GetReplicaId(), MatchedTokens: int(score.GetMatchedTokens()), Score: score.GetScore(),
		}
	}
	return hint
}

func lookupRequest(p pool, adapter string, keys []uint64) *pb.LookupRouteRequest {
	counts := make([]int32, len(keys))
	for i := range counts {
		counts[i] = int32(p.blockSize)
	}
	return &pb.LookupRouteRequest{
		ModelId: p.model, TenantId: p.tenant, HashScheme: p.scheme, AdapterId: adapter,
		BlockHashes: fingerprint.Wire(keys), BlockTokenCounts: counts,
	}
}

func (c *indexClient) admit() (trial, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if !c.breaker.Permits(now) {
		return false, false
	}
	return c.breaker.Start(now), true
}

func (c *indexClient) end(note func(*breaker.Breaker)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	note(c.breaker)
}

// failed counts a call without an answer. A client that left says nothing
// about the index.
func (c *indexClient) failed(ctx, callCtx context.Context, trial bool, took time.Duration) routing.Branch {
	reason, result, branch := reasonUnavailable, "error", routing.BranchNoHint
	if callCtx.Err() != nil {
		reason, result, branch = reasonClientTimeout, "timeout", routing.BranchTimeout
	}
	c.metrics.lookupSeconds.WithLabelValues(result).Observe(took.Seconds())
	c.metrics.lookups.WithLabelValues(reason).Inc()
	opened := false
	c.end(func(b *breaker.Breaker) {
		if ctx.Err() != nil {
			b.Ignore(trial)
			return
		}
		opened = b.Failure(trial, time.Now())
	})
	if opened {
		c.logger.Warn("index does not answer; routing by load", "reason", reason)
	}
	return branch
}

// answered counts an answer and warns about keys the index does not know: a
// sign of a wrong configuration.
func (c *indexClient) answered(p pool, reason string) {
	c.metrics.lookups.WithLabelValues(knownReason(reason)).Inc()
	key, value := "", ""
	switch reason {
	case "UNKNOWN_TENANT":
		key, value = "tenant", p.tenant
	case "UNKNOWN_MODEL":
		key, value = "model", p.model
	case "UNKNOWN_HASH_SCHEME":
		key, value = "hash_scheme", p.scheme
	default:
		return
	}
	if c.warnings.allow(reason+" "+value, time.Now()) {
		c.logger.Warn("the index knows nothing under this key; do publishers use the same value?",
			"reason", reason, key, value)
	}
}

// knownReason maps codes of the future to one value.
func knownReason(reason string) string {
	if slices.Contains(lookupReasons, reason) {
		return reason
	}
	return reasonOther
}

// limiter lets each key pass once per interval. It remembers a bounded number
// of keys and refuses new ones beyond that until the interval is over.
type limiter struct {
	interval time.Duration
	limit    int

	mu   sync.Mutex
	last map[string]time.Time
}

func newLimiter(interval time.Duration, limit int) *limiter {
	return &limiter{interval: interval, limit: limit, last: map[string]time.Time{}}
}

func (l *limiter) allow(key string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, known := l.last[key]
	if known && now.Sub(last) < l.interval {
		return false
	}
	if !known && len(l.last) >= l.limit {
		for other, at := range l.last {
			if now.Sub(at) >= l.interval {
				delete(l.last, other)
			}
		}
		if len(l.last) >= l.limit {
			return false
		}
	}
	l.last[key] = now
	return true
}
