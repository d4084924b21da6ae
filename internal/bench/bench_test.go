// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math/rand/v2"
	"testing"

	"github.com/inferencecache/inference-cache/internal/index"
)

// The benchmarks bear the names of the goals that `inferencecache bench index`
// measures at full size.

func BenchmarkG1Ingest(b *testing.B) {
	steps := small().steps(startMillis)
	b.ReportAllocs()
	events := 0
	x := newIndex()
	for i := 0; b.Loop(); i++ {
		s := &steps[i%len(steps)]
		x.Apply(&s.batch)
		events += s.events
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(events), "ns/event")
}

func BenchmarkG2Evict(b *testing.B) {
	const blocks = 128
	x := newIndex()
	names := ReplicaNames(64)
	op := index.Batch{Scope: scope, AtMillis: startMillis, NowMillis: startMillis, Ops: make([]index.Op, 1)}
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		keys := chainKeys(i, blocks)
		storeRun(x, names[i%64], startMillis, keys, 0)
		op.Replica, op.Ops[0] = names[i%64], index.Op{Kind: index.OpRemove, Keys: index.Keys{Short: keys}}
		b.StartTimer()
		x.Apply(&op)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/blocks, "ns/block")
}

func BenchmarkG3Lookup(b *testing.B) {
	fans := map[string]fan{
		"128x64":    {blocks: 128, holders: 64, updates: 4},
		"staircase": {blocks: 128, holders: 64, updates: 1, stairs: true},
		"ragged":    {blocks: 128, holders: 64, updates: 4, ragged: true},
		"random":    {blocks: 128, holders: 64, updates: 128},
	}
	for name, f := range fans {
		x := newIndex()
		keys := index.Keys{Short: f.put(x, 0, rand.New(rand.NewPCG(1, 6)))}
		l := newLooker(x)
		b.Run(name+"/matched", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l.match(keys)
			}
		})
		b.Run(name+"/ranked", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l.rank(keys)
			}
		})
	}
}

func BenchmarkG4Memory(b *testing.B) {
	for b.Loop() {
		x := newIndex()
		fill(x, 100_000, 128)
		n := x.Counters(startMillis)
		b.ReportMetric(float64(n.Bytes.Total())/float64(n.Memberships), "B/membership")
	}
}
