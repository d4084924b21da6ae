// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
)

// fadeRig is an index of an LFU tenant that has room for two memberships.
type fadeRig struct {
	t *testing.T
	x *index.Index
}

var fadeScope = index.Scope{Tenant: "t", Model: "m", Scheme: "s"}

const fadeHalfLife = 10 * 60_000

func newFadeRig(t *testing.T, halfLife int64) *fadeRig {
	return &fadeRig{t, index.New(index.Config{
		MaxMemberships: 2, LFUHalfLifeMillis: halfLife, Seed: 1,
		DefaultRules: index.TenantRules{TTLMillis: 1 << 40, LFU: true},
	})}
}

func (r *fadeRig) store(at int64, key uint64) {
	r.x.Apply(&index.Batch{Scope: fadeScope, Replica: "p", AtMillis: at, NowMillis: at, Ops: []index.Op{{
		Kind: index.OpStore, Tier: index.TierT1, Keys: index.Keys{Short: []uint64{key}}, Tokens: index.Tokens{First: 16},
	}}})
}

func (r *fadeRig) credit(at int64, key uint64, times int) {
	for range times {
		v := r.x.Acquire(fadeScope, "", at, 1<<40)
		matches := v.MatchChain(nil, index.Keys{Short: []uint64{key}}, index.Tokens{Step: 16})
		v.Credit(matches)
		v.Release()
	}
}

func (r *fadeRig) holds(key uint64) bool {
	v := r.x.Acquire(fadeScope, "", 1, 1<<40)
	defer v.Release()
	return len(v.MatchChain(nil, index.Keys{Short: []uint64{key}}, index.Tokens{Step: 16})) > 0
}

func (r *fadeRig) maintain(at int64) {
	for r.x.Maintain(at) {
	}
	if err := r.x.Check(); err != nil {
		r.t.Error(err)
	}
}

func TestLFUCountsHalve(t *testing.T) {
	const a, b, c = 1, 2, 3 // stored in this order; c has no room
	for name, tc := range map[string]struct {
		halfLife int64
		credits  func(r *fadeRig)
		at       int64 // when c is stored
		lost     uint64
	}{
		"without a half-life one credit lasts": {
			0, func(r *fadeRig) { r.credit(10, a, 1) }, 100 * fadeHalfLife, b,
		},
		"one credit counts in its half-life": {
			fadeHalfLife, func(r *fadeRig) { r.credit(10, a, 1) }, fadeHalfLife, b,
		},
		"one credit is nothing after a half-life": {
			fadeHalfLife, func(r *fadeRig) { r.credit(10, a, 1) }, 10 + fadeHalfLife, a,
		},
		"three credits are one after a half-life": {
			fadeHalfLife, func(r *fadeRig) { r.credit(10, a, 3) }, 10 + fadeHalfLife, b,
		},
		"three credits are nothing after two": {
			fadeHalfLife, func(r *fadeRig) { r.credit(10, a, 3) }, 10 + 2*fadeHalfLife, a,
		},
		"a half-life below the least is the least": {
			1, func(r *fadeRig) { r.credit(10, a, 1) }, 9 + index.MinLFUHalfLifeMillis, b,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFadeRig(t, tc.halfLife)
			r.store(1_000, a)
			r.store(2_000, b)
			tc.credits(r)
			r.maintain(tc.at)
			r.store(tc.at, c)
			r.maintain(tc.at)
			// c itself is uncounted, but newer than what has faded.
			lost := map[uint64]bool{a: !r.holds(a), b: !r.holds(b)}
			want := map[uint64]bool{a: tc.lost == a, b: tc.lost == b}
			if lost[a] != want[a] || lost[b] != want[b] {
				t.Errorf("lost a: %v, b: %v; want a: %v, b: %v", lost[a], lost[b], want[a], want[b])
			}
		})
	}
}

func TestLFUCountsKeepTheirOrder(t *testing.T) {
	// credits a half-life, from the first one on
	for name, tc := range map[string]struct{ less, more []int }{
		"more in the same half-life":      {[]int{2}, []int{3}},
		"as many, later":                  {[]int{4}, []int{0, 4}},
		"six are three after a half-life": {[]int{6}, []int{0, 4}},
		"nine are more than four then":    {[]int{0, 4}, []int{9}},
		"new ones add to old ones":        {[]int{0, 4}, []int{4, 4}},
		"hundreds do":                     {[]int{150}, []int{250}},
		"what faded adds nothing":         {[]int{1, 0, 3}, []int{0, 0, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			less, more := index.CountAfter(fadeHalfLife, tc.less...), index.CountAfter(fadeHalfLife, tc.more...)
			if less >= more {
				t.Errorf("%v gives %d, %v gives %d", tc.less, less, tc.more, more)
			}
		})
	}
	if n := index.CountAfter(0, 2, 0, 3); n != 5 {
		t.Errorf("without a half-life five credits are %d", n)
	}
}

func TestLFUFadingFollowsRules(t *testing.T) {
	const a, b, c = 1, 2, 3
	r := newFadeRig(t, fadeHalfLife)
	lfu := index.TenantRules{TTLMillis: 1 << 40, LFU: true}
	lru := index.TenantRules{TTLMillis: 1 << 40}
	r.store(1_000, a)
	r.store(2_000, b)
	r.credit(10, a, 1)
	r.x.SetRules(lru, nil)
	r.maintain(10 + 3*fadeHalfLife)
	r.x.SetRules(lfu, nil)
	r.maintain(10 + 3*fadeHalfLife)
	r.store(11+3*fadeHalfLife, c)
	if r.holds(a) || !r.holds(b) {
		t.Errorf("holds a: %v, b: %v; the count of a had faded", r.holds(a), r.holds(b))
	}
}

func TestWaitsAreSampled(t *testing.T) {
	seen := map[index.WaitSide]int{}
	x := index.New(index.Config{Seed: 1, ObserveWait: func(side index.WaitSide, waited time.Duration) {
		seen[side]++
		if waited < 0 {
			t.Errorf("waited %v", waited)
		}
	}})
	const lookups = 20_000
	for i := range lookups {
		if i%10 == 0 {
			x.Apply(&index.Batch{Scope: fadeScope, Replica: "p", AtMillis: 1, NowMillis: 1, Ops: []index.Op{{
				Kind: index.OpStore, Keys: index.Keys{Short: []uint64{uint64(i)}}, Tier: index.TierT1,
			}}})
		}
		v := x.Acquire(fadeScope, "", 1, 1000)
		v.Release()
	}
	// One in 64 of each: the chance to be outside these bounds is nil.
	if n := seen[index.WaitRead]; n < 100 || n > 900 {
		t.Errorf("%d of %d reads were looked at", n, lookups)
	}
	if n := seen[index.WaitWrite]; n < 10 || n > 400 {
		t.Errorf("%d of %d writes were looked at", n, lookups/10)
	}
}
