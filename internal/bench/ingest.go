// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"runtime"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
)

// measureIngest replays the corpus on one core, as fast as it goes.
func measureIngest(r *report, steps []step, z sizes) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var rates, walls []float64
	for range z.runs {
		x := newIndex()
		events := 0
		cpu, wall := threadTime(), time.Now()
		for i := range steps {
			if steps[i].events > 0 {
				x.Apply(&steps[i].batch)
				events += steps[i].events
			}
		}
		spent := threadTime() - cpu
		walls = append(walls, time.Since(wall).Seconds()*1e9/float64(events))
		rates = append(rates, float64(events)/spent.Seconds()/1e6)
	}
	row := summary("", "", "", walls, nil)
	r.atLeast("G1", "corpus events per second and core", "M/s", 5, rates, map[string]float64{"wall_ns_per_event": row.Value})

	// The uncomfortable row: single blocks at random, each at its own time.
	var singles []float64
	for range z.runs {
		singles = append(singles, randomSingles())
	}
	r.atMost("G1", "random single blocks, each in its own update", "ns/event", 0, singles, nil)
}

// randomSingles stores and removes single blocks in random order and returns
// the processor time of one event.
func randomSingles() float64 {
	const blocks, events = 200_000, 400_000
	x := newIndex()
	names := replicaNames(64)
	b := index.Batch{Scope: scope, Ops: make([]index.Op, 1)}
	cpu := threadTime()
	for i := range events {
		n := Key(uint32(i)) % (2 * blocks)
		b.Replica, b.AtMillis, b.NowMillis = names[n%64], startMillis+int64(i), startMillis+int64(i)
		keys := [1]uint64{Key(uint32(n / 64))}
		b.Ops[0] = index.Op{Kind: index.OpStore, Tier: index.TierT1, Keys: index.Keys{Short: keys[:]}, Tokens: index.Tokens{First: blockTokens}}
		if i%3 == 2 {
			b.Ops[0].Kind = index.OpRemove
		}
		x.Apply(&b)
	}
	return float64((threadTime() - cpu).Nanoseconds()) / events
}
