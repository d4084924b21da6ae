// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/inferencecache/inference-cache/internal/bench"
	"github.com/inferencecache/inference-cache/internal/sim/quality"
	"github.com/inferencecache/inference-cache/internal/sim/workload"
)

// Limits of G9.
const (
	leastReuse  = 0.97 // of the all-knowing router's
	mostLoad    = 1.2  // of the busiest replica over the mean
	mostLatency = 1.05 // of a router that goes by load
)

// measureQuality places workloads in virtual time, so its values do not depend
// on the machine.
func measureQuality(ctx context.Context, r *bench.Report, o Options) error {
	results := map[string][]quality.Result{}
	var all []quality.Workload // of the last seed
	for seed := range uint64(max(o.Seeds, 0)) {
		all = quality.Generated(seed + 1)
		for _, w := range all {
			if err := place(ctx, results, w, seed+1); err != nil {
				return err
			}
		}
	}
	for _, w := range all {
		reportQuality(r, w, results[w.Name])
	}
	for _, path := range o.Traces {
		requests, err := readTrace(path)
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(filepath.Base(path), ".jsonl")
		for _, w := range quality.Traced(name, requests) {
			if err := place(ctx, results, w, 1); err != nil {
				return err
			}
			reportQuality(r, w, results[w.Name])
		}
	}
	return nil
}

func readTrace(path string) ([]workload.TraceRequest, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	requests, err := workload.ReadTrace(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return requests, nil
}

// place adds a result of the workload.
func place(ctx context.Context, to map[string][]quality.Result, w quality.Workload, seed uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	result, err := quality.Measure(quality.Options{Fleet: w.Fleet, Seed: seed, Warmup: w.Warmup}, w.Arrivals)
	to[w.Name] = append(to[w.Name], result)
	return err
}

// reportQuality prints the rows of a workload, whose results are those of its
// seeds. Details are of the last.
func reportQuality(r *bench.Report, w quality.Workload, results []quality.Result) {
	var reuse, load, byLoad, best []float64
	for _, q := range results {
		reuse, load = append(reuse, q.ReusedOfOracle), append(load, q.Router.MaxMeanLoad)
		mean := float64(q.Router.FirstTokenMean)
		byLoad = append(byLoad, mean/float64(max(q.LeastLoad.FirstTokenMean, 1)))
		best = append(best, mean/float64(max(min(q.LeastLoad.FirstTokenMean, q.RoundRobin.FirstTokenMean), 1)))
	}
	q := results[len(results)-1]
	if w.Reuse {
		r.AtLeast("G9", w.Name+": tokens reused", "of oracle", leastReuse, reuse, reuseDetail(q))
	}
	r.AtMost("G9", w.Name+": requests of the busiest replica", "of mean", mostLoad, load, map[string]float64{
		"oracle": q.Oracle.MaxMeanLoad, "least_load": q.LeastLoad.MaxMeanLoad, "round_robin": q.RoundRobin.MaxMeanLoad,
	})
	r.AtMost("G9", w.Name+": mean time to first token against least load", "ratio", mostLatency, byLoad, latencyDetail(q))
	r.AtMost("G9", w.Name+": mean time to first token against the better of least load and round robin", "ratio", mostLatency, best, nil)
}

func reuseDetail(q quality.Result) map[string]float64 {
	prompt := float64(max(q.PromptTokens, 1))
	return map[string]float64{
		"requests": float64(q.Requests), "prompt_tokens": float64(q.PromptTokens),
		"reused":             float64(q.Router.ReusedTokens) / prompt,
		"reused_oracle":      float64(q.Oracle.ReusedTokens) / prompt,
		"reused_least_load":  float64(q.LeastLoad.ReusedTokens) / prompt,
		"reused_round_robin": float64(q.RoundRobin.ReusedTokens) / prompt,
		"unknown_tokens":     float64(q.UnknownTokens), "declined_tokens": float64(q.DeclinedTokens),
	}
}

func latencyDetail(q quality.Result) map[string]float64 {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return map[string]float64{
		"mean_ms": ms(q.Router.FirstTokenMean), "p50_ms": ms(q.Router.FirstTokenP50), "p99_ms": ms(q.Router.FirstTokenP99),
		"oracle_mean_ms": ms(q.Oracle.FirstTokenMean), "oracle_p50_ms": ms(q.Oracle.FirstTokenP50), "oracle_p99_ms": ms(q.Oracle.FirstTokenP99),
		"least_load_mean_ms": ms(q.LeastLoad.FirstTokenMean), "least_load_p50_ms": ms(q.LeastLoad.FirstTokenP50),
		"least_load_p99_ms":   ms(q.LeastLoad.FirstTokenP99),
		"round_robin_mean_ms": ms(q.RoundRobin.FirstTokenMean), "round_robin_p50_ms": ms(q.RoundRobin.FirstTokenP50),
		"round_robin_p99_ms": ms(q.RoundRobin.FirstTokenP99),
	}
}
