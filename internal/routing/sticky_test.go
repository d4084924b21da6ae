// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/routing"
)

// turn is a request of conversation 7 at some seconds after the start.
func turn(seconds int, hint routing.Hint) *routing.Request {
	return &routing.Request{
		Now: start.Add(time.Duration(seconds) * time.Second), Model: model, PromptTokens: 1000, Streamed: true,
		Sticky: 7, Hint: hint,
	}
}

// onR1 sends the first turn to r1 and ends it with the given outcome.
func onR1(t *testing.T, fleet *routing.Fleet, outcome routing.Outcome) {
	t.Helper()
	first, guard := fleet.Decide(turn(0, match(routing.Score{Replica: "r1", MatchedTokens: 500})))
	if first.Origin != routing.OriginStickyNew || first.Replica != "r1" || first.DelegatedTo != routing.PolicyHint {
		t.Fatalf("first turn: %s to %s by %q", first.Origin, first.Replica, first.DelegatedTo)
	}
	if first.Hint != routing.HintFollowed {
		t.Fatalf("the policy followed the hint, recorded as %s", first.Hint)
	}
	if outcome == routing.Succeeded {
		guard.FirstByte(start)
	}
	guard.End(start, outcome)
}

// TestGW15StickyTurnsStayUnlessSaturated checks that a pin does not cost the
// cache: a turn stays while its replica has room, else the best holder gets it.
func TestGW15StickyTurnsStayUnlessSaturated(t *testing.T) {
	onR2 := match(routing.Score{Replica: "r2", MatchedTokens: 900})
	cases := map[string]struct {
		arrange    func(*testing.T, *routing.Fleet)
		seconds    int
		wantOrigin routing.Origin
		want       string
	}{
		"stays although another holds more": {wantOrigin: routing.OriginStickyHit, want: "r1", seconds: 1},
		"saturated": {
			arrange: func(t *testing.T, f *routing.Fleet) {
				f.SetReport("r1", routing.Report{Usage: 0.99}, start)
			},
			seconds: 1, wantOrigin: routing.OriginStickyRespill, want: "r2",
		},
		"two requests of the key are there": {
			arrange: func(t *testing.T, f *routing.Fleet) {
				for range 2 {
					if d, _ := f.Decide(turn(1, onR2)); d.Replica != "r1" {
						t.Fatalf("went to %s", d.Replica)
					}
				}
			},
			seconds: 1, wantOrigin: routing.OriginStickyRespill, want: "r2",
		},
		"not ready": {
			arrange: func(_ *testing.T, f *routing.Fleet) { f.SetReady("r1", false) },
			seconds: 1, wantOrigin: routing.OriginStickyStale, want: "r2",
		},
		"replaced under its name": {
			arrange: func(_ *testing.T, f *routing.Fleet) {
				f.Put(routing.Replica{ID: "r1", UID: "second"})
				f.SetServes("r1", routing.Serves{model: nil})
				f.SetReady("r1", true)
			},
			seconds: 1, wantOrigin: routing.OriginStickyStale, want: "r2",
		},
		"idle for long":      {seconds: 601, wantOrigin: routing.OriginStickyStale, want: "r2"},
		"idle, but not long": {seconds: 599, wantOrigin: routing.OriginStickyHit, want: "r1"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			fleet := newFleet(t, 4, routing.Options{})
			onR1(t, fleet, routing.Succeeded)
			if tc.arrange != nil {
				tc.arrange(t, fleet)
			}
			got, guard := fleet.Decide(turn(tc.seconds, onR2))
			if got.Origin != tc.wantOrigin || got.Replica != tc.want {
				t.Fatalf("%s to %s, want %s to %s", got.Origin, got.Replica, tc.wantOrigin, tc.want)
			}
			guard.FirstByte(start)
			guard.End(start.Add(time.Duration(tc.seconds)*time.Second), routing.Succeeded)
			again := fleet.Preview(turn(tc.seconds, onR2))
			if again.Replica != tc.want || again.Origin != routing.OriginStickyHit {
				t.Errorf("next turn: %s to %s, want it pinned to %s", again.Origin, again.Replica, tc.want)
			}
		})
	}
}

