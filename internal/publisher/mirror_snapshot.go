// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"math/bits"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// snapshotRunKeys bounds the runs of a snapshot.
const snapshotRunKeys = 4096

// snapshot yields everything reported, parents before children. It goes from
// the leaves up to the first ancestor already yielded and then down again, so
// that runs follow chains whatever the order of slots.
func (m *mirror) snapshot(yield func(*pb.StoredRun) bool) {
	parents, inner := m.chains()
	done := newBitset(m.used)
	var path []uint32
	out := opList{maxRunKeys: snapshotRunKeys}
	for slot := range m.used {
		if inner.has(slot) || !m.isHead(slot) {
			continue
		}
		path = path[:0]
		for at := slot + 1; at != 0 && !done.has(at-1); at = parents[at-1] {
			done.set(at - 1)
			path = append(path, at-1)
		}
		for i := len(path) - 1; i >= 0; i-- {
			b := m.at(path[i])
			out.stored(m.adapters[b.adapter], m.reportedTier(b), b.key, b.tokens)
		}
		if !out.flushStored(yield, false) {
			return
		}
	}
	out.flushStored(yield, true)
}

// chains returns slot + 1 of the reported parent of each reported node, and
// which slots are somebody's parent.
func (m *mirror) chains() (parents []uint32, inner bitset) {
	parents, inner = make([]uint32, m.used), newBitset(m.used)
	for slot := range m.used {
		b := m.at(slot)
		if b.flags&flagParent == 0 || !m.isHead(slot) {
			continue
		}
		if parent := m.parentOf(slot); parent != 0 && m.at(parent-1).tokens < b.tokens {
			parents[slot] = parent
			inner.set(parent - 1)
		}
	}
	return parents, inner
}

// parentOf returns slot + 1 of the block that stands for a block's parent. It
// is in the slot before as a rule.
func (m *mirror) parentOf(slot uint32) uint32 {
	b := m.at(slot)
	if slot > 0 {
		before := m.at(slot - 1)
		if before.key == b.parentKey && before.adapter == b.adapter &&
			before.credited() && before.flags&flagShared == 0 {
			return slot
		}
	}
	return m.standIn(node{b.adapter, b.parentKey})
}

// standIn returns slot + 1 of the block that stands for a reported node.
func (m *mirror) standIn(n node) uint32 {
	for slot := m.head(byKey, n.key); slot != 0; {
		b := m.at(slot - 1)
		if b.adapter == n.adapter && b.credited() {
			return slot
		}
		slot = *b.next(byKey)
	}
	return 0
}

// isHead reports whether a block stands for its node.
func (m *mirror) isHead(slot uint32) bool {
	b := m.at(slot)
	return b.credited() && (b.flags&flagShared == 0 || m.standIn(node{b.adapter, b.key}) == slot+1)
}

type bitset []uint64

func newBitset(n uint32) bitset { return make(bitset, (n+bits.UintSize-1)/64) }

func (s bitset) has(i uint32) bool { return s[i>>6]&(1<<(i&63)) != 0 }
func (s bitset) set(i uint32)      { s[i>>6] |= 1 << (i & 63) }
