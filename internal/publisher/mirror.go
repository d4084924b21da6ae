// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"math"

	"github.com/inferencecache/inference-cache/internal/kvevents"
)

// mirror is what one engine rank holds. Blocks live in pages without pointers
// and are found by engine hash and by content key; blocks that share either
// are linked.
//
// A (adapter, key) is reported when at least one of its blocks is credited,
// with the warmest tier among them. Every change of that goes to out.
type mirror struct {
	out *opList
	// once ends a holding with its first removal.
	once      bool
	maxBlocks int

	pages  []*page
	used   uint32       // slots ever handed out
	free   uint32       // first free slot + 1, linked like blocks by hash
	hand   uint32       // where eviction continues
	tables [2]slotTable // by axis

	adapters   []string
	adapterIDs map[string]uint16

	live, reported, suspects, withdrawn int
	tierBlocks                          [3]int
	// withdrawals are keys that stay unreported, with their descendants, until
	// the engine clears its cache.
	withdrawals map[node]struct{}
}

const (
	pageBits  = 10
	pageSlots = 1 << pageBits
)

type page [pageSlots]block

// block is one engine block. It is held while any of its copies are.
type block struct {
	hash, key uint64
	// parentKey is the key before it, unless tokens is one block.
	parentKey uint64
	// salt tells blocks apart whose engine hash ignores it; 0 is none.
	salt uint64
	// links are slot + 1 of the next block with the same hash or key, by axis.
	links [2]uint32
	// tokens counts the whole prefix.
	tokens  int32
	group   int32
	copies  [3]uint16 // by tier
	adapter uint16
	flags   blockFlags
}

type blockFlags uint8

const (
	flagHeld blockFlags = 1 << iota
	flagParent
	flagSuspect
	flagWithdrawn
	// flagShared marks that the key has, or had, another block.
	flagShared
	// flagAssumed marks a T2 copy nobody announced.
	flagAssumed
)

// credited reports whether the block may be reported.
func (b *block) credited() bool {
	return b.flags&(flagHeld|flagSuspect|flagWithdrawn) == flagHeld
}

// tier returns the warmest tier with a copy.
func (b *block) tier() kvevents.Tier {
	for i, copies := range b.copies {
		if copies > 0 {
			return kvevents.Tier(i + 1)
		}
	}
	return kvevents.TierNone
}

// node is one content block of one adapter.
type node struct {
	adapter uint16
	key     uint64
}

// identity is how the engine names a block.
type identity struct {
	hash    uint64
	salt    uint64
	group   int32
	adapter uint16
}

// place is where a block stands in its chain.
type place struct {
	key, parentKey uint64
	hasParent      bool
	tokens         int32
}

func newMirror(out *opList, once bool, maxBlocks int) *mirror {
	m := &mirror{out: out, once: once, maxBlocks: maxBlocks}
	m.reset()
	return m
}

// reset forgets everything and reports nothing.
func (m *mirror) reset() {
	*m = mirror{
		out: m.out, once: m.once, maxBlocks: m.maxBlocks,
		tables: [2]slotTable{newSlotTable(), newSlotTable()}, adapterIDs: map[string]uint16{},
	}
}

func (m *mirror) at(slot uint32) *block {
	return &m.pages[slot>>pageBits][slot&(pageSlots-1)]
}

// adapterID numbers an adapter. ok is false when there are too many.
func (m *mirror) adapterID(name string) (id uint16, ok bool) {
	if id, ok := m.adapterIDs[name]; ok {
		return id, true
	}
	if len(m.adapters) > math.MaxUint16 {
		return 0, false
	}
	id = uint16(len(m.adapters))
	m.adapters = append(m.adapters, name)
	m.adapterIDs[name] = id
	return id, true
}

// find returns a block with this hash, adapter and salt, in any group. other
// reports that the hash is known under another adapter.
func (m *mirror) find(hash, salt uint64, adapter uint16) (found *block, other bool) {
	for slot := m.head(byHash, hash); slot != 0; {
		b := m.at(slot - 1)
		if b.adapter == adapter && b.salt == salt {
			return b, false
		}
		other = other || b.adapter != adapter
		slot = *b.next(byHash)
	}
	return nil, other
}

// add gives a block one more copy in a tier, creating it when needed. Blocks
// whose hash now stands for other content are forgotten: they are left over
// from removals that never arrived.
func (m *mirror) add(id identity, at place, tier kvevents.Tier, withdrawn bool) *block {
	var found *block
	for slot := m.head(byHash, id.hash); slot != 0; {
		b := m.at(slot - 1)
		next := *b.next(byHash)
		switch {
		case b.key == at.key && b.identity() == id:
			found = b
		case b.key != at.key && b.adapter == id.adapter && b.salt == id.salt:
			m.drop(slot - 1)
		}
		slot = next
	}
	if found == nil {
		if m.live >= m.maxBlocks {
			m.evictOne()
		}
		found = m.create(id, at, withdrawn)
	}
	m.announce(found, tier)
	return found
}

