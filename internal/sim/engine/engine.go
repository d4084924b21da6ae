// SPDX-License-Identifier: Apache-2.0

// Package engine runs a simulated LLM engine inside this process: OpenAI
// endpoints, a real block pool and real KV events with replay, for tests and
// for the sim-engine command.
//
//	e, err := engine.Start(ctx, engine.Config{})
//	defer e.Close()
//	http.Get(e.URL() + "/v1/models")
package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/inferencecache/inference-cache/internal/sim/blockhash"
	"github.com/inferencecache/inference-cache/internal/sim/eventsock"
	"github.com/inferencecache/inference-cache/internal/sim/rank"
	"github.com/inferencecache/inference-cache/internal/sim/sched"
)

// Engine is one simulated engine. Its methods are safe for concurrent use.
type Engine struct {
	stopWatch func() bool

	mu       sync.Mutex
	config   Config    // with the ports of the first start
	instance *instance // nil while the engine is down
}

// Start starts an engine, which runs until Close or the end of ctx.
func Start(ctx context.Context, config Config) (*Engine, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("start simulated engine: %w", err)
	}
	e := &Engine{config: config.withDefaults()}
	if err := e.Restart(); err != nil {
		return nil, err
	}
	e.stopWatch = context.AfterFunc(ctx, e.Kill)
	return e, nil
}

// Restart starts the engine anew on the same ports, with an empty cache and
// sequence number 0. A running one is killed first.
func (e *Engine) Restart() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.killLocked()
	instance, err := startInstance(e.config, e.crash)
	if err != nil {
		return fmt.Errorf("start simulated engine: %w", err)
	}
	e.instance = instance
	e.config.Listen = instance.address
	if instance.bootstrapAddress != "" {
		e.config.BootstrapListen = instance.bootstrapAddress
	}
	if len(instance.sockets) > 0 {
		e.config.Events.Endpoint = instance.sockets[0].Endpoint()
		if replay := instance.sockets[0].ReplayEndpoint(); replay != "" {
			e.config.Events.Replay = replay
		}
	}
	return nil
}

// Kill ends the engine at once, as a crash would: connections break, nothing
// is announced. Ports stay known for Restart. Killing twice is harmless.
func (e *Engine) Kill() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.killLocked()
}

func (e *Engine) killLocked() {
	if e.instance != nil {
		e.instance.kill()
		e.instance = nil
	}
}

// crash kills the engine from one of its own requests, without waiting.
func (e *Engine) crash() { go e.Kill() }

// Close ends the engine for good.
func (e *Engine) Close() {
	if e.stopWatch != nil {
		e.stopWatch()
	}
	e.Kill()
}

// Shutdown stops accepting requests, lets running ones finish for at most
// grace, and ends the engine.
func (e *Engine) Shutdown(grace time.Duration) {
	e.mu.Lock()
	instance := e.instance
	e.mu.Unlock()
	if instance != nil {
		instance.drain(grace)
	}
	e.Close()
}

// URL is the base of the HTTP endpoints, without a trailing slash.
func (e *Engine) URL() string { return "http://" + e.Address() }

// Address is the host:port of the HTTP endpoints.
func (e *Engine) Address() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.config.Listen
}

// BootstrapAddress is the host:port where decode engines meet an SGLang prefill
// engine; empty for all others.
func (e *Engine) BootstrapAddress() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.config.hasBootstrap() {
		return ""
	}
	return e.config.BootstrapListen
}

// EventsEndpoint is where rank 0 publishes; empty without events.
func (e *Engine) EventsEndpoint() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.config.NoEvents {
		return ""
	}
	return e.config.Events.Endpoint
}

// ReplayEndpoint is where rank 0 replays; empty without a replay socket.
func (e *Engine) ReplayEndpoint() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.instance != nil && len(e.instance.sockets) > 0 {
		return e.instance.sockets[0].ReplayEndpoint()
	}
	if e.config.NoEvents || e.config.Events.Replay == eventsock.NoReplay {
		return ""
	}
	return e.config.Events.Replay
}

// Subscribers counts the connected subscribers of rank 0.
func (e *Engine) Subscribers() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.instance == nil || len(e.instance.sockets) == 0 {
		return 0
	}
	return e.instance.sockets[0].Subscribers()
}

// HoldsPrefix is the number of leading tokens, in full blocks, that the cache
// of any rank holds for the base model without a salt. It is 0 while the
// engine is down.
func (e *Engine) HoldsPrefix(tokens []uint32) int {
	return e.HoldsPrefixAs(tokens, blockhash.Identity{})
}

// HoldsPrefixAs is HoldsPrefix for an adapter and a salt.
func (e *Engine) HoldsPrefixAs(tokens []uint32, id blockhash.Identity) int {
	best := 0
	for _, rank := range e.ranks() {
		best = max(best, rank.CachedRun(tokens, id))
	}
	return best
}

// Stats sums the figures of all ranks. They are zero while the engine is down.
func (e *Engine) Stats() sched.Stats {
	var sum sched.Stats
	for _, rank := range e.ranks() {
		sum = sum.Plus(rank.Stats())
	}
	return sum
}

// Flush publishes events that an idle engine holds back until its next step.
func (e *Engine) Flush() {
	for _, rank := range e.ranks() {
		rank.Flush()
	}
}

// ResetCache drops the cache of all ranks. A rank with running requests keeps
// its cache and makes the result false.
func (e *Engine) ResetCache() bool {
	ok := true
	for _, rank := range e.ranks() {
		ok = rank.Reset() && ok
	}
	return ok
}

// ranks returns the running ranks, none while the engine is down.
func (e *Engine) ranks() []*rank.Rank {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.instance == nil {
		return nil
	}
	return e.instance.ranks
}
