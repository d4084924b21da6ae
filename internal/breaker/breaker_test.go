// SPDX-License-Identifier: Apache-2.0

package breaker

import (
	"testing"
	"time"
)

func TestBreaker(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	settings := Settings{Failures: 2, OpenFor: 10 * time.Second, Successes: 2}
	fail := func(b *Breaker, now time.Time) { b.Failure(b.Start(now), now) }
	succeed := func(b *Breaker, now time.Time) { b.Success(b.Start(now)) }

	tests := map[string]struct {
		run         func(*Breaker)
		at          time.Duration
		wantState   State
		wantPermits bool
	}{
		"a new breaker is closed": {
			run: func(*Breaker) {}, wantState: Closed, wantPermits: true,
		},
		"failures in a row open it": {
			run:       func(b *Breaker) { fail(b, start); fail(b, start) },
			wantState: Open,
		},
		"a success between failures keeps it closed": {
			run:       func(b *Breaker) { fail(b, start); succeed(b, start); fail(b, start) },
			wantState: Closed, wantPermits: true,
		},
		"ignored outcomes count for nothing": {
			run: func(b *Breaker) {
				fail(b, start)
				b.Ignore(b.Start(start))
				fail(b, start)
			},
			wantState: Open,
		},
		"it admits a trial when its time is over": {
			run: func(b *Breaker) { fail(b, start); fail(b, start) },
			at:  10 * time.Second, wantState: HalfOpen, wantPermits: true,
		},
		"a second trial waits for the first": {
			run: func(b *Breaker) {
				fail(b, start)
				fail(b, start)
				b.Start(start.Add(10 * time.Second))
			},
			at: 10 * time.Second, wantState: HalfOpen, wantPermits: false,
		},
		"an ignored trial frees the place": {
			run: func(b *Breaker) {
				fail(b, start)
				fail(b, start)
				b.Ignore(b.Start(start.Add(10 * time.Second)))
			},
			at: 10 * time.Second, wantState: HalfOpen, wantPermits: true,
		},
		"one good trial is not enough": {
			run: func(b *Breaker) {
				fail(b, start)
				fail(b, start)
				succeed(b, start.Add(10*time.Second))
			},
			at: 10 * time.Second, wantState: HalfOpen, wantPermits: true,
		},
		"two good trials close it": {
			run: func(b *Breaker) {
				fail(b, start)
				fail(b, start)
				succeed(b, start.Add(10*time.Second))
				succeed(b, start.Add(10*time.Second))
			},
			at: 10 * time.Second, wantState: Closed, wantPermits: true,
		},
		"a failed trial opens it for the full time again": {
			run: func(b *Breaker) {
				fail(b, start)
				fail(b, start)
				fail(b, start.Add(10*time.Second))
			},
			at: 19 * time.Second, wantState: Open,
		},
		"attempts begun while closed do not decide a trial": {
			run: func(b *Breaker) {
				old := b.Start(start)
				fail(b, start)
				fail(b, start)
				trial := b.Start(start.Add(10 * time.Second))
				b.Failure(old, start.Add(10*time.Second))
				b.Success(trial)
			},
			at: 10 * time.Second, wantState: HalfOpen, wantPermits: true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b := New(settings)
			tc.run(b)
			now := start.Add(tc.at)
			if got := b.State(now); got != tc.wantState {
				t.Errorf("State = %v, want %v", got, tc.wantState)
			}
			if got := b.Permits(now); got != tc.wantPermits {
				t.Errorf("Permits = %v, want %v", got, tc.wantPermits)
			}
		})
	}
}
