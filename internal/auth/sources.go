// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"time"

	"golang.org/x/time/rate"
)

const (
	reviewsPerSecond = 10
	reviewBurst      = 20
	maxSources       = 4096
	// sourceSweepInterval is the least time between two sweeps of a full
	// table.
	sourceSweepInterval = time.Second
)

// sources limits what each source address may cause. It is not safe for
// concurrent use.
type sources struct {
	limits map[string]*rate.Limiter
	// shared limits all sources together that find no room.
	shared *rate.Limiter
	swept  time.Time
}

func newSources() *sources {
	return &sources{limits: make(map[string]*rate.Limiter), shared: newLimiter()}
}

func newLimiter() *rate.Limiter { return rate.NewLimiter(reviewsPerSecond, reviewBurst) }

// allow reports whether a source may cause one more review.
func (s *sources) allow(source string, now time.Time) bool {
	limit, ok := s.limits[source]
	if !ok {
		limit = s.admit(source, now)
	}
	return limit.AllowN(now, 1)
}

func (s *sources) admit(source string, now time.Time) *rate.Limiter {
	if len(s.limits) >= maxSources && now.Sub(s.swept) >= sourceSweepInterval {
		s.swept = now
		for other, limit := range s.limits {
			if limit.TokensAt(now) >= reviewBurst {
				delete(s.limits, other)
			}
		}
	}
	if len(s.limits) >= maxSources {
		return s.shared
	}
	limit := newLimiter()
	s.limits[source] = limit
	return limit
}
