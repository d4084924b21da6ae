// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/routing"
)

// TestGW04AffinitySurvivesAnImbalance checks that a busy holder is kept while it
// is not saturated, and given up once all holders are.
func TestGW04AffinitySurvivesAnImbalance(t *testing.T) {
	fleet := newFleet(t, 4, routing.Options{})
	hint := match(routing.Score{Replica: "r0", MatchedTokens: 3000}, routing.Score{Replica: "r1", MatchedTokens: 3000})
	ask := func() routing.Decision {
		return fleet.Preview(&routing.Request{Now: start, Model: model, PromptTokens: 4000, Hint: hint, Streamed: true})
	}
	load(t, fleet, "r0", 4, 500)
	if got := ask(); got.Replica != "r1" {
		t.Errorf("went to %s, want the idle holder", got.Replica)
	}
	load(t, fleet, "r1", 5, 500)
	if got := ask(); got.Replica != "r0" || got.Origin != routing.OriginIndexHint {
		t.Errorf("%s to %s, want a holder although others are idle", got.Origin, got.Replica)
	}
	for _, id := range []string{"r0", "r1"} {
		fleet.SetReport(id, routing.Report{Usage: 0.99}, start)
	}
	if got := ask(); got.Replica != "r2" && got.Replica != "r3" || got.Origin != routing.OriginLoadSpill {
		t.Errorf("%s to %s, want it spilled to an idle replica", got.Origin, got.Replica)
	}
}

// TestGW05AMissGoesByLoad checks that novel prompts avoid a saturated replica,
// whatever the index's affinity says.
func TestGW05AMissGoesByLoad(t *testing.T) {
	fleet := newFleet(t, 4, routing.Options{})
	fleet.SetReport("r0", routing.Report{WaitingTokens: 100_000, Usage: 0.97}, start)
	for i := range 200 {
		hint := routing.Hint{Reason: routing.ReasonAffinityHint, BlockSize: 16, Scores: []routing.Score{{Replica: "r0", Score: 1}}}
		if i%2 == 0 {
			hint = routing.Hint{Reason: "NO_HINT", BlockSize: 16}
		}
		got, guard := fleet.Decide(&routing.Request{Now: start, Model: model, PromptTokens: 1000, Hint: hint, Chain: chain(uint64(i), 60), Streamed: true})
		if got.Replica == "r0" {
			t.Fatalf("prompt %d went to the saturated replica by %s", i, got.Origin)
		}
		guard.End(start, routing.Succeeded)
	}
}

// TestGW11WithoutReportsOwnCountsSpread checks that traffic goes on evenly when
// load reports stop while they said that one replica is full.
func TestGW11WithoutReportsOwnCountsSpread(t *testing.T) {
	fleet := newFleet(t, 4, routing.Options{})
	fleet.SetReport("r0", routing.Report{WaitingTokens: 1 << 20, Usage: 1}, start)
	given := map[string]int{}
	for i := range 400 {
		now := start.Add(time.Minute + time.Duration(i)*10*time.Millisecond)
		got, guard := fleet.Decide(&routing.Request{Now: now, Model: model, PromptTokens: 1000, Hint: routing.Hint{Reason: "NO_HINT"}, Streamed: true})
		if guard == nil {
			t.Fatal("traffic stopped")
		}
		given[got.Replica]++
	}
	for id, n := range given {
		if n < 80 || n > 120 {
			t.Errorf("%s got %d of 400 requests", id, n)
		}
	}
	if len(given) != 4 {
		t.Errorf("only %d replicas got requests", len(given))
	}
}

// TestGW25DecisionsAmongManyReplicas checks the time of a decision among 2,000
// replicas by the median of the best round, which a busy machine hardly
// changes, and reports the 99th percentile.
func TestGW25DecisionsAmongManyReplicas(t *testing.T) {
	const replicas, rounds, decisions = 2000, 5, 200
	fleet := newFleet(t, replicas, routing.Options{})
	random := rand.New(rand.NewPCG(4, 4))
	best, tail := time.Hour, time.Hour
	for range rounds {
		times := make([]time.Duration, decisions)
		for i := range times {
			request := &routing.Request{
				Now: start, Model: model, PromptTokens: 4000, Streamed: true, Chain: chain(uint64(i), 250),
				Hint: match(routing.Score{Replica: fmt.Sprint("r", random.IntN(replicas)), MatchedTokens: 2000}),
			}
			begin := time.Now()
			_, guard := fleet.Decide(request)
			times[i] = time.Since(begin)
			guard.End(start, routing.Succeeded)
		}
		slices.Sort(times)
		best, tail = min(best, times[decisions/2]), min(tail, times[decisions*99/100])
	}
	t.Logf("half of the decisions within %v, 99 %% within %v", best, tail)
	if best > time.Millisecond && !raceEnabled {
		t.Errorf("half of the decisions within %v, want 1 ms at most", best)
	}
}

// TestShedding checks that a request is refused only when every replica makes
// it wait too long.
func TestShedding(t *testing.T) {
	fleet := newFleet(t, 2, routing.Options{})
	ask := func() routing.Decision {
		decision, guard := fleet.Decide(&routing.Request{Now: start, Model: model, PromptTokens: 8, ShedAbove: time.Second, Streamed: true})
		if (guard == nil) != decision.Shed {
			t.Errorf("guard %v, shed %v", guard, decision.Shed)
		}
		return decision
	}
	load(t, fleet, "r0", 1, 40_000)
	if got := ask(); got.Shed || got.Replica != "r1" {
		t.Errorf("%+v, want the idle replica", got)
	}
	load(t, fleet, "r1", 1, 20_000)
	if got := ask(); !got.Shed || got.MinWait < 2500*time.Millisecond || got.MinWait > 2600*time.Millisecond {
		t.Errorf("shed %v after %v, want a refusal after 2.5 s", got.Shed, got.MinWait)
	}
}

var distinctPrompts = flag.Int("distinct-prompts", 100_000, "prompts of the test that memory is bounded")

// TestGW16DistinctPromptsLeaveMemoryFlat sends prompts and sticky keys that
// never come again through whole decisions.
func TestGW16DistinctPromptsLeaveMemoryFlat(t *testing.T) {
	fleet := newFleet(t, 8, routing.Options{ApproxLimit: 1 << 14, StickyLimit: 1 << 10})
	now, next := start, uint64(0)
	heap := func(prompts int) uint64 {
		for range prompts {
			now = now.Add(time.Millisecond)
			next++
			_, guard := fleet.Decide(&routing.Request{
				Now: now, Model: model, PromptTokens: 128, Chain: chain(next, 8), Sticky: next, Streamed: true,
				Hint: routing.Hint{Reason: "NO_HINT", BlockSize: 16},
			})
			guard.FirstByte(now)
			guard.End(now, routing.Succeeded)
		}
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	full := heap(max(10_000, *distinctPrompts/10))
	after := heap(*distinctPrompts)
	t.Logf("heap %d bytes with the budget full, %d after %d more prompts", full, after, *distinctPrompts)
	if float64(after) > 1.05*float64(full) {
		t.Errorf("heap grew from %d to %d bytes after the budget was full", full, after)
	}
	runtime.KeepAlive(fleet)
}
