// SPDX-License-Identifier: Apache-2.0

package index

import (
	"math/bits"
	"sync"
)

// Sizes of a segment: it grows by a half or a third, so that at least half of
// the room its limit allows is used.
const (
	minSegment = 8
	maxSegment = 4096
	// maxDepth bounds the directory, should hashes ever collide: segments of
	// that depth grow instead of being split.
	maxDepth = 32
)

// grown and shrunk return the next size of a segment: 8, 12, 16, 24, 32, ...
func grown(size int) int {
	if size&(size-1) == 0 {
		return size / 2 * 3
	}
	return size / 3 * 4
}

func shrunk(size int) int {
	if size&(size-1) == 0 {
		return size / 4 * 3
	}
	return size / 3 * 2
}

// entry is one key of a table. set 0 means free.
type entry struct {
	key   uint64
	set   uint32
	extra uint32
}

// entryBytes is the size of an entry.
const entryBytes = 16

// segment is an array with linear probing and no tombstones; at most three
// quarters are used.
type segment struct {
	entries []entry
	used    int32
	planned int32 // insertions to come, of the round below
	round   uint32
	depth   uint8 // hash bits all its keys share
	slab    *slab // where a full-size segment's entries are
	block   int32
}

// table maps words to a set and an extra word by extendible hashing: the top
// bits of a key's hash choose a segment, its low bits the place in it. No step
// touches more than one segment, however large the table is.
//
//	hash  [ directory bits | ...          | place bits ]
//	dir   [ *segment, *segment, ... ]  2^depth of them
type table struct {
	dir   []*segment
	shift uint8 // 64 - directory bits
	seed  uint64
	slots int      // entries of all segments
	round uint32   // of planning; plans of earlier rounds are void
	plans []uint64 // hashes of the round
	slabs *slabs
}

func newTable(seed uint64, from *slabs) table {
	return table{
		dir:   []*segment{{entries: make([]entry, minSegment)}},
		shift: 64, seed: seed, slots: minSegment, slabs: from,
	}
}

// newSegment returns an empty segment.
func (t *table) newSegment(size int, like *segment, depth uint8) *segment {
	s := &segment{round: t.round, depth: depth}
	if like.round == t.round {
		s.planned = like.planned
	}
	if size == halfSegment || size == maxSegment {
		s.entries, s.slab, s.block = t.slabs.take(size)
	} else {
		s.entries = make([]entry, size)
	}
	t.slots += size
	return s
}

// drop gives the memory of a segment back that nobody reads any more.
func (t *table) drop(s *segment) {
	t.slots -= len(s.entries)
	if s.slab != nil {
		t.slabs.give(s.slab, s.block, len(s.entries))
	}
}

// release gives the memory of a whole table back.
func (t *table) release() {
	for i, s := range t.dir {
		if i == 0 || t.dir[i-1] != s {
			t.drop(s)
		}
	}
	t.dir = nil
}

// hash spreads a key; the seed keeps a producer from choosing collisions.
func (t *table) hash(key uint64) uint64 {
	hi, lo := bits.Mul64(key^t.seed, 0x9e3779b97f4a7c15)
	return (hi ^ lo) * 0xd6e8feb86659fd93
}

func (t *table) segment(hash uint64) *segment { return t.dir[hash>>t.shift] }

// place is where a segment of some size wants the key of a hash.
func place(hash uint64, size int) int { return int(hash & 0xffffffff * uint64(size) >> 32) }

// ready asks for the place of a hash, so that it is near when find comes.
func (t *table) ready(hash uint64) {
	entries := t.segment(hash).entries
	prefetch(&entries[place(hash, len(entries))])
}

// find returns the entry of a key, or nil. It stays valid until the table
// changes.
func (t *table) find(hash, key uint64) *entry {
	entries := t.segment(hash).entries
	for i := place(hash, len(entries)); ; i++ {
		if i >= len(entries) {
			i = 0
		}
		e := &entries[i]
		if e.set == 0 {
			return nil
		}
		if e.key == key {
			return e
		}
	}
}

// findWhere is find for keys that may repeat: it returns the first entry of a
// key that is accepted.
func (t *table) findWhere(hash, key uint64, accept func(*entry) bool) *entry {
	entries := t.segment(hash).entries
	for i := place(hash, len(entries)); ; i++ {
		if i >= len(entries) {
			i = 0
		}
		e := &entries[i]
		if e.set == 0 {
			return nil
		}
		if e.key == key && accept(e) {
			return e
		}
	}
}

// set adds a key, for which plan made room, or changes its entry.
func (t *table) set(hash uint64, e entry) {
	s := t.segment(hash)
	for i := place(hash, len(s.entries)); ; i++ {
		if i >= len(s.entries) {
			i = 0
		}
		at := &s.entries[i]
		switch {
		case at.set == 0:
			s.used++
			*at = e
			return
		case at.key == e.key:
			at.set, at.extra = e.set, e.extra
			return
		}
	}
}

