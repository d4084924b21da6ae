// SPDX-License-Identifier: Apache-2.0

package index

import "slices"

// yield lets other writers of the scope in; nothing may be planned.
func (w *writer) yield() {
	w.s.write.Unlock()
	w.s.write.Lock()
}

// full commits when a step of background work is long enough.
func (w *writer) full(op string) bool {
	if len(w.list) < maxSweep {
		return false
	}
	w.commit(op)
	return true
}

// sweepDead takes a dead slot, already invisible, out of all sets and frees
// it. It works in bounded sections.
func (w *writer) sweepDead(slot uint16) {
	isDead := func(h holding) bool { return h.slot() == slot }
	for _, p := range w.partitions() {
		for ids := slices.Clone(p.setsOf(slot)); len(ids) > 0; ids = slices.Clone(p.setsOf(slot)) {
			trims := p.trims
			for _, id := range ids {
				if p.trims != trims {
					break
				}
				if p.record(id).find(slot) < 0 {
					continue
				}
				w.without(p, id, w.take(p, id, maxShared), isDead)
				if w.full("clear") {
					w.yield()
				}
			}
			w.commit("clear")
		}
	}
	w.s.freeSlot(slot)
}

// partitions returns the scope's partitions.
func (w *writer) partitions() []*partition {
	out := make([]*partition, 0, len(w.s.parts))
	for _, p := range w.s.parts {
		out = append(out, p)
	}
	return out
}

// sweepPromoted counts the keys of a slot that was hidden and is live now.
func (w *writer) sweepPromoted(slot uint16) {
	for _, p := range w.partitions() {
		trims := p.trims
		for i, id := range slices.Clone(p.setsOf(slot)) {
			if p.trims != trims {
				break
			}
			if p.record(id).find(slot) >= 0 {
				w.recount(p, id)
			}
			if i%maxSweep == maxSweep-1 {
				w.commit("snapshot")
				w.yield()
			}
		}
		w.commit("snapshot")
	}
}

// recount brings the live holders of a set up to date.
func (w *writer) recount(p *partition, id uint32) {
	r := p.record(id)
	before := r.live() > 0
	p.dequeue(id)
	p.enqueue(id)
	if now := r.live() > 0; now != before {
		n := int64(r.keys())
		if !now {
			n = -n
		}
		p.planned.keys += n
	}
	w.touch(p)
}

// promote plans that a hidden slot takes the place of the member's slot.
func (w *writer) promote(m *member, hidden uint16) (old uint16) {
	old = m.slot
	w.leaveSlot(old)
	for _, p := range w.s.parts {
		if int(hidden) < len(p.owners) {
			n := int64(p.owners[hidden].planned)
			p.planned.hidden -= n
			p.planned.memberships += n
			w.touch(p)
		}
	}
	w.flips = append(w.flips, flip{old: old, fresh: hidden})
	return old
}

// RemoveEverywhere removes keys of one replica in all schemes, of one adapter
// or of all, and returns the number of memberships removed.
func (x *Index) RemoveEverywhere(tenant, model, replica, adapter string, anyAdapter bool, keys Keys) (n int) {
	h := x.home(tenant, model)
	if h == nil {
		return 0
	}
	for _, s := range h.eachScope() {
		n += s.removeKeys(replica, adapter, anyAdapter, keys)
	}
	return n
}

func (s *scope) removeKeys(replica, adapter string, anyAdapter bool, keys Keys) (n int) {
	s.write.Lock()
	defer s.write.Unlock()
	m := s.members[replica]
	if s.closed || m == nil {
		return 0
	}
	w := s.x.begin(s)
	defer s.x.end(w)
	for _, p := range w.partitions() {
		if !anyAdapter && p.adapter != adapter {
			continue
		}
		n += w.removeAll(p, m.slot, keys)
		w.commit("evict")
		s.x.limits.retireEmpty(p)
	}
	return n
}

// ClearReplica removes all memberships of a replica, in every scheme and
// adapter, and its stats row. It returns the number of memberships removed.
// They are invisible at once, the memory follows in small steps.
func (x *Index) ClearReplica(tenant, model, replica string) (n int) {
	h := x.home(tenant, model)
	if h == nil {
		return 0
	}
	for _, s := range h.eachScope() {
		n += s.clear(replica)
	}
	if r := h.known(replica); r != nil && r.dropStats() && n == 0 {
		r.tell(ChangeCleared)
	}
	return n
}

func (s *scope) clear(replica string) int {
	s.write.Lock()
	defer s.write.Unlock()
	m := s.members[replica]
	if s.closed || m == nil || s.slots[m.slot].planned == 0 {
		return 0
	}
	w := s.x.begin(s)
	defer s.x.end(w)
	old := m.slot
	n := int(s.slots[old].planned)
	if w.feed != nil {
		w.changes = append(w.changes, Change{Kind: ChangeCleared, Replica: replica})
	}
	w.replaceSlot(m, old)
	w.commit("clear")
	w.sweepDead(old)
	return n
}
