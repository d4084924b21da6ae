// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// storedKey is one key of a run, with all that is said about it.
type storedKey struct {
	Removed bool
	Adapter string
	Tier    pb.CacheTier
	Key     uint64
	Tokens  int32
}

func expandRun(run *pb.StoredRun) (keys []storedKey) {
	counts := explicitCounts(run)
	for i, key := range run.GetKeys() {
		keys = append(keys, storedKey{Adapter: run.GetAdapterId(), Tier: run.GetTier(), Key: key, Tokens: counts[i]})
	}
	return keys
}

func expandDelta(delta *pb.SyncDelta) (keys []storedKey) {
	for _, op := range delta.GetOps() {
		keys = append(keys, expandRun(op.GetStored())...)
		for _, key := range op.GetRemoved().GetKeys() {
			keys = append(keys, storedKey{Removed: true, Adapter: op.GetRemoved().GetAdapterId(), Key: key})
		}
	}
	return keys
}

func drawRun(t *rapid.T) *pb.StoredRun {
	run := &pb.StoredRun{
		AdapterId: rapid.SampledFrom([]string{"", "lora"}).Draw(t, "adapter"),
		Tier:      rapid.SampledFrom([]pb.CacheTier{1, 2}).Draw(t, "tier"),
		Keys:      rapid.SliceOfN(rapid.Uint64Max(9), 1, 9).Draw(t, "keys"),
	}
	if rapid.Bool().Draw(t, "explicit") {
		run.TokenCounts = rapid.SliceOfN(rapid.Int32Range(0, 99), len(run.Keys), len(run.Keys)).Draw(t, "counts")
		return run
	}
	run.FirstTokenCount = rapid.Int32Range(0, 3).Draw(t, "first") * 16
	run.BlockTokenCount = 16
	return run
}

func drawOp(t *rapid.T) *pb.SyncOp {
	if rapid.Bool().Draw(t, "removed") {
		return &pb.SyncOp{Op: &pb.SyncOp_Removed{Removed: &pb.RemovedRun{
			AdapterId: "lora", Keys: rapid.SliceOfN(rapid.Uint64Max(9), 1, 9).Draw(t, "removed keys"),
		}}}
	}
	return &pb.SyncOp{Op: &pb.SyncOp_Stored{Stored: drawRun(t)}}
}

func TestSplitDeltaKeepsEveryKeyInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		delta := &pb.SyncDelta{TimestampUs: 5, Ops: rapid.SliceOfN(rapid.Custom(drawOp), 1, 9).Draw(t, "ops")}
		maxBlocks := rapid.IntRange(1, 12).Draw(t, "max blocks")
		var got []storedKey
		for _, part := range splitDelta(delta, maxBlocks) {
			if blocks, _ := deltaSize(part); blocks > maxBlocks || part.TimestampUs != 5 {
				t.Fatalf("part has %d blocks and time %d, want at most %d and 5", blocks, part.TimestampUs, maxBlocks)
			}
			got = append(got, expandDelta(part)...)
		}
		if diff := cmp.Diff(expandDelta(delta), got); diff != "" {
			t.Fatalf("keys differ (-whole +parts):\n%s", diff)
		}
	})
}

func TestSplitDeltaKeepsClear(t *testing.T) {
	delta := &pb.SyncDelta{Ops: []*pb.SyncOp{
		{Op: &pb.SyncOp_Cleared{Cleared: &pb.ClearedAll{}}},
		{Op: &pb.SyncOp_Stored{Stored: &pb.StoredRun{Keys: []uint64{1, 2, 3}}}},
	}}
	parts := splitDelta(delta, 2)
	if len(parts) != 2 || parts[0].GetOps()[0].GetCleared() == nil {
		t.Errorf("parts %v, want the clear first and two parts", parts)
	}
}

func TestChunkWriterKeepsEveryKeyInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		runs := rapid.SliceOfN(rapid.Custom(drawRun), 0, 12).Draw(t, "runs")
		w := chunkWriter{maxBlocks: rapid.IntRange(1, 12).Draw(t, "max blocks")}
		var want, got []storedKey
		for _, run := range runs {
			want = append(want, expandRun(run)...)
			w.add(run)
			clear(run.Keys) // the writer keeps copies
			clear(run.TokenCounts)
		}
		for _, chunk := range w.chunks {
			blocks := 0
			for _, run := range chunk.GetStored() {
				blocks += len(run.GetKeys())
				got = append(got, expandRun(run)...)
			}
			if blocks == 0 || blocks > w.maxBlocks {
				t.Fatalf("chunk of %d blocks, want 1 to %d", blocks, w.maxBlocks)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("keys differ (-runs +chunks):\n%s", diff)
		}
		if w.blocks != len(want) {
			t.Fatalf("%d blocks counted, want %d", w.blocks, len(want))
		}
	})
}

func TestChunkWriterJoinsLinearRuns(t *testing.T) {
	w := chunkWriter{maxBlocks: 100}
	for i := range 50 {
		w.add(&pb.StoredRun{Keys: []uint64{uint64(i)}, FirstTokenCount: int32(16 * (i + 1)), BlockTokenCount: 16})
	}
	if len(w.chunks) != 1 || len(w.chunks[0].Stored) != 1 || len(w.chunks[0].Stored[0].TokenCounts) != 0 {
		t.Errorf("chunks %v, want one run without explicit counts", w.chunks)
	}
}
