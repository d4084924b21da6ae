// SPDX-License-Identifier: Apache-2.0

// Package sched is the scheduler of a simulated engine: which requests run in
// a step, how many tokens each computes, which blocks that takes from the
// pool, and which KV events follow.
//
// It follows vLLM's: running requests first, then waiting ones in order of
// arrival, one token budget a step, long prompts in chunks, blocks announced
// at schedule time, the newest request preempted when memory runs out. It has
// no clock and no goroutine; a caller alternates Schedule and Complete and
// lets the time of Timing pass between them.
package sched

import (
	"fmt"
	"slices"

	"github.com/inferencecache/inference-cache/internal/defaults"
	"github.com/inferencecache/inference-cache/internal/sim/blockhash"
	"github.com/inferencecache/inference-cache/internal/sim/pool"
	"github.com/inferencecache/inference-cache/internal/sim/wire"
)

// Config describes one engine rank.
type Config struct {
	// BlockSize in tokens. Default 16.
	BlockSize int
	// CapacityBlocks is the size of the pool. Default 4096.
	CapacityBlocks int
	// MaxRunning bounds the requests in one step. Default 256.
	MaxRunning int
	// StepTokens bounds the tokens computed in one step. Default 2048.
	StepTokens int
	// MaxModelTokens bounds prompt and answer of a request together. Default
	// and upper limit: what the pool can hold.
	MaxModelTokens int
	// Chainer hashes blocks. Default blockhash.NewVLLM("0").
	Chainer blockhash.Chainer
	// PerNode announces a key when its first copy appears and its removal
	// when the last copy goes, as SGLang does; otherwise each copy is
	// announced, as vLLM does. Adapters and salts, which SGLang's hash does
	// not show, then separate keys too. Default false.
	PerNode bool
}

func (c Config) withDefaults() Config {
	defaults.Positive(&c.BlockSize, 16)
	defaults.Positive(&c.CapacityBlocks, 4096)
	defaults.Positive(&c.MaxRunning, 256)
	defaults.Positive(&c.StepTokens, 2048)
	room := c.BlockSize * c.CapacityBlocks
	if c.MaxModelTokens <= 0 || c.MaxModelTokens > room {
		c.MaxModelTokens = room
	}
	if c.Chainer == nil {
		c.Chainer = blockhash.NewVLLM("0")
	}
	return c
}

// Key names cached content inside one engine.
type Key struct {
	digest blockhash.Digest
	space  blockhash.Identity // zero unless the hash leaves the identity out
}

// Scheduler is one engine rank. It is not safe for concurrent use.
type Scheduler struct {
	config  Config
	pool    *pool.Pool[Key]
	waiting []*Request
	running []*Request
	pending []wire.Event // not yet taken by a step
	holding int          // requests in state held
	stats   Stats
	keys    []Key // scratch
}

// Stats are running totals since New, except the gauges.
type Stats struct {
	Waiting, Running int // gauges, requests
	WaitingTokens    int // gauge, known tokens of waiting requests

	CapacityBlocks, UsedBlocks, CachedBlocks int // gauges
	CachedKeys                               int // gauge, copies counted once
	HeldRequests                             int // gauge, ended requests that keep their blocks

	QueriedTokens   int64 // prompt tokens looked up in the cache
	HitTokens       int64 // of those, found
	ReceivedTokens  int64 // prompt tokens not computed because another engine sent them
	PrefilledTokens int64 // prompt tokens computed, recomputation after preemption included
	GeneratedTokens int64
	Preemptions     int64
	Steps           int64
}

// Plus adds two schedulers' figures.
func (a Stats) Plus(b Stats) Stats {
	return Stats{
		Waiting:         a.Waiting + b.Waiting,
		Running:         a.Running + b.Running,
		WaitingTokens:   a.WaitingTokens + b.WaitingTokens,
		CapacityBlocks:  a.CapacityBlocks + b.CapacityBlocks,
		UsedBlocks:      a.UsedBlocks + b.UsedBlocks,
		CachedBlocks:    a.CachedBlocks + b.CachedBlocks,
		CachedKeys:      a.CachedKeys + b.CachedKeys,
		QueriedTokens:   a.QueriedTokens + b.QueriedTokens,
		HitTokens:       a.HitTokens + b.HitTokens,
		HeldRequests:    a.HeldRequests + b.HeldRequests,
		ReceivedTokens:  a.ReceivedTokens + b.ReceivedTokens,
		PrefilledTokens: a.PrefilledTokens + b.PrefilledTokens,
		GeneratedTokens: a.GeneratedTokens + b.GeneratedTokens,
		Preemptions:     a.Preemptions + b.Preemptions,
		Steps:           a.Steps + b.Steps,
	}
}

