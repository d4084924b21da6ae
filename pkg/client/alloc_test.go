// SPDX-License-Identifier: Apache-2.0

//go:build !race

package client_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/inferencecache/inference-cache/pkg/client"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// matching answers with two scores that it makes once.
func matching() direct {
	scores := []*pb.ReplicaScore{{ReplicaId: "pod-a", Score: 2}, {ReplicaId: "pod-b", Score: 1}}
	return func(_ context.Context, _ *pb.LookupRouteRequest, out *pb.LookupRouteResponse) error {
		out.ReasonCode, out.ReplicaScores = "PREFIX_MATCH", scores
		return nil
	}
}

// TestAllocations: what a lookup costs beside the gRPC call does not grow with
// the prompt, and one that is not sent costs nothing.
func TestAllocations(t *testing.T) {
	ctx := context.Background()
	for _, blocks := range []uint32{1, 4096} {
		t.Run(fmt.Sprintf("a match of %d blocks", blocks), func(t *testing.T) {
			c := client.New(matching(), client.Options{Logger: silent, Timeout: patient})
			request := question()
			request.Chain = client.ChainFromTokens(tokensUpTo(16*blocks), 16, "")
			// Context and timer, the two messages, the scores.
			if n := testing.AllocsPerRun(100, func() { c.Lookup(ctx, request) }); n > 8 {
				t.Errorf("%v allocations", n)
			}
		})
		t.Run(fmt.Sprintf("a chain of %d blocks", blocks), func(t *testing.T) {
			tokens := tokensUpTo(16 * blocks)
			// Keys, counts, hashes and their slice.
			if n := testing.AllocsPerRun(100, func() { client.ChainFromTokens(tokens, 16, "") }); n > 4 {
				t.Errorf("%v allocations", n)
			}
		})
	}
	t.Run("an open breaker", func(t *testing.T) {
		c := client.New((&switchable{code: 14}).conn(), client.Options{Logger: silent, BreakerOpenFor: patient})
		request := question()
		for range 5 {
			c.Lookup(ctx, request)
		}
		if n := testing.AllocsPerRun(100, func() { c.Lookup(ctx, request) }); n > 0 {
			t.Errorf("%v allocations", n)
		}
	})
	t.Run("a warning that is held back", func(t *testing.T) {
		quiet, loud := client.New(says("NO_HINT"), client.Options{Logger: silent}), client.New(says("UNKNOWN_TENANT"), client.Options{Logger: silent})
		request := question()
		without := testing.AllocsPerRun(100, func() { quiet.Lookup(ctx, request) })
		if with := testing.AllocsPerRun(100, func() { loud.Lookup(ctx, request) }); with > without {
			t.Errorf("%v allocations, %v without it", with, without)
		}
	})
	t.Run("affinity over sorted replicas", func(t *testing.T) {
		chain := client.ChainFromTokens(tokensUpTo(64), 16, "")
		names := replicas(8)
		if n := testing.AllocsPerRun(100, func() { client.AffinityPick(chain, names) }); n > 4 {
			t.Errorf("%v allocations", n)
		}
	})
}

func BenchmarkLookup(b *testing.B) {
	for _, blocks := range []uint32{16, 1024} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			c := client.New(matching(), client.Options{Logger: silent, Timeout: patient})
			request := question()
			tokens := tokensUpTo(16 * blocks)
			b.ReportAllocs()
			for b.Loop() {
				request.Chain = client.ChainFromTokens(tokens, 16, "")
				if got := c.Lookup(b.Context(), request); len(got.Scores) != 2 {
					b.Fatal(got)
				}
			}
		})
	}
}
