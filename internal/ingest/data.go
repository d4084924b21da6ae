// SPDX-License-Identifier: Apache-2.0

package ingest

import (
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// data takes a sequenced frame. Sequences rise by one; a snapshot's begin may
// skip some, because it makes what was before it irrelevant.
func (c *conn) data(frame *pb.PublisherFrame) *pb.SyncReject {
	sequence := frame.GetSequence()
	if sequence <= c.received {
		c.server.metrics.drop(ReasonStaleSequence)
		c.out.ack(c.received, 1)
		return nil
	}
	begin := frame.GetSnapshotBegin()
	if begin == nil && c.phase != awaiting && sequence != c.received+1 {
		c.gap(sequence - 1)
	}
	c.received = sequence
	var reject *pb.SyncReject
	dropped := 0
	switch f := frame.GetFrame().(type) {
	case *pb.PublisherFrame_SnapshotBegin:
		c.beginSnapshot(begin)
	case *pb.PublisherFrame_SnapshotChunk:
		if c.inPhase(staging) {
			dropped, reject = c.stage(f.SnapshotChunk)
		}
	case *pb.PublisherFrame_SnapshotEnd:
		if c.inPhase(staging) {
			dropped = c.commit(f.SnapshotEnd)
		}
	case *pb.PublisherFrame_Delta:
		if c.inPhase(following) {
			dropped = c.delta(f.Delta)
		}
	}
	c.out.ack(c.received, dropped)
	return reject
}

// inPhase says whether a frame that belongs to phase p may be used. A frame in
// the wrong place means that the two ends disagree, which a snapshot mends.
func (c *conn) inPhase(p phase) bool {
	if c.phase != p && c.phase != awaiting {
		c.requestResync(ResyncRequested)
	}
	return c.phase == p
}

// effective turns a frame's timestamp into the time its blocks were known to
// be held.
func (c *conn) effective(timestampUs int64, now time.Time) int64 {
	at, oddity := clampTime(timestampUs, now.UnixMilli())
	if oddity != "" {
		c.server.metrics.drop(oddity)
	}
	c.floorMillis = min(max(at, c.floorMillis), now.UnixMilli())
	return c.floorMillis
}

func (c *conn) beginSnapshot(begin *pb.SnapshotBegin) {
	if c.phase == following {
		c.server.options.Metrics.resyncs.WithLabelValues(string(ResyncOverflow)).Inc()
	}
	c.dropSnapshot(snapshotSuperseded)
	now := c.server.options.Now()
	c.phase = staging
	c.server.registry.setState(c.session, SessionSnapshot)
	c.snapshot = c.server.index.BeginSnapshot(c.scope, c.replica)
	c.snapshotAt = c.effective(begin.GetTimestampUs(), now)
	c.snapshotBegan = now
	c.stagedBlocks = 0
	c.session.staged.Store(0)
	c.session.expected.Store(int64(min(begin.GetExpectedBlocks(), uint64(c.server.options.MaxSnapshotBlocks))))
	c.session.viewComplete.Store(begin.GetViewComplete())
}

// dropSnapshot forgets the snapshot under way, if any.
func (c *conn) dropSnapshot(result string) {
	if c.snapshot == nil {
		return
	}
	c.snapshot.Abort()
	c.snapshot = nil
	c.session.staged.Store(0)
	c.session.expected.Store(0)
	c.server.options.Metrics.snapshots.WithLabelValues(result).Inc()
}

func (c *conn) stage(chunk *pb.SnapshotChunk) (dropped int, reject *pb.SyncReject) {
	c.server.metrics.update("prefixes")
	blocks := 0
	for _, run := range chunk.GetStored() {
		blocks += len(run.GetKeys())
	}
	c.stagedBlocks += uint64(blocks)
	c.charge(blocks)
	if c.stagedBlocks > uint64(c.server.options.MaxSnapshotBlocks) {
		c.dropSnapshot(snapshotRejected)
		c.phase = awaiting
		return 0, &pb.SyncReject{Reason: rejectLimit, Message: "snapshot has too many blocks", RetryAfterMs: 60_000}
	}
	room := c.server.options.MaxKeys
	if c.full(int64(c.stagedBlocks)) {
		c.server.metrics.drop(ReasonReplicaLimit)
		c.session.staged.Store(int64(c.stagedBlocks))
		return len(chunk.GetStored()), nil
	}
	for _, run := range chunk.GetStored() {
		op, ok := c.storeOp(run, &room)
		if !ok {
			dropped++
			continue
		}
		c.snapshot.Store(c.snapshotAt, op)
	}
	c.session.staged.Store(int64(c.stagedBlocks))
	c.server.registry.blocksReceived.Add(int64(blocks))
	return dropped, nil
}

func (c *conn) commit(end *pb.SnapshotEnd) (dropped int) {
	if end.GetBlocks() != c.stagedBlocks {
		c.log.Warn("snapshot incomplete", "blocks", c.stagedBlocks, "announced", end.GetBlocks())
		c.dropSnapshot(snapshotRejected)
		c.requestResync(ResyncRequested)
		return 0
	}
	now := c.server.options.Now()
	applied := c.snapshot.Commit(now.UnixMilli())
	c.snapshot = nil
	c.phase = following
	c.session.staged.Store(0)
	c.session.expected.Store(0)
	c.server.registry.setState(c.session, SessionLive)
	metrics := c.server.options.Metrics
	metrics.snapshots.WithLabelValues(snapshotApplied).Inc()
	metrics.snapshotSeconds.Observe(now.Sub(c.snapshotBegan).Seconds())
	c.log.Info("snapshot applied", "blocks", c.stagedBlocks)
	return c.server.metrics.applied(applied)
}

func (c *conn) delta(delta *pb.SyncDelta) (dropped int) {
	m := c.server.metrics
	m.update("prefixes")
	now := c.server.options.Now()
	m.observeLag(delta.GetTimestampUs(), now.UnixMicro())
	room := c.server.options.MaxKeys
	ops := make([]index.Op, 0, len(delta.GetOps()))
	c.charge(blocksOf(delta))
	full := c.bounded && c.full(c.server.options.Limits.held(c.scope, c.replica)+1)
	for _, o := range delta.GetOps() {
		if full && o.GetStored() != nil {
			c.server.metrics.drop(ReasonReplicaLimit)
			dropped++
			continue
		}
		op, ok := c.op(o, &room)
		if !ok {
			dropped++
			continue
		}
		ops = append(ops, op)
	}
	return dropped + c.apply(c.effective(delta.GetTimestampUs(), now), now.UnixMilli(), ops)
}

// charge counts blocks towards the replica's rate.
func (c *conn) charge(blocks int) {
	if c.bounded {
		c.server.options.Limits.charge(c.scope.Tenant, c.replica, blocks)
	}
}

// full reports whether the replica may not hold this many blocks.
func (c *conn) full(blocks int64) bool {
	return c.bounded && c.server.options.Limits.full(c.scope, blocks)
}

func blocksOf(delta *pb.SyncDelta) (blocks int) {
	for _, o := range delta.GetOps() {
		blocks += len(o.GetStored().GetKeys()) + len(o.GetRemoved().GetKeys())
	}
	return blocks
}

func (c *conn) apply(at, nowMillis int64, ops []index.Op) (dropped int) {
	if len(ops) == 0 {
		return 0
	}
	start := time.Now()
	applied := c.server.index.Apply(&index.Batch{
		Scope: c.scope, Replica: c.replica, AtMillis: at, NowMillis: nowMillis, Ops: ops,
	})
	c.server.metrics.apply.Observe(time.Since(start).Seconds())
	return c.server.metrics.applied(applied)
}

// op converts one operation. Removals count against no bound: one too few
// makes a false hit.
func (c *conn) op(o *pb.SyncOp, room *int) (index.Op, bool) {
	switch o := o.GetOp().(type) {
	case *pb.SyncOp_Stored:
		return c.storeOp(o.Stored, room)
	case *pb.SyncOp_Removed:
		if reason := checkID(o.Removed.GetAdapterId()); reason != "" {
			c.server.metrics.drop(reason)
			return index.Op{}, false
		}
		return index.Op{
			Kind:    index.OpRemove,
			Adapter: o.Removed.GetAdapterId(),
			Keys:    index.Keys{Short: o.Removed.GetKeys()},
		}, true
	case *pb.SyncOp_Cleared:
		return index.Op{Kind: index.OpClear}, true
	}
	return index.Op{}, false
}

func (c *conn) storeOp(run *pb.StoredRun, room *int) (index.Op, bool) {
	reason := checkID(run.GetAdapterId())
	if reason == "" {
		reason = checkRun(run)
	}
	if reason == "" {
		if *room -= len(run.GetKeys()); *room < 0 {
			reason = ReasonUpdateTooLarge
		}
	}
	if reason != "" {
		c.server.metrics.drop(reason)
		return index.Op{}, false
	}
	return index.Op{
		Kind:    index.OpStore,
		Adapter: run.GetAdapterId(),
		Tier:    tierOf(run.GetTier()),
		Keys:    index.Keys{Short: run.GetKeys()},
		Tokens: index.Tokens{
			Counts: run.GetTokenCounts(),
			First:  run.GetFirstTokenCount(),
			Step:   run.GetBlockTokenCount(),
		},
	}, true
}
