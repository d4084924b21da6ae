// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/bench"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// warmShare of the corpus fills all pools before anything is measured.
const warmShare = 0.3

// manyRequests bounds the lookups that are prepared.
const manyRequests = 8_192

// stretch is one load on a server: lookups and events at fixed rates.
type stretch struct {
	name     string
	lookups  int // a second
	events   int // a second
	limit    float64
	requests []*pb.LookupRouteRequest
}

// measureService times lookups beside arriving events.
func measureService(ctx context.Context, r *bench.Report, o Options) error {
	rig, err := newRig(ctx, o)
	if err != nil {
		return err
	}
	defer rig.close()
	known := requests(rig.corpus, manyRequests)
	unknown := make([]*pb.LookupRouteRequest, 64)
	for i := range unknown {
		keys := make([]uint64, 128)
		for j := range keys {
			keys[j] = bench.Key(uint32(1<<31 + i*128 + j))
		}
		unknown[i] = request(keys, rig.corpus.Header.BlockSize)
	}
	short := make([]*pb.LookupRouteRequest, 0, len(known))
	for _, q := range known {
		n := min(len(q.BlockHashes), 4)
		short = append(short, &pb.LookupRouteRequest{TenantId: tenant, ModelId: model, HashScheme: scheme,
			BlockHashes: q.BlockHashes[:n], BlockTokenCounts: q.BlockTokenCounts[:n]})
	}
	for _, s := range []stretch{
		{"lookup p99 beside events", o.Rate, o.Events, 1_000, known},
		{"lookup p99, no events", o.Rate, 0, 0, known},
		{"lookup p99 at a hundredth of the rate, beside events", max(o.Rate/100, 1), o.Events, 0, known},
		{"lookup p99 at twice the rate, beside events", 2 * o.Rate, o.Events, 0, known},
		{"lookup p99, nothing of 128 blocks known, beside events", o.Rate, o.Events, 0, unknown},
		{"lookup p99, 4 blocks, beside events", o.Rate, o.Events, 0, short},
	} {
		if err := rig.measure(ctx, r, o, s); err != nil {
			return err
		}
	}
	return nil
}

// heapLimit is where the measuring process collects garbage in a stretch after
// all.
const heapLimit = 3 << 30

// collectBetween keeps collections, which would take the corpus' share of the
// machine from the server, out of stretches.
func collectBetween() (restore func()) {
	percent, limit := debug.SetGCPercent(-1), debug.SetMemoryLimit(heapLimit)
	return func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}
}

// rig is a server with a warm fleet and clients.
type rig struct {
	restore func() // of the garbage collector; nil before warm
	server  Instance
	watch   *watcher
	corpus  *bench.Corpus
	fleet   *fleet
	asker   *asker
}

func newRig(ctx context.Context, o Options) (_ *rig, err error) {
	g := &rig{}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	if g.corpus, err = o.Corpus(); err != nil {
		return nil, err
	}
	if g.server, err = o.Launch(ctx, "127.0.0.1:0"); err != nil {
		return nil, err
	}
	g.watch = watch(g.server)
	if g.asker, err = newAsker(g.server); err != nil {
		return nil, err
	}
	if g.fleet, err = startFleet(ctx, g.server, g.corpus); err != nil {
		return nil, err
	}
	if err = g.fleet.warm(ctx, warmShare); err != nil {
		return nil, err
	}
	g.restore = collectBetween()
	return g, nil
}

func (g *rig) close() {
	if g.fleet != nil {
		g.fleet.close()
	}
	if g.asker != nil {
		g.asker.close()
	}
	if g.server != nil {
		g.watch.close()
		_ = g.server.Stop() // the measurement is over
	}
	if g.restore != nil {
		g.restore()
	}
}

// measure runs a stretch and prints its row.
func (g *rig) measure(ctx context.Context, r *bench.Report, o Options, s stretch) error {
	var values []float64
	var detail map[string]float64
	for run := range o.Runs + 1 {
		d := o.Duration
		if run == 0 { // warm-up
			d = min(time.Second, d)
		}
		runtime.GC()
		before, overflowsBefore := use(g.server), g.overflows()
		start := time.Now().Add(10 * time.Millisecond)
		var answered answers
		var all sync.WaitGroup
		all.Go(func() { answered = g.asker.ask(ctx, s.requests, start, s.lookups, d) })
		var events, seconds float64
		var err error
		if s.events > 0 {
			events, seconds, err = g.fleet.write(ctx, start, float64(s.events), d)
		}
		all.Wait()
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		if run == 0 {
			continue
		}
		values = append(values, bench.Quantile(answered.took, 0.99))
		detail = answered.detail()
		use(g.server).since(before).detail(detail)
		if s.events > 0 {
			detail["events_per_s"], detail["events_offered_per_s"] = events/seconds, float64(s.events)
			detail["queue_overflows"] = float64(g.overflows() - overflowsBefore)
		}
	}
	detail["memberships"] = g.watch.metric(ctx, "inferencecache_index_memberships")
	r.AtMost("G6", s.name, "us", s.limit, values, detail)
	return nil
}

func (g *rig) overflows() uint64 {
	_, n := g.fleet.queued()
	return n
}
