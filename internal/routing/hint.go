// SPDX-License-Identifier: Apache-2.0

package routing

import "time"

const (
	// depthShare is the share of the prompt by which a match may be shorter
	// than the longest one and still count as equally deep.
	depthShare = 0.05
	// minMarginSeconds is the least extra wait a prefix is worth.
	minMarginSeconds = 0.05
	// crowdedShare and crowdedRequests bound what a holder may be given lately
	// above the mean of all before some of it goes elsewhere.
	crowdedShare    = 1.1
	crowdedRequests = 2
)

// hint follows the index while load allows. A request stays with its prefix
// until waiting for its holders costs more than a second copy; then the least
// loaded replica gets it and becomes a holder.
type hint struct {
	stickyMargin     float64
	toleratedSeconds float64
	fallback         Policy
	// approximate uses old own placements where the index does not speak.
	approximate bool
}

func newHint(options PolicyOptions) *hint {
	if options.ToleratedTTFT <= 0 {
		options.ToleratedTTFT = 2 * time.Second
	}
	if options.StickyMargin <= 0 {
		options.StickyMargin = 1
	}
	fallback, err := newMissPolicy(options.Fallback)
	if err != nil {
		fallback = leastGiven{}
	}
	return &hint{
		stickyMargin:     options.StickyMargin,
		toleratedSeconds: options.ToleratedTTFT.Seconds(),
		fallback:         fallback,
		approximate:      options.Fallback == "" || options.Fallback == PolicyApprox,
	}
}

func (*hint) Name() string { return PolicyHint }

// evidence implements evidenced. An index that speaks for the prompt is exact,
// so old placements count only where it does not.
func (p *hint) evidence(h *Hint) evidence {
	switch {
	case !h.Blind && (h.Reason == ReasonPrefixMatch || h.Reason == ReasonAffinityHint || h.Reason == ReasonTenantHot):
		return evidence{index: h.Reason == ReasonPrefixMatch, speculative: true}
	default:
		return evidence{speculative: true, approximate: p.approximate}
	}
}

