// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"runtime"
	"slices"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
)

// measureIngest replays the corpus on one core, as fast as it goes. Each update
// is timed by the wall; the fastest of its runs counts, so that neighbours on
// the machine and the scheduler do not.
func measureIngest(r *Report, steps []step, z sizes) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fastest := make([]time.Duration, len(steps))
	var rates, walls, cpus []float64
	events := 0
	for run := range z.runs {
		x := newIndex()
		events = 0
		cpu, wall := threadTime(), time.Now()
		for i := range steps {
			if steps[i].events == 0 {
				continue
			}
			begin := time.Now()
			x.Apply(&steps[i].batch)
			if took := time.Since(begin); run == 0 || took < fastest[i] {
				fastest[i] = took
			}
			events += steps[i].events
		}
		cpus = append(cpus, float64((threadTime()-cpu).Nanoseconds())/float64(events))
		walls = append(walls, float64(time.Since(wall).Nanoseconds())/float64(events))
	}
	var total time.Duration
	for _, d := range fastest {
		total += d
	}
	rates = append(rates, float64(events)/total.Seconds()/1e6)
	r.AtLeast("G1", "corpus events per second and core, fastest run of each update", "M/s", 5, rates, map[string]float64{
		"ns_per_event": 1000 / rates[0], "runs": float64(z.runs),
		"wall_ns_per_event": summary("", "", "", walls, nil).Value, "cpu_ns_per_event": summary("", "", "", cpus, nil).Value,
	})

	// The uncomfortable row: single blocks at random, each at its own time.
	var singles []float64
	for range z.runs {
		singles = append(singles, randomSingles(min(400_000, max(z.large/10, 10))))
	}
	r.AtMost("G1", "random single blocks, each in its own update", "ns/event", 0, singles, nil)
}

// randomSingles stores and removes single blocks in random order and returns
// the median time of one event.
func randomSingles(events int) float64 {
	blocks := uint64(events / 2)
	x := newIndex()
	names := ReplicaNames(64)
	b := index.Batch{Scope: scope, Ops: make([]index.Op, 1)}
	took := make([]float64, 0, events)
	for i := range events {
		n := Key(uint32(i)) % (2 * blocks)
		b.Replica, b.AtMillis, b.NowMillis = names[n%64], startMillis+int64(i), startMillis+int64(i)
		keys := [1]uint64{Key(uint32(n / 64))}
		b.Ops[0] = index.Op{Kind: index.OpStore, Tier: index.TierT1, Keys: index.Keys{Short: keys[:]}, Tokens: index.Tokens{First: blockTokens}}
		if i%3 == 2 {
			b.Ops[0].Kind = index.OpRemove
		}
		begin := time.Now()
		x.Apply(&b)
		took = append(took, float64(time.Since(begin).Nanoseconds()))
	}
	slices.Sort(took)
	return Quantile(took, 0.5)
}
