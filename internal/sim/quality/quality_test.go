// SPDX-License-Identifier: Apache-2.0

package quality

import (
	"slices"
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

func TestWarmupDoesNotCount(t *testing.T) {
	arrivals := oracle.Arrivals(workload.Generate(workload.Config{Duration: 12 * time.Second, Conversations: 32}), 0)
	options := fleet(4, 2048)
	options.Warmup = arrivals[len(arrivals)/2].At
	warm, err := Measure(options, arrivals)
	if err != nil {
		t.Fatal(err)
	}
	if want := len(arrivals) - len(arrivals)/2; warm.Requests != want {
		t.Errorf("%d requests count, want %d", warm.Requests, want)
	}
	if got := warm.LeastLoad.ReusedTokens + warm.LeastLoad.ComputedTokens; got != warm.PromptTokens {
		t.Errorf("%d tokens reused and computed of %d", got, warm.PromptTokens)
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

func TestWorkloads(t *testing.T) {
	trace := []workload.TraceRequest{
		{TimestampMillis: 0, InputTokens: 1024, OutputTokens: 64, HashIDs: []int64{0, 1}},
		{TimestampMillis: 5000, InputTokens: 1500, OutputTokens: 64, HashIDs: []int64{0, 1, 2}},
	}
	names := map[string]bool{}
	for _, w := range append(Generated(1), Traced("trace", trace)...) {
		if names[w.Name] {
			t.Errorf("%q is there twice", w.Name)
		}
		names[w.Name] = true
		size := max(w.Fleet.Scheduler.BlockSize, 16)
		if reuse := oracle.SeenBefore(w.Arrivals, size); (reuse > 0) != w.Reuse {
			t.Errorf("%s: %d tokens were seen before", w.Name, reuse)
		}
		if !slices.IsSortedFunc(w.Arrivals, func(a, b oracle.Arrival) int { return int(a.At - b.At) }) {
			t.Errorf("%s: arrivals are out of order", w.Name)
		}
	}
}

func TestHurriedTracesComeFaster(t *testing.T) {
	trace := []workload.TraceRequest{{InputTokens: 1, HashIDs: []int64{0}}, {TimestampMillis: 5000, InputTokens: 1, HashIDs: []int64{0}}}
	workloads := Traced("trace", trace)
	if low, high := workloads[0].Arrivals[1].At, workloads[1].Arrivals[1].At; low != 5*time.Second || high != 2*time.Second {
		t.Errorf("the second request comes after %v and %v", low, high)
	}
}
