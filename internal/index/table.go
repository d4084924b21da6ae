// SPDX-License-Identifier: Apache-2.0

package index

import "sync"

// Sizes of a segment in buckets: it grows by a half or a third, so that at
// least half of the room its limit allows is used.
const (
	minSegment = 2
	maxSegment = 1024
	// maxDepth bounds the directory, should words ever collide: segments of
	// that depth grow instead of being split.
	maxDepth = 32
)

// grown and shrunk return the next size of a segment: 2, 3, 4, 6, 8, 12, ...
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

// segment is an array of buckets; at most three quarters of it are used.
//
// Invariant: between the home of a word and the bucket it stands in all
// buckets are full.
type segment struct {
	buckets []bucket
	used    int32
	planned int32 // insertions to come, of the round below
	round   uint32
	depth   uint8 // leading bits all its words share
	slab    *slab // where a full-size segment's buckets are
	block   int32
}

// table maps words to a set and an extra word by extendible hashing. Words are
// random: the top bits of one choose a segment, its low bits the bucket in it.
// No step touches more than one segment, however large the table is.
//
//	word  [ directory bits | ...          | bucket bits ]
//	dir   [ buckets, buckets, ... ]  2^depth of them, for everybody
//	owned [ segment, segment, ... ]  the same, for the writer
type table struct {
	dir   [][]bucket
	owned []*segment
	shift uint8    // 63 - directory bits
	slots int      // entries of all segments
	round uint32   // of planning; plans of earlier rounds are void
	plans []uint64 // words of the round
	slabs *slabs
}

func newTable(from *slabs) table {
	s := &segment{buckets: make([]bucket, minSegment)}
	return table{
		dir: [][]bucket{s.buckets}, owned: []*segment{s},
		shift: 63, slots: minSegment * bucketSize, slabs: from,
	}
}

// newSegment returns an empty segment.
func (t *table) newSegment(size int, like *segment, depth uint8) *segment {
	s := &segment{round: t.round, depth: depth}
	if like.round == t.round {
		s.planned = like.planned
	}
	if size == halfSegment || size == maxSegment {
		s.buckets, s.slab, s.block = t.slabs.take(size)
	} else {
		s.buckets = make([]bucket, size)
	}
	t.slots += size * bucketSize
	return s
}

// drop gives the memory of a segment back that nobody reads any more.
func (t *table) drop(s *segment) {
	t.slots -= len(s.buckets) * bucketSize
	if s.slab != nil {
		t.slabs.give(s.slab, s.block, len(s.buckets))
	}
}

// release gives the memory of a whole table back.
func (t *table) release() {
	for i, s := range t.owned {
		if i == 0 || t.owned[i-1] != s {
			t.drop(s)
		}
	}
	t.dir, t.owned = nil, nil
}

// prefix is a word's place in the directory.
func (t *table) prefix(word uint64) uint64 { return word >> 1 >> (t.shift & 63) }

func (t *table) segment(word uint64) *segment { return t.owned[t.prefix(word)] }

// bucketOf is the home of a word in a segment of some size.
func bucketOf(word uint64, size int) int { return int(word & 0xffffffff * uint64(size) >> 32) }

// ready asks for the home of a word, so that it is near when find comes.
func (t *table) ready(word uint64) {
	buckets := t.dir[t.prefix(word)]
	prefetch(&buckets[bucketOf(word, len(buckets))])
}

// find returns the entry of a word, or nil. It stays valid until the table
// changes.
func (t *table) find(word uint64) *entry {
	buckets := t.dir[t.prefix(word)]
	for i := bucketOf(word, len(buckets)); ; {
		b := &buckets[i]
		switch word {
		case b[0].key:
			return b[0].orNil()
		case b[1].key:
			return b[1].orNil()
		case b[2].key:
			return b[2].orNil()
		case b[3].key:
			return b[3].orNil()
		}
		if !b.full() {
			return nil
		}
		if i++; i == len(buckets) {
			i = 0
		}
	}
}

// sets looks keys up and writes their sets to dst, up to the first that is
// absent or equal to the one before it, which for the first is last, if any;
// it returns how many. It is find, spelled out for many keys at once.
func (t *table) sets(dst []uint32, keys []uint64, last *uint64, mix mixer) int {
	dir, shift := t.dir, t.shift&63
	before := ^keys[0]
	if last != nil {
		before = *last
	}
	dst = dst[:len(keys)]
	for k, key := range keys {
		if key == before {
			return k
		}
		before = key
		word := mix.word(key)
		buckets := dir[word>>1>>shift]
		i := bucketOf(word, len(buckets))
	probe:
		b := &buckets[i]
		set := b[3].set
		switch word { // in the first free place key and set are 0
		case b[0].key:
			set = b[0].set
		case b[1].key:
			set = b[1].set
		case b[2].key:
			set = b[2].set
		case b[3].key:
		default:
			if set != 0 {
				if i++; i == len(buckets) {
					i = 0
				}
				goto probe
			}
		}
		if set == 0 {
			return k
		}
		dst[k] = set
	}
	return len(keys)
}

// findWhere is find for words that may repeat: it returns the first entry of
// a word that is accepted.
func (t *table) findWhere(word uint64, accept func(*entry) bool) *entry {
	buckets := t.dir[t.prefix(word)]
	for i := bucketOf(word, len(buckets)); ; {
		b := &buckets[i]
		for n := range b {
			e := &b[n]
			if e.set == 0 {
				return nil
			}
			if e.key == word && accept(e) {
				return e
			}
		}
		if i++; i == len(buckets) {
			i = 0
		}
	}
}

