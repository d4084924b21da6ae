// SPDX-License-Identifier: Apache-2.0

package index

import (
	"testing"

	"pgregory.net/rapid"
)

func TestTableTakesAnyKeys(t *testing.T) {
	tests := map[string]func(i uint64) uint64{
		"in sequence":          func(i uint64) uint64 { return i },
		"that differ on top":   func(i uint64) uint64 { return i << 44 },
		"that are spread well": func(i uint64) uint64 { return i * 0x9e3779b97f4a7c15 },
	}
	for name, key := range tests {
		t.Run(name, func(t *testing.T) {
			const n = 100_000
			tb, mix := newTable(&slabs{}), newMixer(7)
			for i := range uint64(n) {
				tb.plan(mix.word(key(i)), noLock{})
				if i%5_000 == 4_999 { // rounds longer than a segment
					for j := i - 4_999; j <= i; j++ {
						tb.insert(entry{key: mix.word(key(j)), set: uint32(j + 1)})
					}
					tb.endRound()
				}
			}
			for i := range uint64(n) {
				if e := tb.find(mix.word(key(i))); e == nil || e.set != uint32(i+1) {
					t.Fatalf("key %d is lost", i)
				}
			}
			if perKey := tb.bytes() / n; perKey > 2*entryBytes+8 {
				t.Errorf("a key takes %d bytes", perKey)
			}
			for i := range uint64(n) {
				word := mix.word(key(i))
				tb.remove(tb.find(word))
				tb.shrink(word, noLock{})
			}
			if left := tb.bytes(); left > n*entryBytes/10 {
				t.Errorf("%d bytes are left in an empty table", left)
			}
		})
	}
}

func TestTableEqualsMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tb, want := newTable(&slabs{}), map[uint64]uint32{}
		mix := newMixer(rapid.Uint64().Draw(t, "seed"))
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			key := rapid.Uint64Range(0, 60).Draw(t, "key")
			word := mix.word(key)
			e := tb.find(word)
			switch set, held := want[key]; {
			case held != (e != nil) || held && e.set != set:
				t.Fatalf("find(%d) = %v, want %d, %v", key, e, set, held)
			case held:
				tb.remove(e)
				tb.shrink(word, noLock{})
				delete(want, key)
			default:
				tb.plan(word, noLock{})
				tb.insert(entry{key: word, set: uint32(len(want) + 1)})
				want[key] = uint32(len(want) + 1)
				tb.endRound()
			}
		}
	})
}
