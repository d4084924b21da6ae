// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
)

// evictBatch is how many blocks an engine evicts at a time.
const evictBatch = 32

// measureEvict times removals in small and large tables, then how long bounds
// keep readers out.
func measureEvict(r *Report, z sizes) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	small, large := make([]float64, z.runs), make([]float64, z.runs)
	timeEvictions(small, z.small)
	timeEvictions(large, z.large)
	r.AtMost("G2", "evict, small table", "ns/block", 1000, small, map[string]float64{"memberships": float64(z.small)})
	r.AtMost("G2", "evict, large table", "ns/block", 1000, large, map[string]float64{"memberships": float64(z.large)})
	slices.Sort(small)
	slices.Sort(large)
	ratio := []float64{large[len(large)/2] / small[len(small)/2]}
	r.AtMost("G2", "evict, large against small", "ratio", 2, ratio, nil)
	bound := z.small
	measureSections(r, "cap", bound, func(c *index.Config) { c.MaxMemberships = int64(bound) })
	measureSections(r, "quota", bound, func(c *index.Config) { c.DefaultRules.Limited, c.DefaultRules.MaxKeys = true, int64(bound) })
	measureExpiry(r, bound)
}

// timeEvictions fills a table and evicts random chains from it, tails first.
// It gives the median of the updates, once a run.
func timeEvictions(out []float64, memberships int) {
	const blocks = 128
	x := newIndex()
	chains := fill(x, memberships, blocks)
	names := ReplicaNames(64)
	order := rand.New(rand.NewPCG(1, 5)).Perm(chains)
	each := max(min(chains/len(out), 2000), 1)
	b := index.Batch{Scope: scope, NowMillis: startMillis, AtMillis: startMillis, Ops: make([]index.Op, 1)}
	for i := range out {
		var took []float64
		for _, c := range order[i*each : (i+1)*each] {
			keys := chainKeys(fillBase+c, blocks)
			slices.Reverse(keys)
			b.Replica = names[c%64]
			for from := 0; from < blocks; from += evictBatch {
				b.Ops[0] = index.Op{Kind: index.OpRemove, Keys: index.Keys{Short: keys[from : from+evictBatch]}}
				begin := time.Now()
				removed := x.Apply(&b).Removed
				took = append(took, float64(time.Since(begin).Nanoseconds())/float64(max(removed, 1)))
			}
		}
		slices.Sort(took)
		out[i] = Quantile(took, 0.5)
	}
}

// sections gathers how long exclusive sections were.
type sections struct {
	mu      sync.Mutex
	on      bool      // a step runs
	current []float64 // microseconds, of the running step
	longs   []float64
	// descheduled are sections of steps in which the thread had to make room
	// for another: their length says little about the index.
	descheduled []float64
}

func (s *sections) observe(_ string, critical time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.on {
		return
	}
	s.current = append(s.current, float64(critical.Nanoseconds())/1000)
}

// step runs one step and keeps its sections.
func (s *sections) step(do func()) {
	s.current, s.on = s.current[:0], true
	before := threadSwitches()
	do()
	s.on = false
	if threadSwitches() != before {
		s.descheduled = append(s.descheduled, s.current...)
		return
	}
	s.longs = append(s.longs, s.current...)
}

// forget starts a new list.
func (s *sections) forget() { s.longs, s.descheduled = nil, nil }

// print reports how long sections of something were: those of steps without
// another thread, or of all where there was always one.
func (s *sections) print(r *Report, of string, detail map[string]float64) {
	sorted := slices.Sorted(slices.Values(s.longs))
	if len(sorted) == 0 {
		sorted = slices.Sorted(slices.Values(s.descheduled))
	}
	detail["sections"], detail["descheduled"] = float64(len(sorted)), float64(len(s.descheduled))
	for _, q := range []struct {
		name string
		at   float64
	}{{"p50_us", 0.5}, {"p99_us", 0.99}} {
		detail[q.name] = Quantile(sorted, q.at)
	}
	r.AtMost("G2", "p99.9 of sections "+of, "us", 1000, []float64{Quantile(sorted, 0.999)}, detail)
	r.AtMost("G2", "longest section "+of, "us", 1000, []float64{Quantile(sorted, 1)}, nil)
}

// measureSections ingests at a bound of entries.
func measureSections(r *Report, kind string, bound int, set func(*index.Config)) {
	const blocks = 100
	full := max(bound/blocks, 1)
	batches := min(10_000, full)
	s := &sections{}
	x := newIndex(set, func(c *index.Config) { c.Observe = s.observe })
	names := ReplicaNames(64)
	put := func(c int) float64 {
		keys := chainKeys(c, blocks)
		begin := time.Now()
		storeRun(x, names[c%64], startMillis+int64(c), keys, 0)
		return float64(time.Since(begin).Nanoseconds())
	}
	for c := range full {
		put(c)
	}
	took := make([]float64, batches)
	for c := range took {
		s.step(func() { took[c] = put(full + c) })
	}
	slices.Sort(took)
	s.print(r, "at the "+kind, map[string]float64{
		"entries":       float64(bound),
		"ns_per_block":  Quantile(took, 0.5) / blocks,
		"update_p99_us": Quantile(took, 0.99) / 1000,
		"update_max_us": Quantile(took, 1) / 1000,
	})
}

// measureExpiry lets memberships expire.
func measureExpiry(r *Report, memberships int) {
	s := &sections{}
	x := newIndex(func(c *index.Config) { c.Observe, c.DefaultRules.TTLMillis = s.observe, 60_000 })
	fill(x, memberships, 100)
	before := x.Counters(startMillis).Memberships
	var took []float64
	begin := time.Now()
	for more := true; more; {
		s.step(func() {
			step := time.Now()
			more = x.Maintain(startMillis + 10*60_000)
			took = append(took, float64(time.Since(step).Nanoseconds()))
		})
	}
	all := time.Since(begin)
	slices.Sort(took)
	s.print(r, "of expiry", map[string]float64{
		"ns_per_membership": float64(all.Nanoseconds()) / float64(before),
		"step_p50_us":       Quantile(took, 0.5) / 1000,
	})
}
