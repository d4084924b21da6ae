// SPDX-License-Identifier: Apache-2.0

package sched

import (
	"slices"

	"github.com/inferencecache/inference-cache/internal/sim/blockhash"
	"github.com/inferencecache/inference-cache/internal/sim/pool"
	"github.com/inferencecache/inference-cache/internal/sim/wire"
)

// Step is one scheduled step.
type Step struct {
	// Events in the order they happened; empty steps publish nothing.
	Events []wire.Event
	// PrefillTokens and DecodeTokens are what the step computes.
	PrefillTokens, DecodeTokens int

	work []*Request
}

// Empty tells that the step computes nothing.
func (s *Step) Empty() bool { return len(s.work) == 0 }

// Output is one generated token.
type Output struct {
	Request *Request
	Token   uint32
	Finish  Finish
	// CachedTokens of the prompt were found in the cache, or received.
	CachedTokens int
	// Held are the blocks that are kept after the end; nil without Hold.
	Held []pool.ID
}

// Schedule decides the next step, takes its blocks and returns it. The caller
// must Complete it before the next call.
func (s *Scheduler) Schedule() Step {
	step := Step{}
	budget := s.config.StepTokens
	preempted := false
	for i := 0; i < len(s.running) && budget > 0; i++ {
		r := s.running[i]
		n := min(len(r.tokens)-r.computed, budget)
		for !s.grow(r, n) {
			preempted = true
			if s.preemptLast() == r {
				break
			}
		}
		if r.state != running {
			break
		}
		s.compute(&step, r, n)
		budget -= n
	}
	for !preempted && budget > 0 && len(s.waiting) > 0 && len(s.running) < s.config.MaxRunning {
		r := s.waiting[0]
		n, ok := s.admit(r, budget)
		if !ok {
			break
		}
		s.waiting = slices.Delete(s.waiting, 0, 1)
		s.running = append(s.running, r)
		r.state = running
		s.compute(&step, r, n)
		budget -= n
	}
	step.Events = s.TakeEvents()
	if !step.Empty() {
		s.stats.Steps++
	}
	return step
}

// Complete ends a step: every request whose tokens are all computed yields one.
func (s *Scheduler) Complete(step Step) []Output {
	var outputs []Output
	for _, r := range step.work {
		if r.state != running || r.computed < len(r.tokens) {
			continue
		}
		token, end := r.Sample(r.generated())
		r.tokens = append(r.tokens, token)
		s.stats.GeneratedTokens++
		output := Output{Request: r, Token: token, CachedTokens: r.cached}
		switch {
		case end:
			output.Finish = Stop
		case r.generated() >= r.MaxTokens || len(r.tokens) >= s.config.MaxModelTokens:
			output.Finish = Length
		}
		if output.Finish != Running {
			s.end(r, &output)
		}
		outputs = append(outputs, output)
	}
	return outputs
}

// end takes a finished request out, with its blocks unless they are held.
func (s *Scheduler) end(r *Request, output *Output) {
	s.running = remove(s.running, r)
	if r.Hold && output.Finish == Length {
		r.state = held
		s.holding++
		output.Held = slices.Clone(r.blocks)
		return
	}
	s.release(r)
	r.state = done
}

// admit gives a waiting request its cached prefix and the blocks of its first
// n tokens. At least the last token is always computed.
func (s *Scheduler) admit(r *Request, budget int) (n int, ok bool) {
	size := s.config.BlockSize
	r.extendDigests(s.config.Chainer, size)
	keys := s.requestKeys(r)
	usable := min(len(keys), (len(r.tokens)-1)/size)
	run := s.pool.Run(keys[:usable])
	known := max(run*size, min(r.ReceivedTokens, len(r.tokens)-1))
	n = min(len(r.tokens)-known, budget)
	blocks, evicted, ok := s.pool.Acquire(keys[:run], blocksFor(known+n, size)-run)
	if !ok {
		return 0, false
	}
	s.announceEvicted(evicted)
	r.blocks, r.computed, r.filled, r.ReceivedTokens = blocks, known, run, 0
	if r.cached < 0 {
		r.cached = known
		s.stats.QueriedTokens += int64(len(r.tokens))
		s.stats.HitTokens += int64(run * size)
		s.stats.ReceivedTokens += int64(known - run*size)
	}
	return n, true
}

// grow takes the blocks that n more tokens need.
func (s *Scheduler) grow(r *Request, n int) bool {
	need := blocksFor(r.computed+n, s.config.BlockSize) - len(r.blocks)
	if need <= 0 {
		return true
	}
	blocks, evicted, ok := s.pool.Acquire(nil, need)
	if !ok {
		return false
	}
	s.announceEvicted(evicted)
	r.blocks = append(r.blocks, blocks...)
	return true
}

// preemptLast sends the newest running request back to the queue.
func (s *Scheduler) preemptLast() *Request {
	last := s.running[len(s.running)-1]
	s.running = s.running[:len(s.running)-1]
	s.release(last)
	last.state = waiting
	s.waiting = slices.Insert(s.waiting, 0, last)
	s.stats.Preemptions++
	return last
}

// compute adds n tokens of a request to the step and announces the blocks
// that become full with them.
func (s *Scheduler) compute(step *Step, r *Request, n int) {
	prefill := 0
	if r.computed < max(len(r.Prompt), len(r.tokens)-1) {
		prefill = n // a preempted request computes its answer again, too
	}
	step.PrefillTokens += prefill
	step.DecodeTokens += n - prefill
	s.stats.PrefilledTokens += int64(prefill)
	r.computed += n
	step.work = append(step.work, r)
	s.fill(r)
}

// fill gives keys to the blocks that are full now.
func (s *Scheduler) fill(r *Request) {
	size := s.config.BlockSize
	full := r.computed / size
	if full <= r.filled {
		return
	}
	r.extendDigests(s.config.Chainer, size)
	start := -1
	for index := r.filled; index < full; index++ {
		first := s.pool.Fill(r.blocks[index], s.key(r.digests[index], r.Identity))
		announce := first || !s.config.PerNode
		if announce && start < 0 {
			start = index
		}
		if !announce && start >= 0 {
			s.announceStored(r, start, index)
			start = -1
		}
	}
	if start >= 0 {
		s.announceStored(r, start, full)
	}
	r.filled = full
}

func (s *Scheduler) announceStored(r *Request, from, to int) {
	size := s.config.BlockSize
	event := wire.Event{
		Kind:       wire.Stored,
		Hashes:     slices.Clone(r.digests[from:to]),
		FirstIndex: from,
		Tokens:     slices.Clone(r.tokens[from*size : to*size]),
		BlockSize:  size,
		Identity:   r.Identity,
		AdapterID:  r.AdapterID,
	}
	if from > 0 {
		parent := r.digests[from-1]
		event.Parent = &parent
	}
	s.pending = append(s.pending, event)
}

func (s *Scheduler) announceEvicted(evicted []pool.Eviction[Key]) {
	for _, eviction := range evicted {
		if s.config.PerNode && !eviction.Last {
			continue
		}
		s.pending = append(s.pending, wire.Event{
			Kind:   wire.Removed,
			Hashes: []blockhash.Digest{eviction.Key.digest},
		})
	}
}

func blocksFor(tokens, blockSize int) int { return (tokens + blockSize - 1) / blockSize }