// insert adds a key for which plan made room, even if it is there already.
func (t *table) insert(hash uint64, e entry) {
	s := t.segment(hash)
	s.used++
	s.put(hash, e)
}

func (s *segment) put(hash uint64, e entry) {
	i := place(hash, len(s.entries))
	for s.entries[i].set != 0 {
		i = s.after(i)
	}
	s.entries[i] = e
}

func (s *segment) after(i int) int {
	if i++; i == len(s.entries) {
		return 0
	}
	return i
}

// distance is how far a probe goes from one place to another.
func (s *segment) distance(from, to int) int {
	if d := to - from; d >= 0 {
		return d
	}
	return to - from + len(s.entries)
}

// delete removes a key, if it is there.
func (t *table) delete(hash, key uint64) {
	s := t.segment(hash)
	for i := place(hash, len(s.entries)); ; i++ {
		if i >= len(s.entries) {
			i = 0
		}
		switch {
		case s.entries[i].set == 0:
			return
		case s.entries[i].key == key:
			t.vacate(s, i)
			return
		}
	}
}

// remove deletes an entry returned by findWhere.
func (t *table) remove(hash uint64, at *entry) {
	s := t.segment(hash)
	i := place(hash, len(s.entries))
	for &s.entries[i] != at {
		i = s.after(i)
	}
	t.vacate(s, i)
}

// vacate frees a place. Entries behind it move up, so that no probe ends early.
func (t *table) vacate(s *segment, hole int) {
	s.used--
	for i := s.after(hole); s.entries[i].set != 0; i = s.after(i) {
		home := place(t.hash(s.entries[i].key), len(s.entries))
		if s.distance(home, i) >= s.distance(hole, i) {
			s.entries[hole] = s.entries[i]
			hole = i
		}
	}
	s.entries[hole] = entry{}
}

// plan makes room for one more key. New segments are built beside the old
// ones; readers is held only while they are put in place.
func (t *table) plan(hash uint64, readers sync.Locker) {
	for {
		s := t.segment(hash)
		if s.round != t.round {
			s.round, s.planned = t.round, 0
		}
		if int(s.used+s.planned+1)*4 <= len(s.entries)*3 {
			s.planned++
			t.plans = append(t.plans, hash)
			return
		}
		if len(s.entries) < maxSegment || s.depth == maxDepth {
			t.resize(hash, grown(len(s.entries)), readers)
		} else {
			t.split(hash, readers)
		}
	}
}

// endRound voids all plans.
func (t *table) endRound() {
	t.round++
	t.plans = t.plans[:0]
}

// shrink makes the segment of a hash smaller if it is nearly empty. It is called
// between rounds.
func (t *table) shrink(hash uint64, readers sync.Locker) {
	s := t.segment(hash)
	if len(s.entries) > minSegment && int(s.used)*4 < len(s.entries) {
		t.resize(hash, shrunk(len(s.entries)), readers)
	}
}

// resize replaces a segment by one of another size.
func (t *table) resize(hash uint64, size int, readers sync.Locker) {
	old := t.segment(hash)
	s := t.newSegment(size, old, old.depth)
	s.used = old.used
	for _, e := range old.entries {
		if e.set != 0 {
			s.put(t.hash(e.key), e)
		}
	}
	readers.Lock()
	t.put(hash, s)
	readers.Unlock()
	t.drop(old)
}

// halfSegment is what a split starts its halves with.
const halfSegment = maxSegment / 4 * 3

// put makes the directory entries of a segment's prefix point to it.
func (t *table) put(hash uint64, s *segment) {
	span := 1 << (64 - t.shift - s.depth)
	first := int(hash>>t.shift) &^ (span - 1)
	for i := range span {
		t.dir[first+i] = s
	}
}

// split replaces a segment by two that share one more bit.
func (t *table) split(hash uint64, readers sync.Locker) {
	old := t.segment(hash)
	bit := uint64(1) << (63 - old.depth)
	var halves [2]*segment
	for i := range halves {
		halves[i] = t.newSegment(halfSegment, old, old.depth+1)
	}
	for _, e := range old.entries {
		if e.set == 0 {
			continue
		}
		h := t.hash(e.key)
		half := halves[h&bit>>(63-old.depth)]
		half.used++
		half.put(h, e)
	}
	halves[0].planned, halves[1].planned = 0, 0
	for _, h := range t.plans {
		if t.segment(h) == old {
			halves[h&bit>>(63-old.depth)].planned++
		}
	}
	dir, shift := t.dir, t.shift
	if old.depth == 64-shift {
		dir, shift = make([]*segment, 2*len(t.dir)), shift-1
		for i, s := range t.dir {
			dir[2*i], dir[2*i+1] = s, s
		}
	}
	readers.Lock()
	t.dir, t.shift = dir, shift
	t.put(hash&^bit, halves[0])
	t.put(hash|bit, halves[1])
	readers.Unlock()
	t.drop(old)
}

// bytes returns the memory of the table.
func (t *table) bytes() int64 { return int64(t.slots)*entryBytes + int64(len(t.dir))*56 }
