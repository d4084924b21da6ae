// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	maxAttempts = 3

	firstBackoff  = 50 * time.Millisecond
	backoffFactor = 1.5
	backoffJitter = 0.2
	maxBackoff    = time.Second

	budgetSeconds = 10
	budgetShare   = 0.2
	// budgetFloor lets a gateway with little traffic retry at all.
	budgetFloor = 10
)

// retryBudget bounds retries to a share of the requests of the last seconds,
// so that retries cannot multiply an overload. It is safe for concurrent use.
type retryBudget struct {
	mu sync.Mutex
	// buckets count by second, modulo budgetSeconds.
	buckets [budgetSeconds]struct {
		second            int64
		requests, retries int
	}
}

// request notes a request.
func (b *retryBudget) request(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buckets[b.currentLocked(now)].requests++
}

// takeRetry notes a retry, unless that exceeds the budget.
func (b *retryBudget) takeRetry(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	current := b.currentLocked(now)
	requests, retries := 0, 0
	for i := range b.buckets {
		if now.Unix()-b.buckets[i].second < budgetSeconds {
			requests += b.buckets[i].requests
			retries += b.buckets[i].retries
		}
	}
	if float64(retries+1) > max(budgetShare*float64(requests), budgetFloor) {
		return false
	}
	b.buckets[current].retries++
	return true
}

// currentLocked returns the index of the bucket of now, emptied if old.
func (b *retryBudget) currentLocked(now time.Time) int {
	second := now.Unix()
	i := int(second % budgetSeconds)
	if b.buckets[i].second != second {
		b.buckets[i].second, b.buckets[i].requests, b.buckets[i].retries = second, 0, 0
	}
	return i
}

// backoffTime is the wait before an attempt (1 = the first retry).
func backoffTime(attempt int) time.Duration {
	wait := float64(firstBackoff)
	for range attempt - 1 {
		wait *= backoffFactor
	}
	return time.Duration(min(wait, float64(maxBackoff)) * (1 + backoffJitter*(2*rand.Float64()-1)))
}

// pause waits. False means that ctx ended.
func pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
