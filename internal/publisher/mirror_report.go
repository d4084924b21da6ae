// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"github.com/inferencecache/inference-cache/internal/kvevents"
)

// change runs a change of one block and reports what it means for its node.
func (m *mirror) change(b *block, apply func()) {
	before := m.reportedTier(b)
	apply()
	after := m.reportedTier(b)
	if before == after {
		return
	}
	adapter := m.adapters[b.adapter]
	if after == kvevents.TierNone {
		m.reported--
		m.out.removed(adapter, b.key)
		return
	}
	if before == kvevents.TierNone {
		m.reported++
	}
	m.out.stored(adapter, after, b.key, b.tokens)
}

// reportedTier returns the warmest tier among the credited blocks of a block's
// node.
func (m *mirror) reportedTier(b *block) kvevents.Tier {
	best := kvevents.TierNone
	if b.flags&flagShared == 0 {
		if b.credited() {
			best = b.tier()
		}
		return best
	}
	for slot := m.head(byKey, b.key); slot != 0; {
		other := m.at(slot - 1)
		if other.adapter == b.adapter && other.credited() {
			if tier := other.tier(); tier != kvevents.TierNone && (best == kvevents.TierNone || tier < best) {
				best = tier
			}
		}
		slot = *other.next(byKey)
	}
	return best
}

// suspectAll withdraws every block until it is seen again.
func (m *mirror) suspectAll() {
	if m.reported > 0 {
		m.out.cleared()
		m.reported = 0
	}
	m.each(func(_ uint32, b *block) {
		if b.flags&flagSuspect == 0 {
			b.flags |= flagSuspect
			m.suspects++
		}
	})
}

// forgive credits a suspect block again that was just announced. What it was
// said to hold before is not believed any more.
func (m *mirror) forgive(b *block) {
	b.flags &^= flagSuspect | flagAssumed
	m.suspects--
	for i := range b.copies {
		if b.copies[i] > 0 {
			b.copies[i] = 0
			m.tierBlocks[i]--
		}
	}
}

// dropSuspects forgets suspect blocks in a bounded number of slots and returns
// where to go on.
func (m *mirror) dropSuspects(from uint32) (next uint32) {
	const step = 1 << 14
	end := min(from+step, m.used)
	for slot := from; slot < end; slot++ {
		if b := m.at(slot); b.flags&flagSuspect != 0 {
			m.drop(slot)
		}
	}
	return end
}

// dropAssumed forgets every copy nobody announced.
func (m *mirror) dropAssumed() {
	m.each(func(slot uint32, b *block) {
		if b.flags&flagAssumed == 0 {
			return
		}
		b.flags &^= flagAssumed
		if b.copies[kvevents.TierT2-1] == 0 {
			return
		}
		m.change(b, func() { m.takeCopy(b, kvevents.TierT2, false) })
		if b.tier() == kvevents.TierNone {
			m.release(slot)
		}
	})
}

// evictOne makes room at the bound, preferring blocks outside engine memory.
func (m *mirror) evictOne() {
	const probes = 64
	victim, found := uint32(0), false
	for i := uint32(0); i < m.used && (i < probes || !found); i++ {
		slot := m.hand % m.used
		m.hand++
		b := m.at(slot)
		if b.flags&flagHeld == 0 {
			continue
		}
		if b.copies[kvevents.TierT1-1] == 0 {
			m.drop(slot)
			return
		}
		if !found {
			victim, found = slot, true
		}
	}
	if found {
		m.drop(victim)
	}
}

// otherHash reports whether a block's node is held in engine memory under
// another hash too: something the events do not show tells the two apart.
func (m *mirror) otherHash(b *block) bool {
	if b.flags&flagShared == 0 {
		return false
	}
	for slot := m.head(byKey, b.key); slot != 0; {
		other := m.at(slot - 1)
		if other.adapter == b.adapter && other.hash != b.hash &&
			other.copies[kvevents.TierT1-1] > 0 && other.flags&flagSuspect == 0 {
			return true
		}
		slot = *other.next(byKey)
	}
	return false
}

// withdraw stops reporting a node and all that descends from it.
func (m *mirror) withdraw(n node) {
	if m.withdrawals == nil {
		m.withdrawals = map[node]struct{}{}
	}
	m.withdrawals[n] = struct{}{}
	gone := map[node]struct{}{n: {}}
	for grown := true; grown; {
		grown = false
		m.each(func(_ uint32, b *block) {
			if b.flags&flagWithdrawn != 0 {
				return
			}
			self := node{b.adapter, b.key}
			_, listed := gone[self]
			if !listed && b.flags&flagParent != 0 {
				_, listed = gone[node{b.adapter, b.parentKey}]
			}
			if !listed {
				return
			}
			gone[self] = struct{}{}
			grown = true
			m.change(b, func() {
				b.flags |= flagWithdrawn
				m.withdrawn++
			})
		})
	}
}

func (m *mirror) isWithdrawn(n node) bool {
	_, found := m.withdrawals[n]
	return found
}

// each visits every held block in slot order. The visitor may drop the block
// it is given.
func (m *mirror) each(visit func(slot uint32, b *block)) {
	for slot := range m.used {
		if b := m.at(slot); b.flags&flagHeld != 0 {
			visit(slot, b)
		}
	}
}
