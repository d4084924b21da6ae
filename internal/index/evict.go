// SPDX-License-Identifier: Apache-2.0

package index

import (
	"sync"
	"sync/atomic"
)

// evictor knows which partition holds the next victim of the global bounds.
//
// Invariant: a partition with memberships is in the heap with a rank not above
// that of its first victim. It may be there more than once.
type evictor struct {
	off  bool // no bound: nothing is noted
	mu   sync.Mutex
	heap []nomination
}

type nomination struct {
	rank int64
	p    *partition
}

// offer notes a partition whose first victim may have changed. The write lock
// of its scope is held.
func (e *evictor) offer(p *partition) {
	if e.off || p.scope.home.tenant.reserved {
		return
	}
	_, rank, ok := p.evict.first()
	if !ok || rank >= p.enqueued {
		return
	}
	p.enqueued = rank
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heap = append(e.heap, nomination{rank, p})
	for i := len(e.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if e.heap[up].rank <= e.heap[i].rank {
			break
		}
		e.heap[up], e.heap[i] = e.heap[i], e.heap[up]
		i = up
	}
}

// take removes the first nomination and returns its partition, nil for none,
// and the rank of the one behind it.
func (e *evictor) take() (p *partition, next int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.heap) == 0 {
		return nil, noSecond
	}
	p = e.heap[0].p
	last := len(e.heap) - 1
	e.heap[0] = e.heap[last]
	e.heap[last] = nomination{}
	e.heap = e.heap[:last]
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(e.heap); c++ {
			if e.heap[c].rank < e.heap[least].rank {
				least = c
			}
		}
		if least == i {
			break
		}
		e.heap[i], e.heap[least] = e.heap[least], e.heap[i]
		i = least
	}
	if len(e.heap) == 0 {
		return p, noSecond
	}
	return p, e.heap[0].rank
}

// enforce applies the tenant's quota, then the global bounds.
func (x *Index) enforce(t *tenant) {
	x.enforceQuota(t)
	over := x.excess()
	if over <= 0 {
		return
	}
	defer x.endRun("cap", x.startRun())
	for over > 0 {
		p, next := x.evictor.take()
		if p == nil {
			return
		}
		over -= p.evictUpTo(over, next)
	}
}

// enforceOf is enforce for a tenant that may be unknown.
func (x *Index) enforceOf(tenant string) {
	if t := x.tenant(tenant); t != nil {
		x.enforce(t)
	}
}

// excess returns how many memberships are too many.
func (x *Index) excess() (over int64) {
	n := x.memberships.Load()
	if limit := x.cfg.MaxMemberships; limit > 0 {
		over = n - limit
	}
	if x.cfg.MaxMemoryBytes > 0 {
		over = max(over, x.bytes.excess(x.cfg.MaxMemoryBytes, n))
	}
	return over
}

// evictUpTo evicts the first memberships of a nominated partition, at most
// need, and none that ranks behind next.
func (p *partition) evictUpTo(need, next int64) (evicted int64) {
	s := p.scope
	s.write.Lock()
	defer s.write.Unlock()
	p.enqueued = noSecond
	if s.closed || s.parts[p.adapter] != p {
		return 0
	}
	w := s.x.begin(s)
	defer s.x.end(w)
	for evicted < need {
		id, rank, ok := p.evict.first()
		if !ok || rank == noSecond || rank > next {
			break
		}
		evicted += w.evictSet(p, id, rank, need-evicted)
		if w.full("cap") {
			w.yield()
		}
	}
	w.commit("cap")
	s.x.limits.retireEmpty(p)
	s.x.evictor.offer(p)
	return evicted
}

// evictSet takes the first victim of a set from up to need of its keys.
func (w *writer) evictSet(p *partition, id uint32, rank, need int64) int64 {
	r := p.record(id)
	if k := p.ranks(r); k.evict != rank {
		p.requeue(&p.evict, id, k.evict)
		return 0
	}
	victim := w.victim(p, r, rank)
	all := int(r.keys())
	n := w.without(p, id, w.take(p, id, int(min(need, maxShared))), func(h holding) bool { return h.slot() == victim })
	if n == 0 || n == all {
		p.requeue(&p.evict, id, noSecond)
	}
	w.count(p, victim, -n)
	w.s.x.evictions.cap(p.lfu, int64(n))
	if m := w.s.slots[victim].member; n > 0 && m.up {
		m.truncated = true
		w.s.x.truncated.Store(true)
	}
	return int64(n)
}

// victim returns the slot whose membership has a rank.
func (w *writer) victim(p *partition, r record, rank int64) uint16 {
	for i := range r.holders() {
		slot := r.holder(i).slot()
		if w.s.slots[slot].counts() && p.evictRank(r, i) == rank {
			return slot
		}
	}
	panic("index: a ranked set has no victim")
}

// rerank brings a scope's queues in line with changed rules of its tenant.
func (s *scope) rerank() {
	s.write.Lock()
	defer s.write.Unlock()
	rules := s.x.rulesOf(s.id.Tenant)
	for _, p := range s.parts {
		if p.lfu != rules.LFU {
			p.lfu = rules.LFU
			s.fadeBy(0)
			for _, id := range p.evict.all(&p.sets) {
				p.requeue(&p.evict, id, p.ranks(p.record(id)).evict)
			}
			s.x.evictor.offer(p)
		}
		if p.fresh.idle == rules.Limited {
			p.fresh = newQueue(wordQuota)
			p.fresh.idle = !rules.Limited
			for _, id := range p.expiry.all(&p.sets) {
				p.fresh.add(&p.sets, id, p.ranks(p.record(id)).fresh)
			}
		}
	}
}

// evictionCount counts memberships that bounds removed.
type evictionCount struct {
	capLRU, capLFU, ttlLRU, ttlLFU atomic.Int64
}

func (e *evictionCount) cap(lfu bool, n int64) {
	if lfu {
		e.capLFU.Add(n)
	} else {
		e.capLRU.Add(n)
	}
}

func (e *evictionCount) ttl(lfu bool, n int64) {
	if lfu {
		e.ttlLFU.Add(n)
	} else {
		e.ttlLRU.Add(n)
	}
}

func (e *evictionCount) load() Evictions {
	return Evictions{
		CapLRU: e.capLRU.Load(), CapLFU: e.capLFU.Load(),
		TTLLRU: e.ttlLRU.Load(), TTLLFU: e.ttlLFU.Load(),
	}
}

// ResyncDue returns, once, the live sessions that lost memberships to a bound,
// when the index and their tenant are below nine tenths of theirs.
func (x *Index) ResyncDue() (due []SessionRef) {
	limit, bytes := x.cfg.MaxMemberships, x.cfg.MaxMemoryBytes
	if !x.truncated.Load() ||
		limit > 0 && x.memberships.Load() >= limit/10*9 ||
		bytes > 0 && x.bytes.load().Total() >= bytes/10*9 {
		return nil
	}
	x.truncated.Store(false)
	for _, s := range x.allScopes() {
		s.write.Lock()
		room := s.quotaHasRoom()
		for _, m := range s.members {
			switch {
			case !m.truncated || !m.up:
				m.truncated = false
			case room:
				m.truncated = false
				due = append(due, SessionRef{Scope: s.id, Replica: m.name})
			default:
				x.truncated.Store(true)
			}
		}
		s.write.Unlock()
	}
	return due
}

func (s *scope) quotaHasRoom() bool {
	rules := s.x.rulesOf(s.id.Tenant)
	return !rules.Limited || s.home.tenant.keys.Load() < rules.MaxKeys-rules.MaxKeys/10
}
