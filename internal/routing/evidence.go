// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"slices"
	"time"
)

// Chain is a prompt as keys, each of which stands for a piece of the prompt
// and everything before it. The fleet keeps Keys, which must not change. Equal
// keys must mean equal content of a cache: model, adapter and salt are part of
// them.
type Chain struct {
	Keys []uint64
	// KeyTokens is the length of a piece in tokens.
	KeyTokens int
	// Text is set for pieces of text instead of blocks of tokens.
	Text bool
}

// minOwnTokens is the shortest prefix that counts when only own placements
// speak for it.
const minOwnTokens = 64

// evidence says what a policy takes as signs of a cached prefix.
type evidence struct {
	// index is the hint's match. speculative are own placements of the last
	// moments, whose events are still under way. approximate are all of them.
	index, speculative, approximate bool
}

// evidenced is a policy that does not take the hint alone as evidence.
type evidenced interface {
	evidence(*Hint) evidence
}

// placeEvidenceLocked tells the candidates what they may hold.
func (f *Fleet) placeEvidenceLocked(r *Request, decision *Decision) {
	prediction := &decision.Prediction
	prediction.ReasonCode = r.Hint.Reason
	prediction.PromptTokens = r.PromptTokens
	prediction.BlockSize, prediction.RequestBlocks = r.Hint.BlockSize, r.Hint.RequestBlocks
	wanted := evidence{index: r.Hint.Reason == ReasonPrefixMatch}
	if policy, ok := f.options.Policy.(evidenced); ok {
		wanted = policy.evidence(&r.Hint)
	}
	f.placeHintLocked(r, decision, wanted.index)
	switch {
	case wanted.approximate && f.options.ApproxTTL > 0:
		f.placeOwnLocked(r, f.options.ApproxTTL, SourceApprox)
	case wanted.speculative:
		f.placeOwnLocked(r, f.options.SpeculativeTTL, SourceSpeculative)
	}
	tokens := r.promptTokens()
	for i := range f.considered {
		if c := &f.considered[i]; c.MatchedTokens > 0 {
			c.WaitSeconds = c.wait(uncached(tokens, c.MatchedTokens))
		}
	}
}

// placeHintLocked gives what the hint says to the replicas it names.
func (f *Fleet) placeHintLocked(r *Request, decision *Decision, matches bool) {
	prediction := &decision.Prediction
	f.claims = append(f.claims[:0], make([]int, len(f.ordered))...)
	for rank, score := range r.Hint.Scores {
		at, known := slices.BinarySearchFunc(f.ordered, score.Replica, compareID)
		if !known {
			if decision.UnplaceableCount == 0 {
				decision.Unplaceable = score.Replica
			}
			decision.UnplaceableCount++
			continue
		}
		c := &f.considered[at]
		if c.HintRank >= 0 {
			continue // named twice: the better position counts
		}
		c.HintRank, c.HintScore = rank, score.Score
		if !matches || score.MatchedTokens <= 0 {
			continue
		}
		f.claims[at] = min(score.MatchedTokens, r.promptTokens())
		if !f.ordered[at].honesty.dishonest {
			c.MatchedTokens, c.HintTokens, c.Source = score.MatchedTokens, score.MatchedTokens, SourceIndexLookup
			if f.ordered[at].replica.Role == r.Role || r.AnyRole {
				prediction.BestOverlapTokens = max(prediction.BestOverlapTokens, c.MatchedTokens)
			}
		}
	}
}

// placeOwnLocked adds own placements that are deeper than what the hint says.
func (f *Fleet) placeOwnLocked(r *Request, maxAge time.Duration, source Source) {
	if len(r.Chain.Keys) == 0 || r.Chain.KeyTokens <= 0 {
		return
	}
	f.placedFor(r.Role).match(r.Now, r.Chain.Keys, maxAge, func(slot uint32, depth int) {
		m, known := f.bySlot[slot]
		if !known || m.honesty.dishonest {
			return // left since, or known not to keep what it is given
		}
		at, _ := slices.BinarySearchFunc(f.ordered, m.replica.ID, compareID)
		c := &f.considered[at]
		matched := min(depth*r.Chain.KeyTokens, r.promptTokens())
		if matched < minOwnTokens || matched <= c.MatchedTokens {
			return
		}
		c.MatchedTokens = matched
		if c.HintTokens == 0 {
			c.Source = source
		}
	})
}

// noteLocked remembers where the prompt goes.
func (f *Fleet) noteLocked(g *Guard, r *Request) {
	if len(r.Chain.Keys) == 0 {
		return
	}
	g.keys = r.Chain.Keys
	g.slot = g.member.slot
	g.fresh = f.placedFor(r.Role).note(r.Now, g.slot, g.keys)
}

// disownLocked forgets a placement that came to nothing.
func (f *Fleet) disownLocked(g *Guard) {
	if g.fresh < len(g.keys) {
		f.placedFor(g.member.replica.Role).forget(g.dispatched, g.slot, g.keys, g.fresh)
	}
	g.keys = nil
}
