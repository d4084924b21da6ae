// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/sim/sched"
	"github.com/inferencecache/inference-cache/internal/sim/workload"
)

var timing = sched.Timing{PrefillTokensPerSecond: 1000, DecodeStep: 9 * time.Millisecond, DecodeSequence: time.Millisecond}

func arrival(at time.Duration, from, n uint32) Arrival {
	prompt := make([]uint32, n)
	for i := range prompt {
		prompt[i] = from + uint32(i)
	}
	return Arrival{
		At: at, Prompt: prompt, MaxTokens: 2,
		Sample: func(int) (uint32, bool) { return 9, false },
	}
}

func TestRun(t *testing.T) {
	config := Config{Replicas: 2, Scheduler: sched.Config{BlockSize: 10}, Timing: timing}
	arrivals := []Arrival{
		arrival(0, 0, 100),
		arrival(50*time.Millisecond, 0, 100), // while the first is computed
		arrival(time.Second, 0, 100),
		arrival(time.Second, 500, 100),
	}
	cases := map[string]struct {
		policy Policy
		want   []Outcome
	}{
		"round robin": {RoundRobin(), []Outcome{
			{0, 0, 100 * time.Millisecond},
			{1, 0, 100 * time.Millisecond},
			{0, 90, 10 * time.Millisecond},
			{1, 0, 100 * time.Millisecond},
		}},
		"least load": {LeastLoad, []Outcome{
			{0, 0, 100 * time.Millisecond},
			{1, 0, 100 * time.Millisecond},
			{0, 90, 10 * time.Millisecond},
			{1, 0, 100 * time.Millisecond},
		}},
		// Blocks are announced when they are scheduled, so the second request
		// waits for the step of the first and then computes one block beside
		// the first one's decode.
		"all-knowing": {AllKnowing(Bound{}), []Outcome{
			{0, 0, 100 * time.Millisecond},
			{0, 90, 70 * time.Millisecond},
			{0, 90, 10 * time.Millisecond},
			{1, 0, 100 * time.Millisecond},
		}},
		"all-knowing within a bound": {AllKnowing(Bound{PrefillTokensPerSecond: 1000, ToleratedWait: 90 * time.Millisecond}), []Outcome{
			{0, 0, 100 * time.Millisecond},
			{1, 0, 100 * time.Millisecond},
			{0, 90, 10 * time.Millisecond},
			{1, 0, 100 * time.Millisecond},
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Run(config, tc.policy, arrivals)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// No router reuses more than was seen before, and knowing all helps.
func TestAllKnowingOnAWorkload(t *testing.T) {
	arrivals := Arrivals(workload.Generate(workload.Config{}), 0)
	config := Config{Replicas: 4, Scheduler: sched.Config{CapacityBlocks: 2048}}
	reused := func(policy Policy) int {
		return Summarize(config.Replicas, arrivals, Run(config, policy, arrivals)).ReusedTokens
	}
	seen := SeenBefore(arrivals, 16)
	knowing, robin := reused(AllKnowing(Bound{})), reused(RoundRobin())
	if knowing > seen {
		t.Errorf("%d tokens were reused, only %d had been seen", knowing, seen)
	}
	if knowing <= robin {
		t.Errorf("the all-knowing router reuses %d tokens, round robin %d", knowing, robin)
	}
}

func TestSeenBefore(t *testing.T) {
	cases := map[string]struct {
		arrivals []Arrival
		want     int
	}{
		"nothing at first":                     {[]Arrival{arrival(0, 0, 100)}, 0},
		"the last block is computed again":     {[]Arrival{arrival(0, 0, 100), arrival(0, 0, 100)}, 90},
		"a longer prompt reuses all of it":     {[]Arrival{arrival(0, 0, 100), arrival(0, 0, 105)}, 100},
		"another start reuses nothing":         {[]Arrival{arrival(0, 0, 100), arrival(0, 1, 100)}, 0},
		"a shorter prompt reuses what it has":  {[]Arrival{arrival(0, 0, 100), arrival(0, 0, 25)}, 20},
		"a tail below one block counts as new": {[]Arrival{arrival(0, 0, 9), arrival(0, 0, 9)}, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := SeenBefore(tc.arrivals, 10); got != tc.want {
				t.Errorf("%d, want %d", got, tc.want)
			}
		})
	}
}

func TestPercentile(t *testing.T) {
	values := []time.Duration{5, 1, 4, 2, 3}
	cases := map[string]struct {
		values []time.Duration
		p      float64
		want   time.Duration
	}{
		"the median":          {values, 0.5, 3},
		"the largest":         {values, 0.99, 5},
		"no values give zero": {nil, 0.5, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := Percentile(tc.values, tc.p); got != tc.want {
				t.Errorf("%d, want %d", got, tc.want)
			}
		})
	}
}
