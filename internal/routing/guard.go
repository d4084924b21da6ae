// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"slices"
	"time"
)

// Outcome says what an attempt proved about its replica.
type Outcome uint8

// Outcomes. Only failures that are the replica's fault count as Failed.
const (
	Ignored Outcome = iota
	Succeeded
	Failed
)

const (
	// minRateTokens is the smallest prefill that measures a replica's speed.
	minRateTokens = 512
	rateWeight    = 0.1
)

// Guard holds the load one request puts on one replica. FirstByte and End may
// be called in any order and more than once; only the first call of each
// counts. It is safe for concurrent use.
type Guard struct {
	fleet  *Fleet
	member *member
	// id and uid are the member's, which may be described anew.
	id, uid string
	// uncached is what the request adds to the queue, idle whether nothing
	// else ran at dispatch, trial the breaker's mark.
	uncached    int64
	idle, trial bool
	dispatched  time.Time
	// prefilledBy is when the prefill should be over, if no first byte tells.
	prefilledBy time.Time

	// keys are what was noted as placed on slot, new to it from fresh on.
	keys  []uint64
	slot  uint32
	fresh int
	// pin is that of a sticky request; pinned says that it began with it.
	pin    *pin
	pinned bool

	// claimed are tokens the index says the replica holds, until compared.
	claimed int

	// Guarded by fleet.mu, like keys and claimed.
	generation                  uint64
	answered, prefilled, closed bool
}

func (f *Fleet) creditLocked(m *member, r *Request, matchedTokens int) *Guard {
	g := &Guard{
		fleet: f, member: m, id: m.replica.ID, uid: m.replica.UID,
		uncached:   uncached(r.promptTokens(), matchedTokens),
		idle:       m.inflight == 0,
		trial:      m.breaker.Start(r.Now),
		dispatched: r.Now,
		generation: m.generation,
		claimed:    f.claimOf(m),
	}
	if !r.Streamed {
		view := f.viewLocked(m, r.Now)
		seconds := float64(view.QueueTokens+g.uncached) / m.rate
		g.prefilledBy = r.Now.Add(time.Duration(seconds * float64(time.Second)))
		m.unseen = append(m.unseen, g)
	}
	m.inflight++
	m.pending += g.uncached
	m.since += g.uncached
	m.recent += f.weightLocked(r.Now)
	return g
}

// Replica returns the id and UID of the replica the guard was taken on.
func (g *Guard) Replica() (id, uid string) {
	return g.id, g.uid
}

// FirstByte notes that the prefill is over. The time it took counts towards the
// replica's prefill rate if the request was streamed.
func (g *Guard) FirstByte(now time.Time) {
	g.fleet.mu.Lock()
	defer g.fleet.mu.Unlock()
	g.answered = g.answered || !g.closed
	if g.prefilled || g.closed {
		return
	}
	g.releasePrefillLocked()
	took := now.Sub(g.dispatched).Seconds()
	if g.prefilledBy.IsZero() && g.idle && g.uncached >= minRateTokens && took > 0 {
		g.member.rate += rateWeight * (float64(g.uncached)/took - g.member.rate)
	}
}

// End gives back what the request still holds and tells the breaker.
func (g *Guard) End(now time.Time, outcome Outcome) {
	g.fleet.mu.Lock()
	defer g.fleet.mu.Unlock()
	if g.closed {
		return
	}
	g.closed = true
	g.releasePrefillLocked()
	g.member.inflight--
	if outcome != Succeeded && !g.answered {
		g.fleet.disownLocked(g)
	}
	g.fleet.unpinLocked(g, outcome)
	switch outcome {
	case Succeeded:
		g.member.breaker.Success(g.trial)
		g.member.record.note(now, false)
	case Failed:
		g.member.record.note(now, true)
		opened := g.member.breaker.Failure(g.trial, now)
		opened = g.fleet.judgeLocked(g.member, now) || opened
		if opened && g.fleet.isMemberLocked(g.member) {
			g.fleet.newSlotLocked(g.member)
		}
	default:
		g.member.breaker.Ignore(g.trial)
	}
}

// assumePrefilled releases the prefill of requests whose first byte will come
// only after the whole generation, once it should be over. Without it, long
// answers would look like a long queue.
func (m *member) assumePrefilled(now time.Time) {
	if len(m.unseen) == 0 {
		return
	}
	m.unseen = slices.DeleteFunc(m.unseen, func(g *Guard) bool {
		if !g.prefilled && now.Before(g.prefilledBy) {
			return false
		}
		g.releasePrefillLocked()
		return true
	})
}

// releasePrefillLocked takes the request's tokens out of the queue: out of
// since, or, if a report has counted them meanwhile, out of that report.
func (g *Guard) releasePrefillLocked() {
	if g.prefilled {
		return
	}
	g.prefilled = true
	m := g.member
	m.pending -= g.uncached
	if g.generation == m.generation {
		m.since -= g.uncached
		return
	}
	m.report.WaitingTokens = max(m.report.WaitingTokens-g.uncached, 0)
}
