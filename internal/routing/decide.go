// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// memoryWeightSeconds scales the cost of a full cache in View.WaitSeconds.
const memoryWeightSeconds = 0.15

// maxUsage keeps the cost of a full cache finite.
const maxUsage = 0.999

// SaturatedUsage is the cache usage from which a replica counts as saturated.
const SaturatedUsage = 0.95

// Decide chooses a replica and credits the request's load to it. The guard is
// nil when no replica was eligible; otherwise the caller must end it.
func (f *Fleet) Decide(r *Request) (Decision, *Guard) {
	f.mu.Lock()
	defer f.mu.Unlock()
	decision, chosen := f.decideLocked(r)
	if chosen == nil {
		return decision, nil
	}
	decision.Move = f.moveLocked(r, chosen)
	guard := f.creditLocked(chosen, r, decision.matchedTokens)
	f.noteLocked(guard, r)
	f.pinLocked(guard, r)
	f.balance.spend(r.promptTokens(), decision.givenUpTokens)
	return decision, guard
}

// Preview returns what Decide would choose now, without any effect on load.
// Policies with a memory, such as round_robin, do advance.
func (f *Fleet) Preview(r *Request) Decision {
	f.mu.Lock()
	defer f.mu.Unlock()
	decision, _ := f.decideLocked(r)
	return decision
}

func (f *Fleet) decideLocked(r *Request) (Decision, *member) {
	f.considerLocked(r)
	decision := Decision{Policy: f.options.Policy.Name(), TieBreak: TieNone}
	f.placeEvidenceLocked(r, &decision)
	decision.InflightBound = f.saturateLocked(f.considered, f.eligible)
	decision.ToleratedSeconds = f.options.ToleratedTTFT.Seconds()
	chosen := -1
	switch {
	case len(f.eligible) == 0:
		decision.Origin = OriginNoneEligible
	case f.shedLocked(r, &decision):
		decision.Origin = OriginNoneEligible
	case r.Target != "":
		decision.Origin, chosen = OriginTargetHeader, f.eligible[0]
	case len(f.eligible) == 1 && r.Hint.Reason == "" && !r.LoadOnly:
		decision.Origin, chosen = OriginSingleCandidate, f.eligible[0]
	case r.Sticky != 0 && !r.LoadOnly:
		chosen = f.chooseStickyLocked(r, &decision)
	default:
		chosen = f.askPolicyLocked(r, &decision)
	}
	if chosen >= 0 {
		decision.Replica = f.considered[chosen].ID
		c := &f.considered[chosen]
		decision.matchedTokens, decision.Prediction.OverlapTokens = c.MatchedTokens, c.MatchedTokens
		if c.Source == SourceIndexLookup {
			decision.Prediction.OverlapTokens = c.HintTokens
		}
	}
	if len(f.eligible) == 0 {
		decision.AtCapacity = slices.ContainsFunc(f.considered, func(c Candidate) bool { return c.Gate == GateInflightCap })
	}
	decision.Hint = f.hintOutcomeLocked(r, &decision)
	f.recordLocked(&decision, chosen)
	if chosen < 0 {
		return decision, nil
	}
	return decision, f.ordered[chosen]
}

// considerLocked fills considered, parallel to ordered, and eligible.
func (f *Fleet) considerLocked(r *Request) {
	f.considered, f.eligible = f.considered[:0], f.eligible[:0]
	tokens := r.promptTokens()
	for i, m := range f.ordered {
		m.assumePrefilled(r.Now)
		m.noteYouth(r.Now)
		candidate := Candidate{ID: m.replica.ID, Gate: m.gate(r), View: f.viewLocked(m, r.Now)}
		candidate.WaitSeconds = candidate.wait(uncached(tokens, 0))
		candidate.Source = SourceNone
		f.considered = append(f.considered, candidate)
		if candidate.Gate == GateNone {
			f.eligible = append(f.eligible, i)
		}
	}
}

// shedLocked notes the least wait and says whether it is too long. The
// request's own tokens do not count: a long prompt waits for nobody.
func (f *Fleet) shedLocked(r *Request, decision *Decision) bool {
	least := math.Inf(1)
	for _, i := range f.eligible {
		least = min(least, f.considered[i].wait(0))
	}
	decision.MinWait = time.Duration(min(least, maxWaitSeconds) * float64(time.Second))
	decision.Shed = r.ShedAbove > 0 && decision.MinWait > r.ShedAbove
	return decision.Shed
}

// maxWaitSeconds keeps waits within what a Duration holds.
const maxWaitSeconds = 1e6

// chooseStickyLocked keeps a request with its pin, or has the policy choose.
func (f *Fleet) chooseStickyLocked(r *Request, decision *Decision) int {
	chosen, origin := f.stuckLocked(r)
	if chosen < 0 {
		chosen = f.askPolicyLocked(r, decision)
		decision.DelegatedTo, decision.followed = decision.Policy, decision.Origin == OriginIndexHint
	} else {
		decision.followed = f.considered[chosen].HintRank >= 0
	}
	decision.Origin = origin
	return chosen
}

