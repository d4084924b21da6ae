// SPDX-License-Identifier: Apache-2.0

// Package breaker decides whether something that keeps failing may be tried
// again. It holds no clock and no lock: callers pass the time and serialise.
package breaker

import "time"

// State is where a breaker stands.
type State uint8

// States. A half-open breaker admits one trial at a time.
const (
	Closed State = iota
	HalfOpen
	Open
)

// String returns the name used in reports and metrics.
func (s State) String() string {
	switch s {
	case HalfOpen:
		return "half_open"
	case Open:
		return "open"
	default:
		return "closed"
	}
}

// Settings are a breaker's thresholds.
type Settings struct {
	// Failures in a row that open the breaker. Default 5.
	Failures int
	// OpenFor is how long it refuses before it admits a trial. Default 10 s.
	OpenFor time.Duration
	// Successes in a row that close a half-open breaker. Default 2.
	Successes int
}

func (s Settings) withDefaults() Settings {
	if s.Failures <= 0 {
		s.Failures = 5
	}
	if s.OpenFor <= 0 {
		s.OpenFor = 10 * time.Second
	}
	if s.Successes <= 0 {
		s.Successes = 2
	}
	return s
}

// Breaker counts outcomes. Every admitted attempt ends with exactly one of
// Success, Failure or Ignore. It is not safe for concurrent use.
type Breaker struct {
	settings Settings
	state    State
	// failures in a row while closed; successes in a row while half-open.
	failures, successes int
	openUntil           time.Time
	// trials under way while half-open, at most one.
	trials int
}

// New returns a closed breaker.
func New(settings Settings) *Breaker {
	return &Breaker{settings: settings.withDefaults()}
}

// State returns the state at now. An open breaker whose time is over reports
// half-open.
func (b *Breaker) State(now time.Time) State {
	if b.state == Open && !now.Before(b.openUntil) {
		return HalfOpen
	}
	return b.state
}

// Permits says whether an attempt may start at now. It reserves nothing.
func (b *Breaker) Permits(now time.Time) bool {
	switch b.State(now) {
	case Open:
		return false
	case HalfOpen:
		return b.state == Open || b.trials == 0
	default:
		return true
	}
}

// Start notes an attempt that Permits allowed. The result says whether it is
// a trial and goes back into the call that ends the attempt.
func (b *Breaker) Start(now time.Time) (trial bool) {
	if b.State(now) != HalfOpen {
		return false
	}
	if b.state == Open {
		b.state, b.successes, b.trials = HalfOpen, 0, 0
	}
	b.trials++
	return true
}

// Success ends an attempt that went well.
func (b *Breaker) Success(trial bool) {
	b.endTrial(trial)
	switch b.state {
	case Closed:
		b.failures = 0
	case HalfOpen:
		if !trial {
			return
		}
		b.successes++
		if b.successes >= b.settings.Successes {
			b.state, b.failures = Closed, 0
		}
	}
}

// Failure ends an attempt that failed at now. The result says whether this
// failure opened the breaker.
func (b *Breaker) Failure(trial bool, now time.Time) (opened bool) {
	b.endTrial(trial)
	switch b.state {
	case Closed:
		b.failures++
		if b.failures < b.settings.Failures {
			return false
		}
	case HalfOpen:
		if !trial {
			return false
		}
	case Open:
		return false
	}
	b.state, b.openUntil, b.trials = Open, now.Add(b.settings.OpenFor), 0
	return true
}

// Trip opens the breaker until the given time, whatever was counted.
func (b *Breaker) Trip(until time.Time) {
	b.state, b.openUntil, b.trials = Open, until, 0
}

// Ignore ends an attempt that says nothing about the target.
func (b *Breaker) Ignore(trial bool) { b.endTrial(trial) }

func (b *Breaker) endTrial(trial bool) {
	if trial && b.trials > 0 {
		b.trials--
	}
}
