// SPDX-License-Identifier: Apache-2.0

package sched

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/inferencecache/inference-cache/internal/sim/blockhash"
	"github.com/inferencecache/inference-cache/internal/sim/wire"
)

// count returns the tokens from, from+1, ... of a prompt.
func count(from, n uint32) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = from + uint32(i)
	}
	return tokens
}

func request(prompt []uint32, maxTokens int) *Request {
	return &Request{
		Prompt:    prompt,
		MaxTokens: maxTokens,
		Sample:    func(index int) (uint32, bool) { return uint32(1000 + index), false },
	}
}

// run schedules until nothing is left and returns all events and, per request
// in order of completion, what it was told last.
func run(s *Scheduler) (events []wire.Event, last []Output) {
	for s.Busy() {
		step := s.Schedule()
		events = append(events, step.Events...)
		for _, output := range s.Complete(step) {
			if output.Finish != Running {
				output.Request = nil
				last = append(last, output)
			}
		}
	}
	return events, last
}

// shape reduces events to kind and size.
func shape(events []wire.Event) (shapes []string) {
	names := map[wire.Kind]string{wire.Stored: "store", wire.Removed: "remove", wire.Cleared: "clear"}
	for _, event := range events {
		name := names[event.Kind]
		for range event.Hashes {
			name += " ."
		}
		if event.Parent != nil {
			name += " after parent"
		}
		shapes = append(shapes, name)
	}
	return shapes
}

func add(t *testing.T, s *Scheduler, r *Request) {
	t.Helper()
	if err := s.Add(r); err != nil {
		t.Fatal(err)
	}
}

