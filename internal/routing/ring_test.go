// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"testing"

	"github.com/inferencecache/inference-cache/internal/routing"
)

func TestHashPolicies(t *testing.T) {
	for _, name := range []string{routing.PolicyConsistentHash, routing.PolicyPrefixHash} {
		t.Run(name, func(t *testing.T) {
			fleet := newFleet(t, 6, routing.Options{Policy: policy(t, name)})
			places := map[string]bool{}
			home := map[uint64]string{}
			for prompt := range uint64(60) {
				decision := fleet.Preview(&routing.Request{Now: start, Model: model, Chain: chain(prompt, 40)})
				if decision.Prediction.Source != routing.SourceHashPlacement {
					t.Fatalf("source %q", decision.Prediction.Source)
				}
				places[decision.Replica], home[prompt] = true, decision.Replica
			}
			if len(places) != 6 {
				t.Errorf("60 prompts reached %d of 6 replicas", len(places))
			}
			fleet.SetReady("r3", false)
			for prompt, before := range home {
				decision := fleet.Preview(&routing.Request{Now: start, Model: model, Chain: chain(prompt, 40)})
				if before != "r3" && decision.Replica != before {
					t.Errorf("prompt %d moved from %s to %s, although only r3 left", prompt, before, decision.Replica)
				}
			}
			chosen := map[string]int{}
			for range 120 {
				decision, _ := fleet.Decide(&routing.Request{Now: start, Model: model, Chain: chain(7, 40)})
				chosen[decision.Replica]++
			}
			for id, n := range chosen {
				if n > 35 { // 24 on average and at most 10 more
					t.Errorf("%s got %d of 120 equal requests", id, n)
				}
			}
		})
	}
}

// Old placements count only where the index does not speak for the prompt.
func TestApproximateFallback(t *testing.T) {
	cases := map[string]struct {
		hint     routing.Hint
		fallback string
		want     routing.Source
	}{
		"no answer":         {hint: routing.Hint{Without: routing.BranchTimeout}, want: routing.SourceApprox},
		"an unknown tenant": {hint: routing.Hint{Reason: "UNKNOWN_TENANT"}, want: routing.SourceApprox},
		"no hint":           {hint: routing.Hint{Reason: "NO_HINT"}, want: routing.SourceApprox},
		"nobody holds it":   {hint: routing.Hint{Reason: routing.ReasonAffinityHint}, want: routing.SourceNone},
		"switched off":      {hint: routing.Hint{Reason: "NO_HINT"}, fallback: "least_load", want: routing.SourceNone},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			p, err := routing.NewPolicy(routing.PolicyHint, routing.PolicyOptions{Fallback: tc.fallback})
			if err != nil {
				t.Fatal(err)
			}
			fleet := newFleet(t, 4, routing.Options{Policy: p})
			fleet.Decide(novel(start, 1))
			later := novel(start.Add(60e9), 1)
			later.Hint = tc.hint
			if got := fleet.Preview(later).Prediction.Source; got != tc.want {
				t.Errorf("source %q, want %q", got, tc.want)
			}
			later.Now = start.Add(200e9)
			if got := fleet.Preview(later).Prediction.Source; got != routing.SourceNone {
				t.Errorf("source %q after more than 120 s", got)
			}
		})
	}
}
