// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/inferencecache/inference-cache/internal/bench"
	"github.com/inferencecache/inference-cache/internal/publisher"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// play is what one request of a corpus changed at the replica that served it.
type play struct {
	replica int
	ops     []*pb.SyncOp
	events  int // blocks stored and removed
}

// plays turns a corpus into what publishers send.
func plays(c *bench.Corpus) (out []play) {
	for _, op := range c.Ops {
		if op.Kind == bench.Lookup {
			out = append(out, play{})
			continue
		}
		p := &out[len(out)-1]
		p.replica = int(op.Replica)
		keys := make([]uint64, len(op.Blocks))
		for i, b := range op.Blocks {
			keys[i] = bench.Key(b)
		}
		p.events += len(keys)
		if op.Kind == bench.Remove {
			p.ops = append(p.ops, &pb.SyncOp{Op: &pb.SyncOp_Removed{Removed: &pb.RemovedRun{Keys: keys}}})
			continue
		}
		size := int32(c.Header.BlockSize)
		p.ops = append(p.ops, &pb.SyncOp{Op: &pb.SyncOp_Stored{Stored: &pb.StoredRun{
			Tier: pb.CacheTier_CACHE_TIER_T1, Keys: keys, FirstTokenCount: (op.First + 1) * size, BlockTokenCount: size,
		}}})
	}
	return out
}

// fleet is the publishers of a corpus: each replica has a hub and a connection
// of its own.
type fleet struct {
	plays []play
	next  int // of plays
	size  int // tokens of a block

	hubs    []*publisher.Hub
	mirrors []*mirror
	conns   []*grpc.ClientConn
	running sync.WaitGroup
	cancel  context.CancelFunc
}

// startFleet connects the replicas of a corpus, which hold nothing yet.
func startFleet(ctx context.Context, s Instance, c *bench.Corpus) (*fleet, error) {
	f := &fleet{plays: plays(c), size: c.Header.BlockSize}
	ctx, f.cancel = context.WithCancel(ctx)
	started := time.Now()
	for i, name := range bench.ReplicaNames(c.Header.Replicas) {
		conn, err := grpc.NewClient("passthrough:///"+s.GRPC(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
		if err != nil {
			f.close()
			return nil, err
		}
		m := &mirror{fleet: f, replica: i}
		hub := publisher.NewHub(
			publisher.Identity{Tenant: tenant, Model: model, Scheme: scheme, Replica: name, RankCount: 1, Epoch: 1, StartedAt: started},
			m, []publisher.Target{publisher.NewGRPCTarget("server", conn)}, publisher.HubOptions{})
		f.conns, f.mirrors, f.hubs = append(f.conns, conn), append(f.mirrors, m), append(f.hubs, hub)
		f.running.Go(func() { _ = hub.Run(ctx) }) // ends without an error
	}
	return f, await(ctx, "publishers", time.Millisecond, func() bool {
		for _, h := range f.hubs {
			if status := h.Status(); len(status) == 0 || status[0].State != publisher.LinkLive {
				return false
			}
		}
		return true
	})
}

func (f *fleet) close() {
	f.cancel()
	f.running.Wait()
	for _, c := range f.conns {
		_ = c.Close()
	}
}

// step publishes the next change of the corpus and returns its block events.
// After the last one all replicas clear their caches and it starts again.
func (f *fleet) step() int {
	if f.next == len(f.plays) {
		for i, h := range f.hubs {
			h.Publish(func() []*pb.SyncDelta {
				f.mirrors[i].played = 0
				return []*pb.SyncDelta{{TimestampUs: time.Now().UnixMicro(), Ops: []*pb.SyncOp{{Op: &pb.SyncOp_Cleared{Cleared: &pb.ClearedAll{}}}}}}
			})
		}
		f.next = 0
	}
	p := &f.plays[f.next]
	f.next++
	f.hubs[p.replica].Publish(func() []*pb.SyncDelta {
		f.mirrors[p.replica].played = f.next
		return []*pb.SyncDelta{{TimestampUs: time.Now().UnixMicro(), Ops: p.ops}}
	})
	return p.events
}

// queued is the blocks that no acknowledgement covers, and how often a queue
// was given up.
func (f *fleet) queued() (blocks int, overflows uint64) {
	for _, h := range f.hubs {
		for _, l := range h.Status() {
			blocks, overflows = blocks+l.QueueBlocks, overflows+l.Overflows
		}
	}
	return blocks, overflows
}

// warm plays a share of the corpus as fast as the server takes it.
func (f *fleet) warm(ctx context.Context, share float64) error {
	for i := 0; f.next < int(share*float64(len(f.plays))); i++ {
		f.step()
		if i%256 > 0 {
			continue
		}
		if err := await(ctx, "queues", time.Millisecond, func() bool { n, _ := f.queued(); return n < 100_000 }); err != nil {
			return err
		}
	}
	return f.drain(ctx)
}

func (f *fleet) drain(ctx context.Context) error {
	return await(ctx, "acknowledgements", time.Millisecond, func() bool { n, _ := f.queued(); return n == 0 })
}

// write publishes at a rate for a time, then waits until all of it is applied.
// It returns the block events and the seconds until the last was.
func (f *fleet) write(ctx context.Context, start time.Time, rate float64, d time.Duration) (events, seconds float64, err error) {
	release := bench.Pacer()
	for events < rate*d.Seconds() && ctx.Err() == nil {
		bench.WaitUntil(start.Add(time.Duration(events / rate * 1e9)))
		events += float64(f.step())
	}
	release()
	err = f.drain(ctx)
	return events, time.Since(start).Seconds(), err
}

// mirror is what one replica holds after a number of plays.
type mirror struct {
	fleet   *fleet
	replica int
	played  int // plays of the fleet up to here count; under the hub's lock
}

var _ publisher.Mirror = (*mirror)(nil)

func (m *mirror) BlockSize() int     { return m.fleet.size }
func (m *mirror) ViewComplete() bool { return true }

func (m *mirror) ResidentBlocks() int { return 0 }

// Snapshot implements publisher.Mirror by playing everything again.
func (m *mirror) Snapshot(yield func(*pb.StoredRun) bool) {
	last := map[uint64]*pb.StoredRun{}
	var runs []*pb.StoredRun
	for i := range m.fleet.plays[:m.played] {
		if m.fleet.plays[i].replica != m.replica {
			continue
		}
		for _, op := range m.fleet.plays[i].ops {
			for _, key := range op.GetRemoved().GetKeys() {
				delete(last, key)
			}
			if run := op.GetStored(); run != nil {
				runs = append(runs, run)
				for _, key := range run.GetKeys() {
					last[key] = run
				}
			}
		}
	}
	for _, run := range runs {
		for from := 0; from < len(run.Keys); from++ {
			to := from
			for to < len(run.Keys) && last[run.Keys[to]] == run {
				to++
			}
			if to == from {
				continue
			}
			if !yield(&pb.StoredRun{
				Tier: run.Tier, Keys: run.Keys[from:to], BlockTokenCount: run.BlockTokenCount,
				FirstTokenCount: run.FirstTokenCount + int32(from)*run.BlockTokenCount,
			}) {
				return
			}
			from = to
		}
	}
}
