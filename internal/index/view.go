// SPDX-License-Identifier: Apache-2.0

package index

// View is one consistent picture of a scope. It holds writers of the scope up:
// release it promptly and never keep it across I/O. It is not safe for
// concurrent use.
type View struct {
	x       *Index
	id      Scope
	scope   *scope     // nil: nothing is known of it
	part    *partition // nil: nothing is held in it
	home    *home
	adapter string
	now     int64
	ttl     int64
	// keys are those of the last match, for credits.
	keys    Keys
	credits []Match
}

// Acquire returns a view of a scope and one of its adapters at a time. A
// membership counts while it is younger than ttlMillis.
func (x *Index) Acquire(scope Scope, adapter string, nowMillis, ttlMillis int64) View {
	v := View{x: x, id: scope, adapter: adapter, now: nowMillis, ttl: ttlMillis}
	s := x.existing(scope)
	if s == nil {
		return v
	}
	if s.recheckAt.Load() <= nowMillis && s.write.TryLock() {
		s.refresh(nowMillis, maxSweep)
		s.write.Unlock()
	}
	begin := x.waitBegin()
	s.gate.RLock()
	x.waited(WaitRead, begin)
	v.scope, v.home, v.part = s, s.home, s.parts[adapter]
	return v
}

// Release ends the view and counts its credits.
func (v *View) Release() {
	if v.scope == nil {
		return
	}
	v.scope.gate.RUnlock()
	if len(v.credits) > 0 {
		v.scope.credit(v.adapter, v.keys, v.credits, v.now)
	}
	*v = View{}
}

// Credit counts an access to every membership in the runs of matches of the
// last match of this view, in tenants whose rules say LFU. It takes effect
// when the view is released; until then matches and keys must not change.
func (v *View) Credit(matches []Match) {
	if v.scope != nil && v.x.rulesOf(v.id.Tenant).LFU {
		v.credits = matches
	}
}

// Serving returns the number of replicas that hold a key in the scope and are
// not silent.
func (v *View) Serving() int {
	if v.scope == nil {
		return 0
	}
	return v.scope.holding - v.scope.quiet
}

// Candidates appends the serving replicas to dst, or those that hold a key of
// the view's partition, sorted by replica id. forAffinity leaves out replicas
// whose session is down or quiet.
func (v *View) Candidates(dst []Candidate, inPartition, forAffinity bool) []Candidate {
	if v.scope == nil || inPartition && v.part == nil {
		return dst
	}
	timeout := v.x.cfg.AffinitySilenceTimeoutMillis
	for _, m := range v.scope.order {
		st := &v.scope.slots[m.slot]
		if m.silent || st.state != slotLive || st.held == 0 {
			continue
		}
		if inPartition && (int(m.slot) >= len(v.part.held) || v.part.held[m.slot] == 0) {
			continue
		}
		if forAffinity && !m.affine(v.now, timeout) {
			continue
		}
		dst = append(dst, Candidate{Replica: m.name, Slot: uint32(m.slot)})
	}
	return dst
}

// Stats returns the stats row of the replica in a slot.
func (v *View) Stats(slot uint32) (Stats, bool) {
	if v.scope == nil || int(slot) >= len(v.scope.slots) {
		return Stats{}, false
	}
	m := v.scope.slots[slot].member
	if m == nil {
		return Stats{}, false
	}
	s := m.replica.stats.Load()
	if s == nil {
		return Stats{}, false
	}
	return *s, true
}

// Counts returns the counters a miss is classified by.
func (v *View) Counts() ViewCounts {
	c := ViewCounts{Memberships: v.x.memberships.Load()}
	if v.scope != nil {
		c.ScopeMemberships = v.scope.memberships
		c.TenantKeys, c.ModelKeys = v.home.tenant.heldKeys(), v.home.heldKeys()
		if v.part != nil {
			c.PartitionMemberships = v.part.memberships
		}
		return c
	}
	if h := v.x.home(v.id.Tenant, v.id.Model); h != nil {
		c.ModelKeys = h.heldKeys()
	}
	if t := v.x.tenant(v.id.Tenant); t != nil {
		c.TenantKeys = t.heldKeys()
	}
	return c
}

// heldKeys is the count of keys, 0 exactly when nothing is held.
func (t *tenant) heldKeys() int64 { return heldKeys(t.keys.Load(), t.memberships.Load()) }
func (h *home) heldKeys() int64   { return heldKeys(h.keys.Load(), h.memberships.Load()) }

func heldKeys(keys, memberships int64) int64 {
	if memberships == 0 {
		return 0
	}
	return max(keys, 1)
}
