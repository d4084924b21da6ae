// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/admission"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hall is a gate with a record of who came in, in that order.
type hall struct {
	*admission.Gate
	mu      sync.Mutex
	entered []string
	tickets []*admission.Ticket
	refused map[string][]error
	calls   sync.WaitGroup
}

func newHall(settings admission.Settings) *hall {
	return &hall{Gate: admission.New(settings), refused: map[string][]error{}}
}

// send has a request arrive; it returns once that was let in, refused or waits.
func (h *hall) send(ctx context.Context, r admission.Request) {
	h.calls.Go(func() {
		ticket, err := h.Enter(ctx, r)
		h.mu.Lock()
		defer h.mu.Unlock()
		if err != nil {
			h.refused[r.Caller] = append(h.refused[r.Caller], err)
			return
		}
		h.entered = append(h.entered, r.Caller)
		h.tickets = append(h.tickets, ticket)
	})
	synctest.Wait()
}

// came lists who came in, refusals what others of a caller were told.
func (h *hall) came() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.entered)
}

func (h *hall) refusals(caller string) []error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.refused[caller])
}

// ticket is that of a request that is under way, inside is their number.
func (h *hall) ticket(i int) *admission.Ticket {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.tickets[i]
}

func (h *hall) inside() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.tickets)
}

// leave ends the request that came in first.
func (h *hall) leave() {
	h.mu.Lock()
	ticket := h.tickets[0]
	h.tickets = h.tickets[1:]
	h.mu.Unlock()
	ticket.Leave()
	ticket.Leave() // counts once
	synctest.Wait()
}

func (h *hall) empty(t *testing.T) {
	t.Helper()
	for h.inside() > 0 {
		h.leave()
	}
	h.calls.Wait()
	if inflight, waiting := h.Load(); inflight != 0 || waiting != 0 {
		t.Errorf("%d under way and %d waiting in the end", inflight, waiting)
	}
}

func refusal(t *testing.T, err error) admission.Refusal {
	t.Helper()
	var refused *admission.Refusal
	if !errors.As(err, &refused) {
		t.Fatalf("error %v, want a refusal", err)
	}
	return *refused
}

func TestEveryoneIsAdmittedByDefault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(admission.Settings{})
		for range 500 {
			h.send(t.Context(), admission.Request{Caller: "a", Tokens: 1 << 20})
		}
		if len(h.came()) != 500 {
			t.Errorf("%d of 500 came in", len(h.came()))
		}
		h.empty(t)
	})
}

func TestBounds(t *testing.T) {
	cases := map[string]struct {
		settings  admission.Settings
		limits    admission.Limits
		requests  int
		entered   int
		atOnce    int // refused without a wait
		refusedAs admission.Reason
	}{
		"what fits comes in, and the rest waits in vain": {
			settings: admission.Settings{MaxInflight: 2}, requests: 4, entered: 2, refusedAs: admission.QueueTimeout,
		},
		"beyond the queue there is no wait": {
			settings: admission.Settings{MaxInflight: 1, QueueLimit: 2}, requests: 5, entered: 1, atOnce: 2, refusedAs: admission.QueueFull,
		},
		"without a queue nobody waits": {
			settings: admission.Settings{MaxInflight: 1, QueueLimit: -1}, requests: 3, entered: 1, atOnce: 2, refusedAs: admission.QueueFull,
		},
		"a caller's own bound is named": {
			limits: admission.Limits{MaxInflight: 1}, requests: 3, entered: 1, refusedAs: admission.CallerInflight,
		},
		"tokens are refused at once": {
			limits: admission.Limits{TokensPerMinute: 250}, requests: 3, entered: 2, atOnce: 1, refusedAs: admission.CallerTokens,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHall(tc.settings)
				for range tc.requests {
					h.send(t.Context(), admission.Request{Caller: "a", Limits: tc.limits, Tokens: 100})
				}
				if len(h.came()) != tc.entered || len(h.refusals("a")) != tc.atOnce {
					t.Fatalf("%d came in and %d were refused at once, want %d and %d",
						len(h.came()), len(h.refusals("a")), tc.entered, tc.atOnce)
				}
				begin := time.Now()
				h.calls.Wait()
				if waited := time.Since(begin); waited != 0 && waited != 5*time.Second {
					t.Errorf("the last was refused after %v, want 5 s", waited)
				}
				for i, err := range h.refusals("a") {
					got := refusal(t, err)
					if i < tc.atOnce && got.Reason != tc.refusedAs || tc.atOnce == 0 && got.Reason != tc.refusedAs {
						t.Errorf("refused as %d: %v, want %d", got.Reason, err, tc.refusedAs)
					}
					if got.RetryAfter < time.Second {
						t.Errorf("retry after %v", got.RetryAfter)
					}
				}
				h.empty(t)
			})
		})
	}
}

