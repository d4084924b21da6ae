// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math/rand/v2"
	"runtime"
	"runtime/debug"

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
		for c := range 10_000 {
			keys, first := chainKeys(c, 40), random.IntN(64)
			for h := range 3 {
				storeRun(x, names[(first+h)%64], startMillis+int64(c*3+h), keys, 0)
			}
		}
	})
	perMembership(r, "no sharing: one holder, a time for each key", 0, func(x *index.Index) {
		names := ReplicaNames(64)
		for c := range 400_000 {
			storeRun(x, names[c%64], startMillis+int64(c), chainKeys(c, 1), 0)
		}
	})
	measureClear(r, z)
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

// measureClear fills an index, clears all replicas and looks at what is left.
func measureClear(r *Report, z sizes) {
	debug.FreeOSMemory()
	empty := ResidentBytes()
	x := newIndex()
	fill(x, z.memoryEntries, 128)
	debug.FreeOSMemory()
	full, n := ResidentBytes(), x.Counters(startMillis)
	runtime.LockOSThread()
	cpu := threadTime()
	removed := 0
	for _, name := range ReplicaNames(64) {
		removed += x.ClearReplica(scope.Tenant, scope.Model, name)
	}
	spent := threadTime() - cpu
	runtime.UnlockOSThread()
	debug.FreeOSMemory()
	r.AtMost("G4", "resident after all replicas cleared, of what was used", "ratio", 0.1,
		[]float64{max(ResidentBytes()-empty, 0) / max(full-empty, 1)}, map[string]float64{
			"memberships":             float64(n.Memberships),
			"resident_full_mib":       (full - empty) / (1 << 20),
			"resident_per_membership": (full - empty) / float64(n.Memberships),
			"clear_ns_per_membership": float64(spent.Nanoseconds()) / float64(max(removed, 1)),
		})
	runtime.KeepAlive(x)
}
