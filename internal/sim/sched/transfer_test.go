// SPDX-License-Identifier: Apache-2.0

package sched_test

import (
	"testing"

	"github.com/inferencecache/inference-cache/internal/sim/sched"
	"github.com/inferencecache/inference-cache/internal/sim/wire"
)

func tokensOf(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}

func sampleOne(int) (uint32, bool) { return 7, false }

// TestReceivedTokensAreNotComputedButAnnounced lets KV come from elsewhere.
func TestReceivedTokensAreNotComputedButAnnounced(t *testing.T) {
	s := sched.New(sched.Config{BlockSize: 4, CapacityBlocks: 16})
	r := &sched.Request{Prompt: tokensOf(18), MaxTokens: 2, ReceivedTokens: 18, Sample: sampleOne}
	if err := s.Add(r); err != nil {
		t.Fatal(err)
	}
	step := s.Schedule()
	if step.PrefillTokens != 1 {
		t.Errorf("%d prompt tokens are computed, want the last one", step.PrefillTokens)
	}
	if len(step.Events) != 1 || step.Events[0].Kind != wire.Stored || len(step.Events[0].Hashes) != 4 {
		t.Errorf("events %+v, want the 4 full blocks", step.Events)
	}
	outputs := s.Complete(step)
	if len(outputs) != 1 || outputs[0].CachedTokens != 17 {
		t.Errorf("outputs %+v", outputs)
	}
	if stats := s.Stats(); stats.ReceivedTokens != 17 || stats.HitTokens != 0 || stats.UsedBlocks != 5 {
		t.Errorf("stats %+v", stats)
	}
}

// TestReceivedTokensBeyondTheCacheOnly has half of the prompt in the cache.
func TestReceivedTokensBeyondTheCacheOnly(t *testing.T) {
	s := sched.New(sched.Config{BlockSize: 4, CapacityBlocks: 16})
	for _, r := range []*sched.Request{
		{Prompt: tokensOf(8), MaxTokens: 1, Sample: sampleOne},
		{Prompt: tokensOf(17), MaxTokens: 1, ReceivedTokens: 17, Sample: sampleOne},
	} {
		if err := s.Add(r); err != nil {
			t.Fatal(err)
		}
		s.Complete(s.Schedule())
	}
	if stats := s.Stats(); stats.HitTokens != 8 || stats.ReceivedTokens != 8 || stats.UsedBlocks != 0 {
		t.Errorf("stats %+v", stats)
	}
}

// TestHeldBlocksStayUntilReleased ends requests that keep their blocks.
func TestHeldBlocksStayUntilReleased(t *testing.T) {
	s := sched.New(sched.Config{BlockSize: 4, CapacityBlocks: 16})
	held := &sched.Request{Prompt: tokensOf(10), MaxTokens: 1, Hold: true, Sample: sampleOne}
	stopped := &sched.Request{Prompt: tokensOf(9), MaxTokens: 5, Hold: true, Sample: func(int) (uint32, bool) { return 7, true }}
	for _, r := range []*sched.Request{held, stopped} {
		if err := s.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	for _, output := range s.Complete(s.Schedule()) {
		if want := map[*sched.Request]int{held: 3, stopped: 0}[output.Request]; len(output.Held) != want {
			t.Errorf("%d blocks are held, want %d", len(output.Held), want)
		}
	}
	if stats := s.Stats(); stats.UsedBlocks != 3 || stats.HeldRequests != 1 || s.Busy() {
		t.Errorf("stats %+v", stats)
	}
	if s.Reset() {
		t.Error("the cache was dropped under held blocks")
	}
	if !s.Release(held) || s.Release(held) || s.Release(stopped) {
		t.Error("blocks can be released once, if they are held")
	}
	if stats := s.Stats(); stats.UsedBlocks != 0 || stats.HeldRequests != 0 || stats.CachedBlocks == 0 {
		t.Errorf("stats after the release %+v", stats)
	}
}