func (m *mirror) announce(b *block, tier kvevents.Tier) {
	m.change(b, func() {
		if b.flags&flagSuspect != 0 {
			m.forgive(b)
		}
		m.addCopy(b, tier)
	})
}

func (b *block) identity() identity {
	return identity{hash: b.hash, salt: b.salt, group: b.group, adapter: b.adapter}
}

// copyTier gives every block of a known hash one more copy in a tier. A group
// that does not know the hash yet takes it over from one that does.
func (m *mirror) copyTier(hash uint64, group int32, tier kvevents.Tier) (known bool) {
	var source *block
	inGroup := false
	for slot := m.head(byHash, hash); slot != 0; {
		b := m.at(slot - 1)
		source = b
		if b.group == group {
			inGroup = true
			m.announce(b, tier)
		}
		slot = *b.next(byHash)
	}
	if source == nil {
		return false
	}
	if !inGroup {
		id := source.identity()
		id.group = group
		at := place{key: source.key, parentKey: source.parentKey, tokens: source.tokens}
		at.hasParent = source.flags&flagParent != 0
		m.add(id, at, tier, source.flags&flagWithdrawn != 0)
	}
	return true
}

// remove takes one copy from a tier, in one group or in any. It reports false
// when there was none. assume leaves a copy in T2 instead of nothing.
func (m *mirror) remove(hash uint64, group int32, anyGroup bool, tier kvevents.Tier, assume bool) (known bool) {
	for slot := m.head(byHash, hash); slot != 0; {
		b := m.at(slot - 1)
		next := *b.next(byHash)
		if (anyGroup || b.group == group) && b.copies[tier-1] > 0 {
			known = true
			m.change(b, func() { m.takeCopy(b, tier, assume) })
			if b.tier() == kvevents.TierNone {
				m.release(slot - 1)
			}
		}
		slot = next
	}
	return known
}

func (m *mirror) addCopy(b *block, tier kvevents.Tier) {
	copies := &b.copies[tier-1]
	switch {
	case *copies == 0:
		m.tierBlocks[tier-1]++
		*copies = 1
	case !m.once && *copies < math.MaxUint16:
		*copies++
	}
}

func (m *mirror) takeCopy(b *block, tier kvevents.Tier, assume bool) {
	copies := &b.copies[tier-1]
	if *copies--; m.once {
		*copies = 0
	}
	if *copies > 0 {
		return
	}
	m.tierBlocks[tier-1]--
	if assume && tier == kvevents.TierT1 && b.tier() == kvevents.TierNone {
		m.addCopy(b, kvevents.TierT2)
		b.flags |= flagAssumed
	}
}

// create links a new block without copies.
func (m *mirror) create(id identity, at place, withdrawn bool) *block {
	slot := m.allocate()
	b := m.at(slot)
	*b = block{
		hash: id.hash, salt: id.salt, group: id.group, adapter: id.adapter,
		key: at.key, parentKey: at.parentKey, tokens: at.tokens, flags: flagHeld,
	}
	m.link(byHash, slot)
	if m.link(byKey, slot) {
		for other := slot + 1; other != 0; other = *m.at(other - 1).next(byKey) {
			m.at(other - 1).flags |= flagShared
		}
	}
	if at.hasParent {
		b.flags |= flagParent
	}
	if withdrawn {
		b.flags |= flagWithdrawn
		m.withdrawn++
	}
	m.live++
	return b
}

func (m *mirror) allocate() (slot uint32) {
	if m.free != 0 {
		slot = m.free - 1
		m.free = *m.at(slot).next(byHash)
		return slot
	}
	if m.used&(pageSlots-1) == 0 {
		m.pages = append(m.pages, new(page))
	}
	m.used++
	return m.used - 1
}

// drop forgets a block with all its copies.
func (m *mirror) drop(slot uint32) {
	b := m.at(slot)
	m.change(b, func() {
		for i := range b.copies {
			if b.copies[i] > 0 {
				b.copies[i] = 0
				m.tierBlocks[i]--
			}
		}
	})
	m.release(slot)
}

// release unlinks a block without copies.
func (m *mirror) release(slot uint32) {
	b := m.at(slot)
	m.unlink(byHash, slot)
	m.unlink(byKey, slot)
	m.live--
	if b.flags&flagSuspect != 0 {
		m.suspects--
	}
	if b.flags&flagWithdrawn != 0 {
		m.withdrawn--
	}
	*b = block{links: [2]uint32{byHash: m.free}}
	m.free = slot + 1
}
