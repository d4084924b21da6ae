// SPDX-License-Identifier: Apache-2.0

package lookup_test

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/lookup"
	"github.com/inferencecache/inference-cache/internal/policy"
)

const longBlocks = 10_000

// longChain asks for blocks 0, 1, 2, ... with one token each from block
// firstCounted on.
func longChain(firstCounted int) lookup.Request {
	request := in(testScope)
	for i := range longBlocks {
		request.BlockHashes = append(request.BlockHashes, binary.BigEndian.AppendUint64(nil, uint64(i)))
		count := int32(0)
		if i >= firstCounted {
			count = 1
		}
		request.BlockTokenCounts = append(request.BlockTokenCounts, count)
	}
	return request
}

func (f *fleet) holdLong(replica string, from, to int, age time.Duration, tier index.Tier) *fleet {
	var keys []uint64
	for i := from; i < to; i++ {
		keys = append(keys, uint64(i))
	}
	f.index.Apply(&index.Batch{
		Scope: testScope, Replica: replica, AtMillis: f.now.Add(-age).UnixMilli(), NowMillis: f.now.UnixMilli(),
		Ops: []index.Op{{Tier: tier, Keys: index.Keys{Short: keys}, Tokens: index.Tokens{First: 1, Step: 1}}},
	})
	return f
}

func longFleet(declared policy.Declared, change ...func(*lookup.Options)) *fleet {
	f := newFleet(change...).policy(declared).hold("other", holding{Chain: "z", Block: 1})
	return f.
		holdLong("all", 0, longBlocks, 0, index.TierT1).
		holdLong("hole", 0, 4096, 0, index.TierT1).holdLong("hole", 4097, longBlocks, 0, index.TierT1).
		holdLong("mixed", 0, 4096, 0, index.TierT2).holdLong("mixed", 4096, 8500, 15*time.Minute, index.TierT1).
		holdLong("few", 0, 100, 0, index.TierT1).
		holdLong("tail", 4096, longBlocks, 0, index.TierT1)
}

func TestLongChain(t *testing.T) {
	open := policy.Declared{RoutingFloorScore: ptr(float32(0))}
	counted := open
	counted.Eviction = "lfu"
	for name, tc := range map[string]struct {
		policy  policy.Declared
		request lookup.Request
		want    string
	}{
		"all blocks count":          {open, longChain(0), "all 8333.333/10000, mixed 2833.3335/8500, hole 2048/4096, few 33.333336/100"},
		"and in one piece":          {counted, longChain(0), "all 8333.333/10000, mixed 2833.3335/8500, hole 2048/4096, few 33.333336/100"},
		"the first piece is empty":  {open, longChain(4096), "all 4920/5904, mixed 1468/4404"},
		"and in one piece, empty":   {counted, longChain(4096), "all 4920/5904, mixed 1468/4404"},
		"hashes of several lengths": {open, with(longChain(0), func(r *lookup.Request) { r.BlockHashes[5000] = []byte("odd") }), "all 3333.3335/5000, hole 2048/4096, mixed 1666.6667/5000, few 33.333336/100"},
		"a repeat between the pieces ends all runs": {
			open, with(longChain(0), func(r *lookup.Request) { r.BlockHashes[4096] = r.BlockHashes[4095] }),
			"all 2048/4096, hole 2048/4096, mixed 2048/4096, few 33.333336/100",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := longFleet(tc.policy).ask(tc.request)
			if brief(got.Ranked) != tc.want {
				t.Errorf("ranked %s, want %s", brief(got.Ranked), tc.want)
			}
		})
	}
}

// endsAfter is a context that is done from its (asks+1)th question on.
type endsAfter struct {
	context.Context
	asks int
}

func (c *endsAfter) Err() error {
	if c.asks--; c.asks >= 0 {
		return nil
	}
	return context.Canceled
}

// TestLongChainLooksAtTheDeadline counts how far a match gets after time is
// up. Two questions come before the index is asked.
func TestLongChainLooksAtTheDeadline(t *testing.T) {
	f := longFleet(policy.Declared{})
	request := longChain(0)
	whole := f.ask(request)
	ctx := &endsAfter{Context: t.Context(), asks: 2}
	got := f.askContext(ctx, request)
	if got.Reason != lookup.Timeout || len(got.Scores) != 0 {
		t.Errorf("answer %s with %d scores, want a timeout", got.Reason, len(got.Scores))
	}
	if got.BestMatchedTokens() != 4096 || whole.BestMatchedTokens() != longBlocks {
		t.Errorf("matched %d tokens after the deadline and %d before, want 4096 and %d",
			got.BestMatchedTokens(), whole.BestMatchedTokens(), longBlocks)
	}
}
