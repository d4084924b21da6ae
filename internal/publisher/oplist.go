// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"github.com/inferencecache/inference-cache/internal/kvevents"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// opList collects changes in order and merges neighbours into runs.
type opList struct {
	// maxRunKeys ends a run; 0 is no bound.
	maxRunKeys int

	ops        []*pb.SyncOp
	storedRun  *pb.StoredRun  // the last op, if it is one
	removedRun *pb.RemovedRun // the last op, if it is one
}

// explicitBelow is the length up to which a run with even steps is turned into
// one with a count for each key rather than ended.
const explicitBelow = 8

func (l *opList) stored(adapter string, tier kvevents.Tier, key uint64, tokens int32) {
	if run := l.storedRun; run != nil && run.AdapterId == adapter && run.Tier == pb.CacheTier(tier) &&
		(l.maxRunKeys == 0 || len(run.Keys) < l.maxRunKeys) && extend(run, tokens) {
		run.Keys = append(run.Keys, key)
		return
	}
	run := &pb.StoredRun{
		AdapterId: adapter, Tier: pb.CacheTier(tier),
		Keys: []uint64{key}, FirstTokenCount: tokens,
	}
	l.append(&pb.SyncOp{Op: &pb.SyncOp_Stored{Stored: run}})
	l.storedRun = run
}

// extend makes room in a run's token counts for one more key. It reports false
// when the run should end instead.
func extend(run *pb.StoredRun, tokens int32) bool {
	n := int32(len(run.Keys))
	if len(run.TokenCounts) > 0 {
		run.TokenCounts = append(run.TokenCounts, tokens)
		return true
	}
	if n == 1 && tokens > run.FirstTokenCount {
		run.BlockTokenCount = tokens - run.FirstTokenCount
	}
	if tokens == run.FirstTokenCount+n*run.BlockTokenCount {
		return true
	}
	if n >= explicitBelow {
		return false
	}
	for i := range n {
		run.TokenCounts = append(run.TokenCounts, run.FirstTokenCount+i*run.BlockTokenCount)
	}
	run.TokenCounts = append(run.TokenCounts, tokens)
	run.FirstTokenCount, run.BlockTokenCount = 0, 0
	return true
}

func (l *opList) removed(adapter string, key uint64) {
	if run := l.removedRun; run != nil && run.AdapterId == adapter {
		run.Keys = append(run.Keys, key)
		return
	}
	run := &pb.RemovedRun{AdapterId: adapter, Keys: []uint64{key}}
	l.append(&pb.SyncOp{Op: &pb.SyncOp_Removed{Removed: run}})
	l.removedRun = run
}

// cleared voids what stands before it.
func (l *opList) cleared() {
	clear(l.ops)
	l.ops = l.ops[:0]
	l.append(&pb.SyncOp{Op: &pb.SyncOp_Cleared{Cleared: &pb.ClearedAll{}}})
}

func (l *opList) append(op *pb.SyncOp) {
	l.ops = append(l.ops, op)
	l.storedRun, l.removedRun = nil, nil
}

// take returns the ops collected so far and starts anew.
func (l *opList) take() []*pb.SyncOp {
	ops := l.ops
	l.ops, l.storedRun, l.removedRun = nil, nil, nil
	return ops
}

// flushStored yields all complete runs, and with last also the open one.
func (l *opList) flushStored(yield func(*pb.StoredRun) bool, last bool) bool {
	keep := 1
	if last {
		keep = 0
	}
	for len(l.ops) > keep {
		if !yield(l.ops[0].GetStored()) {
			return false
		}
		l.ops[0] = nil
		l.ops = l.ops[1:]
	}
	return true
}
