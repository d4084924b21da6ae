// SPDX-License-Identifier: Apache-2.0

package kvevents

import (
	"math/rand/v2"
	"testing"
)

// largeStore is a store of 64 blocks of 16 tokens, as current vLLM sends it.
func largeStore(t testing.TB) []byte {
	rng := rand.New(rand.NewPCG(1, 1))
	var hashes, tokens, extra []any
	for range 64 {
		hashes, extra = append(hashes, rng.Uint64()|1<<63), append(extra, nil)
	}
	for range 64 * 16 {
		tokens = append(tokens, rng.Uint32N(150_000))
	}
	return encodeBatch(t, fields{
		"type", "BlockStored", "block_hashes", hashes, "parent_block_hash", nil, "token_ids", tokens,
		"block_size", 16, "lora_id", nil, "medium", "GPU", "lora_name", "adapter", "extra_keys", extra,
		"group_idx", 0, "kv_cache_spec_kind", "full_attention", "session_id", "s-1",
	}, []any{"BlockRemoved", hashes, "GPU", 0})
}

func TestDecodeDoesNotAllocate(t *testing.T) {
	payload, decoder := largeStore(t), NewDecoder(Options{})
	if batch, err := decoder.Decode(payload); err != nil || batch.Events[0].Reason != ReasonNone {
		t.Fatal("the payload is not usable", err)
	}
	if n := testing.AllocsPerRun(100, func() {
		if _, err := decoder.Decode(payload); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkDecode(b *testing.B) {
	payload, decoder := largeStore(b), NewDecoder(Options{})
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decoder.Decode(payload); err != nil {
			b.Fatal(err)
		}
	}
}
