// SPDX-License-Identifier: Apache-2.0

package index

import "slices"

// Apply changes what one replica holds in one scope, in the order of the
// batch. Up to 4,096 keys become visible as one step, more in order.
func (x *Index) Apply(b *Batch) Applied {
	var a Applied
	s := x.lockScope(b.Scope, x.mayStore(b, &a))
	if s == nil {
		x.Heard(b.Scope.Tenant, b.Scope.Model, b.Replica, b.NowMillis)
		x.enforceOf(b.Scope.Tenant)
		return a
	}
	w := x.begin(s)
	t := target{w: w, replica: b.Replica, at: clampSeen(b.AtMillis), now: b.NowMillis, rules: x.rulesOf(b.Scope.Tenant)}
	for i := range b.Ops {
		t.apply(&a, &b.Ops[i])
	}
	w.commit("apply")
	for _, slot := range t.dead {
		w.sweepDead(slot)
	}
	x.end(w)
	if m := s.members[b.Replica]; m != nil {
		m.replica.hearEvent(b.NowMillis)
	} else if r := s.home.known(b.Replica); r != nil {
		r.hearEvent(b.NowMillis)
	}
	s.write.Unlock()
	x.enforce(s.home.tenant)
	return a
}

// mayStore says whether a batch may create its scope; if not, its stores are
// counted as refused.
func (x *Index) mayStore(b *Batch, a *Applied) bool {
	stores := slices.ContainsFunc(b.Ops, func(op Op) bool { return op.Kind == OpStore && op.Keys.Len() > 0 })
	if !stores || x.existing(b.Scope) != nil {
		return stores
	}
	if x.cfg.ReservedTenant == b.Scope.Tenant || x.limits.admitScope(x.tenant(b.Scope.Tenant)) {
		return true
	}
	for i := range b.Ops {
		if b.Ops[i].Kind == OpStore {
			a.ScopeLimit += b.Ops[i].Keys.Len()
		}
	}
	return false
}

// target is the replica that a batch changes.
type target struct {
	w       *writer
	replica string
	at, now int64
	rules   TenantRules
	// slot overrides the member's slot when hasSlot is set: of a snapshot, or
	// after a clear.
	slot    uint16
	hasSlot bool
	// dead are slots to be swept after the commit.
	dead []uint16
}

func (t *target) apply(a *Applied, op *Op) {
	switch op.Kind {
	case OpStore:
		t.store(a, op)
	case OpRemove:
		if p := t.w.s.parts[op.Adapter]; p != nil {
			if slot, ok := t.current(); ok {
				a.Removed += t.w.removeAll(p, slot, op.Keys)
				t.w.s.x.limits.retireEmpty(p)
			}
		}
	case OpClear:
		t.clear(a)
	}
}

// current returns the slot of the replica, if it has one.
func (t *target) current() (slot uint16, ok bool) {
	if t.hasSlot {
		return t.slot, true
	}
	m := t.w.s.members[t.replica]
	if m == nil {
		return 0, false
	}
	return m.slot, true
}

// clear moves the replica to a fresh slot; the old one dies with the commit.
func (t *target) clear(a *Applied) {
	slot, ok := t.current()
	s := t.w.s
	if !ok || s.slots[slot].planned == 0 {
		return
	}
	a.Cleared += int(s.slots[slot].planned)
	if t.w.feed != nil {
		t.w.changes = append(t.w.changes, Change{Kind: ChangeCleared, Replica: t.replica})
	}
	t.slot = t.w.replaceSlot(s.members[t.replica], slot)
	t.hasSlot = true
	t.dead = append(t.dead, slot)
}

// replaceSlot plans that a member leaves all that a slot holds.
func (w *writer) replaceSlot(m *member, old uint16) (fresh uint16) {
	fresh = w.s.newSlot(m, slotFresh)
	w.leaveSlot(old)
	w.flips = append(w.flips, flip{old: old, fresh: fresh})
	return fresh
}

// leaveSlot plans that a counting slot holds nothing.
func (w *writer) leaveSlot(slot uint16) {
	for _, p := range w.s.parts {
		if int(slot) < len(p.owners) && p.owners[slot].planned != 0 {
			w.count(p, slot, -int(p.owners[slot].planned))
			w.s.x.limits.retireEmpty(p)
		}
	}
}

// store plans an OpStore.
func (t *target) store(a *Applied, op *Op) {
	n, s, x := op.Keys.Len(), t.w.s, t.w.s.x
	if n == 0 {
		return
	}
	beat := int64(0)
	if m := s.members[t.replica]; m != nil {
		beat = m.beat.Load()
	}
	p := s.parts[op.Adapter]
	if p == nil || !p.counted {
		if !x.limits.room(s.home.tenant) {
			a.ScopeLimit += n
			return
		}
	}
	if t.now-max(t.at, beat) >= t.rules.TTLMillis {
		a.Expired += n
		return
	}
	m := s.member(t.replica)
	if m == nil {
		a.ScopeLimit += n
		return
	}
	p = s.partition(op.Adapter)
	if !x.limits.admit(p) {
		a.ScopeLimit += n
		return
	}
	slot := m.slot
	if t.hasSlot {
		slot = t.slot
	}
	t.w.storeAll(a, p, packHolder(slot, op.Tier, t.at), op)
	x.limits.retireEmpty(p)
}
