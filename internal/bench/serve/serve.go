// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/inferencecache/inference-cache/internal/bench"
	"github.com/inferencecache/inference-cache/internal/defaults"
)

// Goals that can be measured, in the order they are.
var Goals = []string{"G11", "G7", "G6", "G8"}

// Options says how the service is measured. Corpus and Launch are required.
type Options struct {
	// Corpus makes what G6 replays, once it is needed.
	Corpus func() (*bench.Corpus, error)
	// Launch starts servers.
	Launch Launch
	// Goals picks goals by name, such as G6; empty = all.
	Goals []string
	// Short takes fewer runs and shorter stretches; default false.
	Short bool
	// Duration of one stretch; default 10 s, short 5 s.
	Duration time.Duration
	// Rate is the lookups a second of G6; default 5,000.
	Rate int
	// Events is the block events a second of G6; default 200,000.
	Events int
	// Blocks is what all replicas of G8 hold; default 2,300,000.
	Blocks int
	// Publishers of G8; default 64.
	Publishers int
	// Idle is the publishers of G11; default 100.
	Idle int
	// Runs is how often each stretch is repeated; default 3, short 1.
	Runs int
}

func (o Options) withDefaults() Options {
	if o.Short {
		defaults.Set(&o.Duration, 5*time.Second)
		defaults.Set(&o.Runs, 1)
	}
	defaults.Set(&o.Duration, 10*time.Second)
	defaults.Set(&o.Runs, 3)
	defaults.Set(&o.Rate, 5_000)
	defaults.Set(&o.Events, 200_000)
	defaults.Set(&o.Blocks, 2_300_000)
	defaults.Set(&o.Publishers, 64)
	defaults.Set(&o.Idle, 100)
	return o
}

// clientThreads is how many threads a core may run clients and publishers, so
// that the kernel shares cores among them as among processes.
const clientThreads = 4

// Run measures and prints one JSON object a row: first the machine, then each
// measurement. Idling comes first, while the process is still small.
func Run(ctx context.Context, out io.Writer, o Options) error {
	o = o.withDefaults()
	r := bench.NewReport(out)
	r.Print(struct {
		Machine  bench.Machine `json:"machine"`
		Short    bool          `json:"short"`
		Duration float64       `json:"duration_seconds"`
		Rate     int           `json:"lookups_per_second"`
		Events   int           `json:"events_per_second"`
	}{bench.ThisMachine(), o.Short, o.Duration.Seconds(), o.Rate, o.Events})
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(clientThreads * runtime.NumCPU()))
	parts := map[string]func(context.Context, *bench.Report, Options) error{
		"G6": measureService, "G7": measureFreshness, "G8": measureRecovery, "G11": measureIdle,
	}
	for _, goal := range Goals {
		if len(o.Goals) > 0 && !slices.Contains(o.Goals, goal) {
			continue
		}
		if err := parts[goal](ctx, r, o); err != nil {
			return fmt.Errorf("measuring %s: %w", goal, err)
		}
	}
	return r.Err()
}

// scope of all measurements.
const (
	tenant = "bench"
	model  = "model"
	scheme = "vllm"
)

// await polls until done says so. What names the thing waited for.
func await(ctx context.Context, what string, every time.Duration, done func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for !done() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		case <-time.After(every):
		}
	}
	return nil
}
