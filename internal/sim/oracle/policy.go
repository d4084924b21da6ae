// SPDX-License-Identifier: Apache-2.0

package oracle

import "time"

// Bound is the load beyond which a replica gets no request for the sake of
// its cache. The zero value uses the defaults, which are the gateway's.
type Bound struct {
	// ToleratedWait is the longest prefill queue. Default 2 s.
	ToleratedWait time.Duration
	// PrefillTokensPerSecond turns queued tokens into time. Default 8000.
	PrefillTokensPerSecond float64
}

// saturated tells whether a replica is beyond the bound: its queue is too
// long, or it has more than 1.5 times and 10 above the mean of requests.
func (b Bound) saturated(f *Fleet, replica int) bool {
	wait, rate := b.ToleratedWait, b.PrefillTokensPerSecond
	if wait <= 0 {
		wait = 2 * time.Second
	}
	if rate <= 0 {
		rate = 8000
	}
	if float64(f.Queued(replica)) > rate*wait.Seconds() {
		return true
	}
	total := 1
	for other := range f.Size() {
		total += f.InFlight(other)
	}
	mean := float64(total) / float64(f.Size())
	return float64(f.InFlight(replica)) > max(1.5*mean, mean+10)
}

// AllKnowing returns the router that knows every cache and queue exactly: the
// longest held prefix among replicas within the bound, then the least load.
func AllKnowing(bound Bound) Policy {
	return func(f *Fleet, arrival *Arrival) int {
		best, bestHeld := -1, -1
		for replica := range f.Size() {
			if bound.saturated(f, replica) {
				continue
			}
			held := f.Held(replica, arrival)
			if held > bestHeld || held == bestHeld && f.lessLoaded(replica, best) {
				best, bestHeld = replica, held
			}
		}
		if best < 0 {
			return LeastLoad(f, arrival)
		}
		return best
	}
}

// LeastLoad is the router that sees only queues.
func LeastLoad(f *Fleet, _ *Arrival) int {
	best := 0
	for replica := 1; replica < f.Size(); replica++ {
		if f.lessLoaded(replica, best) {
			best = replica
		}
	}
	return best
}

// RoundRobin returns the router that sees nothing.
func RoundRobin() Policy {
	next := 0
	return func(f *Fleet, _ *Arrival) int {
		next++
		return (next - 1) % f.Size()
	}
}

// lessLoaded orders by queued tokens, then requests in flight, then requests
// ever served.
func (f *Fleet) lessLoaded(a, b int) bool {
	switch {
	case f.Queued(a) != f.Queued(b):
		return f.Queued(a) < f.Queued(b)
	case f.InFlight(a) != f.InFlight(b):
		return f.InFlight(a) < f.InFlight(b)
	default:
		return f.Served(a) < f.Served(b)
	}
}
