// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"sync/atomic"
	"time"

	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// engineRank is one rank, a replica to servers. Its session outlives its
// report, which changes when an engine turns out to have ranks or comes back
// with another model.
//
// The lock of the hub in report guards the session and generation; apply is
// the only way to them.
type engineRank struct {
	p        *Publisher
	stream   *stream
	session  *Session
	replayer *replayer // nil without a replay socket

	// generation numbers the replays asked for.
	generation uint64
	// report changes under the lock of the hub it replaces.
	report atomic.Pointer[report]
}

// report is a name and model under which a rank is reported, and its hub.
type report struct {
	of   *engineRank
	id   string
	rank int
	hub  *Hub
	// stop ends the hub. Set when that is started.
	stop context.CancelFunc
}

// The mirror of a report that was replaced is empty: its hub must not touch
// the session any more.
var _ Mirror = (*report)(nil)

func (r *report) current() bool { return r.of.report.Load() == r }

func (r *report) Snapshot(yield func(*pb.StoredRun) bool) {
	if r.current() {
		r.of.session.Snapshot(yield)
	}
}

func (r *report) BlockSize() int {
	if !r.current() {
		return 0
	}
	return r.of.session.BlockSize()
}

func (r *report) ViewComplete() bool {
	return !r.current() || r.of.session.ViewComplete()
}

func (r *report) ResidentBlocks() int {
	if !r.current() {
		return 0
	}
	return r.of.session.ResidentBlocks()
}

// apply runs one input through the session, hands its deltas to the servers
// and starts the replay it asks for.
func (r *engineRank) apply(input func(*Session) Step) {
	var step Step
	var generation uint64
	r.locked(func(s *Session) []*pb.SyncDelta {
		step = input(s)
		if step.Replay {
			r.generation++
		}
		generation = r.generation
		return step.Deltas
	})
	if step.Reset != ResetNone {
		r.p.deps.Logger.Warn("dropped the state of an engine", "replica", r.report.Load().id, "cause", step.Reset)
	}
	for _, reason := range step.NewlySkipped {
		r.p.deps.Logger.Warn("skipping events that cannot be used", "replica", r.report.Load().id, "reason", reason)
	}
	if step.Replay && r.replayer != nil {
		r.replayer.start(replayRequest{from: step.ReplayFrom, generation: generation})
	}
}

// replayed is apply for a replay, without effect once that was superseded.
func (r *engineRank) replayed(generation uint64, input func(*Session) Step) {
	r.apply(func(s *Session) Step {
		if r.generation != generation {
			return Step{}
		}
		return input(s)
	})
}

// locked runs use under the lock that guards the session.
func (r *engineRank) locked(use func(*Session) []*pb.SyncDelta) {
	for done := false; !done; {
		current := r.report.Load()
		current.hub.Publish(func() []*pb.SyncDelta {
			if !current.current() {
				return nil // renamed meanwhile: the lock is another one now
			}
			done = true
			return use(r.session)
		})
	}
}

// status copies the state of the session.
func (r *engineRank) status() Status {
	var status Status
	r.locked(func(s *Session) []*pb.SyncDelta {
		status = s.Status()
		return nil
	})
	return status
}

// rename reports the rank under its number from now on.
func (r *engineRank) rename(rank int) {
	old, fresh := r.replace(func(*report) *report {
		return r.newReport(r.p.currentIdentity(), r.p.rankID(rank), rank)
	})
	r.p.deps.Logger.Info("engine has data-parallel ranks", "replica", old.id, "renamed_to", fresh.id)
}

// remodel reports the rank under the model the engine has now. Everything
// known so far is of another model.
func (r *engineRank) remodel() {
	now := r.p.deps.Now()
	r.apply(func(s *Session) Step { return s.Reset(ResetRestart, now) })
	r.replace(func(old *report) *report {
		return r.newReport(r.p.currentIdentity(), old.id, old.rank)
	})
}

// replace reports the rank under what successor returns from now on. What
// servers hold under the old report is cleared.
func (r *engineRank) replace(successor func(old *report) *report) (old, fresh *report) {
	for done := false; !done; {
		old = r.report.Load()
		fresh = successor(old)
		old.hub.Publish(func() []*pb.SyncDelta {
			if !old.current() {
				return nil // replaced meanwhile
			}
			done = true
			r.report.Store(fresh)
			return []*pb.SyncDelta{{
				TimestampUs: r.p.deps.Now().UnixMicro(),
				Ops:         []*pb.SyncOp{{Op: &pb.SyncOp_Cleared{Cleared: &pb.ClearedAll{}}}},
			}}
		})
	}
	r.p.start(fresh)
	r.p.tasks.Go(func() { old.retire(r.p.ctx) })
	return old, fresh
}

// retireLimit bounds how long an old name is kept alive to tell servers that
// nothing is left under it.
const retireLimit = 30 * time.Second

// retire stops a hub as soon as every server knows that it is empty.
func (r *report) retire(ctx context.Context) {
	defer r.stop()
	ctx, cancel := context.WithTimeout(ctx, retireLimit)
	defer cancel()
	for !drained(r.hub.Status()) && ctx.Err() == nil {
		sleep(ctx, 20*time.Millisecond)
	}
}

func drained(links []LinkStatus) bool {
	for _, l := range links {
		if l.State != LinkLive || l.QueueFrames > 0 {
			return false
		}
	}
	return true
}
