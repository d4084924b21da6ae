// SPDX-License-Identifier: Apache-2.0

package client

import (
	"log/slog"
	"time"
)

// Options configure a Client. The zero value works.
type Options struct {
	// Timeout bounds one lookup. A shorter deadline of the caller's context
	// wins, and then says nothing to the breaker. Default 5 ms.
	Timeout time.Duration
	// BreakerFailures in a row stop the Client from asking. Default 5.
	BreakerFailures int
	// BreakerOpenFor is how long it then waits before one trial. Default 2 s.
	BreakerOpenFor time.Duration
	// Logger gets a warning per wrong key and minute, and the breaker's
	// changes. Default slog.Default(); a logger over slog.DiscardHandler is
	// silent.
	Logger *slog.Logger
	// Metrics is told about every lookup. Default nil: nobody is.
	Metrics Metrics
}

// Metrics is told what a Client does. Its methods run on the goroutine of the
// lookup, possibly several at once, and must not block.
type Metrics interface {
	// ObserveLookup is called once per lookup. reason is one of Reasons().
	ObserveLookup(reason Reason, took time.Duration)
	// ObserveBreaker is called when the breaker opens or closes.
	ObserveBreaker(state BreakerState)
}

func (o Options) withDefaults() Options {
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Millisecond
	}
	if o.BreakerFailures <= 0 {
		o.BreakerFailures = 5
	}
	if o.BreakerOpenFor <= 0 {
		o.BreakerOpenFor = 2 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}
