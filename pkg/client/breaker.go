// SPDX-License-Identifier: Apache-2.0

package client

import (
	"sync"
	"time"
)

// BreakerState is where a Client's breaker stands.
type BreakerState uint8

// States. A closed breaker lets every lookup through, an open one none, a
// half-open one waits for the trial that is under way.
const (
	BreakerClosed BreakerState = iota
	BreakerOpened
	BreakerHalfOpen
)

// String returns the state's name in metrics.
func (s BreakerState) String() string {
	switch s {
	case BreakerOpened:
		return "open"
	case BreakerHalfOpen:
		return "half_open"
	default:
		return "closed"
	}
}

type outcome uint8

const (
	success outcome = iota
	failure
	// silence says nothing about the server.
	silence
)

// breaker stops calls after failures in a row and tries again with one call at
// a time. It is safe for concurrent use.
type breaker struct {
	failures int
	openFor  time.Duration

	mu    sync.Mutex
	state BreakerState
	// streak of failures while closed.
	streak    int
	openUntil time.Time
	// generation counts changes of state, so that a call that ends decides
	// nothing in a state it did not begin in.
	generation uint64
}

// admit says whether a call may start. An admitted call ends with one finish,
// which takes the ticket.
func (b *breaker) admit(now time.Time) (ticket uint64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == BreakerHalfOpen || b.state == BreakerOpened && now.Before(b.openUntil) {
		return 0, false
	}
	if b.state == BreakerOpened {
		b.moveLocked(BreakerHalfOpen)
	}
	return b.generation, true
}

// finish notes how a call ended and returns the state, and whether this call
// changed it from closed to open or from half-open to closed.
func (b *breaker) finish(ticket uint64, how outcome, now time.Time) (state BreakerState, changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ticket != b.generation {
		return b.state, false
	}
	trial := b.state == BreakerHalfOpen
	switch {
	case how == success:
		b.streak = 0
		if trial {
			b.moveLocked(BreakerClosed)
		}
		return b.state, trial
	case trial:
		b.openUntil = now
		if how == failure {
			b.openUntil = now.Add(b.openFor)
		}
		b.moveLocked(BreakerOpened)
		return b.state, false
	case how == failure:
		b.streak++
		if b.streak < b.failures {
			return b.state, false
		}
		b.openUntil = now.Add(b.openFor)
		b.moveLocked(BreakerOpened)
		return b.state, true
	}
	return b.state, false
}

func (b *breaker) current() BreakerState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

func (b *breaker) moveLocked(to BreakerState) {
	b.state, b.streak = to, 0
	b.generation++
}
