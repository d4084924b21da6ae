// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"testing"

	"github.com/inferencecache/inference-cache/internal/index"
)

func TestAllocations(t *testing.T) {
	if underRace {
		t.Skip("the race detector makes pools forget")
	}
	const now = int64(1_000_000)
	x := index.New(index.Config{MaxMemberships: 1_000})
	var keys index.Keys
	for i := range uint64(128) {
		keys.Short = append(keys.Short, i)
	}
	long := index.Keys{Long: [][]byte{[]byte("a key of some other length")}}
	for _, name := range []string{"p", "q", "r"} {
		x.Apply(store(name, now, keys.Short...))
	}
	x.Apply(&index.Batch{Scope: scope, Replica: "p", AtMillis: now, NowMillis: now, Ops: []index.Op{{Keys: long}}})
	matches := make([]index.Match, 0, 8)
	candidates := make([]index.Candidate, 0, 8)
	turn := now
	batch := store("p", now, keys.Short...)
	batch.Ops = append(batch.Ops, index.Op{Kind: index.OpRemove, Keys: index.Keys{Short: keys.Short[64:]}})

	tests := map[string]struct {
		most float64
		do   func()
	}{
		"a lookup by chain allocates nothing": {do: func() {
			v := x.Acquire(scope, "", now, 30*minute)
			matches = v.MatchChain(matches[:0], keys, index.Tokens{Step: 16})
			v.Release()
		}},
		"an exact lookup allocates nothing": {do: func() {
			v := x.Acquire(scope, "", now, 30*minute)
			matches = v.MatchExact(matches[:0], long)
			v.Release()
		}},
		"naming candidates allocates nothing": {do: func() {
			v := x.Acquire(scope, "", now, 30*minute)
			candidates = v.Candidates(candidates[:0], true, true)
			v.Stats(0)
			v.Counts()
			v.Release()
		}},
		"a batch allocates at most once": {most: 1, do: func() {
			turn++
			batch.AtMillis, batch.NowMillis = turn, turn
			x.Apply(batch)
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := testing.AllocsPerRun(200, tc.do); got > tc.most {
				t.Errorf("%v allocations, want at most %v", got, tc.most)
			}
		})
	}
}
