// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"math"
	"strconv"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
)

// change is how much a status differs from the one that stands.
type change int

const (
	// same: nothing but noise, and times of what is otherwise equal.
	same change = iota
	// drift is what steady traffic brings about.
	drift
	// turn is all else, and is written at once.
	turn
)

const (
	// driftPolls is how many polls lie between two writes of drift, and
	// maxDriftAge how long at most.
	driftPolls  = 4
	maxDriftAge = 2 * time.Minute
	// driftBurst is how many writes of drift need no wait after a quiet time.
	driftBurst = 3
	// turnShare is the share by which a count has to differ to be a turn.
	turnShare = 0.1
	// rateTolerance is a little below 0.01, so that 0.28 and 0.29 differ.
	rateTolerance = 0.01 - 1e-6
	sizeTolerance = 0.01
)

// pace holds back drift, object by object, so that steady traffic does not
// rewrite a status at each poll. It is for one goroutine.
type pace struct {
	window time.Duration
	limits map[types.UID]*rate.Limiter // those that are not full
}

func newPace(interval time.Duration) *pace {
	return &pace{window: min(driftPolls*interval, maxDriftAge), limits: make(map[types.UID]*rate.Limiter)}
}

// due says whether a change of an object is to be written now.
func (p *pace) due(object types.UID, c change, now time.Time) bool {
	if c != drift {
		return c == turn
	}
	limit := p.limits[object]
	if limit == nil {
		limit = rate.NewLimiter(rate.Every(p.window), driftBurst)
		p.limits[object] = limit
	}
	return limit.AllowN(now, 1)
}

// tidy drops what says no more than nothing does.
func (p *pace) tidy(now time.Time) {
	for object, limit := range p.limits {
		if limit.TokensAt(now) >= driftBurst {
			delete(p.limits, object)
		}
	}
}

// countChange compares two counts.
func countChange(next, old int64) change {
	d := math.Abs(float64(next) - float64(old))
	switch {
	case d == 0:
		return same
	case next == 0 || old == 0 || d >= turnShare*max(math.Abs(float64(next)), math.Abs(float64(old))):
		return turn
	}
	return drift
}

// rateChange compares two rates at the precision that readers go by.
func rateChange(next, old *string) change {
	if next == nil || old == nil {
		if next == old {
			return same
		}
		return turn
	}
	a, errNext := strconv.ParseFloat(*next, 64)
	b, errOld := strconv.ParseFloat(*old, 64)
	if errNext == nil && errOld == nil && math.Abs(a-b) < rateTolerance {
		return same
	}
	return drift
}

// sizeChange compares two sizes.
func sizeChange(next, old int64) change {
	if d := math.Abs(float64(next) - float64(old)); d == 0 || d < sizeTolerance*float64(old) {
		return same
	}
	return drift
}
