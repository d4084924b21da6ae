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

// TestTableEqualsMap draws few words that crowd few buckets, so that buckets
// overflow, wrap around and close their gaps again.
func TestTableEqualsMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tb, want := newTable(&slabs{}), map[uint64]uint32{}
		crowd := rapid.SampledFrom([]uint64{1 << 32, 1 << 30, 1 << 29}).Draw(t, "crowd")
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			word := rapid.Uint64Range(0, 60).Draw(t, "word")
			word = word*crowd | word<<58
			e := tb.find(word)
			switch set, held := want[word]; {
			case held != (e != nil) || held && e.set != set:
				t.Fatalf("find(%#x) = %v, want %d, %v", word, e, set, held)
			case held:
				tb.remove(e)
				tb.shrink(word, noLock{})
				delete(want, word)
			default:
				tb.plan(word, noLock{})
				tb.insert(entry{key: word, set: uint32(len(want) + 1)})
				want[word] = uint32(len(want) + 1)
				tb.endRound()
			}
			if err := tb.check(len(want)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestSetsOfKeysEndAtTheFirstAbsentOrRepeatedOne(t *testing.T) {
	mix := newMixer(3)
	tb := newTable(&slabs{})
	for key := range uint64(200) {
		tb.plan(mix.word(key), noLock{})
		tb.insert(entry{key: mix.word(key), set: uint32(key + 1)})
		tb.endRound()
	}
	five := uint64(5)
	tests := map[string]struct {
		keys []uint64
		last *uint64
		want int
	}{
		"all known":                {keys: []uint64{3, 100, 199, 7}, want: 4},
		"one absent":               {keys: []uint64{3, 100, 200, 7}, want: 2},
		"one repeated":             {keys: []uint64{3, 100, 100, 7}, want: 2},
		"repeated but not at once": {keys: []uint64{3, 100, 3}, want: 3},
		"repeats the last one":     {keys: []uint64{5, 6}, last: &five, want: 0},
		"follows the last one":     {keys: []uint64{6, 5}, last: &five, want: 2},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			sets := make([]uint32, len(test.keys))
			if got := tb.sets(sets, test.keys, test.last, mix); got != test.want {
				t.Fatalf("%d keys, want %d", got, test.want)
			}
			for i, key := range test.keys[:test.want] {
				if sets[i] != uint32(key+1) {
					t.Errorf("key %d has set %d", key, sets[i])
				}
			}
		})
	}
}

func TestWordsGiveTheirKeysBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mix := newMixer(rapid.Uint64().Draw(t, "seed"))
		key := rapid.Uint64().Draw(t, "key")
		if back := mix.key(mix.word(key)); back != key {
			t.Fatalf("key %#x comes back as %#x", key, back)
		}
	})
}

// TestTheWordZeroIsAWordLikeOthers: free entries are zero.
func TestTheWordZeroIsAWordLikeOthers(t *testing.T) {
	mix := newMixer(9)
	zero := mix.key(0)
	tb := newTable(&slabs{})
	sets := make([]uint32, 1)
	if tb.find(0) != nil || tb.sets(sets, []uint64{zero}, nil, mix) != 0 {
		t.Fatal("found in an empty table")
	}
	for word := range uint64(6) {
		tb.plan(word, noLock{})
		tb.insert(entry{key: word, set: uint32(word + 7)})
		tb.endRound()
	}
	if e := tb.find(0); e == nil || e.set != 7 || tb.sets(sets, []uint64{zero}, nil, mix) != 1 || sets[0] != 7 {
		t.Errorf("found %v and %v", e, sets)
	}
	tb.remove(tb.find(0))
	if tb.find(0) != nil || tb.sets(sets, []uint64{zero}, nil, mix) != 0 {
		t.Error("found after its removal")
	}
}
