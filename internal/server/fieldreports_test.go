// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"slices"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/internal/server"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// The tests of this file hold what went wrong elsewhere in this field.

func (h *harness) wantAnswer(request *pb.LookupRouteRequest, want string) {
	h.t.Helper()
	if got := brief(h.lookup(request)); got != want {
		h.t.Errorf("answer %q, want %q", got, want)
	}
}

func sequence(from uint32, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = from + uint32(i)
	}
	return tokens
}

// tokenUpdate is what an engine that computed tokens reports.
func tokenUpdate(replica, adapter string, tokens []uint32, block int) *pb.CacheStateUpdate {
	entry := &pb.PrefixEntry{AdapterId: adapter}
	for _, wire := range fingerprint.Wire(fingerprint.Append(nil, fingerprint.Parent{}, tokens, block)) {
		entry.BlockHashes = append(entry.BlockHashes, wire)
		entry.BlockTokenCounts = append(entry.BlockTokenCounts, int32(block))
	}
	return &pb.CacheStateUpdate{
		ReplicaId: replica, ModelId: "m", TenantId: "team", HashScheme: "vllm", Prefixes: []*pb.PrefixEntry{entry},
	}
}

func tokenLookup(tokens []uint32) *pb.LookupRouteRequest {
	return &pb.LookupRouteRequest{ModelId: "m", TenantId: "team", HashScheme: "vllm", TokenIds: tokens}
}

func TestFR_01_PermutedBlocksAreNoPrefix(t *testing.T) {
	h := start(t)
	a, b := sequence(1, 64), sequence(1000, 64)
	h.report(tokenUpdate("w", "", slices.Concat(a, b), 16), h.update("v", "x", 16))
	h.wantAnswer(tokenLookup(slices.Concat(a, b)), "PREFIX_MATCH w 64/128")
	if got := h.lookup(tokenLookup(slices.Concat(b, a))).GetReasonCode(); got != "AFFINITY_HINT" {
		t.Errorf("permuted blocks: %s", got)
	}
}

func TestFR_02_LongestMatchComesFirst(t *testing.T) {
	h := start(t)
	h.report(h.update("p1", "a", 16))
	h.report(h.update("p2", "abcd", 16))
	h.report(h.update("other", "x", 16))
	h.wantAnswer(chain("abcd", 16), "PREFIX_MATCH p2 42.666668/64")
	h.server.SetPolicies([]policy.Declared{{Namespace: "team"}}, nil)
	h.wantAnswer(chain("abcd", 16), "PREFIX_MATCH p2 42.666668/64, p1 5.3333335/16")
}

func TestFR_03_EveryHolderIsRankedInOneOrder(t *testing.T) {
	h := start(t)
	for _, replica := range []string{"c", "a", "b"} {
		h.report(h.update(replica, "ab", 64))
	}
	h.report(h.update("other", "x", 16))
	for range 100 {
		h.wantAnswer(chain("ab", 64), "PREFIX_MATCH a 32/128, b 32/128, c 32/128")
	}
}

func TestFR_04_AMisalignedEntryCostsOnlyItself(t *testing.T) {
	h := start(t)
	update := h.update("w", "abcd", 16)
	bad := &pb.PrefixEntry{BlockHashes: [][]byte{hash('p'), hash('q')}, BlockTokenCounts: []int32{3}}
	update.Prefixes = slices.Insert(update.Prefixes, 0, bad)
	if ack := h.report(update); !ack.GetAccepted() || ack.GetReasonCode() != "PARTIAL" {
		t.Errorf("ack %v, want accepted with PARTIAL", ack)
	}
	h.wantAnswer(chain("abcd", 16), "PREFIX_MATCH w 64/64")
	h.wantMetric(`inferencecache_ingest_dropped_total{reason="chain_mismatch",source="contract"}`, 1)
}

func TestFR_07_ADifferentTailKeepsTheRest(t *testing.T) {
	h := start(t)
	h.report(tokenUpdate("w", "", sequence(1, 160), 16))
	turn := sequence(1, 160)
	turn[159] = 7
	h.wantAnswer(tokenLookup(turn), "PREFIX_MATCH w 144/144")
}

func TestFR_08_TheSchemeSeparatesTokenizers(t *testing.T) {
	h := start(t)
	h.report(h.update("w", "abcd", 16))
	request := chain("abcd", 16)
	request.HashScheme = "characters"
	h.wantAnswer(request, "UNKNOWN_HASH_SCHEME")
}

func TestFR_12_ClearingOneReplicaLeavesTheOthers(t *testing.T) {
	h := start(t)
	h.report(h.update("a", "abcd", 16))
	h.report(h.update("b", "abcd", 16))
	h.report(h.update("c", "x", 16))
	h.wantAnswer(chain("abcd", 16), "PREFIX_MATCH a 21.333334/64, b 21.333334/64")
	h.publish(&pb.CacheEvent{Type: pb.CacheEvent_ALL_CLEARED, TenantId: "team", ModelId: "m", ReplicaId: "a"})
	h.wantAnswer(chain("abcd", 16), "PREFIX_MATCH b 32/64")
}

func TestFR_20_AdaptersShareNothing(t *testing.T) {
	h := start(t)
	tokens := sequence(1, 64)
	h.report(tokenUpdate("base", "", tokens, 16))
	h.report(tokenUpdate("red", "lora-red", tokens, 16))
	h.report(tokenUpdate("blue", "lora-blue", tokens, 16))
	wants := map[string]string{
		"":          "PREFIX_MATCH base 42.666668/64",
		"lora-red":  "PREFIX_MATCH red 42.666668/64",
		"lora-blue": "PREFIX_MATCH blue 42.666668/64",
	}
	for adapter, want := range wants {
		request := tokenLookup(tokens)
		request.AdapterId = adapter
		h.wantAnswer(request, want)
	}
	first := fingerprint.Wire(fingerprint.Append(nil, fingerprint.Parent{}, tokens, 16))[0]
	for _, replica := range []string{"base", "red", "blue"} {
		h.publish(&pb.CacheEvent{
			Type: pb.CacheEvent_PREFIX_EVICTED, TenantId: "team", ModelId: "m", ReplicaId: replica,
			PrefixHash: first, AdapterId: "lora-red",
		})
	}
	for adapter, want := range wants {
		request := tokenLookup(tokens)
		request.AdapterId = adapter
		if adapter == "lora-red" {
			want = "AFFINITY_HINT red 0/0"
		}
		h.wantAnswer(request, want)
	}
}

func TestFR_45_ExpiredEntriesAreNeverReturned(t *testing.T) {
	h := start(t, func(o *server.Options) { o.Index.TTL = time.Hour })
	h.report(h.update("w", "abcd", 16))
	h.clock.Advance(time.Hour - 10*time.Second)
	if got := h.lookup(chain("abcd", 16)); len(got.GetReplicaScores()) != 1 || got.GetReplicaScores()[0].GetEstimatedCacheHitProb() <= 0 {
		t.Errorf("shortly before expiry: %v", got)
	}
	h.clock.Advance(10 * time.Second)
	for _, score := range h.lookup(chain("abcd", 16)).GetReplicaScores() {
		if score.GetMatchedTokens() != 0 {
			t.Errorf("expired entry returned: %v", score)
		}
	}
}
