// SPDX-License-Identifier: Apache-2.0

package quality

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/sim/oracle"
	"github.com/inferencecache/inference-cache/internal/sim/sched"
	"github.com/inferencecache/inference-cache/internal/sim/workload"
)

func fleet(replicas, blocks int) Options {
	return Options{Fleet: oracle.Config{Replicas: replicas, Scheduler: sched.Config{CapacityBlocks: blocks}}}
}

func TestMeasure(t *testing.T) {
	brief := workload.Config{Duration: 12 * time.Second, Conversations: 32}
	unique := brief
	unique.Unique = true
	cases := map[string]struct {
		workload  workload.Config
		blocks    int
		leastUsed float64 // of the oracle's reuse
	}{
		"chats in ample memory":  {brief, 2048, 0.90},
		"chats in scarce memory": {brief, 768, 0.85},
		"nothing to reuse":       {unique, 2048, 1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			arrivals := oracle.Arrivals(workload.Generate(tc.workload), 0)
			result, err := Measure(fleet(4, tc.blocks), arrivals)
			if err != nil {
				t.Fatal(err)
			}
			if result.ReusedOfOracle < tc.leastUsed {
				t.Errorf("%.3f of the oracle's reuse, want at least %.2f: %+v", result.ReusedOfOracle, tc.leastUsed, result)
			}
			if result.Router.FirstTokenP50 > result.LeastLoad.FirstTokenP50*105/100 {
				t.Errorf("first token after %v, least load needs %v", result.Router.FirstTokenP50, result.LeastLoad.FirstTokenP50)
			}
			if result.Router.ReusedTokens+result.Router.ComputedTokens != result.PromptTokens {
				t.Errorf("%d reused and %d computed of %d prompt tokens",
					result.Router.ReusedTokens, result.Router.ComputedTokens, result.PromptTokens)
			}
			again, err := Measure(fleet(4, tc.blocks), arrivals)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(result, again); diff != "" {
				t.Errorf("a second run differs: %s", diff)
			}
		})
	}
}

// Chats that are seconds apart leave the events time to arrive, so the index
// must know all there is.
func TestTheIndexKnowsEveryHeldPrefix(t *testing.T) {
	config := workload.Config{Duration: 60 * time.Second, Conversations: 12, SystemPrompts: 12}
	result, err := Measure(fleet(3, 512), oracle.Arrivals(workload.Generate(config), 0))
	if err != nil {
		t.Fatal(err)
	}
	if result.UnknownTokens != 0 {
		t.Errorf("%d tokens of held prefixes were unknown to the index", result.UnknownTokens)
	}
	if result.Router.ReusedTokens == 0 {
		t.Error("nothing was reused, so nothing was tested")
	}
}

func TestMeasureRefuses(t *testing.T) {
	cases := map[string]Options{
		"no replicas":       {},
		"an unknown policy": {Policy: "other", Fleet: oracle.Config{Replicas: 1}},
	}
	for name, options := range cases {
		t.Run(name, func(t *testing.T) {
			if _, err := Measure(options, nil); err == nil {
				t.Error("no error")
			}
		})
	}
}

// tracesVariable names a directory with conversation_trace.jsonl and
// synthetic_trace.jsonl, for BenchmarkQuality.
const tracesVariable = "INFERENCECACHE_TRACES"

// generatedSeeds is the number of seeds for generated workloads.
const generatedSeeds = 5

// BenchmarkQuality prints one JSON line per workload and seed for goal G9.
func BenchmarkQuality(b *testing.B) {
	for b.Loop() {
		for seed := uint64(1); seed <= generatedSeeds; seed++ {
			options := fleet(4, 1536)
			options.Seed = seed
			report(b, "chats", options, oracle.Arrivals(workload.Generate(workload.Config{Seed: seed}), 0))
			report(b, "unique", options, oracle.Arrivals(workload.Generate(workload.Config{Seed: seed, Unique: true}), 0))
		}
		directory := os.Getenv(tracesVariable)
		if directory == "" {
			continue
		}
		for _, name := range []string{"conversation", "synthetic"} {
			report(b, name, traceFleet, readTrace(b, filepath.Join(directory, name+"_trace.jsonl")))
		}
	}
}

const traceBlockSize = 16

// traceFleet holds about 4 million tokens of a trace in each of 8 engines,
// which compute 16,000 tokens of it a second.
var traceFleet = Options{Fleet: oracle.Config{
	Replicas:  8,
	Scheduler: sched.Config{BlockSize: traceBlockSize, CapacityBlocks: 8192, StepTokens: 256},
	Timing:    sched.Timing{PrefillTokensPerSecond: 16000 * traceBlockSize / workload.TraceBlockTokens},
}}

func readTrace(b *testing.B, path string) []oracle.Arrival {
	b.Helper()
	file, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	requests, err := workload.ReadTrace(file)
	if err != nil {
		b.Fatal(err)
	}
	return TraceArrivals(requests, traceBlockSize)
}

func report(b *testing.B, name string, options Options, arrivals []oracle.Arrival) {
	b.Helper()
	result, err := Measure(options, arrivals)
	if err != nil {
		b.Fatal(err)
	}
	line, err := json.Marshal(map[string]any{
		"goal": "G9", "workload": name, "seed": options.Seed, "value": result.ReusedOfOracle, "unit": "of oracle", "limit": 0.97,
		"ok":     result.ReusedOfOracle >= 0.97 && result.Router.MaxMeanLoad <= max(1.2, result.Oracle.MaxMeanLoad),
		"detail": result,
	})
	if err != nil {
		b.Fatal(err)
	}
	fmt.Println(string(line))
}
