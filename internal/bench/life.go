// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
)

// Of the large table's life.
const (
	lifeBlocks = 128       // of a chain
	lifeTTL    = 3_600_000 // milliseconds
)

// life is a large table with what it cost before it was there.
type life struct {
	r        *Report
	x        *index.Index
	sections *sections
	chains   int
	n        float64 // memberships at first

	emptyHeap, emptyResident, fullResident float64
}

// measureLife fills a large table, looks chains up, evicts, clears a replica
// and lets the rest expire.
func measureLife(r *Report, z sizes) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l := &life{r: r, sections: &sections{}}
	debug.FreeOSMemory()
	l.emptyHeap, l.emptyResident = heapBytes(), ResidentBytes()
	l.x = newIndex(func(c *index.Config) { c.Observe, c.DefaultRules.TTLMillis = l.sections.observe, lifeTTL })
	l.insert(z.large)
	l.lookUp(z)
	l.evict()
	l.clearOne()
	l.expireAll()
	runtime.KeepAlive(l.x)
}

func nanos(begin time.Time) float64 { return float64(time.Since(begin).Nanoseconds()) }

func (l *life) insert(memberships int) {
	begin := time.Now()
	l.chains = fill(l.x, memberships, lifeBlocks)
	took := nanos(begin)
	l.n = float64(l.x.Counters(startMillis).Memberships)
	debug.FreeOSMemory()
	l.fullResident = ResidentBytes()
	heap := heapBytes() - l.emptyHeap
	n := l.x.Counters(startMillis)
	l.r.AtMost("G1", "large table: insert, wall", "ns/membership", 0, []float64{took / l.n}, map[string]float64{
		"memberships": l.n, "keys": float64(n.Keys), "seconds": took / 1e9,
	})
	l.r.AtMost("G4", "large table: heap", "B/membership", 48, []float64{heap / l.n}, map[string]float64{
		"memberships": l.n, "holders_per_key": l.n / float64(n.Keys), "own_account": float64(n.Bytes.Total()) / l.n,
		"resident": (l.fullResident - l.emptyResident) / l.n, "resident_mib": (l.fullResident - l.emptyResident) / (1 << 20),
	})
}

// lookUp asks for chains in random order, most of which are in no cache.
func (l *life) lookUp(z sizes) {
	looker := newLooker(l.x)
	looker.now = startMillis + 1_000_000
	order := rand.New(rand.NewPCG(1, 9)).Perm(l.chains)
	order = order[:min(len(order), 10*z.lookups)]
	took := make([]float64, 0, len(order))
	for _, c := range order {
		keys := index.Keys{Short: chainKeys(fillBase+c, lifeBlocks)}
		begin := time.Now()
		looker.rank(keys)
		took = append(took, nanos(begin)/1000)
	}
	slices.Sort(took)
	l.r.AtMost("G3", "large table: known chains of 128 blocks, 1 to 2 holders, ranked", "us", 0, []float64{Quantile(took, 0.5)},
		map[string]float64{"p99_us": Quantile(took, 0.99), "lookups": float64(len(took))})
}

// evict removes every sixteenth chain, tails first.
func (l *life) evict() {
	names := ReplicaNames(64)
	b := index.Batch{Scope: scope, NowMillis: startMillis, AtMillis: startMillis, Ops: make([]index.Op, 1)}
	var took []float64
	blocks, begin := 0, time.Now()
	for c := 0; c < l.chains; c += 16 {
		keys := chainKeys(fillBase+c, lifeBlocks)
		slices.Reverse(keys)
		b.Replica = names[c%64]
		for part := range slices.Chunk(keys, evictBatch) {
			b.Ops[0] = index.Op{Kind: index.OpRemove, Keys: index.Keys{Short: part}}
			from := time.Now()
			removed := l.x.Apply(&b).Removed
			took = append(took, nanos(from)/float64(max(removed, 1)))
			blocks += removed
		}
	}
	all := nanos(begin)
	slices.Sort(took)
	l.r.AtMost("G2", "large table: evict", "ns/block", 1000, []float64{Quantile(took, 0.5)}, map[string]float64{
		"wall_ns_per_block": all / float64(max(blocks, 1)), "blocks": float64(blocks),
	})
}

// clearOne clears one of 64 replicas.
func (l *life) clearOne() {
	debug.FreeOSMemory()
	before := ResidentBytes()
	l.sections.forget()
	removed := 0
	begin := time.Now()
	l.sections.step(func() { removed = l.x.ClearReplica(scope.Tenant, scope.Model, ReplicaNames(64)[1]) })
	took := nanos(begin)
	debug.FreeOSMemory()
	returned := before - ResidentBytes()
	l.r.AtMost("G2", "large table: clear of one of 64 replicas, wall", "ms", 0, []float64{took / 1e6}, map[string]float64{
		"memberships": float64(removed), "ns_per_membership": took / float64(max(removed, 1)),
		"resident_returned_mib": returned / (1 << 20), "resident_returned_per_membership": returned / float64(max(removed, 1)),
	})
	l.sections.print(l.r, "of the clear in the large table", map[string]float64{})
}

// expireAll lets time pass and looks at what memory is left.
func (l *life) expireAll() {
	n := float64(l.x.Counters(startMillis).Memberships)
	l.sections.forget()
	begin := time.Now()
	for more := true; more; {
		l.sections.step(func() { more = l.x.Maintain(startMillis + 3*lifeTTL) })
	}
	took := nanos(begin)
	debug.FreeOSMemory()
	l.r.AtMost("G2", "large table: expire all, wall", "ns/membership", 0, []float64{took / max(n, 1)}, map[string]float64{
		"memberships": n, "seconds": took / 1e9, "left": float64(l.x.Counters(startMillis + 3*lifeTTL).Memberships),
	})
	l.sections.print(l.r, "of expiry in the large table", map[string]float64{})
	l.r.AtMost("G4", "large table: resident after everything expired, of what was used", "ratio", 0.1,
		[]float64{max(ResidentBytes()-l.emptyResident, 0) / max(l.fullResident-l.emptyResident, 1)},
		map[string]float64{"resident_full_mib": (l.fullResident - l.emptyResident) / (1 << 20)})
}
