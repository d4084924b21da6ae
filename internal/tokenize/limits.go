// SPDX-License-Identifier: Apache-2.0

package tokenize

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"github.com/maypok86/otter/v2"

	"github.com/inferencecache/inference-cache/internal/breaker"
	"github.com/inferencecache/inference-cache/internal/defaults"
)

// Limits bound what tokenizing may cost. The zero value works.
type Limits struct {
	// Timeout bounds one prompt. Default 100 ms.
	Timeout time.Duration
	// MaxConcurrent bounds prompts under way. Default 64.
	MaxConcurrent int
	// MaxPromptBytes bounds the input of one. Default 1 MiB.
	MaxPromptBytes int
	// CacheEntries and CacheBytes bound the cache of results. Defaults 10,000
	// and 64 MiB.
	CacheEntries, CacheBytes int
	// Breaker stops work while it fails. Default: 3 failures open it for
	// 5 s, 1 success closes it.
	Breaker breaker.Settings
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

func (l *Limits) setDefaults() {
	defaults.Positive(&l.Timeout, 100*time.Millisecond)
	defaults.Positive(&l.MaxConcurrent, 64)
	defaults.Positive(&l.MaxPromptBytes, 1<<20)
	defaults.Positive(&l.CacheEntries, 10_000)
	defaults.Positive(&l.CacheBytes, 64<<20)
	defaults.Positive(&l.Breaker.Failures, 3)
	defaults.Positive(&l.Breaker.OpenFor, 5*time.Second)
	defaults.Positive(&l.Breaker.Successes, 1)
	if l.Now == nil {
		l.Now = time.Now
	}
}

// guarded is what all tokenizers that do work have in common.
type guarded struct {
	limits Limits
	slots  chan struct{}
	cache  *otter.Cache[cacheKey, Result]

	mu      sync.Mutex
	breaker *breaker.Breaker
}

type cacheKey = [sha256.Size]byte

// featureBytes is what a Feature weighs besides its identifier.
const featureBytes = 64

func newGuarded(limits Limits) (*guarded, error) {
	limits.setDefaults()
	// A floor under each entry's weight makes the weight bound the number of
	// entries as well.
	floor := limits.CacheBytes / limits.CacheEntries
	cache, err := otter.New(&otter.Options[cacheKey, Result]{
		MaximumWeight: uint64(limits.CacheBytes),
		Weigher: func(_ cacheKey, result Result) uint32 {
			weight := 4 * len(result.Tokens)
			for _, feature := range result.Features {
				weight += featureBytes + len(feature.ID)
			}
			return uint32(max(weight, floor))
		},
	})
	if err != nil {
		return nil, fmt.Errorf("new cache: %w", err)
	}
	return &guarded{
		limits:  limits,
		slots:   make(chan struct{}, limits.MaxConcurrent),
		cache:   cache,
		breaker: breaker.New(limits.Breaker),
	}, nil
}

// BreakerState reports on the breaker.
func (g *guarded) BreakerState() breaker.State {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.breaker.State(g.limits.Now())
}

// cached answers from the cache, or asks work and remembers its answer.
func (g *guarded) cached(ctx context.Context, key cacheKey, work func(context.Context) (Result, error)) (Result, error) {
	if result, ok := g.cache.GetIfPresent(key); ok {
		result.Source = SourceCache
		return result, nil
	}
	result, err := work(ctx)
	if err != nil {
		return Result{}, err
	}
	g.cache.Set(key, result)
	return result, nil
}

// enter takes a slot; leave gives it back. False means that all are taken.
func (g *guarded) enter() bool {
	select {
	case g.slots <- struct{}{}:
		return true
	default:
		return false
	}
}

func (g *guarded) leave() { <-g.slots }

// reasonOf classifies the error of work that ran under callCtx, a child of
// ctx.
func reasonOf(ctx, callCtx context.Context, err error) Reason {
	switch reason, classified := classify(err); {
	case ctx.Err() != nil:
		return ReasonCancelled
	case callCtx.Err() != nil:
		return ReasonTimeout
	case classified:
		return reason
	default:
		return ReasonFailed
	}
}