func TestEvents(t *testing.T) {
	small := Config{BlockSize: 4, CapacityBlocks: 4}
	cases := map[string]struct {
		config Config
		act    func(t *testing.T, s *Scheduler)
		want   []string
	}{
		"the full blocks of a prompt come in one event": {
			config: small,
			act:    func(t *testing.T, s *Scheduler) { add(t, s, request(count(0, 9), 1)) },
			want:   []string{"store . ."},
		},
		"a decoded block follows its parent": {
			config: small,
			act:    func(t *testing.T, s *Scheduler) { add(t, s, request(count(0, 6), 4)) },
			want:   []string{"store .", "store . after parent"},
		},
		"a fully cached prompt stores its last block once more": {
			config: small,
			act: func(t *testing.T, s *Scheduler) {
				add(t, s, request(count(0, 8), 1))
				run(s)
				add(t, s, request(count(0, 8), 1))
			},
			want: []string{"store . after parent"},
		},
		"no second copy is announced per node": {
			config: Config{BlockSize: 4, CapacityBlocks: 4, PerNode: true},
			act: func(t *testing.T, s *Scheduler) {
				add(t, s, request(count(0, 8), 1))
				run(s)
				add(t, s, request(count(0, 8), 1))
			},
			want: nil,
		},
		"a long prompt is announced chunk by chunk": {
			config: Config{BlockSize: 4, CapacityBlocks: 8, StepTokens: 8},
			act:    func(t *testing.T, s *Scheduler) { add(t, s, request(count(0, 16), 1)) },
			want:   []string{"store . .", "store . . after parent"},
		},
		"new content evicts the oldest tail": {
			config: small,
			act: func(t *testing.T, s *Scheduler) {
				add(t, s, request(count(0, 13), 1))
				run(s)
				add(t, s, request(count(100, 9), 1))
			},
			want: []string{"remove .", "remove .", "store . ."},
		},
		"a clear waits for the next step": {
			config: small,
			act: func(t *testing.T, s *Scheduler) {
				add(t, s, request(count(0, 8), 1))
				run(s)
				if !s.Reset() {
					t.Fatal("the idle cache was not reset")
				}
				add(t, s, request(count(0, 4), 1))
			},
			want: []string{"clear", "store ."},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := New(tc.config)
			s.TakeEvents() // a PerNode scheduler starts with a clear
			tc.act(t, s)
			events, _ := run(s)
			if diff := cmp.Diff(tc.want, shape(events)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCachedTokens(t *testing.T) {
	tuned, salted := blockhash.Identity{Adapter: "a"}, blockhash.Identity{Salt: "s"}
	cases := map[string]struct {
		perNode       bool
		first, second blockhash.Identity
		prompt        []uint32
		want          int
	}{
		"an equal prompt computes its last block again": {prompt: count(0, 8), want: 4},
		"a longer prompt reuses all full blocks":        {prompt: count(0, 9), want: 8},
		"another start reuses nothing":                  {prompt: count(1, 8), want: 0},
		"adapters do not share":                         {second: tuned, prompt: count(0, 9), want: 0},
		"one adapter shares with itself":                {first: tuned, second: tuned, prompt: count(0, 9), want: 8},
		"salts do not share":                            {second: salted, prompt: count(0, 9), want: 0},
		"salts do not share per node":                   {perNode: true, second: salted, prompt: count(0, 9), want: 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := New(Config{BlockSize: 4, CapacityBlocks: 16, PerNode: tc.perNode})
			warm := request(count(0, 8), 1)
			warm.Identity = tc.first
			add(t, s, warm)
			run(s)
			probe := request(tc.prompt, 1)
			probe.Identity = tc.second
			add(t, s, probe)
			_, last := run(s)
			want := []Output{{Token: 1000, Finish: Length, CachedTokens: tc.want}}
			if diff := cmp.Diff(want, last); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAddRefuses(t *testing.T) {
	used := request(count(0, 4), 1)
	cases := map[string]*Request{
		"no tokens":            request(nil, 1),
		"no room for answers":  request(count(0, 16), 1),
		"nothing to generate":  request(count(0, 4), 0),
		"a request used twice": used,
	}
	s := New(Config{BlockSize: 4, CapacityBlocks: 4})
	add(t, s, used)
	for name, r := range cases {
		t.Run(name, func(t *testing.T) {
			if err := s.Add(r); err == nil {
				t.Error("no error")
			}
		})
	}
}

func TestMaxRunning(t *testing.T) {
	s := New(Config{BlockSize: 4, CapacityBlocks: 64, MaxRunning: 2})
	for i := range uint32(3) {
		add(t, s, request(count(100*i, 4), 2))
	}
	s.Complete(s.Schedule())
	if stats := s.Stats(); stats.Running != 2 || stats.Waiting != 1 {
		t.Errorf("%d run and %d wait, want 2 and 1", stats.Running, stats.Waiting)
	}
}

func TestReset(t *testing.T) {
	s := New(Config{BlockSize: 4, CapacityBlocks: 4})
	r := request(count(0, 4), 2)
	add(t, s, r)
	s.Complete(s.Schedule())
	if s.Reset() {
		t.Error("the cache was reset while a request runs")
	}
	s.Abort(r)
	if !s.Reset() {
		t.Error("the cache was not reset after the last request")
	}
	if got := s.CachedRun(count(0, 4), blockhash.Identity{}); got != 0 {
		t.Errorf("%d tokens are cached after the reset", got)
	}
}

// Whatever arrives and leaves, every request ends, no block leaks, and the
// events alone describe the cache.
func TestSchedulerProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perNode := rapid.Bool().Draw(t, "per node")
		s := New(Config{
			BlockSize:      2,
			CapacityBlocks: rapid.IntRange(6, 20).Draw(t, "capacity"),
			MaxRunning:     rapid.IntRange(1, 4).Draw(t, "running"),
			StepTokens:     rapid.IntRange(1, 12).Draw(t, "budget"),
			PerNode:        perNode,
		})
		copies := make(map[blockhash.Digest]int)
		apply := func(events []wire.Event) {
			for _, event := range events {
				for _, hash := range event.Hashes {
					if event.Kind == wire.Stored {
						copies[hash]++
					} else if copies[hash]--; copies[hash] < 0 {
						t.Fatal("a block was removed that was never stored")
					}
				}
			}
		}
		s.TakeEvents()
		open := map[*Request]bool{}
		step := func() {
			current := s.Schedule()
			apply(current.Events)
			for _, output := range s.Complete(current) {
				if !open[output.Request] {
					t.Fatal("a token for a request that ended")
				}
				if output.Finish != Running {
					delete(open, output.Request)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				prompt := rapid.SliceOfN(rapid.Uint32Range(0, 1), 1, 8).Draw(t, "prompt")
				r := request(prompt, rapid.IntRange(1, 4).Draw(t, "max tokens"))
				if err := s.Add(r); err != nil {
					t.Fatal(err)
				}
				open[r] = true
			},
			"abort": func(t *rapid.T) {
				for _, r := range slices.Concat(s.running, s.waiting) {
					s.Abort(r)
					delete(open, r)
					return
				}
				t.Skip("nothing to abort")
			},
			"step": func(*rapid.T) { step() },
		})
		for range 10000 {
			if !s.Busy() {
				break
			}
			step()
		}
		total := 0
		for _, n := range copies {
			if perNode && n > 1 {
				t.Fatal("a node was announced twice")
			}
			total += n
		}
		stats := s.Stats()
		if len(open) > 0 || stats.UsedBlocks != 0 {
			t.Fatalf("%d requests never ended, %d blocks are still used", len(open), stats.UsedBlocks)
		}
		if perNode && total != s.pool.Keys() || !perNode && total != stats.CachedBlocks {
			t.Fatalf("events describe %d blocks, the pool holds %d (%d keys)", total, stats.CachedBlocks, s.pool.Keys())
		}
	})
}

func TestTiming(t *testing.T) {
	timing := Timing{PrefillTokensPerSecond: 1000, DecodeStep: 10 * time.Millisecond, DecodeSequence: time.Millisecond}
	fast := timing
	fast.Speed = 10
	cases := map[string]struct {
		timing Timing
		step   Step
		want   time.Duration
	}{
		"prefill by rate":          {timing, Step{PrefillTokens: 500}, 500 * time.Millisecond},
		"decode by sequences":      {timing, Step{DecodeTokens: 5}, 15 * time.Millisecond},
		"both add up":              {timing, Step{PrefillTokens: 100, DecodeTokens: 1}, 111 * time.Millisecond},
		"speed divides everything": {fast, Step{PrefillTokens: 500}, 50 * time.Millisecond},
		"an empty step is free":    {timing, Step{}, 0},
		"defaults apply":           {Timing{}, Step{PrefillTokens: 8000}, time.Second},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tc.timing.Step(tc.step); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}
