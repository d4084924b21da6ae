// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
)

// Rates of the mixed measurement, all open loop.
const (
	mixedLookups = 2_000     // a second
	mixedGoal    = 4_000_000 // events a second
	mixedBeside  = 1_000_000 // events a second beside what is expensive
)

// mixedRates are the events a second that are offered, to show the most that
// is taken in.
var mixedRates = []float64{mixedBeside, 2_000_000, 3_000_000, mixedGoal, 6_000_000}

// load is one open-loop stretch: a writer plays the corpus at a fixed rate, a
// reader looks up its chains at another, and beside may do more.
type load struct {
	x       *index.Index
	steps   []step
	next    int // of steps to be written
	seconds float64
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
	defer Pacer()()
	n := max(int(l.seconds*mixedLookups), 1)
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
	defer Pacer()()
	for offered < rate*l.seconds && ctx.Err() == nil {
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

// measureMixed runs lookups alone, beside a writer of several rates, and beside
// a writer and what is expensive.
func measureMixed(ctx context.Context, r *Report, steps []step, z sizes) {
	x := newIndex()
	l := &load{x: x, steps: steps, seconds: z.mixed.Seconds()}
	for i := range steps { // warm up: all pools are full
		if steps[i].events > 0 {
			x.Apply(&steps[i].batch)
		}
	}
	alone := l.run(ctx, 0, nil)
	base := Quantile(alone.lookups, 0.99)
	r.AtMost("G5", "lookup p50, no writer", "us", 15, []float64{Quantile(alone.lookups, 0.5)}, map[string]float64{"p99_us": base})

	besideLimit := 0.0
	for _, rate := range mixedRates {
		o := l.run(ctx, rate, nil)
		of := fmt.Sprintf("%g M/s offered", rate/1e6)
		limit, least := 0.0, 0.0
		if rate == mixedGoal {
			limit, least = 2*base, 0.99*rate/1e6
		}
		if rate == mixedBeside {
			besideLimit = 2 * Quantile(o.lookups, 0.99)
		}
		r.AtLeast("G5", "block events per second, "+of+", drain counted", "M/s", least, []float64{o.offered / o.wall / 1e6},
			map[string]float64{"achieved_share": o.offered / o.wall / rate})
		o.print(r, "a writer, "+of, limit, base)
	}
	names := ReplicaNames(64)
	beside := []struct {
		what string
		do   func(i int)
	}{
		{"replicas clearing", func(i int) { x.ClearReplica(scope.Tenant, scope.Model, names[i%64]) }},
		{"snapshots", func(i int) { commitSnapshot(x, "snapshot-"+names[i%4]) }},
		{"dumps", func(int) {
			x.EachReplica(func(index.ReplicaRow) {})
			x.CacheState(scope.Tenant, scope.Model)
		}},
	}
	for _, b := range beside {
		l.run(ctx, mixedBeside, func(done *atomic.Bool) {
			for i := 0; !done.Load(); i++ {
				b.do(i)
				time.Sleep(50 * time.Millisecond)
			}
		}).print(r, "1 M/s and "+b.what, besideLimit, base)
	}
}

// print reports the lookups of a stretch; alone is their p99 without a writer.
func (o outcome) print(r *Report, beside string, limit, alone float64) {
	p99 := Quantile(o.lookups, 0.99)
	r.AtMost("G5", "lookup p99 beside "+beside, "us", limit, []float64{p99}, map[string]float64{
		"times_no_writer": p99 / max(alone, 0.001), "p50_us": Quantile(o.lookups, 0.5), "max_us": Quantile(o.lookups, 1), "lookups": float64(len(o.lookups)),
	})
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
