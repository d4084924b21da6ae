// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"math"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// maxFrameBytes bounds the estimated size of a data frame, well below the
// 4 MiB a gRPC server receives by default.
const maxFrameBytes = 1 << 20

// Estimated wire bytes: of a key with its token count, and of what surrounds
// the keys of one run besides its adapter name.
const (
	keyBytes = 12
	runBytes = 32
)

// runSize estimates the wire size of a run.
func runSize(adapter string, keys int) int { return runBytes + len(adapter) + keyBytes*keys }

// deltaSize returns the block keys of a delta and its estimated wire size.
func deltaSize(delta *pb.SyncDelta) (blocks, bytes int) {
	for _, op := range delta.GetOps() {
		adapter, keys := opKeys(op)
		blocks += keys
		bytes += runSize(adapter, keys)
	}
	return blocks, bytes
}

func opKeys(op *pb.SyncOp) (adapter string, keys int) {
	switch op := op.GetOp().(type) {
	case *pb.SyncOp_Stored:
		return op.Stored.GetAdapterId(), len(op.Stored.GetKeys())
	case *pb.SyncOp_Removed:
		return op.Removed.GetAdapterId(), len(op.Removed.GetKeys())
	}
	return "", 0
}

// splitDelta cuts a delta into deltas of at most maxBlocks keys and about
// maxFrameBytes, in order.
func splitDelta(delta *pb.SyncDelta, maxBlocks int) []*pb.SyncDelta {
	var parts []*pb.SyncDelta
	current := &pb.SyncDelta{TimestampUs: delta.GetTimestampUs()}
	blocks, bytes := 0, 0
	flush := func() {
		if len(current.Ops) > 0 {
			parts = append(parts, current)
		}
		current = &pb.SyncDelta{TimestampUs: delta.GetTimestampUs()}
		blocks, bytes = 0, 0
	}
	for _, op := range delta.GetOps() {
		adapter, keys := opKeys(op)
		for from := 0; ; {
			room := min(maxBlocks-blocks, (maxFrameBytes-bytes-runSize(adapter, 0))/keyBytes)
			if room <= 0 && len(current.Ops) > 0 {
				flush()
				continue
			}
			to := min(keys, from+max(room, 1))
			current.Ops = append(current.Ops, sliceOp(op, from, to))
			blocks += to - from
			bytes += runSize(adapter, to-from)
			if from = to; from == keys {
				break
			}
		}
	}
	flush()
	return parts
}

// sliceOp returns the part of op that concerns its keys[from:to].
func sliceOp(op *pb.SyncOp, from, to int) *pb.SyncOp {
	switch kind := op.GetOp().(type) {
	case *pb.SyncOp_Stored:
		return &pb.SyncOp{Op: &pb.SyncOp_Stored{Stored: sliceStored(kind.Stored, from, to)}}
	case *pb.SyncOp_Removed:
		return &pb.SyncOp{Op: &pb.SyncOp_Removed{Removed: &pb.RemovedRun{
			AdapterId: kind.Removed.GetAdapterId(),
			Keys:      kind.Removed.GetKeys()[from:to],
		}}}
	}
	return op
}

func sliceStored(run *pb.StoredRun, from, to int) *pb.StoredRun {
	part := &pb.StoredRun{
		AdapterId:       run.GetAdapterId(),
		Tier:            run.GetTier(),
		Keys:            run.GetKeys()[from:to],
		BlockTokenCount: run.GetBlockTokenCount(),
	}
	if counts := run.GetTokenCounts(); len(counts) > 0 {
		part.TokenCounts = counts[from:min(to, len(counts))]
		return part
	}
	part.FirstTokenCount = tokenCountAt(run, from)
	return part
}

// tokenCountAt is the token count of key i of a run without explicit counts.
func tokenCountAt(run *pb.StoredRun, i int) int32 {
	count := int64(run.GetFirstTokenCount()) + int64(i)*int64(run.GetBlockTokenCount())
	return int32(min(count, math.MaxInt32))
}

// chunkWriter packs the runs of a snapshot into chunks, copying what it keeps
// and joining neighbours of one adapter and tier.
type chunkWriter struct {
	maxBlocks int
	chunks    []*pb.SnapshotChunk
	current   *pb.SnapshotChunk
	room      int
	bytes     int
	blocks    int
}

func (w *chunkWriter) add(run *pb.StoredRun) bool {
	for from := 0; from < len(run.GetKeys()); {
		if w.current == nil || w.room == 0 || w.bytes >= maxFrameBytes {
			w.current = &pb.SnapshotChunk{}
			w.chunks = append(w.chunks, w.current)
			w.room, w.bytes = w.maxBlocks, 0
		}
		to := min(len(run.GetKeys()), from+w.room)
		w.append(sliceStored(run, from, to))
		w.room -= to - from
		w.blocks += to - from
		from = to
	}
	return true
}

func (w *chunkWriter) append(part *pb.StoredRun) {
	w.bytes += keyBytes * len(part.Keys)
	if n := len(w.current.Stored); n > 0 && joinRuns(w.current.Stored[n-1], part) {
		return
	}
	part.Keys = append([]uint64(nil), part.Keys...)
	part.TokenCounts = append([]int32(nil), part.TokenCounts...)
	w.current.Stored = append(w.current.Stored, part)
	w.bytes += runSize(part.AdapterId, 0)
}

// joinRuns appends next to run when both are of one adapter and tier.
func joinRuns(run, next *pb.StoredRun) bool {
	if run.AdapterId != next.AdapterId || run.Tier != next.Tier {
		return false
	}
	linear := len(run.TokenCounts) == 0 && len(next.TokenCounts) == 0 &&
		run.BlockTokenCount == next.BlockTokenCount &&
		tokenCountAt(run, len(run.Keys)) == next.FirstTokenCount
	if !linear {
		run.TokenCounts = appendCounts(explicitCounts(run), next)
	}
	run.Keys = append(run.Keys, next.Keys...)
	return true
}

func explicitCounts(run *pb.StoredRun) []int32 {
	if len(run.GetTokenCounts()) > 0 {
		return run.GetTokenCounts()
	}
	return appendCounts(make([]int32, 0, 2*len(run.GetKeys())), run)
}

func appendCounts(counts []int32, run *pb.StoredRun) []int32 {
	if len(run.GetTokenCounts()) > 0 {
		return append(counts, run.GetTokenCounts()...)
	}
	for i := range run.GetKeys() {
		counts = append(counts, tokenCountAt(run, i))
	}
	return counts
}
