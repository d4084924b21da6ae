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

// sources limits what each source may cause. It is not safe for concurrent use.
type sources struct {
	perSecond rate.Limit
	burst     int
	limits    map[string]*rate.Limiter
	// shared limits all sources together that find no room.
	shared *rate.Limiter
	swept  time.Time
}

func newSources(perSecond rate.Limit, burst int) *sources {
	return &sources{
		perSecond: perSecond, burst: burst,
		limits: make(map[string]*rate.Limiter), shared: rate.NewLimiter(perSecond, burst),
	}
}

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
			if limit.TokensAt(now) >= float64(s.burst) {
				delete(s.limits, other)
			}
		}
	}
	if len(s.limits) >= maxSources {
		return s.shared
	}
	limit := rate.NewLimiter(s.perSecond, s.burst)
	s.limits[source] = limit
	return limit
}
