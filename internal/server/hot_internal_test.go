// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/binary"
	"testing"

	"github.com/inferencecache/inference-cache/internal/lookup"
)

func hotRequest(tenant string) *lookup.Request {
	return &lookup.Request{Tenant: tenant, Model: "m", Scheme: "vllm"}
}

func numbered(n int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

func TestHotPrefixesCountTwoWindows(t *testing.T) {
	const window = int64(hotWindowMillis)
	for name, tc := range map[string]struct {
		uses []int64 // times
		now  int64
		want int64
	}{
		"too few":                         {[]int64{0, 0}, 0, 0},
		"enough":                          {[]int64{0, 1, 2}, 3, 1},
		"over two windows":                {[]int64{window - 2, window - 1, window}, window, 1},
		"still in the next window":        {[]int64{0, 0, 0}, 2*window - 1, 1},
		"not in the one after":            {[]int64{0, 0, 0}, 2 * window, 0},
		"never three windows":             {[]int64{0, window, 2 * window}, 2 * window, 0},
		"a window without any comes last": {[]int64{0, 0, 2 * window, 2 * window}, 2 * window, 0},
		"a clock that went back a little": {[]int64{window, window - 1, window}, window, 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHotPrefixes(3, 1024)
			for _, at := range tc.uses {
				h.delivered(hotRequest("team"), numbered(1), at)
			}
			if got := h.total(tc.now); got != tc.want {
				t.Errorf("%d hot, want %d", got, tc.want)
			}
		})
	}
}

func TestHotPrefixesTellKeysApart(t *testing.T) {
	h := newHotPrefixes(2, 1024)
	requests := []*lookup.Request{
		hotRequest("team"), hotRequest("other"),
		{Tenant: "team", Model: "m", Scheme: "sglang"},
		{Tenant: "team", Model: "m", Scheme: "vllm", Adapter: "lora"},
		{Tenant: "tea", Model: "mm", Scheme: "vllm"},
	}
	for _, request := range requests {
		h.delivered(request, numbered(1), 0)
	}
	if got := h.total(0); got != 0 {
		t.Errorf("%d hot after one use of each", got)
	}
	for _, request := range requests {
		h.delivered(request, numbered(1), 0)
	}
	if got := h.total(0); got != 5 {
		t.Errorf("%d hot, want all 5", got)
	}
	for tenant, want := range map[string]int64{"team": 3, "other": 1, "nobody": 0} {
		if got := h.of(tenant, "m", 0); got != want {
			t.Errorf("%d hot of %s, want %d", got, tenant, want)
		}
	}
}

// TestHotPrefixesAreFoundInAFlood mixes a few popular keys into many times as
// many keys as there are candidates.
func TestHotPrefixesAreFoundInAFlood(t *testing.T) {
	const popular, candidates = 20, 1024
	h := newHotPrefixes(8, candidates)
	for n := range 40 * candidates {
		h.delivered(hotRequest("team"), numbered(1000+n), 0)
		if n%8 == 0 {
			h.delivered(hotRequest("team"), numbered(n/8%popular), 0)
		}
	}
	if got := h.total(0); got != popular {
		t.Errorf("%d hot, want the %d popular ones", got, popular)
	}
	total := 0
	for i := range h.shards {
		total += len(h.shards[i].keys)
		if len(h.shards[i].keys) != len(h.shards[i].index) {
			t.Errorf("shard %d has %d candidates and knows %d", i, len(h.shards[i].keys), len(h.shards[i].index))
		}
	}
	if total > candidates {
		t.Errorf("%d candidates, want at most %d", total, candidates)
	}
	for n := range 2 * candidates {
		h.delivered(hotRequest("team"), numbered(n), 5*hotWindowMillis)
	}
	if got := h.total(5 * hotWindowMillis); got != 0 {
		t.Errorf("%d hot long after", got)
	}
}

func TestHotPrefixesDoNotAllocate(t *testing.T) {
	h := newHotPrefixes(8, 64)
	request, n := hotRequest("team"), 0
	for range 10_000 {
		h.delivered(request, numbered(n), 0)
		n++
	}
	key := numbered(1)
	if allocations := testing.AllocsPerRun(1000, func() {
		binary.BigEndian.PutUint64(key, uint64(n%500))
		n++
		h.delivered(request, key, 0)
	}); allocations != 0 {
		t.Errorf("%v allocations for a use", allocations)
	}
}
