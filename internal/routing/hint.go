// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"math"
	"time"
)

const (
	// depthShare is the share of the prompt by which a match may be shorter
	// than the longest one and still count as equally deep.
	depthShare = 0.05
	// minMarginSeconds is the least extra wait a prefix is worth.
	minMarginSeconds = 0.05
	// marginShare is the share of the time to recompute a prefix that a second
	// copy of it costs the fleet.
	marginShare = 0.5
	// affinityMarginSeconds is the extra wait a replica named without cache
	// evidence is worth.
	affinityMarginSeconds = 0.02
)

// hint follows the index while load allows. A request stays with its prefix
// until the holders are saturated or waiting for them costs more than a second
// copy; then the least loaded replica gets it and becomes a holder.
type hint struct {
	stickyMargin     float64
	hotMarginSeconds float64
	fallback         Policy
}

func newHint(options PolicyOptions) *hint {
	if options.ToleratedTTFT <= 0 {
		options.ToleratedTTFT = 2 * time.Second
	}
	if options.StickyMargin <= 0 {
		options.StickyMargin = 1
	}
	fallback, err := newFallback(options.Fallback)
	if err != nil {
		fallback = leastLoad{}
	}
	return &hint{
		stickyMargin:     options.StickyMargin,
		hotMarginSeconds: options.ToleratedTTFT.Seconds() / 2,
		fallback:         fallback,
	}
}

func (*hint) Name() string { return PolicyHint }

func (p *hint) Choose(s *Selection) Choice {
	switch s.Request.Hint.Reason {
	case ReasonPrefixMatch:
		if best := deepest(s); best > 0 {
			return p.followPrefix(s, best)
		}
		return p.without(s, BranchMiss)
	case ReasonAffinityHint:
		return p.followNamed(s, affinityMarginSeconds, 0, BranchAffinity)
	case ReasonTenantHot:
		return p.followNamed(s, p.hotMarginSeconds, math.MaxInt, BranchTenantHot)
	case ReasonTimeout:
		return p.without(s, BranchTimeout)
	case "":
		if s.Request.Hint.Without != "" {
			return p.without(s, s.Request.Hint.Without)
		}
		return p.without(s, BranchNone)
	default:
		return p.without(s, BranchNoHint)
	}
}

// without asks the fallback policy.
func (p *hint) without(s *Selection, branch Branch) Choice {
	choice := p.fallback.Choose(s)
	choice.Branch = branch
	return choice
}

func deepest(s *Selection) int {
	best := 0
	for i := range s.Len() {
		best = max(best, s.At(i).MatchedTokens)
	}
	return best
}

// followPrefix keeps the request with the deepest holders, or spills it.
func (p *hint) followPrefix(s *Selection, best int) Choice {
	slack := max(float64(s.Request.Hint.BlockSize), depthShare*float64(s.Request.promptTokens()))
	deep := func(c *Candidate) bool {
		return c.MatchedTokens > 0 && float64(c.MatchedTokens) >= float64(best)-slack
	}
	hit := Choice{Origin: OriginIndexHint, Branch: BranchHit, Source: SourceIndexLookup}
	index, tie := bestHolder(s, func(c *Candidate) bool { return deep(c) && !c.Saturated })
	if index >= 0 {
		c := s.At(index)
		margin := max(minMarginSeconds, marginShare*float64(c.MatchedTokens)/c.RateTokens)
		if c.WaitSeconds <= s.minWait()+p.stickyMargin*margin {
			hit.Index, hit.TieBreak = index, tie
			return hit
		}
	}
	index, tie = s.leastWait(func(c *Candidate) bool { return !c.Saturated })
	if index < 0 {
		index, tie = s.leastWait(func(*Candidate) bool { return true })
	}
	if deep(s.At(index)) {
		hit.Index, hit.TieBreak = index, tie
		return hit
	}
	return Choice{Index: index, Origin: OriginLoadSpill, Branch: BranchSpill, Source: SourceIndexLookup, TieBreak: tie}
}

// bestHolder returns the holder with the least wait; ties go to the longer
// match, then the higher score, then chance. It returns -1 without a holder.
func bestHolder(s *Selection, holder func(*Candidate) bool) (int, TieBreak) {
	least, found := 0.0, false
	for i := range s.Len() {
		if c := s.At(i); holder(c) && (!found || c.WaitSeconds < least) {
			least, found = c.WaitSeconds, true
		}
	}
	if !found {
		return -1, TieNone
	}
	chosen, equals, tie := -1, 0, TieNone
	for i := range s.Len() {
		c := s.At(i)
		if !holder(c) || c.WaitSeconds > least+tieSeconds {
			continue
		}
		if chosen < 0 {
			chosen, equals = i, 1
			continue
		}
		order, by := compareHolders(c, s.At(chosen))
		switch {
		case order > 0:
			chosen, equals, tie = i, 1, by
		case order < 0:
			tie = by
		default:
			tie = TieRandom
			if equals++; s.Rand.IntN(equals) == 0 {
				chosen = i
			}
		}
	}
	return chosen, tie
}

func compareHolders(a, b *Candidate) (int, TieBreak) {
	switch {
	case a.MatchedTokens != b.MatchedTokens:
		return a.MatchedTokens - b.MatchedTokens, TieOverlap
	case a.HintScore > b.HintScore:
		return 1, TieScore
	case a.HintScore < b.HintScore:
		return -1, TieScore
	default:
		return 0, TieRandom
	}
}

// followNamed takes the best named replica, down to maxRank, that is not
// saturated and waits at most margin longer than the least loaded replica.
func (p *hint) followNamed(s *Selection, marginSeconds float64, maxRank int, branch Branch) Choice {
	limit := s.minWait() + marginSeconds
	best := -1
	for i := range s.Len() {
		c := s.At(i)
		if c.HintRank < 0 || c.HintRank > maxRank || c.Saturated || c.WaitSeconds > limit {
			continue
		}
		if best < 0 || c.HintRank < s.At(best).HintRank {
			best = i
		}
	}
	if best < 0 {
		return p.without(s, BranchMiss)
	}
	return Choice{Index: best, Origin: OriginIndexHint, Branch: branch, Source: SourceIndexLookup, TieBreak: TieNone}
}
