// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/ranking"
)

// drafts are scores on their way to an order. They are sorted through order,
// whose elements hold a sort key above the position of a draft.
type drafts struct {
	scores []Score
	order  []uint64
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
	d := &e.drafts
	d.scores = slices.Grow(d.scores[:0], len(e.matches))[:len(e.matches)]
	for i := range e.matches {
		match := &e.matches[i]
		freshness := ranking.Freshness(e.nowMillis-match.LastSeenMillis, e.rules.TTLMillis)
		score := &d.scores[i]
		*score = Score{
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
	}
	d.applyPower(e.input.chain, e.out.Serving)
	e.out.Ranked = d.appendSorted(e.out.Ranked[:0])
}

// rankHot ranks the replicas that serve the tenant well. With an adapter, only
// replicas that hold something of it count.
func (e *evaluation) rankHot() {
	d := &e.drafts
	d.scores = d.scores[:0]
	e.listCandidates(e.request.Adapter != "", false)
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
		d.scores = append(d.scores, score)
	}
	d.inPlace()
	e.out.Ranked = d.appendSorted(e.out.Ranked[:0])
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

// inPlace makes the order that of the drafts.
func (d *drafts) inPlace() {
	d.order = slices.Grow(d.order[:0], len(d.scores))[:len(d.scores)]
	for i := range d.order {
		d.order[i] = uint64(i)
	}
}

// applyPower gives each draft the power of being among those that match at
// least as much as it does (chain), or among all.
func (d *drafts) applyPower(chain bool, serving int) {
	d.inPlace()
	if !chain || d.equalTokens() {
		d.power(0, len(d.order), serving)
		return
	}
	for i := range d.order {
		d.order[i] |= uint64(^uint32(d.scores[i].MatchedTokens)) << 32
	}
	slices.Sort(d.order)
	for from := 0; from < len(d.order); {
		to := d.runEnd(from)
		d.power(from, to, serving)
		from = to
	}
}

func (d *drafts) equalTokens() bool {
	for i := range d.scores {
		if d.scores[i].MatchedTokens != d.scores[0].MatchedTokens {
			return false
		}
	}
	return true
}

// power sets the power of order[from:to], which to drafts match as much as.
func (d *drafts) power(from, to, serving int) {
	power := ranking.Power(to, serving)
	for _, key := range d.order[from:to] {
		score := &d.scores[uint32(key)]
		score.Power = power
		score.Score = ranking.WithPower(score.Base, power)
	}
}

// runEnd returns the end of the run of equal sort keys that starts at from.
func (d *drafts) runEnd(from int) int {
	to := from + 1
	for to < len(d.order) && d.order[to]>>32 == d.order[from]>>32 {
		to++
	}
	return to
}

// appendSorted appends the drafts, best score first, then by replica id. It
// starts from the present order, which is often right already.
func (d *drafts) appendSorted(dst []Score) []Score {
	for i, key := range d.order {
		position := uint64(uint32(key))
		d.order[i] = uint64(descending(d.scores[position].Score))<<32 | position
	}
	slices.Sort(d.order)
	for from := 0; from < len(d.order); {
		to := d.runEnd(from)
		if run := d.order[from:to]; !slices.IsSortedFunc(run, d.byReplica) {
			slices.SortFunc(run, d.byReplica)
		}
		from = to
	}
	dst = slices.Grow(dst, len(d.order))
	for _, key := range d.order {
		dst = append(dst, d.scores[uint32(key)])
	}
	return dst
}

func (d *drafts) byReplica(a, b uint64) int {
	return strings.Compare(d.scores[uint32(a)].Replica, d.scores[uint32(b)].Replica)
}

// descending maps scores to integers in the opposite order, NaN last.
func descending(score float32) uint32 {
	if score != score {
		return math.MaxUint32
	}
	bits := math.Float32bits(score + 0) // -0 becomes 0
	if bits>>31 == 1 {
		return bits
	}
	return ^(bits | 1<<31)
}

// sortScores orders by score, best first, then by replica id.
func sortScores(scores []Score) {
	slices.SortFunc(scores, func(a, b Score) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), strings.Compare(a.Replica, b.Replica))
	})
}
