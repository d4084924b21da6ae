// SPDX-License-Identifier: Apache-2.0

package index

import "time"

// maintainScopes bounds the scopes that one call of Maintain looks at closely.
const maintainScopes = 64

// Maintain does a bounded step of expiry and clean-up; more says that another
// step is due at once. It wants to be called at least once a second.
func (x *Index) Maintain(nowMillis int64) (more bool) {
	busy := 0
	for _, s := range x.allScopes() {
		if s.recheckAt.Load() > nowMillis && s.fadeAt.Load() > nowMillis && !s.idle.Load() {
			continue
		}
		if busy++; busy > maintainScopes {
			return true
		}
		if x.maintainScope(s, nowMillis) {
			more = true
		}
	}
	if !more {
		x.forgetReplicas(nowMillis)
	}
	return more
}

// maintainScope expires, forgets members that are over and closes the scope
// when nothing is left.
func (x *Index) maintainScope(s *scope, now int64) (more bool) {
	s.write.Lock()
	more = s.refresh(now, maintainMoves)
	s.fade(now)
	if s.idle.Load() {
		s.forgetMembers(now)
		s.forgetPartitions()
	}
	empty := len(s.parts) == 0 && len(s.members) == 0
	s.write.Unlock()
	if empty {
		x.closeScope(s)
	}
	return more
}

// forgetMembers drops members that hold nothing and whose session is over.
func (s *scope) forgetMembers(now int64) {
	ttl := s.x.rulesOf(s.id.Tenant).TTLMillis
	idle := false
	for _, m := range s.members {
		if s.slots[m.slot].planned > 0 || m.up {
			continue
		}
		if m.busy > 0 || m.session && now-m.beat.Load() < ttl {
			idle = true
			continue
		}
		s.drop(m)
	}
	s.idle.Store(idle)
}

// forgetPartitions drops partitions without sets.
func (s *scope) forgetPartitions() {
	for adapter, p := range s.parts {
		if p.sets.live > 0 || p.planned.hidden != 0 {
			continue
		}
		s.exclusive("expire", func() { delete(s.parts, adapter) })
		p.short.release()
		p.long.release()
		p.intern.release()
		s.x.limits.retire(p)
		b := p.accounted
		s.x.bytes.add(Bytes{Table: -b.Table, Arena: -b.Arena, Names: -b.Names})
	}
}

// closeScope closes an empty scope and takes it out of the directory. It waits
// for its writer before it locks the directory, which all lookups need.
func (x *Index) closeScope(s *scope) {
	s.write.Lock()
	empty := len(s.parts) == 0 && len(s.members) == 0
	s.closed = s.closed || empty
	s.write.Unlock()
	if empty {
		x.unlink(s)
	}
}

// unlink takes a closed scope out of the directory, unless that is done.
func (x *Index) unlink(s *scope) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.scopes[s.id] != s {
		return
	}
	delete(x.scopes, s.id)
	s.home.mu.Lock()
	delete(s.home.scopes, s.id.Scheme)
	s.home.mu.Unlock()
	x.closeHomeLocked(s.home)
}

// closeHomeLocked removes a home that nothing refers to.
func (x *Index) closeHomeLocked(h *home) {
	h.mu.Lock()
	empty := len(h.scopes) == 0 && len(h.replicas) == 0
	h.mu.Unlock()
	if !empty {
		return
	}
	delete(x.homes, homeKey{h.tenant.name, h.name})
	delete(h.tenant.homes, h.name)
	if len(h.tenant.homes) == 0 && h.tenant.quotaEvicted.Load() == 0 {
		delete(x.tenants, h.tenant.name)
	}
	if h.model.homes--; h.model.homes == 0 {
		delete(x.models, h.name)
	}
}

// forgetReplicas drops stats rows that are over and replicas that nothing
// refers to.
func (x *Index) forgetReplicas(now int64) {
	for _, h := range x.allHomes() {
		ttl := x.rulesOf(h.tenant.name).TTLMillis
		gone := false
		for _, r := range h.allReplicas() {
			if s := r.stats.Load(); s != nil && now-s.LivenessMillis >= ttl {
				r.dropStats()
			}
			gone = gone || r.over(now, ttl)
		}
		if gone || h.bare() {
			x.mu.Lock()
			h.dropOver(now, ttl)
			x.closeHomeLocked(h)
			x.mu.Unlock()
		}
	}
}

// over says that nothing refers to a replica and nothing came from it for a
// TTL.
func (r *replica) over(now, ttl int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats.Load() == nil && len(r.scopes) == 0 && now-r.heard.Load() >= ttl
}

func (h *home) dropOver(now, ttl int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, r := range h.replicas {
		if r.over(now, ttl) {
			delete(h.replicas, name)
		}
	}
}

func (h *home) bare() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.scopes) == 0 && len(h.replicas) == 0
}

func (h *home) allReplicas() []*replica {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make([]*replica, 0, len(h.replicas))
	for _, r := range h.replicas {
		out = append(out, r)
	}
	return out
}

func (x *Index) allHomes() []*home {
	x.mu.RLock()
	defer x.mu.RUnlock()
	out := make([]*home, 0, len(x.homes))
	for _, h := range x.homes {
		out = append(out, h)
	}
	return out
}

// startRun returns when a run begins, for endRun.
func (x *Index) startRun() (start time.Time) {
	if x.cfg.ObserveRun != nil {
		start = time.Now()
	}
	return start
}

func (x *Index) endRun(task string, start time.Time) {
	if x.cfg.ObserveRun != nil {
		x.cfg.ObserveRun(task, time.Since(start))
	}
}