func (p *hint) Choose(s *Selection) Choice {
	if best := deepest(s); best > 0 {
		return p.followPrefix(s, best)
	}
	if choice, ok := s.warmUp(sliceOf, BranchWarmupSlice, SourceNone); ok {
		return choice
	}
	switch s.Request.Hint.Reason {
	case ReasonPrefixMatch:
		return p.without(s, BranchMiss)
	case ReasonAffinityHint:
		return p.followAffinity(s)
	case ReasonTenantHot:
		return p.followHot(s)
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

// followAffinity takes the replica the index names for equal prompts to meet
// on, if only chance would settle the choice otherwise.
func (p *hint) followAffinity(s *Selection) Choice {
	equals := s.leastGiven()
	for _, i := range equals {
		if s.At(i).HintRank == 0 {
			return Choice{Index: i, Origin: OriginIndexHint, Branch: BranchAffinity, Source: SourceIndexLookup, TieBreak: TieNone}
		}
	}
	return p.without(s, BranchMiss)
}

func deepest(s *Selection) int {
	best := 0
	for i := range s.Len() {
		best = max(best, s.At(i).MatchedTokens)
	}
	return best
}

// sourceOf returns what the deepest match rests on.
func sourceOf(s *Selection, deepest int) Source {
	for i := range s.Len() {
		if s.At(i).MatchedTokens == deepest {
			return s.At(i).Source
		}
	}
	return SourceNone
}

// followPrefix keeps the request with the deepest holders, or spills it. A
// long queue alone does not rule a holder out: its wait is compared.
func (p *hint) followPrefix(s *Selection, best int) Choice {
	if 2*best <= s.Request.promptTokens() {
		if choice, ok := s.warmUp(divertOf, BranchWarmupDivert, sourceOf(s, best)); ok {
			return choice
		}
	}
	slack := max(float64(s.Request.Hint.BlockSize), depthShare*float64(s.Request.promptTokens()))
	deep := func(c *Candidate) bool {
		return c.MatchedTokens > 0 && float64(c.MatchedTokens) >= float64(best)-slack
	}
	index, tie := bestHolder(s, func(c *Candidate) bool { return deep(c) && (!c.Saturated || c.QueuedOnly) })
	var passed PassedOver
	if index >= 0 {
		passed = s.passedOver(index, PressureWait, s.At(index).WaitSeconds, s.minWait()+p.margin(s.At(index)))
	}
	if index >= 0 && passed.Observed <= passed.Limit {
		if moved, ok := s.evenOut(index); ok {
			return moved
		}
		return followed(s, index, tie)
	}
	index, tie = s.leastWait(func(c *Candidate) bool { return !c.Saturated })
	if index < 0 {
		index, tie = s.leastWait(func(*Candidate) bool { return true })
	}
	if deep(s.At(index)) {
		return followed(s, index, tie)
	}
	choice := spilled(index, sourceOf(s, best), tie)
	choice.Passed = passed
	return choice
}

// margin is the extra wait that a holder's prefix is worth: the time to compute
// it once more, since a second copy costs the fleet that and its room.
func (p *hint) margin(c *Candidate) float64 {
	seconds := max(minMarginSeconds, float64(c.MatchedTokens)/c.RateTokens)
	return min(p.stickyMargin*seconds, p.toleratedSeconds)
}

// followed is the choice of a holder. Only the index can be followed; own
// placements are a policy's guess.
func followed(s *Selection, index int, tie TieBreak) Choice {
	choice := Choice{Index: index, Origin: OriginIndexHint, Branch: BranchHit, Source: s.At(index).Source, TieBreak: tie}
	if choice.Source != SourceIndexLookup {
		choice.Origin = OriginPolicy
	}
	return choice
}

// spilled is the choice of a replica that is no deep holder, given up for load
// against evidence of the given source.
func spilled(index int, source Source, tie TieBreak) Choice {
	return Choice{Index: index, Origin: OriginLoadSpill, Branch: BranchSpill, Source: source, TieBreak: tie}
}

// evenOut moves a request from a crowded holder to the replica that gives up
// the least reuse, if that can be spared. A holder with nothing to do keeps its
// requests: there is no load to even out.
func (s *Selection) evenOut(holder int) (Choice, bool) {
	h := s.At(holder)
	if h.Inflight == 0 || h.Requests <= crowdedShare*s.meanRequests+crowdedRequests {
		return Choice{}, false
	}
	best, least := -1, 0
	for i := range s.Len() {
		c := s.At(i)
		given := h.MatchedTokens - c.MatchedTokens
		if c.Saturated || given > s.SparableTokens || c.Requests > s.meanRequests ||
			c.WaitSeconds > h.WaitSeconds+float64(max(given, 0))/c.RateTokens+tieSeconds {
			continue
		}
		if best < 0 || given < least || given == least && c.Requests < s.At(best).Requests {
			best, least = i, given
		}
	}
	if best < 0 {
		return Choice{}, false
	}
	moved := spilled(best, h.Source, TieLoad)
	moved.GivenUpTokens = max(least, 0)
	moved.Passed = s.passedOver(holder, PressureCrowd, h.Requests, crowdedShare*s.meanRequests+crowdedRequests)
	return moved, true
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

// followHot takes the best named replica that is not saturated and waits at
// most half the tolerated time longer than the least loaded one.
func (p *hint) followHot(s *Selection) Choice {
	limit := s.minWait() + p.toleratedSeconds/2
	best := -1
	for i := range s.Len() {
		c := s.At(i)
		if c.HintRank < 0 || c.Saturated || c.WaitSeconds > limit {
			continue
		}
		if best < 0 || c.HintRank < s.At(best).HintRank {
			best = i
		}
	}
	if best < 0 {
		return p.without(s, BranchMiss)
	}
	return Choice{Index: best, Origin: OriginIndexHint, Branch: BranchTenantHot, Source: SourceIndexLookup, TieBreak: TieNone}
}

// approx goes by own placements as if there were no index.
type approx struct{ *hint }

func (approx) Name() string { return PolicyApprox }

func (approx) evidence(*Hint) evidence { return evidence{approximate: true} }