func (f *Fleet) askPolicyLocked(r *Request, decision *Decision) int {
	policy := f.options.Policy
	if r.LoadOnly {
		policy = f.loadOnly
	}
	f.selection = Selection{
		Request: r, Rand: f.options.Rand, SparableTokens: f.balance.sparable(), someYoung: f.youthLocked(r.Now),
		meanRequests: f.shareLocked(r.Now), scratch: f.selection.scratch, candidates: f.considered, eligible: f.eligible,
	}
	choice := policy.Choose(&f.selection)
	decision.Origin, decision.TieBreak = choice.Origin, choice.TieBreak
	decision.Prediction.Branch, decision.Prediction.Source = choice.Branch, choice.Source
	decision.givenUpTokens = choice.GivenUpTokens
	decision.Passed = choice.Passed
	return f.eligible[choice.Index]
}

// hintOutcomeLocked says what became of the best replica the hint names.
func (f *Fleet) hintOutcomeLocked(r *Request, decision *Decision) HintOutcome {
	if len(r.Hint.Scores) == 0 {
		return HintAbsent
	}
	if decision.Origin == OriginIndexHint || decision.followed {
		return HintFollowed
	}
	best := -1
	for i := range f.considered {
		rank := f.considered[i].HintRank
		if f.considered[i].Gate == GateRole {
			continue // it is another leg's
		}
		if rank >= 0 && (best < 0 || rank < f.considered[best].HintRank) {
			best = i
		}
	}
	switch {
	case best < 0 && decision.UnplaceableCount == 0:
		return HintAbsent // it speaks of other roles only
	case best < 0:
		return HintUnplaceable
	}
	switch c := &f.considered[best]; {
	case c.Gate == GateDraining:
		return HintDraining
	case c.Gate == GateInflightCap, c.Gate == GateNone && c.Saturated:
		return HintOverloaded
	case c.Gate != GateNone:
		return HintUnhealthy
	default:
		return HintSpilled
	}
}

// recordLocked copies the most telling candidates into the decision.
func (f *Fleet) recordLocked(decision *Decision, chosen int) {
	decision.CandidatesTotal = len(f.considered)
	decision.GatedTotal = len(f.considered) - len(f.eligible)
	limit := min(len(f.considered), f.options.RecordLimit)
	if limit == 0 {
		return
	}
	order := f.order[:0]
	if chosen >= 0 {
		order = append(order, chosen)
	}
	first := len(order)
	for i := range f.considered {
		if i != chosen && f.considered[i].MatchedTokens > 0 {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order[first:], func(a, b int) int {
		return cmp.Compare(f.considered[b].MatchedTokens, f.considered[a].MatchedTokens)
	})
	for i := 0; i < len(f.considered) && len(order) < limit; i++ {
		if i != chosen && f.considered[i].MatchedTokens == 0 {
			order = append(order, i)
		}
	}
	f.order = order
	decision.Candidates = make([]Candidate, limit)
	for i := range limit {
		decision.Candidates[i] = f.considered[order[i]]
	}
}

// viewLocked returns a replica's load without cache evidence.
func (f *Fleet) viewLocked(m *member, now time.Time) View {
	view := View{Inflight: m.inflight, QueueTokens: m.pending, RateTokens: m.rate, HintRank: -1}
	if m.generation > 0 && now.Sub(m.reported) <= f.options.ReportTTL {
		view.QueueTokens = max(m.pending, m.report.WaitingTokens+m.since)
		view.Usage, view.UsageKnown = min(max(m.report.Usage, 0), 1), true
	}
	return view
}

// saturateLocked sets Saturated of the candidates at the given positions. It
// returns the number of requests beyond which one is.
func (f *Fleet) saturateLocked(candidates []Candidate, positions []int) (bound float64) {
	total := 0
	for _, i := range positions {
		total += candidates[i].Inflight
	}
	average := float64(total+1) / float64(max(len(positions), 1))
	bound = max(1.5*average, average+10)
	tolerated := f.options.ToleratedTTFT.Seconds()
	for _, i := range positions {
		c := &candidates[i]
		queued := float64(c.QueueTokens) > c.RateTokens*tolerated
		full := float64(c.Inflight) > bound || c.UsageKnown && c.Usage >= SaturatedUsage
		c.Saturated, c.QueuedOnly = queued || full, queued && !full
	}
	return bound
}

// wait estimates the seconds until the first token of a request that adds the
// given uncached tokens.
func (v *View) wait(uncachedTokens int64) float64 {
	usage := min(v.Usage, maxUsage)
	return float64(v.QueueTokens+uncachedTokens)/v.RateTokens + memoryWeightSeconds*usage/(1-usage)
}

func uncached(promptTokens, matchedTokens int) int64 {
	return int64(max(promptTokens-matchedTokens, 1))
}
