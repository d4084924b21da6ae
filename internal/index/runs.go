// SPDX-License-Identifier: Apache-2.0

package index

import (
	"bytes"
	"math"
	"slices"
	"unsafe"
)

// runs follows the holders of a chain from block to block.
//
// Invariant: prev, list and places go in step. Entry i stands for holder i of
// the set of the last block: prev[i] is what that set says of it, list[i] the
// same replica with the coldest tier and the oldest stored time of its run so
// far, places[i] where its match stands. A holder without a run, because it
// lacks an earlier block or does not count, has the place noRun. So what two
// sets in a row have in common is passed over without a look at the runs.
type runs struct {
	prev   []uint64
	list   []holder
	places []int32
	going  int // entries with a run
	// oldest is what a membership must not be older than to be fresh, unless
	// its replica has had a heartbeat since.
	oldest holder
	// spare and sparePlaces are the memory of list and places.
	spare       []holder
	sparePlaces []int32
}

const noRun = -1

// fewAged is how many entries with new times are looked at one by one before
// the rest is expected to have new times too.
const fewAged = 8

// seed starts a run for every fresh holder of the first key and makes room
// for their matches.
func (m *matcher) seed(dst []Match, list []uint64) []Match {
	rs := &m.runs
	rs.oldest = holder(max(m.now-m.ttl+1, 0))
	rs.prev = list
	rs.spare = slices.Grow(rs.spare[:0], len(list))
	rs.sparePlaces = slices.Grow(rs.sparePlaces[:0], len(list))
	rs.list, rs.places = rs.spare[:len(list)], rs.sparePlaces[:len(list)]
	places, slots := rs.places[:len(list)], m.scope.slots
	going := int32(0)
	for i, w := range list {
		h := holder(w)
		rs.list[i], places[i] = h, noRun
		st := &slots[h.slot()]
		if st.state != slotLive || st.silent || !m.fresh(h) {
			continue
		}
		places[i] = going
		going++
	}
	rs.going = int(going)
	dst = slices.Grow(dst, rs.going)
	return dst[:len(dst)+rs.going]
}

// fresh says whether a membership counts.
func (m *matcher) fresh(h holder) bool {
	return h&seenMask >= m.runs.oldest || m.now-m.scope.slots[h.slot()].member.beat.Load() < m.ttl
}

// step goes on to the holders of the next block. Runs of replicas that do not
// freshly hold it end; matches, blocks and sum are for them.
func (m *matcher) step(list []uint64, matches []Match, blocks int32, sum int64) {
	rs := &m.runs
	prev := rs.prev
	// a and b are places in prev and list, r that of a's entry, w that of b's
	// to be: entries only move when something left before them.
	a, b, r, w := 0, 0, 0, 0
	for burst := fewAged; a < len(prev) && b < len(list); {
		was, h := holder(prev[a]), holder(list[b])
		switch {
		case h == was:
			n := common(prev[a:], list[b:])
			if w != r {
				rs.shift(w, r, n)
			}
			a, b, r, w, burst = a+n, b+n, r+n, w+n, fewAged
		case h.slot() == was.slot():
			n := rs.age(list[b:min(b+burst, b+len(prev)-a, len(list))], r, w)
			if n == burst {
				burst = len(list)
			} else if n == 0 {
				m.renew(r, w, h, matches, blocks, sum)
				n = 1
			}
			a, b, r, w = a+n, b+n, r+n, w+n
		case h.slot() > was.slot():
			m.end(r, matches, blocks, sum)
			a, r = a+1, r+1
			if b == 0 {
				w++
			}
		default:
			r = rs.join(w, r, h)
			b, w = b+1, w+1
		}
	}
	for ; r < len(rs.list); r++ {
		m.end(r, matches, blocks, sum)
	}
	rs.list, rs.places, rs.prev = rs.list[w-b:w], rs.places[w-b:w], list
	for ; b < len(list); b++ {
		rs.join(b, b, holder(list[b]))
	}
}

// common returns how many leading words are equal. Mostly it is all or few.
func common(a, b []uint64) (n int) {
	size := min(len(a), len(b))
	a, b = a[:size], b[:size]
	if bytes.Equal(bytesBehind(a), bytesBehind(b)) {
		return size
	}
	for n < size && a[n] == b[n] {
		n++
	}
	return n
}

// bytesBehind returns the memory of words, which the library compares faster.
func bytesBehind(words []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 8*len(words))
}

// shift moves n entries down.
func (rs *runs) shift(to, from, n int) {
	copy(rs.list[to:to+n], rs.list[from:])
	copy(rs.places[to:to+n], rs.places[from:])
}

// age brings entries from r on up to date and moves them down to w, as long as
// replicas and tiers stay and only times change. It returns how many.
func (rs *runs) age(list []uint64, r, w int) (n int) {
	from, to := rs.list[r:][:len(list)], rs.list[w:][:len(list)]
	moved, oldest := r != w, rs.oldest
	for i, word := range list {
		h, run := holder(word), from[i]
		if (h^run)>>seenBits != 0 || h&seenMask < oldest {
			break
		}
		if h < run {
			to[i] = h
		} else if moved {
			to[i] = run
		}
		n++
	}
	if moved {
		copy(rs.places[w:w+n], rs.places[r:])
	}
	return n
}

// renew brings an entry up to date whose holder has a new time or tier.
func (m *matcher) renew(r, w int, h holder, matches []Match, blocks int32, sum int64) {
	rs := &m.runs
	run, place := rs.list[r], rs.places[r]
	if place != noRun {
		if m.fresh(h) {
			h = packHolder(h.slot(), max(run.tier(), h.tier()), min(run.seen(), h.seen()))
		} else {
			m.end(r, matches, blocks, sum)
			place = noRun
		}
	}
	rs.list[w], rs.places[w] = h, place
}

// join makes entry w one of a holder without a run. r is the first entry that
// is still needed behind it; its new place is returned.
func (rs *runs) join(w, r int, h holder) int {
	if w < r {
		rs.list[w], rs.places[w] = h, noRun
		return r
	}
	if len(rs.list) == cap(rs.list) || len(rs.places) == cap(rs.places) {
		size := 2*cap(rs.spare) + 16
		rs.spare, rs.sparePlaces = make([]holder, 0, size), make([]int32, 0, size)
		rs.list, rs.places = append(rs.spare, rs.list...), append(rs.sparePlaces, rs.places...)
	}
	rs.list, rs.places = slices.Insert(rs.list, w, h), slices.Insert(rs.places, w, noRun)
	return r + 1
}

// end finishes the run of an entry, if it has one.
func (m *matcher) end(i int, matches []Match, blocks int32, sum int64) {
	if place := m.runs.places[i]; place != noRun {
		m.runs.going--
		matches[place].set(m.scope.slots, m.runs.list[i], blocks, tokenSum(sum))
	}
}

// endAll finishes all runs.
func (m *matcher) endAll(matches []Match, blocks int32, sum int64) {
	slots, tokens, places := m.scope.slots, tokenSum(sum), m.runs.places
	for i, run := range m.runs.list {
		if place := places[i]; place != noRun {
			matches[place].set(slots, run, blocks, tokens)
		}
	}
}

// set writes the match of a run.
func (d *Match) set(slots []slotState, run holder, blocks, tokens int32) {
	member := slots[run.slot()].member
	d.Replica, d.Slot = member.name, uint32(run.slot())
	d.Blocks, d.Tokens, d.Tier = blocks, tokens, run.tier()
	d.LastSeenMillis = max(run.seen(), member.beat.Load())
}

func tokenSum(sum int64) int32 { return int32(min(max(sum, 0), math.MaxInt32)) }
