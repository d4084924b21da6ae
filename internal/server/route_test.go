// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"math"
	"slices"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/inferencecache/inference-cache/internal/lookup"
	"github.com/inferencecache/inference-cache/internal/server"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// FuzzLookupRoute answers any message a caller may send.
func FuzzLookupRoute(f *testing.F) {
	s, err := server.New(server.Options{})
	if err != nil {
		f.Fatal(err)
	}
	for replica, letters := range map[string]string{"w": "abcd", "v": "ab", "u": "x"} {
		update := (&harness{}).update(replica, letters, 64)
		update.Stats = &pb.ReplicaStats{HitRate: .5, Pressure: .5}
		s.Ingest().Update(f.Context(), update)
	}
	seeds := []*pb.LookupRouteRequest{
		chain("abcd", 64),
		{TenantId: "team", ModelId: "m", HashScheme: "vllm", PrefixHash: hash('a'), PrefixTokenCount: -1},
		{TenantId: "team", ModelId: "m", HashScheme: "vllm", TokenIds: sequence(1, 40)},
		{TenantId: "team", ModelId: "m", HashScheme: "vllm", BlockHashes: [][]byte{{}, {1}}, BlockTokenCounts: []int32{math.MaxInt32, 1}},
		{TenantId: "inferencecache.io/probe", PromptText: "hi", Slo: &pb.SLO{TtftMs: -1}},
	}
	for _, seed := range seeds {
		wire, err := proto.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		var request pb.LookupRouteRequest
		if proto.Unmarshal(wire, &request) != nil {
			return
		}
		sent := proto.Clone(&request)
		response, err := s.LookupRoute(t.Context(), &request)
		if err != nil || !slices.Contains(lookup.Reasons(), lookup.Reason(response.GetReasonCode())) {
			t.Fatalf("answer %v, %v", response, err)
		}
		if !proto.Equal(sent, &request) {
			t.Error("the request was changed")
		}
		hint := slices.Contains([]string{"PREFIX_MATCH", "TENANT_HOT", "AFFINITY_HINT"}, response.GetReasonCode())
		if scores := response.GetReplicaScores(); hint != (len(scores) > 0) {
			t.Errorf("%s with %d scores", response.GetReasonCode(), len(scores))
		}
		best := float32(math.Inf(1))
		for _, score := range response.GetReplicaScores() {
			if !(score.GetScore() <= best && score.GetScore() >= 0) {
				t.Errorf("score %v after %v", score.GetScore(), best)
			}
			best = score.GetScore()
		}
	})
}

// TestLookupsSeeWholeUpdates asks while one replica is stored and cleared: the
// answer holds all of the update or nothing.
func TestLookupsSeeWholeUpdates(t *testing.T) {
	h := start(t)
	h.report(h.update("other", "x", 64))
	update := h.update("w", "abcdefghij", 64)
	clear := &pb.CacheEvent{Type: pb.CacheEvent_ALL_CLEARED, TenantId: "team", ModelId: "m", ReplicaId: "w"}
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				response, err := h.server.LookupRoute(t.Context(), chain("abcdefghij", 64))
				if err != nil {
					t.Error(err)
					return
				}
				for _, score := range response.GetReplicaScores() {
					if n := score.GetMatchedTokens(); n != 0 && n != 640 {
						t.Errorf("half an update: %v", score)
						return
					}
				}
			}
		})
	}
	for range 20 {
		h.report(update)
		h.publish(clear)
	}
	close(done)
	readers.Wait()
}

// BenchmarkLookupRoute answers in process: decision, rendering and metrics.
func BenchmarkLookupRoute(b *testing.B) {
	s, err := server.New(server.Options{})
	if err != nil {
		b.Fatal(err)
	}
	s.Ingest().Update(b.Context(), (&harness{}).update("w", "abcdefgh", 16))
	for name, request := range map[string]*pb.LookupRouteRequest{
		"hit":      chain("abcdefgh", 16),
		"affinity": chain("zyx", 16),
		"refused":  {TenantId: "team", ModelId: "m", BlockTokenCounts: []int32{1}},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.LookupRoute(b.Context(), request); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
