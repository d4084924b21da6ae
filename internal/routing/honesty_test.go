// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"testing"

	"github.com/inferencecache/inference-cache/internal/routing"
)

// A replica whose engine has less than half of what the index claims loses the
// credit for it, and gets it back by having it.
func TestHonesty(t *testing.T) {
	fleet := newFleet(t, 2, routing.Options{})
	hint := match(routing.Score{Replica: "r1", MatchedTokens: 1600}, routing.Score{Replica: "r0", MatchedTokens: 16})
	follows := func() bool {
		decision := fleet.Preview(&routing.Request{Now: start, Model: model, PromptTokens: 2000, Hint: hint})
		return decision.Prediction.BestOverlapTokens == 1600
	}
	// answers sends requests to r1, whose engine reports some tokens of each.
	answers := func(requests, cached int) (changes int) {
		t.Helper()
		for range requests {
			decision, guard := fleet.Decide(&routing.Request{Now: start, Model: model, PromptTokens: 2000, Hint: hint, Target: "r1"})
			if guard == nil {
				t.Fatalf("no place: %+v", decision)
			}
			if _, changed := guard.Cached(cached); changed {
				changes++
			}
			guard.Cached(cached) // counts once
			guard.End(start, routing.Succeeded)
		}
		return changes
	}
	dishonest := func() (ids []string) {
		for _, s := range fleet.States(start) {
			if s.Dishonest {
				ids = append(ids, s.ID)
			}
		}
		return ids
	}
	for _, step := range []struct {
		what             string
		requests, cached int
		changes          int
		follows          bool
	}{
		{"half of what is claimed", 1000, 800, 0, true},
		{"less, but too few requests", 999, 799, 0, true},
		{"one more", 1, 799, 1, false},
		{"less than nothing", 1000, -5, 0, false},
		{"all of it, but too few requests", 999, 1600, 0, false},
		{"one more", 1, 1600, 1, true},
		{"more than is claimed makes up for nothing", 500, 100_000, 0, true},
		{"nothing at all", 500, 0, 0, true},
		{"nothing for long", 1000, 0, 1, false},
	} {
		if got := answers(step.requests, step.cached); got != step.changes || follows() != step.follows {
			t.Errorf("%s: %d changes, followed %v; want %d, %v", step.what, got, follows(), step.changes, step.follows)
		}
	}
	if got := dishonest(); len(got) != 1 || got[0] != "r1" {
		t.Errorf("dishonest are %v, want r1", got)
	}
	fleet.Put(routing.Replica{ID: "r1", UID: "another life"})
	if got := dishonest(); len(got) != 0 {
		t.Errorf("dishonest are %v after r1 was replaced", got)
	}
}

// Requests that nothing was claimed of say nothing about a replica.
func TestHonestyNeedsClaims(t *testing.T) {
	fleet := newFleet(t, 1, routing.Options{})
	for _, hint := range []routing.Hint{{}, {Reason: "NO_HINT"}, {Reason: routing.ReasonAffinityHint, Scores: []routing.Score{{Replica: "r0"}}}} {
		for range 1000 {
			_, guard := fleet.Decide(&routing.Request{Now: start, Model: model, PromptTokens: 2000, Hint: hint})
			if dishonest, _ := guard.Cached(0); dishonest {
				t.Fatalf("dishonest after hints of %q", hint.Reason)
			}
			guard.End(start, routing.Succeeded)
		}
	}
}
