// SPDX-License-Identifier: Apache-2.0

// Package demo compares routing policies on simulated engines: the same chats
// are sent through a router twice, each time to fresh engines, and what the
// engines say they reused is set against what an all-knowing router would
// have reused.
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/inferencecache/inference-cache/internal/sim/engine"
	"github.com/inferencecache/inference-cache/internal/sim/oracle"
	"github.com/inferencecache/inference-cache/internal/sim/workload"
)

// Policies that are compared, as a Front knows them.
const (
	RoundRobin = "round_robin"
	CacheAware = "hint"
)

// Addresses of one engine, as sim-engine prints them.
type Addresses struct {
	HTTP   string `json:"http"`
	Events string `json:"events"`
	Replay string `json:"replay"`
}

// Engine is a running engine.
type Engine interface {
	Addresses() Addresses
	// Close ends it within a few seconds.
	Close() error
}

// Launch starts one engine. It ends by Close, at the latest with this process.
type Launch func(ctx context.Context, config engine.Config) (Engine, error)

// Route is a running router.
type Route interface {
	// URL is the base of its OpenAI endpoints, without a trailing slash.
	URL() string
	// Close ends it within a few seconds.
	Close() error
}

// Front starts a router with a policy in front of engines. It returns when
// the router serves all of them and follows their events. Responses should
// name replica and reason in x-inference-cache-replica and -reason.
type Front func(ctx context.Context, policy string, engines []Addresses) (Route, error)

// Options of a Run. Launch and Front are required.
type Options struct {
	Launch Launch
	Front  Front
	// Engines is their number. Default 4.
	Engines int
	// Engine configures each; addresses are chosen. Default: 1536 blocks.
	Engine engine.Config
	// Policies are compared in this order. Default RoundRobin, CacheAware.
	Policies []string
	// Workload is sent once per policy.
	Workload workload.Config
	// Progress is told how far a policy's run is. It may be nil and must not
	// block.
	Progress func(Progress)
}

// Progress is the state of one policy's run.
type Progress struct {
	Policy       string
	Done, Total  int // requests
	ReusedTokens int
	PromptTokens int // of the requests done
}

// drainLimit bounds the wait for the last answers of a run.
const drainLimit = 20 * time.Second

// Run compares the policies.
func Run(ctx context.Context, options Options) (*Report, error) {
	if options.Launch == nil || options.Front == nil {
		return nil, errors.New("run demo: no way to launch engines or a router")
	}
	options.Engines = cmp.Or(options.Engines, 4)
	options.Engine.Scheduler.CapacityBlocks = cmp.Or(options.Engine.Scheduler.CapacityBlocks, 1536)
	options.Engine.Model = cmp.Or(options.Engine.Model, "sim")
	options.Workload.AnswerSeed = options.Engine.AnswerSeed
	if options.Progress == nil {
		options.Progress = func(Progress) {}
	}
	requests := workload.Generate(options.Workload)
	report := newReport(options, requests)
	if len(options.Policies) == 0 {
		options.Policies = []string{RoundRobin, CacheAware}
	}
	for _, policy := range options.Policies {
		phase, samples, err := runPolicy(ctx, options, policy, requests)
		if err != nil {
			return nil, fmt.Errorf("run demo with policy %s: %w", policy, err)
		}
		report.Phases = append(report.Phases, phase)
		if policy == CacheAware {
			report.Examples = examples(requests, samples)
		}
	}
	report.judge()
	return report, nil
}

// newReport describes the experiment and asks the oracle.
func newReport(options Options, requests []workload.Request) *Report {
	arrivals := oracle.Arrivals(requests, options.Engine.AnswerSeed)
	outcomes := oracle.Run(oracle.Config{
		Replicas: options.Engines, Scheduler: options.Engine.Scheduler, Timing: options.Engine.Timing,
	}, oracle.AllKnowing(oracle.Bound{PrefillTokensPerSecond: options.Engine.Timing.PrefillTokensPerSecond}), arrivals)
	summary := oracle.Summarize(options.Engines, arrivals, outcomes)
	blockSize := cmp.Or(options.Engine.Scheduler.BlockSize, 16)
	report := &Report{
		Engines: options.Engines, BlockSize: blockSize, BlocksPerEngine: options.Engine.Scheduler.CapacityBlocks,
		Requests: len(requests), OracleReusedBlocks: summary.ReusedTokens / blockSize,
		OracleMaxMeanLoad: summary.MaxMeanLoad, SeenBeforeBlocks: oracle.SeenBefore(arrivals, blockSize) / blockSize,
	}
	for _, request := range requests {
		report.PromptTokens += len(request.Prompt)
	}
	return report
}

// runPolicy sends the workload to fresh engines behind a fresh router.
func runPolicy(
	ctx context.Context, options Options, policy string, requests []workload.Request,
) (phase Phase, samples []sample, err error) {
	engines, err := launchAll(ctx, options)
	defer func() {
		for _, e := range engines {
			err = errors.Join(err, e.Close())
		}
	}()
	if err != nil {
		return Phase{}, nil, err
	}
	addresses := make([]Addresses, len(engines))
	for i, e := range engines {
		addresses[i] = e.Addresses()
	}
	route, err := options.Front(ctx, policy, addresses)
	if err != nil {
		return Phase{}, nil, fmt.Errorf("start the router: %w", err)
	}
	defer func() { err = errors.Join(err, route.Close()) }()
	driver := newDriver(route.URL(), options.Engine.Model)
	defer driver.close()
	samples, err = driver.drive(ctx, requests, func(p Progress) {
		p.Policy = policy
		options.Progress(p)
	})
	if err != nil {
		return Phase{}, nil, err
	}
	counters := make([]counters, len(engines))
	for i, address := range addresses {
		if counters[i], err = driver.scrape(ctx, address.HTTP); err != nil {
			return Phase{}, nil, err
		}
	}
	return summarize(policy, requests, samples, counters), samples, nil
}

// launchAll returns what it launched also when it fails.
func launchAll(ctx context.Context, options Options) ([]Engine, error) {
	var engines []Engine
	for range options.Engines {
		e, err := options.Launch(ctx, options.Engine)
		if err != nil {
			return engines, fmt.Errorf("launch engine %d: %w", len(engines)+1, err)
		}
		engines = append(engines, e)
	}
	return engines, nil
}
