// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math/rand/v2"
	"runtime"

	"github.com/inferencecache/inference-cache/internal/index"
)

// heapBytes returns the heap in use after a collection. The first one leaves
// what pools keep.
func heapBytes() float64 {
	runtime.GC()
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// measureMemory counts all memory behind a membership.
func measureMemory(r *Report, steps []step, z sizes) {
	perMembership(r, "at the end of the corpus", 48, func(x *index.Index) {
		for i := range steps {
			if steps[i].events > 0 {
				x.Apply(&steps[i].batch)
			}
		}
	})
	perMembership(r, "three holders a key", 24, func(x *index.Index) {
		random := rand.New(rand.NewPCG(1, 8))
		names := ReplicaNames(64)
		for c := range min(10_000, max(z.large/100, 1)) {
			keys, first := chainKeys(c, 40), random.IntN(64)
			for h := range 3 {
				storeRun(x, names[(first+h)%64], startMillis+int64(c*3+h), keys, 0)
			}
		}
	})
	perMembership(r, "no sharing: one holder, a time for each key", 0, func(x *index.Index) {
		names := ReplicaNames(64)
		for c := range min(400_000, max(z.large/10, 1)) {
			storeRun(x, names[c%64], startMillis+int64(c), chainKeys(c, 1), 0)
		}
	})
}

// perMembership prints the bytes of an index by heap and by its own account.
func perMembership(r *Report, name string, limit float64, build func(*index.Index)) {
	before := heapBytes()
	x := newIndex()
	build(x)
	heap := heapBytes() - before
	n := x.Counters(startMillis)
	r.AtMost("G4", name, "B/membership", limit, []float64{heap / float64(n.Memberships)}, map[string]float64{
		"memberships":     float64(n.Memberships),
		"holders_per_key": float64(n.Memberships) / float64(n.Keys),
		"own_account":     float64(n.Bytes.Total()) / float64(n.Memberships),
	})
	runtime.KeepAlive(x)
}
