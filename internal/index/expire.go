// SPDX-License-Identifier: Apache-2.0

package index

import "math"

// maintainMoves bounds the memberships that one call of Maintain removes.
const maintainMoves = 16 * maxSweep

// expire removes expired memberships of the scope, at most budget and a set
// more, and returns how many.
func (w *writer) expire(now int64, budget int) (moved int) {
	rules := w.s.x.rulesOf(w.s.id.Tenant)
	for _, p := range w.partitions() {
		for moved < budget {
			id, second, ok := p.expiry.first()
			if !ok || second == noSecond || expiresAt(second, rules.TTLMillis) > now {
				break
			}
			moved += w.expireSet(p, id, second, now, rules)
			if w.full("expire") && moved < budget {
				w.yield()
			}
		}
		w.commit("expire")
		w.s.x.limits.retireEmpty(p)
	}
	return moved
}

// expireSet removes the expired holders of a set that is first in line.
func (w *writer) expireSet(p *partition, id uint32, second, now int64, rules TenantRules) (moved int) {
	r := p.record(id)
	k := p.ranks(r)
	if k.expiry != second {
		p.requeue(&p.expiry, id, k.expiry)
		return 0
	}
	expired := func(h holder) bool {
		st := &w.s.slots[h.slot()]
		return st.counts() &&
			expiresAt(max(h.seen(), st.member.beat.Load())/1000, rules.TTLMillis) <= now
	}
	holders := 0
	n := w.without(p, id, w.take(p, id, maxShared), func(h holding) bool { return expired(h.holder) })
	for _, word := range r.list() {
		if h := holder(word); expired(h) {
			w.count(p, h.slot(), -n)
			holders++
		}
	}
	p.requeue(&p.expiry, id, noSecond)
	w.s.x.evictions.ttl(rules.LFU, int64(n*holders))
	return n * holders
}

// requeue moves a set inside one queue.
func (p *partition) requeue(q *queue, id uint32, second int64) {
	q.remove(&p.sets, id)
	q.add(&p.sets, id, second)
}

// refresh brings expiry and silence of a scope up to date and notes when that
// is due again. At most budget memberships expire and a set more; more says
// that some are left. The write lock is held.
func (s *scope) refresh(now int64, budget int) (more bool) {
	w := s.x.begin(s)
	moved := w.expire(now, budget)
	s.x.end(w)
	if moved >= budget {
		s.recheckBy(now)
		return true
	}
	s.recheckAt.Store(math.MaxInt64)
	s.recheckBy(s.listen(now))
	if due := s.firstExpiry(); due == math.MaxInt64 {
		s.expiryDue.Store(0)
	} else {
		s.expiryDue.Store(due)
		s.recheckBy(due)
	}
	return false
}

// firstExpiry returns when the scope's first membership is due for removal.
func (s *scope) firstExpiry() (due int64) {
	due = math.MaxInt64
	ttl := s.x.rulesOf(s.id.Tenant).TTLMillis
	for _, p := range s.parts {
		if _, second, ok := p.expiry.first(); ok && second != noSecond {
			due = min(due, expiresAt(second, ttl))
		}
	}
	return due
}

// listen finds out who is silent and returns when that may change.
func (s *scope) listen(now int64) (due int64) {
	due = math.MaxInt64
	timeout := s.x.cfg.SilenceTimeoutMillis
	if timeout <= 0 {
		return due
	}
	for _, m := range s.order {
		silent, heard := m.replica.silent(now)
		if silent != m.silent {
			s.setSilent(m, silent)
		}
		switch {
		case silent:
		case heard+timeout > now:
			due = min(due, heard+timeout)
		default: // does not talk regularly yet
			due = min(due, now+timeout)
		}
	}
	return due
}

func (s *scope) setSilent(m *member, silent bool) {
	s.exclusive("apply", func() {
		st := &s.slots[m.slot]
		before := s.weight(st)
		m.silent, st.silent = silent, silent
		s.reweigh(st, before)
	})
}
