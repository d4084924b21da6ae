// SPDX-License-Identifier: Apache-2.0

package routing

import "time"

// Move says whether a request's longest remembered prefix last went to the
// replica that was chosen now.
type Move string

// Moves. MoveNone means that the request has no chain to remember.
const (
	MoveNone  Move = ""
	MoveSame  Move = "same"
	MoveMoved Move = "moved"
	MoveNew   Move = "new"
)

// moveLocked compares a choice with where the prefix went before. It must run
// before the choice is noted.
func (f *Fleet) moveLocked(r *Request, chosen *member) Move {
	if len(r.Chain.Keys) == 0 {
		return MoveNone
	}
	slot, known := f.placedFor(r.Role).latest(r.Now, r.Chain.Keys)
	switch {
	case !known:
		return MoveNew
	case slot == chosen.slot:
		return MoveSame
	default:
		return MoveMoved
	}
}

// latest returns the slot that was last given the longest remembered prefix of
// keys.
func (p *placements) latest(now time.Time, keys []uint64) (slot uint32, known bool) {
	since := now.Add(-p.ttl).UnixNano()
	newest := func(key uint64) (at int64, slot uint32) {
		for i := p.heads[key]; i != 0; i = p.pairs[i].next {
			if pair := &p.pairs[i]; pair.at >= since && pair.at > at {
				at, slot = pair.at, pair.slot
			}
		}
		return at, slot
	}
	depth := deepestHeld(len(keys), func(n int) bool { at, _ := newest(keys[n-1]); return at != 0 })
	if depth == 0 {
		return 0, false
	}
	_, slot = newest(keys[depth-1])
	return slot, true
}

// maxSpeculative bounds the placements that count as speculative.
const maxSpeculative = 1 << 16

// Entries counts remembered pairs of a replica and a key, and those of the last
// moments among them, the latter up to 65,536.
func (f *Fleet) Entries(now time.Time) (approximate, speculative int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, placed := range f.placed {
		if placed == nil {
			continue
		}
		placed.expire(now)
		approximate += placed.used
		speculative += placed.recent(now, f.options.SpeculativeTTL, maxSpeculative)
	}
	return approximate, speculative
}

// placedFor returns the placements of a role. Roles compute different parts of
// a request, so that what one was given says nothing about another.
func (f *Fleet) placedFor(role Role) *placements {
	at := min(int(role), len(f.placed)-1)
	if f.placed[at] == nil {
		f.placed[at] = newPlacements(max(f.options.ApproxTTL, f.options.SpeculativeTTL), f.options.ApproxLimit)
	}
	return f.placed[at]
}
