// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/ranking"
)

// ranked is one scored replica.
type ranked struct {
	replica string
	score   float32
}

// looker looks chains up, with scratch of its own.
type looker struct {
	x       *index.Index
	now     int64
	matches []index.Match
	ranks   []ranked // in the order of matches
	// order sorts them: what to sort by in the upper half, the place below.
	order []uint64
	knobs ranking.Knobs
}

func newLooker(x *index.Index) *looker {
	return &looker{x: x, now: startMillis + 10_000_000, knobs: ranking.DefaultKnobs()}
}

// match is a lookup without ranking.
func (l *looker) match(keys index.Keys) {
	v := l.x.Acquire(scope, "", l.now, ttlMillis)
	l.matches = v.MatchChain(l.matches[:0], keys, index.Tokens{Step: blockTokens})
	v.Release()
}

// rank is a lookup with scores in order, best first, as the server does it.
func (l *looker) rank(keys index.Keys) {
	v := l.x.Acquire(scope, "", l.now, ttlMillis)
	l.matches = v.MatchChain(l.matches[:0], keys, index.Tokens{Step: blockTokens})
	total := v.Serving()
	l.ranks, l.order = l.ranks[:0], l.order[:0]
	for i := range l.matches {
		m, pressure := &l.matches[i], float32(0)
		if s, ok := v.Stats(m.Slot); ok {
			pressure = s.Pressure
		}
		fresh := ranking.Freshness(l.now-m.LastSeenMillis, ttlMillis)
		base := l.knobs.Base(m.Tokens, fresh, l.knobs.PressureFactor(pressure), 1, 1)
		l.ranks = append(l.ranks, ranked{m.Replica, base})
		l.order = append(l.order, uint64(^uint32(m.Tokens))<<32|uint64(i))
	}
	v.Release()
	slices.Sort(l.order)
	l.eachRun(func(run []uint64, to int) {
		power := ranking.Power(to, total)
		for _, key := range run {
			r := &l.ranks[uint32(key)]
			r.score = ranking.WithPower(r.score, power)
		}
	})
	for i, key := range l.order { // scores are not negative
		l.order[i] = uint64(^math.Float32bits(l.ranks[uint32(key)].score))<<32 | key&math.MaxUint32
	}
	slices.Sort(l.order)
	l.eachRun(func(run []uint64, _ int) {
		if len(run) > 1 {
			slices.SortFunc(run, func(a, b uint64) int {
				return cmp.Compare(l.ranks[uint32(a)].replica, l.ranks[uint32(b)].replica)
			})
		}
	})
}

// eachRun calls f with what is equal in order, and where it ends.
func (l *looker) eachRun(f func(run []uint64, to int)) {
	for from := 0; from < len(l.order); {
		to := from + 1
		for to < len(l.order) && l.order[to]>>32 == l.order[from]>>32 {
			to++
		}
		f(l.order[from:to], to)
		from = to
	}
}

// together is how many lookups are timed as one, so that the clock costs
// little.
const together = 8

// time returns the median microseconds of one call, one value a run. Medians of
// short stretches leave out what the scheduler does.
func (l *looker) time(z sizes, do func(i int)) []float64 {
	runtime.GC() // else the collector may be at what the fixture left
	for i := range z.lookups / 10 {
		do(i)
	}
	out := make([]float64, z.runs)
	took := make([]float64, z.lookups/together)
	for r := range out {
		for i := range took {
			begin := time.Now()
			for j := range together {
				do(i*together + j)
			}
			took[i] = float64(time.Since(begin).Nanoseconds()) / 1000 / together
		}
		slices.Sort(took)
		out[r] = Quantile(took, 0.5)
	}
	return out
}

// measureLookup times chains of 128 blocks with 64 holders.
func measureLookup(r *Report, z sizes) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	z.lookups *= 5
	const blocks, holders = 128, 64
	rows := []struct {
		name          string
		fan           fan
		match, ranked float64 // limits
	}{
		{"128 blocks x 64 holders, hot", fan{blocks: blocks, holders: holders, updates: 4}, 1.5, 4},
		{"staircase, hot", fan{blocks: blocks, holders: holders, updates: 1, stairs: true}, 0, 4},
		{"updates cut at places of their own, hot", fan{blocks: blocks, holders: holders, updates: 4, ragged: true}, 0, 0},
		{"a time of its own for each membership, hot", fan{blocks: blocks, holders: holders, updates: blocks}, 0, 0},
		{"one holder, hot", fan{blocks: blocks, holders: 1, updates: 4}, 0, 0},
		{"8 blocks x 2 holders, hot", fan{blocks: 8, holders: 2, updates: 1}, 0, 0},
	}
	for _, row := range rows {
		x := newIndex()
		keys := index.Keys{Short: row.fan.put(x, 0, rand.New(rand.NewPCG(1, 6)))}
		l := newLooker(x)
		r.AtMost("G3", row.name+", matched", "us", row.match, l.time(z, func(int) { l.match(keys) }), nil)
		r.AtMost("G3", row.name+", ranked", "us", row.ranked, l.time(z, func(int) { l.rank(keys) }), nil)
	}
	measureCold(r, z)
}

// measureCold looks chains up that nobody touched before, in a large table.
func measureCold(r *Report, z sizes) {
	x := newIndex()
	random := rand.New(rand.NewPCG(1, 7))
	per := min(200, max(z.large/20_000, together))
	var chains []index.Keys
	half := z.large / 2
	next := 0
	for range z.runs * per {
		chains = append(chains, index.Keys{Short: fan{blocks: 128, holders: 64, updates: 4}.put(x, next, random)})
		next++
	}
	filled := fill(x, half, 128)
	l := newLooker(x)
	miss := index.Keys{Short: chainKeys(fillBase+filled+1, 128)}
	out := make([]float64, z.runs)
	for i := range out {
		for _, c := range random.Perm(filled)[:min(filled, 2000)] { // push the chains out of the caches
			l.match(index.Keys{Short: chainKeys(fillBase+c, 128)})
		}
		var took []float64
		for group := range slices.Chunk(chains[i*per:(i+1)*per], together) {
			begin := time.Now()
			for _, keys := range group {
				l.rank(keys)
			}
			took = append(took, float64(time.Since(begin).Nanoseconds())/1000/float64(len(group)))
		}
		slices.Sort(took)
		out[i] = Quantile(took, 0.5)
	}
	n := x.Counters(startMillis)
	detail := map[string]float64{"memberships": float64(n.Memberships), "keys": float64(n.Keys)}
	r.AtMost("G3", "128 blocks x 64 holders, cold, ranked", "us", 15, out, detail)
	r.AtMost("G3", "no reuse", "us", 0, l.time(z, func(int) { l.rank(miss) }), detail)
}
