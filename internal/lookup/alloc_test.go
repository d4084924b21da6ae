// SPDX-License-Identifier: Apache-2.0

//go:build !race

package lookup_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/inferencecache/inference-cache/internal/lookup"
	"github.com/inferencecache/inference-cache/internal/policy"
)

// hotFleet has holders of one chain of blocks, each block 16 tokens.
func hotFleet(holders, blocks int) (*fleet, lookup.Request) {
	letters := make([]byte, blocks)
	for i := range letters {
		letters[i] = byte(i)
	}
	f := newFleet().hold("other", holding{Chain: "\xff", Block: 16})
	for i := range holders {
		f.hold(fmt.Sprintf("replica-%02d", i), holding{Chain: string(letters), Block: 16})
	}
	return f, chain(string(letters), 16)
}

// TestAllocations: what needs no index allocates nothing.
func TestAllocations(t *testing.T) {
	f, request := hotFleet(1, 128)
	refusing := policy.Declared{AffinityRouting: ptr(false), MinimumPrefixTokens: 1 << 20}
	for name, declared := range map[string]policy.Declared{
		"a chain below the minimum": refusing,
		"a chain that is required":  {RequireChain: ptr(true), AffinityRouting: ptr(false), MinimumPrefixTokens: 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			f.policy(declared)
			var decision lookup.Decision
			ctx := context.Background()
			if n := testing.AllocsPerRun(100, func() { f.decider.Decide(ctx, &request, &decision) }); n > 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

func BenchmarkDecide(b *testing.B) {
	for _, size := range []struct{ holders, blocks int }{{1, 16}, {8, 64}, {64, 128}} {
		b.Run(fmt.Sprintf("holders=%d/blocks=%d", size.holders, size.blocks), func(b *testing.B) {
			f, request := hotFleet(size.holders, size.blocks)
			var decision lookup.Decision
			ctx := b.Context()
			f.decider.Decide(ctx, &request, &decision)
			if decision.Reason != lookup.PrefixMatch {
				b.Fatalf("answer %s", decision.Reason)
			}
			b.ReportAllocs()
			for b.Loop() {
				f.decider.Decide(ctx, &request, &decision)
			}
		})
	}
	b.Run("miss", func(b *testing.B) {
		f, _ := hotFleet(64, 1)
		request := chain(strings.Repeat("\xfe\xfd", 64), 16)
		var decision lookup.Decision
		b.ReportAllocs()
		for b.Loop() {
			f.decider.Decide(b.Context(), &request, &decision)
		}
	})
}
