// SPDX-License-Identifier: Apache-2.0

package proxy

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

// Goals that can be measured, in the order they are. Cost is the processor
// time of requests and of idling, trace that of the decision trace, and peers
// are other routers.
var Goals = []string{"cost", "G10", "trace", "peers", "G9"}

// Options says how the gateway is measured. Executable is required.
type Options struct {
	// Executable is this program, which is started as engines and gateways.
	Executable string
	// Traces are files of public traces for G9; default none.
	Traces []string
	// Goals picks some of Goals; empty = all.
	Goals []string
	// Peers is the folder where other routers are installed; empty = none are
	// measured.
	Peers string
	// Short takes fewer runs and shorter stretches; default false.
	Short bool
	// Duration of one stretch; default 10 s, short 2 s.
	Duration time.Duration
	// Rate is the requests a second of G10; default 1,000.
	Rate int
	// Runs is how often each stretch is repeated; default 3, short 1.
	Runs int
	// Seeds is the number of generated workloads of each kind for G9; negative
	// = none, default 5, short 1.
	Seeds int
	// Engines is the number of simulated engines; default 2.
	Engines int
	// Idle is the replicas of an idle gateway; default 100.
	Idle int
}

func (o Options) withDefaults() Options {
	if o.Short {
		defaults.Set(&o.Duration, 2*time.Second)
		defaults.Set(&o.Runs, 1)
		defaults.Set(&o.Seeds, 1)
	}
	defaults.Set(&o.Duration, 10*time.Second)
	defaults.Set(&o.Runs, 3)
	defaults.Set(&o.Seeds, 5)
	defaults.Set(&o.Rate, 1_000)
	defaults.Set(&o.Engines, 2)
	defaults.Set(&o.Idle, 100)
	return o
}

// clientThreads is how many threads a core may run clients, so that the kernel
// shares cores among them as among processes.
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
		Rate     int           `json:"requests_per_second"`
		Engines  int           `json:"engines"`
	}{bench.ThisMachine(), o.Short, o.Duration.Seconds(), o.Rate, o.Engines})
	parts := map[string]func(context.Context, *bench.Report, Options) error{
		"G9": measureQuality, "G10": measureOverhead, "cost": measureCost, "trace": measureTracing, "peers": comparePeers,
	}
	for _, goal := range Goals {
		if len(o.Goals) > 0 && !slices.Contains(o.Goals, goal) || goal == "peers" && o.Peers == "" {
			continue
		}
		restore := runtime.GOMAXPROCS(clientThreads * runtime.NumCPU())
		err := parts[goal](ctx, r, o)
		runtime.GOMAXPROCS(restore)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("measuring %s: %w", goal, err)
		}
	}
	return r.Err()
}