// TestTurnsAreFairInTokens checks that a caller with many long prompts does not
// delay another one: both get the same number of tokens.
func TestTurnsAreFairInTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(admission.Settings{MaxInflight: 1, Quantum: 1000, QueueTimeout: time.Hour})
		h.send(t.Context(), admission.Request{Caller: "first"})
		for range 20 {
			h.send(t.Context(), admission.Request{Caller: "long", Tokens: 4000})
		}
		for range 20 {
			h.send(t.Context(), admission.Request{Caller: "short", Tokens: 1000})
		}
		for range 25 {
			h.leave()
		}
		count := map[string]int{}
		for _, caller := range h.came() {
			count[caller]++
		}
		if count["short"] != 20 || count["long"] != 5 {
			t.Errorf("after 25 turns %v came in, want 20 short and 5 long", count)
		}
		h.empty(t)
	})
}

// TestAFullQueueIsSharedFairly checks that a newcomer takes the place of the
// caller who fills the queue.
func TestAFullQueueIsSharedFairly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(admission.Settings{MaxInflight: 1, QueueLimit: 4})
		for range 5 {
			h.send(t.Context(), admission.Request{Caller: "greedy", Tokens: 10})
		}
		for range 4 {
			h.send(t.Context(), admission.Request{Caller: "modest", Tokens: 10})
		}
		if len(h.refusals("greedy")) != 2 || len(h.refusals("modest")) != 2 {
			t.Errorf("refused %d and %d, want the queue split evenly", len(h.refusals("greedy")), len(h.refusals("modest")))
		}
		h.empty(t)
	})
}

func TestACallersBoundHoldsNobodyElseUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(admission.Settings{MaxInflight: 3})
		for range 3 {
			h.send(t.Context(), admission.Request{Caller: "bounded", Limits: admission.Limits{MaxInflight: 1}})
		}
		h.send(t.Context(), admission.Request{Caller: "free"})
		if len(h.came()) != 2 || h.came()[1] != "free" {
			t.Errorf("came in: %v", h.came())
		}
		h.leave()
		if len(h.came()) != 3 || h.came()[2] != "bounded" {
			t.Errorf("came in: %v, want the next of the bounded caller", h.came())
		}
		h.empty(t)
	})
}

func TestTokensComeBackWithTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(admission.Settings{})
		send := func(tokens int) {
			h.send(t.Context(), admission.Request{Caller: "a", Tokens: tokens, Limits: admission.Limits{TokensPerMinute: 600}})
		}
		send(500)
		send(400)
		if got := refusal(t, h.refusals("a")[0]); got.RetryAfter != 30*time.Second {
			t.Errorf("retry after %v, want the 30 s in which 300 tokens come", got.RetryAfter)
		}
		time.Sleep(30 * time.Second)
		send(400)
		if len(h.came()) != 2 {
			t.Error("refused although the tokens are there")
		}
		time.Sleep(time.Minute)
		send(1_000_000)
		if len(h.came()) != 3 {
			t.Error("more than a minute's worth is never let in")
		}
		h.ticket(2).Settle(100)
		send(400)
		if len(h.came()) != 4 {
			t.Error("what was assumed too much did not come back")
		}
		h.empty(t)
	})
}

func TestSettingsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHall(admission.Settings{MaxInflight: 1})
		for range 4 {
			h.send(t.Context(), admission.Request{Caller: "a"})
		}
		h.Set(admission.Settings{MaxInflight: 3})
		synctest.Wait()
		if len(h.came()) != 3 {
			t.Errorf("%d came in, want 3", len(h.came()))
		}
		h.Set(admission.Settings{MaxInflight: 1})
		h.leave()
		if len(h.came()) != 3 {
			t.Errorf("%d came in while more than the new bound are under way", len(h.came()))
		}
		h.empty(t)
	})
}

// TestWhoLeavesCountsNothing checks that clients which go while they wait, and
// a random mix of everything, leave no trace.
func TestWhoLeavesCountsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		h := newHall(admission.Settings{MaxInflight: 3, QueueLimit: 5, QueueTimeout: 50 * time.Millisecond})
		for range 2000 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(100))*time.Millisecond)
			defer cancel()
			caller := []string{"a", "b", "c"}[random.IntN(3)]
			h.send(ctx, admission.Request{Caller: caller, Tokens: random.IntN(3000), Limits: admission.Limits{MaxInflight: random.IntN(3)}})
			if inflight, waiting := h.Load(); inflight > 3 || waiting > 5 {
				t.Fatalf("%d under way, %d waiting", inflight, waiting)
			}
			if random.IntN(2) == 0 && h.inside() > 0 {
				h.leave()
			}
			time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
		}
		h.empty(t)
	})
}
