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
			w.count(p, slot, -p.owners[slot].planned)
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

// readyAhead is how many keys are asked for from memory together.
const readyAhead = 16

// storeAll plans that a holder takes keys.
func (w *writer) storeAll(a *Applied, p *partition, h holder, op *Op) {
	n := op.Keys.Len()
	added := int32(0)
	told := w.feed != nil && w.s.slots[h.slot()].counts()
	w.memo = memo{}
	for i := range n {
		w.readyKeys(p, op.Keys, i)
		k, ok := p.ref(op.Keys, i)
		if !ok {
			continue
		}
		if len(w.edits) >= maxSection {
			w.count(p, h.slot(), added)
			added = 0
			w.commit("apply")
		}
		if w.storeKey(a, p, h, &k, op.Tokens.At(i)) {
			added++
			if told {
				w.tell(ChangeAdded, p, h.slot(), k)
			}
		}
	}
	w.count(p, h.slot(), added)
}

// readyKeys asks for the places of keys that come up soon: at the start for
// two windows, then for the next but one.
func (w *writer) readyKeys(p *partition, keys Keys, at int) {
	if keys.Long != nil || at%readyAhead != 0 {
		return
	}
	from := at + readyAhead
	if at == 0 {
		from = 0
	}
	to := min(at+2*readyAhead, len(keys.Short))
	for i := from; i < to; i++ {
		p.short.ready(p.short.hash(keys.Short[i]))
	}
}

// outcome is what a store did to a membership.
type outcome uint8

const (
	stored outcome = iota
	refreshed
	movedTier
	older
)

func (a *Applied) note(o outcome) {
	switch o {
	case stored:
		a.Stored++
	case refreshed:
		a.Refreshed++
	case movedTier:
		a.MovedTier++
	case older:
		a.Older++
	}
}

// storeKey plans one upsert and says whether it added a membership.
func (w *writer) storeKey(a *Applied, p *partition, h holder, k *keyRef, tokens int32) bool {
	c := w.current(p, k)
	m := &w.memo
	if m.valid && m.p == p && m.from == c.set && (c.set == 0 && m.long == k.long() || c.set != 0 && tokens == c.tokens) &&
		(m.to == m.from || p.record(m.to).keys() < maxShared) {
		a.note(m.outcome)
		if m.outcome != older {
			w.move(p, k, &c, m.to, tokens)
		}
		return m.outcome == stored
	}
	to, plain, o := w.withHolder(p, c, h, k.long(), tokens)
	a.note(o)
	if p.setFlags(c.set)&flagTokens == 0 && p.setFlags(to)&flagTokens == 0 && (c.set == 0 || plain == c.tokens) {
		*m = memo{p: p, valid: true, long: k.long(), from: c.set, to: to, outcome: o}
	}
	if o != older {
		w.move(p, k, &c, to, plain)
	}
	return o == stored
}

func (p *partition) setFlags(id uint32) int {
	if id == 0 {
		return 0
	}
	return p.record(id).flags()
}

// withHolder returns the set that a key goes to when a holder reports it, and
// the token count of its entry.
func (w *writer) withHolder(p *partition, c current, h holder, long bool, tokens int32) (to uint32, plain int32, o outcome) {
	hs := p.decode(w.hs[:0], c.set, c.tokens)
	at, held := slices.BinarySearchFunc(hs, h.slot(), func(x holding, slot uint16) int {
		return int(x.slot()) - int(slot)
	})
	fresh := holding{holder: h, tokens: tokens}
	switch {
	case !held:
		hs = slices.Insert(hs, at, fresh)
	case h.seen() < hs[at].seen():
		w.hs = hs
		return c.set, c.tokens, older
	default:
		o = refreshed
		if hs[at].tier() != h.tier() {
			o = movedTier
		}
		fresh.count = hs[at].count
		hs[at] = fresh
	}
	w.hs = hs
	return p.setOf(hs, long), hs[0].tokens, o
}

// removeAll plans that a slot loses keys and returns how many it held.
func (w *writer) removeAll(p *partition, slot uint16, keys Keys) (n int) {
	w.memo = memo{}
	removed := int32(0)
	for i := range keys.Len() {
		w.readyKeys(p, keys, i)
		k, ok := p.ref(keys, i)
		if !ok {
			continue
		}
		if len(w.edits) >= maxSection {
			w.count(p, slot, -removed)
			n, removed = n+int(removed), 0
			w.commit("evict")
		}
		if w.removeKey(p, slot, &k) {
			removed++
			if w.feed != nil {
				w.tell(ChangeRemoved, p, slot, k)
			}
		}
	}
	w.memo = memo{}
	w.count(p, slot, -removed)
	return n + int(removed)
}

func (w *writer) removeKey(p *partition, slot uint16, k *keyRef) bool {
	c := w.current(p, k)
	if c.set == 0 {
		return false
	}
	if m := &w.memo; m.valid && m.p == p && m.from == c.set && (m.to == 0 || p.record(m.to).keys() < maxShared) {
		w.move(p, k, &c, m.to, c.tokens)
		return true
	}
	if p.record(c.set).find(slot) < 0 {
		return false
	}
	hs := p.decode(w.hs[:0], c.set, c.tokens)
	hs = slices.DeleteFunc(hs, func(h holding) bool { return h.slot() == slot })
	w.hs = hs
	to, tokens := p.setOf(hs, k.long()), c.tokens
	if len(hs) > 0 {
		tokens = hs[0].tokens
	}
	if p.setFlags(c.set)&flagTokens == 0 {
		w.memo = memo{p: p, valid: true, from: c.set, to: to}
	}
	w.move(p, k, &c, to, tokens)
	return true
}
