// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"math"
	"time"
)

// balance bounds what evening out the load may cost in reuse: a share of all
// prompt tokens may be computed again for it. Unused budget is kept up to a
// bound.
type balance struct {
	share  float64
	budget float64
}

// maxSpareTokens bounds the budget, so that a long quiet time does not pay for
// moving everything at once.
const maxSpareTokens = 32 << 10

func (b *balance) sparable() int { return int(b.budget) }

// spend accounts for one dispatch.
func (b *balance) spend(promptTokens, givenUpTokens int) {
	b.budget += b.share*float64(promptTokens) - float64(givenUpTokens)
	b.budget = min(max(b.budget, 0), maxSpareTokens)
}

// recency weighs dispatches so that their weight halves with time. Weights
// grow instead of old sums shrinking, so that sums compare without a pass over
// all replicas.
type recency struct {
	halfLife time.Duration
	since    time.Time
}

// rescaleAt keeps weights finite.
const rescaleAt = 1 << 40

// weightLocked returns the weight of a dispatch now.
func (f *Fleet) weightLocked(now time.Time) float64 {
	if f.recency.since.IsZero() {
		f.recency.since = now
	}
	weight := math.Exp2(now.Sub(f.recency.since).Seconds() / f.recency.halfLife.Seconds())
	if weight < rescaleAt {
		return weight
	}
	for _, m := range f.ordered {
		m.recent /= weight
	}
	f.recency.since = now
	return 1
}

// shareLocked tells the eligible candidates what they were given lately, and
// returns the mean.
func (f *Fleet) shareLocked(now time.Time) (meanRequests float64) {
	weight := f.weightLocked(now)
	for _, i := range f.eligible {
		c := &f.considered[i]
		c.Requests = f.ordered[i].recent / weight
		meanRequests += c.Requests
	}
	return meanRequests / float64(max(len(f.eligible), 1))
}
