// SPDX-License-Identifier: Apache-2.0

package auth

import (
	"context"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/gate"
)

const (
	admittedLife = 30 * time.Second
	deniedLife   = 5 * time.Second
	maxDenied    = 1024
	// maxFlights bounds the questions under way.
	maxFlights = 1024
	askTimeout = 5 * time.Second
)

// memo answers questions by asking somebody who may be slow. It remembers what
// was admitted for 30 s and what was denied for 5 s, and asks each question
// once at a time; callers that leave do not end a question. K stands for a
// question Q in memory, V is what a good answer holds. It is safe for
// concurrent use. All fields of the options are required but refreshAhead.
type memo[K comparable, Q, V any] struct {
	memoOptions[Q, V]
	// alive ends at close; the questions under way end with it.
	alive   context.Context
	endAll  context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	admitted *expiring[K, V]            // guarded by mu
	denied   *expiring[K, gate.Verdict] // guarded by mu
	flights  map[K]*flight[V]           // guarded by mu
}

type memoOptions[Q, V any] struct {
	maxAdmitted int
	// refreshAhead is how long before it would be forgotten what is in use is
	// asked again; 0 is never.
	refreshAhead time.Duration
	now          func() time.Time
	// allow says under the lock whether a question may be asked now.
	allow func(q Q, now time.Time) bool
	// ask is the slow part. It counts its own results.
	ask func(ctx context.Context, q Q) (V, gate.Verdict)
	// count takes note of answers without a question.
	count func(result string)
}

// flight is a question under way. Its answer is set before done is closed.
type flight[V any] struct {
	done    chan struct{}
	value   V
	verdict gate.Verdict
}

func newMemo[K comparable, Q, V any](options memoOptions[Q, V]) *memo[K, Q, V] {
	m := &memo[K, Q, V]{
		memoOptions: options,
		admitted:    newExpiring[K, V](admittedLife, options.maxAdmitted),
		denied:      newExpiring[K, gate.Verdict](deniedLife, maxDenied),
		flights:     make(map[K]*flight[V]),
	}
	m.alive, m.endAll = context.WithCancel(context.Background())
	return m
}

// close ends the questions under way and refuses new ones.
func (m *memo[K, Q, V]) close() {
	m.mu.Lock()
	m.endAll()
	m.mu.Unlock()
	m.running.Wait()
}

// get waits for an answer at most until ctx ends. The value is good only with
// OK.
func (m *memo[K, Q, V]) get(ctx context.Context, key K, q Q) (value V, verdict gate.Verdict) {
	value, verdict, running := m.begin(key, q)
	if running == nil {
		return value, verdict
	}
	select {
	case <-running.done:
		return running.value, running.verdict
	case <-ctx.Done():
		return value, gate.Error
	}
}

// begin answers from memory, or joins or starts a flight.
func (m *memo[K, Q, V]) begin(key K, q Q) (value V, verdict gate.Verdict, running *flight[V]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	running = m.flights[key]
	if known, left, ok := m.admitted.get(key, now); ok {
		m.count(resultCacheHit)
		if running == nil && left < m.refreshAhead && m.mayStartLocked(q, now) {
			m.startLocked(key, q)
		}
		return known, gate.OK, nil
	}
	if verdict, _, ok := m.denied.get(key, now); ok {
		m.count(resultNegativeHit)
		return value, verdict, nil
	}
	switch {
	case running != nil:
		return value, "", running
	case !m.mayStartLocked(q, now):
		m.count(resultLimited)
		return value, gate.Error, nil
	}
	return value, "", m.startLocked(key, q)
}

func (m *memo[K, Q, V]) mayStartLocked(q Q, now time.Time) bool {
	return m.alive.Err() == nil && len(m.flights) < maxFlights && m.allow(q, now)
}

func (m *memo[K, Q, V]) startLocked(key K, q Q) *flight[V] {
	f := &flight[V]{done: make(chan struct{})}
	m.flights[key] = f
	m.running.Go(func() {
		ctx, cancel := context.WithTimeout(m.alive, askTimeout)
		defer cancel()
		f.value, f.verdict = m.ask(ctx, q)
		m.finish(key, f)
		close(f.done)
	})
	return f
}

func (m *memo[K, Q, V]) finish(key K, f *flight[V]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.flights, key)
	now := m.now()
	switch f.verdict {
	case gate.OK:
		m.admitted.put(key, f.value, now)
	case gate.Unauthenticated, gate.Forbidden:
		m.admitted.remove(key)
		m.denied.put(key, f.verdict, now)
	case gate.Error:
	}
}