// New returns an idle scheduler. A PerNode scheduler announces a clear first,
// as SGLang does when it builds its tree.
func New(config Config) *Scheduler {
	config = config.withDefaults()
	s := &Scheduler{config: config, pool: pool.New[Key](config.CapacityBlocks)}
	if config.PerNode {
		s.pending = append(s.pending, wire.Event{Kind: wire.Cleared})
	}
	return s
}

// Config returns the configuration with its defaults applied.
func (s *Scheduler) Config() Config { return s.config }

// Stats returns the current figures.
func (s *Scheduler) Stats() Stats {
	stats := s.stats
	stats.Waiting, stats.Running = len(s.waiting), len(s.running)
	stats.CapacityBlocks, stats.UsedBlocks = s.pool.Capacity(), s.pool.Used()
	stats.CachedBlocks, stats.CachedKeys = s.pool.Cached(), s.pool.Keys()
	stats.HeldRequests = s.holding
	for _, r := range s.waiting {
		stats.WaitingTokens += len(r.tokens)
	}
	return stats
}

// Busy tells whether a step would find work.
func (s *Scheduler) Busy() bool { return len(s.waiting)+len(s.running) > 0 }

// Add queues a request. It fails for a prompt that leaves no room for an
// answer, or for a request without tokens.
func (s *Scheduler) Add(r *Request) error {
	switch {
	case r.state != fresh:
		return fmt.Errorf("add request: it was added before")
	case len(r.Prompt) == 0:
		return fmt.Errorf("add request: the prompt has no tokens")
	case r.MaxTokens < 1:
		return fmt.Errorf("add request: max tokens is %d, want at least 1", r.MaxTokens)
	case len(r.Prompt) >= s.config.MaxModelTokens:
		return fmt.Errorf("add request: the prompt has %d tokens, the limit is %d",
			len(r.Prompt), s.config.MaxModelTokens-1)
	}
	r.tokens = append(make([]uint32, 0, len(r.Prompt)+min(r.MaxTokens, 1024)), r.Prompt...)
	r.cached = -1
	r.state = waiting
	s.waiting = append(s.waiting, r)
	return nil
}

// Abort ends a request at once and frees its blocks. Nothing is announced.
// Ended and unknown requests are ignored.
func (s *Scheduler) Abort(r *Request) {
	switch r.state {
	case waiting:
		s.waiting = remove(s.waiting, r)
	case running:
		s.running = remove(s.running, r)
		s.release(r)
	default:
		return
	}
	r.state = done
}

// Release frees the blocks of a request that was held. It says whether there
// were any.
func (s *Scheduler) Release(r *Request) bool {
	if r.state != held {
		return false
	}
	s.holding--
	s.release(r)
	r.state = done
	return true
}

// Reset drops the cache and queues a clear for the next step. It does nothing
// and returns false while a request holds blocks.
func (s *Scheduler) Reset() bool {
	if !s.pool.Reset() {
		return false
	}
	s.pending = append(s.pending, wire.Event{Kind: wire.Cleared})
	return true
}

// TakeEvents returns the events no step has taken yet.
func (s *Scheduler) TakeEvents() []wire.Event {
	events := s.pending
	s.pending = nil
	return events
}

// CachedRun is the number of leading tokens of full blocks in the cache.
func (s *Scheduler) CachedRun(tokens []uint32, id blockhash.Identity) int {
	probe := Request{Identity: id, tokens: tokens}
	probe.extendDigests(s.config.Chainer, s.config.BlockSize)
	return s.pool.Run(s.requestKeys(&probe)) * s.config.BlockSize
}

func (s *Scheduler) key(digest blockhash.Digest, id blockhash.Identity) Key {
	if s.config.PerNode {
		return Key{digest: digest, space: id}
	}
	return Key{digest: digest}
}

// requestKeys returns the keys of a request's full blocks, valid until the
// next call.
func (s *Scheduler) requestKeys(r *Request) []Key {
	s.keys = s.keys[:0]
	for _, digest := range r.digests {
		s.keys = append(s.keys, s.key(digest, r.Identity))
	}
	return s.keys
}

func (s *Scheduler) release(r *Request) {
	s.pool.Release(r.blocks)
	r.blocks, r.computed, r.filled = nil, 0, 0
}

func remove(list []*Request, r *Request) []*Request {
	return slices.DeleteFunc(list, func(other *Request) bool { return other == r })
}
