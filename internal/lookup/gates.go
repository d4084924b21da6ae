// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"context"

	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/ranking"
)

// decide asks the gates in the contract's order and returns the reason.
func (e *evaluation) decide(ctx context.Context) Reason {
	if reason := e.admit(ctx); reason != undecided {
		return reason
	}
	e.out.Timings.Resolve = e.lap()
	found := e.find(ctx)
	if e.expired(ctx) {
		return Timeout
	}
	e.out.Adapter = e.request.Adapter
	return e.settle(found)
}

// admit resolves the input. It returns a reason when the index need not be
// asked.
func (e *evaluation) admit(ctx context.Context) Reason {
	if e.request.idTooLong() {
		e.out.Invalid = IdentifierLong
	}
	e.measure()
	if e.input.form == FormPrompt && !e.deadlineSet {
		if _, bounded := ctx.Deadline(); !bounded {
			e.bound(tokenizeTimeout)
		}
	}
	if e.tooShort() {
		return NoHint
	}
	if e.expired(ctx) {
		return Timeout
	}
	if e.rules.RequireChain && !e.request.hasChain() {
		return PolicyRequiresChain
	}
	e.resolve(ctx)
	if e.expired(ctx) {
		return Timeout
	}
	if e.input.failed {
		return NoHint
	}
	if e.tooShort() {
		return NoHint
	}
	return undecided
}

// tooShort is the gate that refuses short prompts before the index is asked.
// With affinity on, they are looked up for the sake of the diagnosis.
func (e *evaluation) tooShort() bool {
	if e.rules.Affinity || !e.input.measured || e.input.failed || !e.belowMinimum() {
		return false
	}
	if e.rules.RequireChain && !e.request.hasChain() {
		return false
	}
	e.out.Gates.add(GateMinPrefix)
	return true
}

func (e *evaluation) belowMinimum() bool {
	return e.input.tokens < int64(e.rules.MinimumPrefixTokens)
}

// settle applies what policy demands of a finding, falls back when nothing is
// left, and credits what is delivered.
func (e *evaluation) settle(found Reason) Reason {
	out := e.out
	switch found {
	case TenantHot:
		if !e.rules.TenantHot {
			out.Gates.add(GateTenantHotDisabled)
			return NoHint
		}
		if e.belowMinimum() {
			out.Gates.add(GateMinPrefix)
			found = undecided
			break
		}
		out.Scores = out.Ranked
	case PrefixMatch:
		if e.belowMinimum() {
			out.Gates.add(GateMinPrefix)
			found = undecided
			break
		}
		if !e.applyFloors() {
			found = undecided
		}
	}
	switch found {
	case undecided:
		found = e.fallBack()
		out.Timings.Fallback = e.lap()
	case PrefixMatch:
		e.noteDeepest()
		e.credit()
	}
	return found
}

// applyFloors delivers the ranked replicas that pass both floors and reports
// whether there are any.
func (e *evaluation) applyFloors() bool {
	kept := e.aboveMatchedFloor()
	if len(kept) == 0 {
		e.out.Gates.add(GateMatchedFloor)
		return false
	}
	floor := e.rules.RoutingFloorScore
	if floor > 0 && kept[0].Score < floor {
		if e.rules.Extensions.EqualHolders == policy.EqualHoldersLoad {
			kept = e.longestByLoad(kept)
		}
		if kept[0].Score < floor {
			e.out.Gates.add(GateScoreFloor)
			e.out.AllHold = len(e.out.Ranked) >= e.out.Serving
			return false
		}
	}
	e.out.Scores = kept
	return true
}

// aboveMatchedFloor returns the ranked replicas with enough matched tokens.
func (e *evaluation) aboveMatchedFloor() []Score {
	floor, ranked := e.rules.MinimumMatchedTokens, e.out.Ranked
	if floor <= 0 {
		return ranked
	}
	kept := e.out.kept[:0]
	for i := range ranked {
		if ranked[i].MatchedTokens >= floor {
			kept = append(kept, ranked[i])
		}
	}
	e.out.kept = kept
	return kept
}

// longestByLoad returns the replicas of the longest match, scored as if the
// match singled them out.
func (e *evaluation) longestByLoad(from []Score) []Score {
	var longest int32
	for i := range from {
		longest = max(longest, from[i].MatchedTokens)
	}
	kept := e.out.kept[:0]
	for _, score := range from {
		if score.MatchedTokens == longest {
			score.Power = 1
			score.Score = ranking.WithPower(score.Base, 1)
			kept = append(kept, score)
		}
	}
	e.out.kept = kept
	sortScores(kept)
	return kept
}

// credit counts the delivered runs as used, in tenants that evict by use.
func (e *evaluation) credit() {
	if !e.rules.LFU {
		return
	}
	credited := e.credited[:0]
	for i := range e.out.Scores {
		match := e.matches[e.out.Scores[i].match]
		if match.Tokens > 0 {
			credited = append(credited, match)
		}
	}
	e.credited = credited
	e.view.Credit(credited)
}
