// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/inferencecache/inference-cache/internal/bench"
)

// Of the measurement of recovery.
const (
	recoveryChain = 128 // blocks of an event
	recoveryAhead = 100_000
	downtime      = time.Second
	pollEvery     = 5 * time.Millisecond
)

// measureRecovery fills a server through publishers, ends it, starts another
// in its place and watches it until it holds everything again.
func measureRecovery(ctx context.Context, r *bench.Report, o Options) (err error) {
	server, err := o.Launch(ctx, "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() {
		if server != nil {
			err = errors.Join(err, server.Stop())
		}
	}()
	address := server.GRPC()
	w := watch(server)
	defer func() { w.close() }()
	e, err := startEngines(ctx, w, address, o.Publishers, "")
	if err != nil {
		return err
	}
	defer e.close()
	held, err := e.fill(ctx, w, o.Blocks)
	if err != nil {
		return err
	}
	var seconds, ready, known []float64
	var detail map[string]float64
	for range o.Runs {
		w.close()
		stopped := server.Stop()
		if server = nil; stopped != nil {
			return stopped
		}
		time.Sleep(downtime)
		if server, err = o.Launch(ctx, address); err != nil {
			return err
		}
		w = watch(server)
		back, err := watchRecovery(ctx, w, held, o.Publishers)
		if err != nil {
			return err
		}
		seconds = append(seconds, back.held-back.first)
		ready = append(ready, back.ready)
		known = append(known, back.heldAtReady/float64(held))
		detail = map[string]float64{
			"blocks": float64(held), "publishers": float64(o.Publishers), "first_publisher_after_s": back.first,
			"all_publishers_after_s": back.all, "held_after_s": back.held, "memberships": w.metric(ctx, "inferencecache_index_memberships"),
		}
	}
	r.AtMost("G8", "all held again since the first publisher reconnected", "s", 3, seconds, detail)
	r.AtLeast("G8", "held when /readyz says yes", "share", 1, known, nil)
	r.AtMost("G8", "/readyz says yes since the server listens", "s", 0, ready, nil)
	return nil
}

// fill lets engines announce blocks until the server holds about so many, and
// returns how many it holds.
func (e *engines) fill(ctx context.Context, w *watcher, blocks int) (int, error) {
	memberships := func() int { return int(w.metric(ctx, "inferencecache_index_memberships")) }
	chains := max(blocks/recoveryChain, 1)
	for c := range chains {
		e.all[c%len(e.all)].store(c, recoveryChain)
		if c%64 > 0 {
			continue
		}
		if err := await(ctx, "publishers to keep up", time.Millisecond, func() bool {
			return memberships() > c*recoveryChain-recoveryAhead
		}); err != nil {
			return 0, err
		}
	}
	want := chains * recoveryChain
	err := await(ctx, "everything to be held", 10*time.Millisecond, func() bool { return memberships() >= want })
	if err != nil {
		err = fmt.Errorf("%d of %d held: %w", memberships(), want, err)
	}
	return want, err
}

// recovery is how a server came back, in seconds since it listens.
type recovery struct {
	first, all  float64 // publishers connected
	held        float64 // all blocks received and put in place
	ready       float64 // /readyz says yes
	heldAtReady float64 // blocks
}

func watchRecovery(ctx context.Context, w *watcher, blocks, publishers int) (back recovery, err error) {
	start := time.Now()
	err = await(ctx, "the server to hold everything and be ready", pollEvery, func() bool {
		r, err := w.readiness(ctx)
		if err != nil {
			return false
		}
		now := time.Since(start).Seconds()
		if back.first == 0 && r.live+r.snapshot > 0 {
			back.first = now
		}
		if back.all == 0 && r.live+r.snapshot >= publishers {
			back.all = now
		}
		if back.held == 0 && r.live >= publishers && r.received >= int64(blocks) {
			back.held = now
		}
		if back.ready == 0 && r.ready {
			back.ready, back.heldAtReady = now, w.metric(ctx, "inferencecache_index_memberships")
		}
		return back.held > 0 && back.ready > 0
	})
	return back, err
}
