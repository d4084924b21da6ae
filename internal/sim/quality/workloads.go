// SPDX-License-Identifier: Apache-2.0

package quality

import (
	"slices"
	"time"

	"github.com/inferencecache/inference-cache/internal/sim/oracle"
	"github.com/inferencecache/inference-cache/internal/sim/sched"
	"github.com/inferencecache/inference-cache/internal/sim/workload"
)

// Workload is requests and the fleet that they are measured on.
type Workload struct {
	Name     string
	Fleet    oracle.Config
	Arrivals []oracle.Arrival
	// Reuse is false where no prompt begins like another.
	Reuse bool
	// Warmup is how long arrivals are placed before they count.
	Warmup time.Duration
}

// Generated returns the workloads of a seed: chats and single requests that
// share much, little or nothing, at low and at high load.
func Generated(seed uint64) []Workload {
	small := oracle.Config{Replicas: 4, Scheduler: sched.Config{CapacityBlocks: 1536}}
	wide := oracle.Config{Replicas: 8, Scheduler: sched.Config{CapacityBlocks: 1536}}
	single := [2]int{1, 1}
	// More than one replica can answer.
	shared := workload.Config{Conversations: 1200, Turns: single, SystemPrompts: 1, SystemBytes: 2000}
	all := []struct {
		name   string
		fleet  oracle.Config
		config workload.Config
		warmup time.Duration
	}{
		{"chats, low load", small, workload.Config{Duration: 2 * time.Minute}, 0},
		{"chats, high load", small, workload.Config{}, 0},
		{"a quarter shared, low load", small, workload.Config{
			Conversations: 90, Turns: single, SystemBytes: 480, UserBytes: [2]int{1300, 1400},
		}, 0},
		{"a quarter shared, high load", small, workload.Config{
			Conversations: 400, Turns: single, SystemBytes: 480, UserBytes: [2]int{1300, 1400},
		}, 0},
		{"one prompt shared by all, from the start", wide, shared, 0},
		{"one prompt shared by all, warm", wide, shared, 6 * time.Second},
		{"no reuse, low load", small, workload.Config{Unique: true}, 0},
		{"no reuse, high load", small, workload.Config{Unique: true, Conversations: 340}, 0},
	}
	out := make([]Workload, len(all))
	for i, w := range all {
		w.config.Seed = seed
		out[i] = Workload{
			Name: w.name, Fleet: w.fleet, Reuse: !w.config.Unique, Warmup: w.warmup,
			Arrivals: oracle.Arrivals(workload.Generate(w.config), 0),
		}
	}
	return out
}

// traceBlockSize is the tokens that a block of a trace becomes.
const traceBlockSize = 16

// hurry is how much faster than recorded a trace runs at high load.
const hurry = 2.5

// TraceFleet holds about 4 million tokens of a trace in each of 8 engines,
// which compute 16,000 tokens of it a second.
func TraceFleet() oracle.Config {
	return oracle.Config{
		Replicas:  8,
		Scheduler: sched.Config{BlockSize: traceBlockSize, CapacityBlocks: 8192, StepTokens: 256},
		Timing:    sched.Timing{PrefillTokensPerSecond: 16000 * traceBlockSize / workload.TraceBlockTokens},
	}
}

// Traced returns the workloads of a trace: as recorded and faster, each with
// its reuse and without.
func Traced(name string, requests []workload.TraceRequest) []Workload {
	lone := unshared(requests)
	return []Workload{
		{name + ", low load", TraceFleet(), TraceArrivals(requests, traceBlockSize), true, 0},
		{name + ", high load", TraceFleet(), TraceArrivals(hurried(requests), traceBlockSize), true, 0},
		{name + " without reuse, low load", TraceFleet(), TraceArrivals(lone, traceBlockSize), false, 0},
		{name + " without reuse, high load", TraceFleet(), TraceArrivals(hurried(lone), traceBlockSize), false, 0},
	}
}

// hurried returns the requests at high load.
func hurried(requests []workload.TraceRequest) []workload.TraceRequest {
	out := slices.Clone(requests)
	for i := range out {
		out[i].TimestampMillis = int64(float64(out[i].TimestampMillis) / hurry)
	}
	return out
}

// unshared returns the requests with ids of their own for each block.
func unshared(requests []workload.TraceRequest) []workload.TraceRequest {
	out := slices.Clone(requests)
	next := int64(0)
	for i := range out {
		out[i].HashIDs = make([]int64, len(requests[i].HashIDs))
		for j := range out[i].HashIDs {
			out[i].HashIDs[j] = next
			next++
		}
	}
	return out
}
