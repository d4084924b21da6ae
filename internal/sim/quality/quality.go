// SPDX-License-Identifier: Apache-2.0

// Package quality measures how well the router uses the caches of a fleet: the
// product's own sessions, index, lookup and routing place a workload in the
// oracle's virtual time, and the result is set against the all-knowing router
// and against least load. Runs are exact and repeatable; no real time passes.
package quality

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/inferencecache/inference-cache/internal/sim/oracle"
	"github.com/inferencecache/inference-cache/internal/sim/workload"
)

// Options of a measurement.
type Options struct {
	// Fleet describes the engines. Its Listener is not used.
	Fleet oracle.Config
	// Policy is a name routing.NewPolicy knows. Default hint.
	Policy string
	// EventDelay is how long an event takes to the index. Default 2 ms.
	EventDelay time.Duration
	// Gateways take turns; each knows its own requests only. Default 1.
	Gateways int
	// Seed of the router's random choices. Default 0.
	Seed uint64
	// Warmup is how long arrivals are placed before they count. Default 0.
	Warmup time.Duration
}

// Result compares one placement with the references, after the warm-up.
type Result struct {
	Requests     int            `json:"requests"`
	PromptTokens int            `json:"prompt_tokens"`
	Router       oracle.Summary `json:"router"`
	Oracle       oracle.Summary `json:"oracle"`
	LeastLoad    oracle.Summary `json:"least_load"`
	RoundRobin   oracle.Summary `json:"round_robin"`
	// ReusedOfOracle is the router's reused tokens over the oracle's, 1 when
	// there is nothing to reuse.
	ReusedOfOracle float64 `json:"reused_of_oracle"`
	// UnknownTokens were held by some replica when their request was placed,
	// but the index did not know; DeclinedTokens it knew, and routing chose
	// another replica for its load. What else the oracle reuses is due to
	// earlier placements. Both and the counts below include the warm-up.
	UnknownTokens  int `json:"unknown_tokens"`
	DeclinedTokens int `json:"declined_tokens"`
	// Reasons and Origins count the router's decisions.
	Reasons map[string]int `json:"reasons"`
	Origins map[string]int `json:"origins"`
}

// Measure places all arrivals four times.
func Measure(options Options, arrivals []oracle.Arrival) (Result, error) {
	if options.EventDelay <= 0 {
		options.EventDelay = 2 * time.Millisecond
	}
	if options.Fleet.Replicas < 1 {
		return Result{}, fmt.Errorf("measure quality: %d replicas, want at least 1", options.Fleet.Replicas)
	}
	if options.Fleet.Scheduler.BlockSize <= 0 {
		options.Fleet.Scheduler.BlockSize = 16
	}
	options.Gateways = max(options.Gateways, 1)
	router, err := newRouter(options)
	if err != nil {
		return Result{}, fmt.Errorf("measure quality: %w", err)
	}
	warm, _ := slices.BinarySearchFunc(arrivals, options.Warmup, func(a oracle.Arrival, at time.Duration) int { return cmp.Compare(a.At, at) })
	run := func(policy oracle.Policy, listener oracle.Listener) oracle.Summary {
		fleet := options.Fleet
		fleet.Listener = listener
		return oracle.Summarize(fleet.Replicas, arrivals[warm:], oracle.Run(fleet, policy, arrivals)[warm:])
	}
	bound := oracle.Bound{PrefillTokensPerSecond: options.Fleet.Timing.PrefillTokensPerSecond}
	result := Result{
		Requests:   len(arrivals) - warm,
		Router:     run(router.choose, router),
		Oracle:     run(oracle.AllKnowing(bound), nil),
		LeastLoad:  run(oracle.LeastLoad, nil),
		RoundRobin: run(oracle.RoundRobin(), nil),

		ReusedOfOracle: 1,
	}
	result.Reasons, result.Origins = router.reasons, router.origins
	result.UnknownTokens, result.DeclinedTokens = router.unknownTokens, router.declinedTokens
	for _, arrival := range arrivals[warm:] {
		result.PromptTokens += len(arrival.Prompt)
	}
	if result.Oracle.ReusedTokens > 0 {
		result.ReusedOfOracle = float64(result.Router.ReusedTokens) / float64(result.Oracle.ReusedTokens)
	}
	return result, nil
}

// TraceArrivals scales a trace down to blocks of blockSize tokens. Answers
// shrink alike, to at least one token. The fleet's prefill rate must be scaled
// by blockSize over workload.TraceBlockTokens to keep the trace's load.
func TraceArrivals(requests []workload.TraceRequest, blockSize int) []oracle.Arrival {
	arrivals := make([]oracle.Arrival, len(requests))
	for i, request := range requests {
		arrivals[i] = oracle.Arrival{
			At: request.At(), Prompt: request.Prompt(blockSize),
			MaxTokens: max(request.OutputTokens*blockSize/workload.TraceBlockTokens, 1),
			Sample:    func(index int) (uint32, bool) { return uint32(1<<31 + i<<8 + index), false },
		}
	}
	return arrivals
}
