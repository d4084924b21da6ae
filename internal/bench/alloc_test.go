// SPDX-License-Identifier: Apache-2.0

//go:build !race

package bench

import (
	"math/rand/v2"
	"testing"

	"github.com/inferencecache/inference-cache/internal/index"
)

// Under the race detector pools forget, so that allocations cannot be counted.

func TestMatchAndRankAllocateNothing(t *testing.T) {
	x := newIndex()
	keys := index.Keys{Short: fan{blocks: 128, holders: 64, updates: 4}.put(x, 0, rand.New(rand.NewPCG(1, 6)))}
	l := newLooker(x)
	l.rank(keys)
	if len(l.ranks) != 64 {
		t.Fatalf("%d replicas are ranked, want 64", len(l.ranks))
	}
	if got := testing.AllocsPerRun(100, func() { l.rank(keys) }); got >= 1 {
		t.Errorf("match and rank allocate %v times", got)
	}
}
