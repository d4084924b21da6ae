// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"math/bits"
	"math/rand/v2"
)

// slotTable maps 64-bit values to block slots: open addressing with linear
// probing, 8 bytes an entry. An entry holds 32 bits of the mixed value, from
// whose upper bits its place follows, and slot + 1. The values themselves are
// in the blocks, so the caller tells whether an entry with the right bits is
// the right one.
type slotTable struct {
	entries []uint64
	used    int
	shift   int // 32 - log2(len(entries))
	// factor mixes values. It is random, so that nobody can choose prompts
	// whose keys collide.
	factor uint64
}

const minTableEntries = 64

func newSlotTable() slotTable {
	t := slotTable{factor: rand.Uint64() | 1}
	t.resize(minTableEntries)
	return t
}

func (t *slotTable) resize(entries int) {
	old := t.entries
	t.entries = make([]uint64, entries)
	t.shift = 32 - bits.TrailingZeros(uint(entries))
	for _, entry := range old {
		if entry != 0 {
			i := t.home(uint32(entry >> 32))
			for t.entries[i] != 0 {
				i = t.after(i)
			}
			t.entries[i] = entry
		}
	}
}

func (t *slotTable) tag(value uint64) uint32 {
	high, low := bits.Mul64(value, t.factor)
	return uint32((high ^ low) >> 32)
}

func (t *slotTable) home(tag uint32) int { return int(tag >> t.shift) }
func (t *slotTable) after(i int) int     { return (i + 1) & (len(t.entries) - 1) }

// insert puts a slot at a place where a search ended.
func (t *slotTable) insert(i int, tag, slot uint32) {
	t.entries[i] = uint64(tag)<<32 | uint64(slot+1)
	if t.used++; t.used > len(t.entries)/4*3 {
		t.resize(2 * len(t.entries))
	}
}

// replace changes the slot of the entry at i.
func (t *slotTable) replace(i int, slot uint32) {
	t.entries[i] = t.entries[i]&^uint64(1<<32-1) | uint64(slot+1)
}

// remove deletes the entry at i and moves back what was pushed past it.
func (t *slotTable) remove(i int) {
	t.used--
	for j := t.after(i); t.entries[j] != 0; j = t.after(j) {
		home := t.home(uint32(t.entries[j] >> 32))
		mask := len(t.entries) - 1
		if (j-home)&mask >= (j-i)&mask {
			t.entries[i] = t.entries[j]
			i = j
		}
	}
	t.entries[i] = 0
}

// axis is a property that blocks are found and linked by.
type axis uint8

const (
	byHash axis = iota
	byKey
)

func (b *block) value(by axis) uint64 {
	if by == byHash {
		return b.hash
	}
	return b.key
}

func (b *block) next(by axis) *uint32 { return &b.links[by] }

// search returns slot + 1 of the first block with a value, 0 when there is
// none, and where its entry is or would be.
func (m *mirror) search(by axis, value uint64) (head uint32, at int) {
	t := &m.tables[by]
	tag := t.tag(value)
	for at = t.home(tag); ; at = t.after(at) {
		entry := t.entries[at]
		if entry == 0 {
			return 0, at
		}
		if uint32(entry>>32) == tag && m.at(uint32(entry)-1).value(by) == value {
			return uint32(entry), at
		}
	}
}

func (m *mirror) head(by axis, value uint64) uint32 {
	head, _ := m.search(by, value)
	return head
}

// link puts a block before the others with its value; others reports whether
// there are any.
func (m *mirror) link(by axis, slot uint32) (others bool) {
	b := m.at(slot)
	head, at := m.search(by, b.value(by))
	*b.next(by) = head
	if t := &m.tables[by]; head == 0 {
		t.insert(at, t.tag(b.value(by)), slot)
	} else {
		t.replace(at, slot)
	}
	return head != 0
}

func (m *mirror) unlink(by axis, slot uint32) {
	b := m.at(slot)
	after := *b.next(by)
	head, at := m.search(by, b.value(by))
	switch {
	case head != slot+1:
		for ; head != slot+1; head = *m.at(head - 1).next(by) {
			if link := m.at(head - 1).next(by); *link == slot+1 {
				*link = after
				return
			}
		}
	case after == 0:
		m.tables[by].remove(at)
	default:
		m.tables[by].replace(at, after-1)
	}
}
