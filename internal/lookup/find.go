// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/ranking"
)

// find asks the index: prefix match, tenant-hot, then why there is nothing.
// A request that does not name its scope finds nothing.
func (e *evaluation) find(ctx context.Context) Reason {
	if !e.request.named() {
		return undecided
	}
	e.nowMillis = e.now().UnixMilli()
	e.view = e.index.Acquire(e.scope(), e.request.Adapter, e.nowMillis, e.rules.TTLMillis)
	e.viewHeld = true
	e.out.Asked = true
	e.out.Serving = e.view.Serving()

	e.match(ctx)
	e.out.Timings.Match = e.lap()
	found := e.rank()
	e.out.Timings.Rank = e.lap()

	counts := e.view.Counts()
	e.out.TenantKnown = counts.TenantKeys > 0
	e.out.ModelKnown = counts.ModelKeys > 0
	if found == undecided {
		found = e.diagnose(counts)
	}
	return found
}

// match fills e.matches.
func (e *evaluation) match(ctx context.Context) {
	e.matches = e.matches[:0]
	switch {
	case e.input.keys.Len() == 0:
	case e.input.chain:
		e.matchChain(ctx)
	default:
		e.matches = e.view.MatchExact(e.matches, e.input.keys)
	}
}

// rank fills Ranked from the matches, or from hot replicas when there are none
// and the request has no chain.
func (e *evaluation) rank() Reason {
	switch {
	case len(e.matches) > 0:
		e.rankMatches()
		return PrefixMatch
	case e.input.chain:
		return undecided
	}
	e.rankHot()
	if len(e.out.Ranked) > 0 {
		return TenantHot
	}
	return undecided
}

func (e *evaluation) rankMatches() {
	ranked := e.out.Ranked[:0]
	for i := range e.matches {
		match := &e.matches[i]
		freshness := ranking.Freshness(e.nowMillis-match.LastSeenMillis, e.rules.TTLMillis)
		score := Score{
			Replica:        match.Replica,
			MatchedTokens:  match.Tokens,
			HitProbability: freshness,
			Tier:           match.Tier,
			MatchedBlocks:  match.Blocks,
			LastSeenMillis: match.LastSeenMillis,
			PressureFactor: e.knobs.PressureFactor(e.freshPressure(match.Slot)),
			SLOBias:        e.knobs.SLOBias(e.request.TTFTMillis, freshness),
			match:          i,
		}
		score.Base = e.knobs.Base(score.MatchedTokens, freshness, score.PressureFactor, score.SLOBias, e.tierWeight(match.Tier))
		ranked = append(ranked, score)
	}
	e.out.Ranked = ranked
	if e.input.chain {
		e.applyChainPower(ranked)
	} else {
		e.applyPower(ranked, len(ranked))
	}
	sortScores(ranked)
}

// applyChainPower gives each replica the power of being among those that match
// at least as much as it does.
func (e *evaluation) applyChainPower(ranked []Score) {
	slices.SortFunc(ranked, func(a, b Score) int { return cmp.Compare(b.MatchedTokens, a.MatchedTokens) })
	for from := 0; from < len(ranked); {
		to := from + 1
		for to < len(ranked) && ranked[to].MatchedTokens == ranked[from].MatchedTokens {
			to++
		}
		e.applyPower(ranked[from:to], to)
		from = to
	}
}

func (e *evaluation) applyPower(scores []Score, matching int) {
	power := ranking.Power(matching, e.out.Serving)
	for i := range scores {
		scores[i].Power = power
		scores[i].Score = ranking.WithPower(scores[i].Base, power)
	}
}

// rankHot ranks the replicas that serve the tenant well. With an adapter, only
// replicas that hold something of it count.
func (e *evaluation) rankHot() {
	ranked := e.out.Ranked[:0]
	e.candidates = e.view.Candidates(e.candidates[:0], e.request.Adapter != "", false)
	for _, candidate := range e.candidates {
		stats, ok := e.view.Stats(candidate.Slot)
		if !ok || !(stats.HitRate >= e.knobs.TenantHotMinHitRate) {
			continue
		}
		age := time.Duration(e.nowMillis-stats.ReportedMillis) * time.Millisecond
		if age >= e.knobs.TenantHotMaxAge {
			continue
		}
		recency := ranking.Recency(age, e.knobs.TenantHotMaxAge)
		score := Score{
			Replica:        candidate.Replica,
			HitProbability: stats.HitRate,
			LastSeenMillis: stats.ReportedMillis,
			PressureFactor: e.knobs.PressureFactor(stats.Pressure),
			SLOBias:        e.knobs.SLOBias(e.request.TTFTMillis, recency),
			Power:          1,
		}
		score.Base = e.knobs.TenantHot(stats.HitRate, recency, score.PressureFactor, score.SLOBias)
		score.Score = score.Base
		ranked = append(ranked, score)
	}
	e.out.Ranked = ranked
	sortScores(ranked)
}

// diagnose names the outermost key of the request that nothing is held under.
func (e *evaluation) diagnose(counts index.ViewCounts) Reason {
	reason := undecided
	switch {
	case counts.Memberships == 0:
	case counts.TenantKeys == 0:
		reason = UnknownTenant
	case counts.ModelKeys == 0:
		reason = UnknownModel
	case counts.ScopeMemberships == 0:
		reason = UnknownHashScheme
	case e.diagnoseAdapter && e.request.Adapter != "" && counts.PartitionMemberships == 0:
		reason = UnknownAdapter
	}
	if reason != undecided && e.now().Before(e.graceEnd) {
		e.out.Gates.add(GateGrace)
		return undecided
	}
	return reason
}

// freshPressure is the pressure a replica reported within the tenant's TTL.
func (e *evaluation) freshPressure(slot uint32) float32 {
	stats, ok := e.view.Stats(slot)
	if !ok || e.nowMillis-stats.ReportedMillis >= e.rules.TTLMillis {
		return 0
	}
	return stats.Pressure
}

func (e *evaluation) tierWeight(tier index.Tier) float32 {
	switch tier {
	case index.TierT2:
		return e.knobs.TierWeightT2
	case index.TierT3:
		return e.knobs.TierWeightT3
	default:
		return 1
	}
}

// sortScores orders by score, best first, then by replica id.
func sortScores(scores []Score) {
	slices.SortFunc(scores, func(a, b Score) int {
		if byScore := cmp.Compare(b.Score, a.Score); byScore != 0 {
			return byScore
		}
		return strings.Compare(a.Replica, b.Replica)
	})
}
