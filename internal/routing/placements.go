// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"math/bits"
	"slices"
	"time"
)

// maxHolders bounds the replicas remembered for one key; beyond it the one
// used longest ago makes room. Where that happens, match may miss replicas
// that hold less than others.
const maxHolders = 16

// matchRounds bounds the different depths one match reports.
const matchRounds = 8

// placements remembers which replica was given which prefix, key by key. It
// learns from choices only, so what it tells may be evicted or never computed.
// Memory is bounded by limit pairs of a replica and a key.
//
// Invariant: for one slot a key was used no later than the keys before it in
// its chain. So the oldest pair of all is the end of some chain, and dropping
// it leaves every remembered prefix whole.
type placements struct {
	ttl   time.Duration
	limit int

	// heads holds the first pair of each key; pairs of one key are linked by
	// next. Index 0 is no pair.
	heads map[uint64]int32
	pairs []pair
	used  int
	// free pairs are linked by next, all others by newer and older.
	free, newest, oldest int32
}

type pair struct {
	key uint64
	// at is the time of the last use, in Unix nanoseconds.
	at           int64
	slot         uint32
	next         int32
	newer, older int32
}

func newPlacements(ttl time.Duration, limit int) *placements {
	return &placements{ttl: ttl, limit: limit, heads: map[uint64]int32{}, pairs: make([]pair, 1)}
}

// note remembers that a slot was given a chain of keys. The keys from position
// fresh on were new to it.
func (p *placements) note(now time.Time, slot uint32, keys []uint64) (fresh int) {
	keys = keys[:min(len(keys), p.limit)]
	p.expire(now)
	fresh = len(keys)
	for i := len(keys) - 1; i >= 0; i-- { // so that no key is older than one after it
		at, count := p.find(keys[i], slot)
		switch {
		case at != 0:
			p.unlink(at)
		case count >= maxHolders:
			p.drop(p.leastRecent(keys[i]))
			fallthrough
		default:
			fresh = i
			at = p.add(keys[i], slot)
		}
		p.pairs[at].at = now.UnixNano()
		p.linkNewest(at)
	}
	return fresh
}

// forget removes what a slot was given at the given time or earlier, of the
// chain from position fresh on.
func (p *placements) forget(noted time.Time, slot uint32, keys []uint64, fresh int) {
	keys = keys[:min(len(keys), p.limit)]
	for i := len(keys) - 1; i >= fresh; i-- {
		at, _ := p.find(keys[i], slot)
		if at == 0 {
			continue
		}
		if p.pairs[at].at > noted.UnixNano() {
			return // used since, and so were all before it
		}
		p.drop(at)
	}
}

// match reports slots that were given a prefix of keys within maxAge, deepest
// first, with the number of keys. It stops after matchRounds depths.
func (p *placements) match(now time.Time, keys []uint64, maxAge time.Duration, visit func(slot uint32, depth int)) {
	since := now.Add(-min(maxAge, p.ttl)).UnixNano()
	var seen []uint32
	live := func(key uint64, each func(slot uint32)) (any bool) {
		for at := p.heads[key]; at != 0; at = p.pairs[at].next {
			pair := &p.pairs[at]
			if pair.at < since || slices.Contains(seen, pair.slot) {
				continue
			}
			if any = true; each == nil {
				return true
			}
			each(pair.slot)
		}
		return any
	}
	depth := len(keys)
	for range matchRounds {
		depth = deepestHeld(depth, func(n int) bool { return live(keys[n-1], nil) })
		if depth == 0 {
			return
		}
		var found []uint32
		live(keys[depth-1], func(slot uint32) { found = append(found, slot) })
		for _, slot := range found {
			visit(slot, depth)
		}
		seen = append(seen, found...)
		depth--
	}
}

// deepestHeld returns the largest n from 1 to limit for which held is true, given
// that it is true for all smaller n; 0 if it is never.
func deepestHeld(limit int, held func(n int) bool) int {
	low, high := 0, limit
	for low < high {
		middle := low + (high-low+1)/2
		if held(middle) {
			low = middle
		} else {
			high = middle - 1
		}
	}
	return low
}

// expire drops pairs that were not used for the time to live.
func (p *placements) expire(now time.Time) {
	before := now.Add(-p.ttl).UnixNano()
	for p.oldest != 0 && p.pairs[p.oldest].at < before {
		p.drop(p.oldest)
	}
}

// recent counts the pairs used within maxAge, up to a limit.
func (p *placements) recent(now time.Time, maxAge time.Duration, limit int) (count int) {
	since := now.Add(-maxAge).UnixNano()
	for at := p.newest; at != 0 && count < limit && p.pairs[at].at >= since; at = p.pairs[at].older {
		count++
	}
	return count
}

func (p *placements) find(key uint64, slot uint32) (at int32, holders int) {
	for at = p.heads[key]; at != 0; at = p.pairs[at].next {
		if p.pairs[at].slot == slot {
			return at, 0
		}
		holders++
	}
	return 0, holders
}

func (p *placements) leastRecent(key uint64) int32 {
	least := p.heads[key]
	for at := least; at != 0; at = p.pairs[at].next {
		if p.pairs[at].at < p.pairs[least].at {
			least = at
		}
	}
	return least
}

// add makes a pair that is not yet in the order of use.
func (p *placements) add(key uint64, slot uint32) int32 {
	if p.used >= p.limit {
		p.drop(p.oldest)
	}
	at := p.free
	if at != 0 {
		p.free = p.pairs[at].next
	} else {
		p.grow()
		at = int32(len(p.pairs))
		p.pairs = p.pairs[:at+1]
	}
	p.pairs[at] = pair{key: key, slot: slot, next: p.heads[key]}
	p.heads[key] = at
	p.used++
	return at
}

// grow makes room for one more pair, doubling up to the limit and no further.
func (p *placements) grow() {
	if len(p.pairs) < cap(p.pairs) {
		return
	}
	room := min(1<<bits.Len(uint(len(p.pairs))), p.limit) + 1
	p.pairs = append(make([]pair, 0, max(room, len(p.pairs)+1)), p.pairs...)
}

// drop removes a pair that is in the order of use.
func (p *placements) drop(at int32) {
	p.unlink(at)
	key := p.pairs[at].key
	if p.heads[key] == at {
		if next := p.pairs[at].next; next != 0 {
			p.heads[key] = next
		} else {
			delete(p.heads, key)
		}
	} else {
		before := p.heads[key]
		for p.pairs[before].next != at {
			before = p.pairs[before].next
		}
		p.pairs[before].next = p.pairs[at].next
	}
	p.pairs[at] = pair{next: p.free}
	p.free = at
	p.used--
}

func (p *placements) linkNewest(at int32) {
	p.pairs[at].newer, p.pairs[at].older = 0, p.newest
	if p.newest != 0 {
		p.pairs[p.newest].newer = at
	} else {
		p.oldest = at
	}
	p.newest = at
}

func (p *placements) unlink(at int32) {
	newer, older := p.pairs[at].newer, p.pairs[at].older
	if newer != 0 {
		p.pairs[newer].older = older
	} else {
		p.newest = older
	}
	if older != 0 {
		p.pairs[older].newer = newer
	} else {
		p.oldest = newer
	}
}
