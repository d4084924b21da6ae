// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var origin = time.Unix(1_700_000_000, 0)

func depths(p *placements, now time.Time, keys []uint64, maxAge time.Duration) map[uint32]int {
	found := map[uint32]int{}
	p.match(now, keys, maxAge, func(slot uint32, depth int) { found[slot] = depth })
	return found
}

func TestPlacements(t *testing.T) {
	p := newPlacements(time.Minute, 100)
	p.note(origin, 1, []uint64{10, 11, 12})
	p.note(origin.Add(time.Second), 2, []uint64{10, 21})
	now := origin.Add(2 * time.Second)
	cases := map[string]struct {
		keys   []uint64
		maxAge time.Duration
		want   map[uint32]int
	}{
		"each slot has its depth":   {[]uint64{10, 11, 12, 13}, time.Minute, map[uint32]int{1: 3, 2: 1}},
		"another branch":            {[]uint64{10, 21}, time.Minute, map[uint32]int{1: 1, 2: 2}},
		"an unknown start":          {[]uint64{9, 11}, time.Minute, map[uint32]int{}},
		"no keys":                   {nil, time.Minute, map[uint32]int{}},
		"only what is young enough": {[]uint64{10, 11, 12}, time.Second, map[uint32]int{2: 1}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, depths(p, now, tc.keys, tc.maxAge)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Whatever is noted, forgotten or pushed out: memory is bounded, and a slot
// that holds a key of a chain holds the keys before it.
func TestPlacementsKeepPrefixesWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 40).Draw(t, "limit")
		p := newPlacements(10*time.Second, limit)
		chain := func() (keys []uint64) {
			branch := rapid.Uint64Range(0, 3).Draw(t, "branch")
			for depth := range rapid.Uint64Range(1, 12).Draw(t, "length") {
				keys = append(keys, depth*10+min(branch, depth))
			}
			return keys
		}
		now := origin
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 4000).Draw(t, "millis")) * time.Millisecond)
			slot, keys := rapid.Uint32Range(1, 4).Draw(t, "slot"), chain()
			fresh := p.note(now, slot, keys)
			if rapid.IntRange(0, 4).Draw(t, "fails") == 0 {
				p.forget(now, slot, keys, fresh)
			} else if want, got := min(len(keys), limit), depths(p, now, keys, time.Hour)[slot]; got != want {
				t.Fatalf("depth %d right after noting %d keys", got, want)
			}
			if p.used > limit || len(p.pairs)-1 > limit || p.recent(now, time.Hour, limit+1) != p.used {
				t.Fatalf("%d pairs in use of %d made, %d in order, limit %d", p.used, len(p.pairs)-1, p.recent(now, time.Hour, limit+1), limit)
			}
			for branch := range uint64(4) {
				held := true
				for depth := range uint64(12) {
					at, _ := p.find(depth*10+min(branch, depth), slot)
					if at != 0 && !held {
						t.Fatalf("slot %d holds depth %d of branch %d, but not all before", slot, depth, branch)
					}
					held = at != 0
				}
			}
		}
	})
}

func TestPlacementsForgetFailures(t *testing.T) {
	p := newPlacements(time.Minute, 100)
	p.note(origin, 1, []uint64{1, 2})
	fresh := p.note(origin.Add(time.Second), 1, []uint64{1, 2, 3, 4})
	if fresh != 2 {
		t.Fatalf("new from %d, want 2", fresh)
	}
	p.forget(origin.Add(time.Second), 1, []uint64{1, 2, 3, 4}, fresh)
	if got := depths(p, origin.Add(time.Second), []uint64{1, 2, 3, 4}, time.Minute)[1]; got != 2 {
		t.Errorf("depth %d after the failure, want what was there before: 2", got)
	}
}

// TestGW16MemoryIsFlat checks that distinct prompts do not let memory grow once
// the budget is used up.
func TestGW16MemoryIsFlat(t *testing.T) {
	p := newPlacements(time.Hour, 1<<14)
	now, next := origin, uint64(0)
	fill := func(prompts int) uint64 {
		keys := make([]uint64, 8)
		for range prompts {
			now = now.Add(time.Millisecond)
			for i := range keys {
				next++
				keys[i] = next * 0x9e3779b97f4a7c15
			}
			p.note(now, uint32(next%8), keys)
		}
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	full := fill(4_000)
	if after := fill(20_000); float64(after) > 1.05*float64(full) {
		t.Errorf("heap grew from %d to %d bytes after the budget was full", full, after)
	}
	runtime.KeepAlive(p)
}
