// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"testing"

	"github.com/inferencecache/inference-cache/internal/routing"
)

// pairFleet has two prefill and two decode replicas, ready.
func pairFleet(change func(*routing.Replica)) *routing.Fleet {
	fleet := routing.NewFleet(routing.Options{})
	for _, r := range []routing.Replica{
		{ID: "p0", Role: routing.RolePrefill, Transport: "x"}, {ID: "p1", Role: routing.RolePrefill, Transport: "x"},
		{ID: "d0", Role: routing.RoleDecode, Transport: "x"}, {ID: "d1", Role: routing.RoleDecode, Transport: "x"},
	} {
		change(&r)
		fleet.Put(r)
		fleet.SetReady(r.ID, true)
	}
	return fleet
}

func totalLoad(fleet *routing.Fleet) (inflight int, queue int64) {
	for _, s := range fleet.States(start) {
		inflight += s.View.Inflight
		queue += s.View.QueueTokens
	}
	return inflight, queue
}

func TestPairModes(t *testing.T) {
	prompt := func(change func(*routing.Request)) *routing.Request {
		r := &routing.Request{Now: start, PromptTokens: 1000, Chain: chain(1, 62)}
		change(r)
		return r
	}
	held := func(replica string, tokens int) func(*routing.Request) {
		return func(r *routing.Request) {
			r.Hint = routing.Hint{Reason: routing.ReasonPrefixMatch, Scores: []routing.Score{{Replica: replica, MatchedTokens: tokens}}}
		}
	}
	nothing := func(*routing.Request) {}
	same := func(*routing.Replica) {}
	for name, tc := range map[string]struct {
		replicas        func(*routing.Replica)
		request         func(*routing.Request)
		rules           routing.PairRules
		mode            routing.PairMode
		prefill, decode string // empty: any, or none
	}{
		"a long prompt takes two legs":                       {same, nothing, routing.PairRules{MinUncached: 256}, routing.PairTwoLegs, "", ""},
		"a prefix on a prefill replica draws that leg only":  {same, held("p1", 960), routing.PairRules{MinUncached: 256}, routing.PairTwoLegs, "p1", ""},
		"a prefix on a decode replica needs no prefill":      {same, held("d1", 960), routing.PairRules{MinUncached: 256}, routing.PairShort, "", "d1"},
		"half a prefix on a decode replica draws that leg":   {same, held("d0", 480), routing.PairRules{MinUncached: 256}, routing.PairTwoLegs, "", "d0"},
		"a request whose KV cannot be passed on stays whole": {same, nothing, routing.PairRules{Local: true}, routing.PairUnsupported, "", ""},
		"another transport is no prefill replica": {func(r *routing.Replica) {
			if r.Role == routing.RolePrefill {
				r.Transport = "y"
			}
		}, nothing, routing.PairRules{MinUncached: 256}, routing.PairNoPrefill, "", ""},
		"a decode replica that needs one has none": {func(r *routing.Replica) {
			r.NeedsPrefill, r.Cordoned = r.Role == routing.RoleDecode, r.Role == routing.RolePrefill
		}, nothing, routing.PairRules{MinUncached: 256}, routing.PairNone, "", ""},
		"a decode replica that needs one has short prompts computed": {func(r *routing.Replica) {
			r.NeedsPrefill = r.Role == routing.RoleDecode
		}, held("d1", 960), routing.PairRules{MinUncached: 256, Local: true}, routing.PairTwoLegs, "", "d1"},
		"no decode replica": {func(r *routing.Replica) { r.Cordoned = r.Role == routing.RoleDecode }, nothing, routing.PairRules{}, routing.PairNone, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			fleet := pairFleet(tc.replicas)
			preview := fleet.PreviewPair(prompt(tc.request), &tc.rules)
			pair := fleet.DecidePair(prompt(tc.request), &tc.rules)
			if pair.Mode != tc.mode || preview.Mode != tc.mode {
				t.Fatalf("mode %q, previewed %q, want %q", pair.Mode, preview.Mode, tc.mode)
			}
			if d := pair.Decode.Decision.Replica; tc.decode != "" && d != tc.decode {
				t.Errorf("decode on %s, want %s", d, tc.decode)
			}
			if p := pair.Prefill.Decision.Replica; tc.prefill != "" && p != tc.prefill {
				t.Errorf("prefill on %s, want %s", p, tc.prefill)
			}
			if tc.mode == routing.PairTwoLegs && pair.Prefill.Decision.Prediction.BestOverlapTokens > pair.Prefill.Decision.Prediction.OverlapTokens {
				t.Error("what decode replicas hold counts as a better choice for the prefill leg")
			}
			guards := 0
			for _, g := range []*routing.Guard{pair.Decode.Guard, pair.Prefill.Guard} {
				if g != nil {
					guards++
				}
			}
			if inflight, _ := totalLoad(fleet); inflight != guards || (pair.Prefill.Guard != nil) != (tc.mode == routing.PairTwoLegs) {
				t.Errorf("%d requests under way for %d guards", inflight, guards)
			}
			for _, g := range []*routing.Guard{pair.Decode.Guard, pair.Prefill.Guard} {
				if g != nil {
					g.FirstByte(start)
					g.End(start, routing.Succeeded)
				}
			}
			if inflight, queue := totalLoad(fleet); inflight != 0 || queue != 0 {
				t.Errorf("%d requests and %d tokens are left", inflight, queue)
			}
		})
	}
}

// TestGW24LegsOfPairsDoNotOverwriteEachOther sends prompts whose two legs are
// remembered by role.
func TestGW24LegsOfPairsDoNotOverwriteEachOther(t *testing.T) {
	fleet := pairFleet(func(*routing.Replica) {})
	homes := map[uint64][2]string{}
	for turn := range 3 {
		for prompt := range uint64(4) {
			request := &routing.Request{Now: start, PromptTokens: 1000, Chain: chain(prompt+1, 50), Sticky: prompt + 1}
			pair := fleet.DecidePair(request, &routing.PairRules{})
			home := [2]string{pair.Prefill.Decision.Replica, pair.Decode.Decision.Replica}
			if turn > 0 && home != homes[prompt] {
				t.Errorf("turn %d of prompt %d went to %v, before to %v", turn, prompt, home, homes[prompt])
			}
			homes[prompt] = home
			for _, g := range []*routing.Guard{pair.Decode.Guard, pair.Prefill.Guard} {
				g.FirstByte(start)
				g.End(start, routing.Succeeded)
			}
		}
	}
}

func TestRolesHaveNames(t *testing.T) {
	for _, role := range []routing.Role{routing.RoleSingle, routing.RolePrefill, routing.RoleDecode} {
		if got, err := routing.ParseRole(role.String()); err != nil || got != role {
			t.Errorf("%s reads as %v, %v", role, got, err)
		}
	}
	if got, err := routing.ParseRole(""); err != nil || got != routing.RoleSingle {
		t.Errorf("nothing reads as %v, %v", got, err)
	}
	if _, err := routing.ParseRole("encode"); err == nil {
		t.Error("an unknown role is accepted")
	}
}
