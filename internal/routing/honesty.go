// SPDX-License-Identifier: Apache-2.0

package routing

import "slices"

// honestyRequests is how many answers a replica is judged by.
const honestyRequests = 1000

// honesty compares what the index claims of a replica with what its engine
// reports. A replica that reports less than half loses the credit for its
// claims, which go on to be compared, so that it can get it back.
type honesty struct {
	requests          int
	claimed, reported int64
	dishonest         bool
}

// note takes the tokens of one request and says whether the verdict changed.
func (h *honesty) note(claimed, reported int) (changed bool) {
	h.requests++
	h.claimed += int64(claimed)
	h.reported += int64(min(max(reported, 0), claimed))
	if h.requests < honestyRequests {
		return false
	}
	before := h.dishonest
	*h = honesty{dishonest: 2*h.reported < h.claimed}
	return h.dishonest != before
}

// claimOf returns the tokens that the index says a replica holds of the prompt
// being decided about.
func (f *Fleet) claimOf(m *member) int {
	at, known := slices.BinarySearchFunc(f.ordered, m.replica.ID, compareID)
	if !known || at >= len(f.claims) {
		return 0
	}
	return f.claims[at]
}

// Cached notes how many tokens of the prompt the engine had in its cache. It
// returns whether the replica is dishonest, and whether that just changed.
// Requests of which the index claims nothing say nothing.
func (g *Guard) Cached(tokens int) (dishonest, changed bool) {
	g.fleet.mu.Lock()
	defer g.fleet.mu.Unlock()
	if g.claimed > 0 {
		changed = g.member.honesty.note(g.claimed, tokens)
		g.claimed = 0
	}
	return g.member.honesty.dishonest, changed
}
