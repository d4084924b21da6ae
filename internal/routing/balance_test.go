// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/routing"
)

// holderShare sends requests that only r0 holds and returns how many r0 got.
// Of two neighbours the earlier still runs while the later arrives if overlap
// is set. Prompts of other requests fill the budget for evening out.
func holderShare(t *testing.T, overlap bool) (got, sent int) {
	t.Helper()
	fleet := newFleet(t, 3, routing.Options{Policy: policy(t, routing.PolicyHint)})
	now := start
	for range 50 {
		_, guard := fleet.Decide(&routing.Request{Now: now, Model: model, PromptTokens: 20_000, Target: "r0"})
		guard.FirstByte(now)
		guard.End(now, routing.Succeeded)
		now = now.Add(time.Second)
	}
	var running *routing.Guard
	for sent = range 40 {
		decision, guard := fleet.Decide(&routing.Request{
			Now: now, Model: model, PromptTokens: 200, Hint: match(routing.Score{Replica: "r0", MatchedTokens: 160}),
		})
		if decision.Replica == "r0" {
			got++
		}
		guard.FirstByte(now)
		if running != nil {
			running.End(now, routing.Succeeded)
			running = nil
		}
		if overlap {
			running = guard
		} else {
			guard.End(now, routing.Succeeded)
		}
		now = now.Add(100 * time.Millisecond)
	}
	return got, sent + 1
}

func TestOnlyBusyHoldersGiveRequestsAway(t *testing.T) {
	if got, sent := holderShare(t, false); got != sent {
		t.Errorf("an idle holder got %d of %d requests for its prefix, want all", got, sent)
	}
	if got, sent := holderShare(t, true); got == sent || got == 0 {
		t.Errorf("a busy, crowded holder got %d of %d requests for its prefix, want some given away", got, sent)
	}
}