func TestGW19FailedTurnsLeaveNoPin(t *testing.T) {
	for name, outcome := range map[string]routing.Outcome{"a failure": routing.Failed, "a client that left": routing.Ignored} {
		t.Run(name, func(t *testing.T) {
			fleet := newFleet(t, 4, routing.Options{})
			onR1(t, fleet, outcome)
			if got := fleet.Preview(turn(1, routing.Hint{})); got.Origin != routing.OriginStickyNew {
				t.Errorf("origin %s, want the key to be new", got.Origin)
			}
		})
	}
	t.Run("a client that left later keeps the pin of its first turn", func(t *testing.T) {
		fleet := newFleet(t, 4, routing.Options{})
		onR1(t, fleet, routing.Succeeded)
		_, guard := fleet.Decide(turn(1, routing.Hint{}))
		guard.End(start, routing.Ignored)
		if got := fleet.Preview(turn(2, routing.Hint{})); got.Replica != "r1" || got.Origin != routing.OriginStickyHit {
			t.Errorf("%s to %s", got.Origin, got.Replica)
		}
	})
}

// TestStickyKeysAreBounded checks that the key used longest ago makes room.
func TestStickyKeysAreBounded(t *testing.T) {
	fleet := newFleet(t, 2, routing.Options{StickyLimit: 3})
	send := func(key uint64) routing.Origin {
		decision, guard := fleet.Decide(&routing.Request{Now: start, Model: model, PromptTokens: 1, Sticky: key, Streamed: true})
		guard.FirstByte(start)
		guard.End(start, routing.Succeeded)
		return decision.Origin
	}
	for _, step := range []struct {
		key  uint64
		want routing.Origin
	}{
		{1, routing.OriginStickyNew}, {2, routing.OriginStickyNew}, {3, routing.OriginStickyNew},
		{1, routing.OriginStickyHit}, {4, routing.OriginStickyNew}, {1, routing.OriginStickyHit},
		{3, routing.OriginStickyHit}, {2, routing.OriginStickyNew},
	} {
		if got := send(step.key); got != step.want {
			t.Fatalf("key %d: %s, want %s", step.key, got, step.want)
		}
	}
}

// TestGW24RolesDoNotShareState checks that the prefill and the decode replica
// of one prompt and one key do not overwrite each other.
func TestGW24RolesDoNotShareState(t *testing.T) {
	fleet := routing.NewFleet(routing.Options{Policy: policy(t, routing.PolicyApprox)})
	for id, role := range map[string]routing.Role{
		"p0": routing.RolePrefill, "p1": routing.RolePrefill, "d0": routing.RoleDecode, "d1": routing.RoleDecode,
	} {
		fleet.Put(routing.Replica{ID: id, Role: role})
		fleet.SetReady(id, true)
	}
	leg := func(role routing.Role, target string, sticky uint64) *routing.Request {
		return &routing.Request{Now: start, PromptTokens: 320, Chain: chain(1, 20), Role: role, Target: target, Sticky: sticky, Streamed: true}
	}
	for _, sticky := range []uint64{0, 9} {
		for role, target := range map[routing.Role]string{routing.RolePrefill: "p1", routing.RoleDecode: "d1"} {
			_, guard := fleet.Decide(leg(role, target, sticky))
			guard.FirstByte(start)
			guard.End(start, routing.Succeeded)
		}
		for role, want := range map[routing.Role]string{routing.RolePrefill: "p1", routing.RoleDecode: "d1"} {
			got, guard := fleet.Decide(leg(role, "", sticky))
			if got.Replica != want || got.Move != routing.MoveSame {
				t.Errorf("role %d went to %s (%s), its prefix is on %s", role, got.Replica, got.Move, want)
			}
			guard.FirstByte(start)
			guard.End(start, routing.Succeeded)
		}
	}
	if approximate, _ := fleet.Entries(start); approximate != 2*20 {
		t.Errorf("%d pairs are remembered, want 20 of each role", approximate)
	}
}

func TestPrefixMoves(t *testing.T) {
	fleet := newFleet(t, 2, routing.Options{})
	for _, step := range []struct {
		blocks int
		target string
		want   routing.Move
	}{
		{4, "r0", routing.MoveNew}, {8, "r0", routing.MoveSame}, {8, "r1", routing.MoveMoved}, {12, "r1", routing.MoveSame},
		{0, "r1", routing.MoveNone},
	} {
		request := &routing.Request{Now: start, Model: model, PromptTokens: 16 * step.blocks, Target: step.target, Streamed: true}
		if step.blocks > 0 {
			request.Chain = chain(1, step.blocks)
		}
		if got, _ := fleet.Decide(request); got.Move != step.want {
			t.Errorf("%d blocks to %s: %q, want %q", step.blocks, step.target, got.Move, step.want)
		}
	}
	if approximate, speculative := fleet.Entries(start.Add(time.Minute)); approximate != 8+12 || speculative != 0 {
		t.Errorf("%d and %d pairs a minute later, want 20 and none", approximate, speculative)
	}
}