// insert adds an entry for which plan made room, even if its word is there
// already.
func (t *table) insert(e entry) {
	s := t.segment(e.key)
	s.used++
	s.put(e)
}

func (s *segment) put(e entry) {
	i := bucketOf(e.key, len(s.buckets))
	for s.buckets[i].full() {
		i = s.after(i)
	}
	b := &s.buckets[i]
	b[b.used()] = e
}

func (s *segment) after(i int) int {
	if i++; i == len(s.buckets) {
		return 0
	}
	return i
}

// distance is how far a probe goes from one bucket to another.
func (s *segment) distance(from, to int) int {
	if d := to - from; d >= 0 {
		return d
	}
	return to - from + len(s.buckets)
}

// remove deletes an entry returned by find or findWhere.
func (t *table) remove(at *entry) {
	s := t.segment(at.key)
	s.used--
	for i := bucketOf(at.key, len(s.buckets)); ; i = s.after(i) {
		b := &s.buckets[i]
		for n := range b {
			if &b[n] == at {
				s.vacate(i, n)
				return
			}
		}
	}
}

// vacate frees a place. A full bucket may have sent words on to later ones:
// one of them moves up, so that no probe ends early.
func (s *segment) vacate(i, n int) {
	for s.buckets[i].full() {
		j, m := s.displaced(i)
		if m < 0 {
			break
		}
		s.buckets[i][n] = s.buckets[j][m]
		i, n = j, m
	}
	s.buckets[i].close(n)
}

// displaced returns the place of a word behind a bucket that wants to be in it
// or before it; m is -1 when there is none.
func (s *segment) displaced(i int) (j, m int) {
	for j = s.after(i); ; j = s.after(j) {
		b := &s.buckets[j]
		for m = range b {
			if b[m].set == 0 {
				return j, -1
			}
			if s.distance(bucketOf(b[m].key, len(s.buckets)), j) >= s.distance(i, j) {
				return j, m
			}
		}
	}
}

// plan makes room for one more word. New segments are built beside the old
// ones; readers is held only while they are put in place.
func (t *table) plan(word uint64, readers sync.Locker) {
	for {
		s := t.segment(word)
		if s.round != t.round {
			s.round, s.planned = t.round, 0
		}
		if int(s.used+s.planned+1) <= len(s.buckets)*(bucketSize-1) {
			s.planned++
			t.plans = append(t.plans, word)
			return
		}
		if len(s.buckets) < maxSegment || s.depth == maxDepth {
			t.resize(word, grown(len(s.buckets)), readers)
		} else {
			t.split(word, readers)
		}
	}
}

// endRound voids all plans.
func (t *table) endRound() {
	t.round++
	t.plans = t.plans[:0]
}

// shrink makes the segment of a word smaller if it is nearly empty. It is
// called between rounds.
func (t *table) shrink(word uint64, readers sync.Locker) {
	s := t.segment(word)
	if len(s.buckets) > minSegment && int(s.used) < len(s.buckets) {
		t.resize(word, shrunk(len(s.buckets)), readers)
	}
}

// resize replaces a segment by one of another size.
func (t *table) resize(word uint64, size int, readers sync.Locker) {
	old := t.segment(word)
	s := t.newSegment(size, old, old.depth)
	s.used = old.used
	for i := range old.buckets {
		for _, e := range old.buckets[i].entries() {
			s.put(e)
		}
	}
	readers.Lock()
	t.show(word, s)
	readers.Unlock()
	t.drop(old)
}

// halfSegment is what a split starts its halves with.
const halfSegment = maxSegment / 4 * 3

// show makes the directory entries of a segment's prefix point to it.
func (t *table) show(word uint64, s *segment) {
	span := 1 << (63 - t.shift - s.depth)
	first := int(t.prefix(word)) &^ (span - 1)
	for i := first; i < first+span; i++ {
		t.dir[i], t.owned[i] = s.buckets, s
	}
}

// split replaces a segment by two that share one more bit.
func (t *table) split(word uint64, readers sync.Locker) {
	old := t.segment(word)
	bit := uint64(1) << (63 - old.depth)
	var halves [2]*segment
	for i := range halves {
		halves[i] = t.newSegment(halfSegment, old, old.depth+1)
	}
	for i := range old.buckets {
		for _, e := range old.buckets[i].entries() {
			half := halves[e.key&bit>>(63-old.depth)]
			half.used++
			half.put(e)
		}
	}
	halves[0].planned, halves[1].planned = 0, 0
	for _, w := range t.plans {
		if t.segment(w) == old {
			halves[w&bit>>(63-old.depth)].planned++
		}
	}
	dir, owned, shift := t.dir, t.owned, t.shift
	if old.depth == 63-shift {
		dir, owned, shift = make([][]bucket, 2*len(dir)), make([]*segment, 2*len(dir)), shift-1
		for i := range t.dir {
			dir[2*i], dir[2*i+1] = t.dir[i], t.dir[i]
			owned[2*i], owned[2*i+1] = t.owned[i], t.owned[i]
		}
	}
	readers.Lock()
	t.dir, t.owned, t.shift = dir, owned, shift
	t.show(word&^bit, halves[0])
	t.show(word|bit, halves[1])
	readers.Unlock()
	t.drop(old)
}

// bytes returns the memory of the table.
func (t *table) bytes() int64 { return int64(t.slots)*entryBytes + int64(len(t.dir))*80 }
