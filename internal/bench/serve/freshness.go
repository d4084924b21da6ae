// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/bench"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// Of the measurement of freshness.
const (
	freshEngines = 8
	freshBlocks  = 8
	freshRate    = 50 // events a second
)

// measureFreshness times the way of an engine's event: socket, publisher,
// CacheSync, index, to the answer of the first lookup that sees it.
func measureFreshness(ctx context.Context, r *bench.Report, o Options) error {
	rig, err := newRig(ctx, o)
	if err != nil {
		return err
	}
	defer rig.close()
	e, err := startEngines(ctx, rig.watch, rig.server.GRPC(), freshEngines, "")
	if err != nil {
		return err
	}
	defer e.close()
	chain := 0
	known := requests(rig.corpus, manyRequests)
	for _, row := range []struct {
		name    string
		lookups int
		events  int
	}{
		{"event to visible p99, nothing else going on", 0, 0},
		{"event to visible p99 beside the load of G6", o.Rate, o.Events},
	} {
		var values []float64
		var detail map[string]float64
		for range o.Runs {
			runtime.GC()
			before := use(rig.server)
			start := time.Now().Add(10 * time.Millisecond)
			var beside sync.WaitGroup
			var broken error
			if row.events > 0 {
				beside.Go(func() { rig.asker.ask(ctx, known, start, row.lookups, o.Duration) })
				beside.Go(func() { _, _, broken = rig.fleet.write(ctx, start, float64(row.events), o.Duration) })
			}
			took, polls, err := rig.fresh(ctx, e, &chain, start, o.Duration)
			beside.Wait()
			if err == nil {
				err = broken
			}
			if err != nil {
				return err
			}
			values = append(values, bench.Quantile(took, 0.99))
			detail = map[string]float64{
				"events": float64(len(took)), "p50_ms": bench.Quantile(took, 0.5), "p99.9_ms": bench.Quantile(took, 0.999),
				"max_ms": bench.Quantile(took, 1), "lookups_per_event": float64(polls) / float64(max(len(took), 1)),
			}
			use(rig.server).since(before).detail(detail)
		}
		r.AtMost("G7", row.name, "ms", 5, values, detail)
	}
	return nil
}

// fresh sends events one after the other and asks for each until it is seen.
// It returns sorted milliseconds from the sending of the event to the answer
// that shows it.
func (g *rig) fresh(ctx context.Context, e *engines, chain *int, start time.Time, d time.Duration) (took []float64, polls int, err error) {
	defer bench.Pacer()()
	for i := range max(int(freshRate*d.Seconds()), 1) {
		due := start.Add(time.Duration(i) * time.Second / freshRate)
		bench.WaitUntil(due)
		one := e.all[i%len(e.all)]
		sent := time.Now()
		lookup := request(one.store(*chain, freshBlocks), engineBlock)
		*chain++
		for seen := false; !seen; polls++ {
			if time.Since(sent) > 10*time.Second {
				return nil, polls, fmt.Errorf("an event of %s was not seen within 10 s", one.replica)
			}
			answer, err := g.asker.client.LookupRoute(ctx, lookup)
			if err != nil {
				return nil, polls, err
			}
			seen = slices.ContainsFunc(answer.GetReplicaScores(), func(s *pb.ReplicaScore) bool {
				return s.GetReplicaId() == one.replica && s.GetMatchedTokens() == freshBlocks*engineBlock
			})
		}
		took = append(took, micros(time.Since(sent))/1000)
	}
	slices.Sort(took)
	return took, polls, nil
}
