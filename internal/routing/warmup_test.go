// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/routing"
)

// TestWarmup checks what a young replica is given: of misses one in four, of
// shallow hits one in eight, of deep hits none.
func TestWarmup(t *testing.T) {
	const requests = 4000
	hold := func(tokens int) routing.Hint {
		return match(routing.Score{Replica: "r0", MatchedTokens: tokens}, routing.Score{Replica: "r1", MatchedTokens: tokens})
	}
	cases := map[string]struct {
		off    bool
		hint   routing.Hint
		after  time.Duration
		origin routing.Origin
		share  float64
	}{
		"misses":                     {hint: routing.Hint{Reason: "NO_HINT"}, origin: routing.OriginWarmupSlice, share: 1.0 / 4},
		"misses with an affinity":    {hint: routing.Hint{Reason: routing.ReasonAffinityHint, Scores: []routing.Score{{Replica: "r0"}}}, origin: routing.OriginWarmupSlice, share: 1.0 / 4},
		"hits of half the prompt":    {hint: hold(500), origin: routing.OriginWarmupDivert, share: 1.0 / 8},
		"hits of more than half":     {hint: hold(516), origin: routing.OriginWarmupDivert},
		"misses when it is grown up": {hint: routing.Hint{Reason: "NO_HINT"}, origin: routing.OriginWarmupSlice, after: time.Minute},
		"misses without warm-up":     {hint: routing.Hint{Reason: "NO_HINT"}, origin: routing.OriginWarmupSlice, off: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			fleet := newFleet(t, 4, routing.Options{Warmup: !tc.off})
			now := start
			ask := func() routing.Decision {
				d := fleet.Preview(&routing.Request{Now: now, Model: model, PromptTokens: 1000, Hint: tc.hint, Streamed: true})
				return d
			}
			ask()
			now = now.Add(2 * time.Minute)
			fleet.Put(routing.Replica{ID: "young"})
			fleet.SetServes("young", routing.Serves{model: nil})
			fleet.SetReady("young", true)
			ask()
			now = now.Add(tc.after)
			got := 0
			for range requests {
				if d := ask(); d.Origin == tc.origin {
					got++
					if d.Replica != "young" {
						t.Fatalf("%s to %s", d.Origin, d.Replica)
					}
				}
			}
			want := tc.share * requests
			if slack := requests / 50.0; float64(got) < want-slack || float64(got) > want+slack || tc.share == 0 && got > 0 {
				t.Errorf("%d of %d, want about %.0f", got, requests, want)
			}
		})
	}
}

// TestWarmupOfAYoungFleet checks that replicas which are all new are treated
// alike.
func TestWarmupOfAYoungFleet(t *testing.T) {
	fleet := newFleet(t, 4, routing.Options{Warmup: true})
	for i := range 100 {
		got := fleet.Preview(&routing.Request{Now: start, Model: model, PromptTokens: 100, Hint: routing.Hint{Reason: "NO_HINT"}})
		if got.Origin != routing.OriginPolicy {
			t.Fatal(fmt.Sprint(i), got.Origin)
		}
	}
}
