// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
)

// Rates of the mixed measurement, both open loop.
const (
	mixedLookups = 2_000     // a second
	mixedEvents  = 4_000_000 // a second
)

// load is one open-loop stretch: a writer plays the corpus at a fixed rate, a
// reader looks up its chains at another, and beside may do more.
type load struct {
	x       *index.Index
	steps   []step
	next    int // of steps to be written
	seconds int
}

// outcome is what a stretch gave.
type outcome struct {
	lookups []float64 // sorted microseconds, from the intended start
	offered float64   // events
	wall    float64   // seconds until the last event was applied
}

// run plays a stretch; events 0 = no writer.
func (l *load) run(ctx context.Context, events float64, beside func(done *atomic.Bool)) outcome {
	var o outcome
	var done atomic.Bool
	var all, others sync.WaitGroup
	start := time.Now().Add(10 * time.Millisecond)
	all.Go(func() { o.lookups = l.read(ctx, start) })
	if events > 0 {
		all.Go(func() { o.offered = l.write(ctx, start, events); o.wall = time.Since(start).Seconds() })
	}
	if beside != nil {
		others.Go(func() { beside(&done) })
	}
	all.Wait()
	done.Store(true)
	others.Wait()
	return o
}

// read looks chains up at their times.
func (l *load) read(ctx context.Context, start time.Time) []float64 {
	looker := newLooker(l.x)
	n := l.seconds * mixedLookups
	took := make([]float64, 0, n)
	for i := 0; i < n && ctx.Err() == nil; i++ {
		due := start.Add(time.Duration(i) * time.Second / mixedLookups)
		WaitUntil(due)
		looker.rank(l.steps[i*31%len(l.steps)].lookup)
		took = append(took, float64(time.Since(due).Nanoseconds())/1000)
	}
	slices.Sort(took)
	return took
}

// write applies batches at their times and returns the events offered.
func (l *load) write(ctx context.Context, start time.Time, rate float64) (offered float64) {
	for offered < rate*float64(l.seconds) && ctx.Err() == nil {
		s := &l.steps[l.next%len(l.steps)]
		l.next++
		if s.events == 0 {
			continue
		}
		WaitUntil(start.Add(time.Duration(offered / rate * 1e9)))
		l.x.Apply(&s.batch)
		offered += float64(s.events)
	}
	return offered
}

// measureMixed runs lookups alone, then beside a writer, then beside a writer
// and what is expensive.
func measureMixed(ctx context.Context, r *Report, steps []step, z sizes) {
	x := newIndex()
	l := &load{x: x, steps: steps, seconds: z.mixedSeconds}
	for i := range steps { // warm up: all pools are full
		if steps[i].events > 0 {
			x.Apply(&steps[i].batch)
		}
	}
	alone := l.run(ctx, 0, nil)
	base := Quantile(alone.lookups, 0.99)
	r.AtMost("G5", "lookup p50, no writer", "us", 15, []float64{Quantile(alone.lookups, 0.5)}, map[string]float64{"p99_us": base})

	written := l.run(ctx, mixedEvents, nil)
	l.print(r, written, "a writer", 2*base)
	p99 := Quantile(written.lookups, 0.99)
	names := ReplicaNames(64)
	l.print(r, l.run(ctx, mixedEvents/4, func(done *atomic.Bool) {
		for i := 0; !done.Load(); i++ {
			x.ClearReplica(scope.Tenant, scope.Model, names[i%64])
			time.Sleep(50 * time.Millisecond)
		}
	}), "a quarter of the writes and replicas clearing", 2*p99)
	l.print(r, l.run(ctx, mixedEvents/4, func(done *atomic.Bool) {
		for i := 0; !done.Load(); i++ {
			commitSnapshot(x, "snapshot-"+names[i%4])
			time.Sleep(50 * time.Millisecond)
		}
	}), "a quarter of the writes and snapshots", 2*p99)
	l.print(r, l.run(ctx, mixedEvents/4, func(done *atomic.Bool) {
		for !done.Load() {
			x.EachReplica(func(index.ReplicaRow) {})
			x.CacheState(scope.Tenant, scope.Model)
			time.Sleep(50 * time.Millisecond)
		}
	}), "a quarter of the writes and dumps", 2*p99)
}

func (l *load) print(r *Report, o outcome, beside string, limit float64) {
	r.AtMost("G5", "lookup p99 beside "+beside, "us", limit, []float64{Quantile(o.lookups, 0.99)}, map[string]float64{
		"p50_us": Quantile(o.lookups, 0.5), "max_us": Quantile(o.lookups, 1), "lookups": float64(len(o.lookups)),
	})
	if beside != "a writer" {
		return
	}
	r.AtLeast("G5", "block events per second, drain counted", "M/s", 0.99*mixedEvents/1e6,
		[]float64{o.offered / o.wall / 1e6}, map[string]float64{"offered": mixedEvents / 1e6})
}

// commitSnapshot replaces a replica's holdings by 16,384 blocks.
func commitSnapshot(x *index.Index, replica string) {
	s := x.BeginSnapshot(scope, replica)
	for c := range 128 {
		s.Store(startMillis, index.Op{
			Kind: index.OpStore, Tier: index.TierT1, Keys: index.Keys{Short: chainKeys(c, 128)},
			Tokens: index.Tokens{First: blockTokens, Step: blockTokens},
		})
	}
	s.Commit(startMillis)
}
