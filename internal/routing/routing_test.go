// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/inferencecache/inference-cache/internal/breaker"
	"github.com/inferencecache/inference-cache/internal/routing"
)

const model = "m"

var start = time.Unix(1_700_000_000, 0)

// newFleet returns a fleet of ready replicas r0..r(n-1) that serve model.
func newFleet(t testing.TB, n int, options routing.Options) *routing.Fleet {
	t.Helper()
	if options.Rand == nil {
		options.Rand = rand.New(rand.NewPCG(1, 2))
	}
	fleet := routing.NewFleet(options)
	for i := range n {
		id := fmt.Sprintf("r%d", i)
		fleet.Put(routing.Replica{ID: id})
		fleet.SetServes(id, routing.Serves{model: {"lora"}})
		fleet.SetReady(id, true)
	}
	return fleet
}

func policy(t testing.TB, name string) routing.Policy {
	t.Helper()
	p, err := routing.NewPolicy(name, routing.PolicyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// load puts requests of the given prompt size on a replica.
func load(t testing.TB, fleet *routing.Fleet, id string, requests, tokens int) {
	t.Helper()
	for range requests {
		decision, guard := fleet.Decide(&routing.Request{Now: start, Model: model, PromptTokens: tokens, Target: id})
		if guard == nil {
			t.Fatalf("no place for a request on %s: %+v", id, decision)
		}
	}
}

func match(scores ...routing.Score) routing.Hint {
	return routing.Hint{Reason: routing.ReasonPrefixMatch, Scores: scores, BlockSize: 16}
}

func TestHintPolicy(t *testing.T) {
	tests := map[string]struct {
		replicas    int
		arrange     func(testing.TB, *routing.Fleet)
		tokens      int
		hint        routing.Hint
		wantOneOf   []string
		wantOrigin  routing.Origin
		wantBranch  routing.Branch
		wantOutcome routing.HintOutcome
	}{
		"the holder gets the request": {
			replicas: 3, tokens: 1000,
			hint:      match(routing.Score{Replica: "r1", MatchedTokens: 800}),
			wantOneOf: []string{"r1"}, wantOrigin: routing.OriginIndexHint, wantBranch: routing.BranchHit,
			wantOutcome: routing.HintFollowed,
		},
		"the deeper of two holders gets it": {
			replicas: 3, tokens: 1000,
			hint: match(routing.Score{Replica: "r1", MatchedTokens: 800},
				routing.Score{Replica: "r2", MatchedTokens: 400}),
			wantOneOf: []string{"r1"}, wantOrigin: routing.OriginIndexHint, wantBranch: routing.BranchHit,
			wantOutcome: routing.HintFollowed,
		},
		"among equally deep holders the less loaded one gets it": {
			replicas: 3, tokens: 1000,
			arrange: func(t testing.TB, f *routing.Fleet) { load(t, f, "r1", 1, 4000) },
			hint: match(routing.Score{Replica: "r1", MatchedTokens: 800},
				routing.Score{Replica: "r2", MatchedTokens: 784}),
			wantOneOf: []string{"r2"}, wantOrigin: routing.OriginIndexHint, wantBranch: routing.BranchHit,
			wantOutcome: routing.HintFollowed,
		},
		"a loaded but not saturated holder is preferred to idle replicas": {
			replicas: 4, tokens: 8000,
			arrange: func(t testing.TB, f *routing.Fleet) { load(t, f, "r0", 2, 3000); load(t, f, "r1", 2, 4000) },
			hint: match(routing.Score{Replica: "r0", MatchedTokens: 7000},
				routing.Score{Replica: "r1", MatchedTokens: 7000}),
			wantOneOf: []string{"r0"}, wantOrigin: routing.OriginIndexHint, wantBranch: routing.BranchHit,
			wantOutcome: routing.HintFollowed,
		},
		"saturated holders spill to a replica that is free": {
			replicas: 4, tokens: 8000,
			arrange: func(t testing.TB, f *routing.Fleet) { load(t, f, "r0", 5, 4000); load(t, f, "r1", 5, 4000) },
			hint: match(routing.Score{Replica: "r0", MatchedTokens: 7000},
				routing.Score{Replica: "r1", MatchedTokens: 7000}),
			wantOneOf: []string{"r2", "r3"}, wantOrigin: routing.OriginLoadSpill, wantBranch: routing.BranchSpill,
			wantOutcome: routing.HintOverloaded,
		},
		"waiting longer than a second copy costs spills": {
			replicas: 2, tokens: 1000,
			arrange:   func(t testing.TB, f *routing.Fleet) { load(t, f, "r0", 1, 12000) },
			hint:      match(routing.Score{Replica: "r0", MatchedTokens: 800}),
			wantOneOf: []string{"r1"}, wantOrigin: routing.OriginLoadSpill, wantBranch: routing.BranchSpill,
			wantOutcome: routing.HintSpilled,
		},
		"a fully used cache spills": {
			replicas: 2, tokens: 1000,
			arrange: func(_ testing.TB, f *routing.Fleet) {
				f.SetReport("r0", routing.Report{Usage: 0.96}, start)
			},
			hint:      match(routing.Score{Replica: "r0", MatchedTokens: 800}),
			wantOneOf: []string{"r1"}, wantOrigin: routing.OriginLoadSpill, wantBranch: routing.BranchSpill,
			wantOutcome: routing.HintOverloaded,
		},
		"an old report is neither full nor empty": {
			replicas: 2, tokens: 1000,
			arrange: func(_ testing.TB, f *routing.Fleet) {
				f.SetReport("r0", routing.Report{Usage: 1, WaitingTokens: 1 << 30}, start.Add(-time.Minute))
			},
			hint:      match(routing.Score{Replica: "r0", MatchedTokens: 800}),
			wantOneOf: []string{"r0"}, wantOrigin: routing.OriginIndexHint, wantBranch: routing.BranchHit,
			wantOutcome: routing.HintFollowed,
		},
		"reported waiting tokens count": {
			replicas: 2, tokens: 1000,
			arrange: func(_ testing.TB, f *routing.Fleet) {
				f.SetReport("r0", routing.Report{WaitingTokens: 100_000}, start)
			},
			hint:      match(routing.Score{Replica: "r0", MatchedTokens: 800}),
			wantOneOf: []string{"r1"}, wantOrigin: routing.OriginLoadSpill, wantBranch: routing.BranchSpill,
			wantOutcome: routing.HintOverloaded,
		},
		"when all are saturated the holder keeps it if it waits least": {
			replicas: 2, tokens: 1000,
			arrange: func(_ testing.TB, f *routing.Fleet) {
				f.SetReport("r0", routing.Report{WaitingTokens: 100_000}, start)
				f.SetReport("r1", routing.Report{WaitingTokens: 200_000}, start)
			},
			hint:      match(routing.Score{Replica: "r0", MatchedTokens: 800}),
			wantOneOf: []string{"r0"}, wantOrigin: routing.OriginIndexHint, wantBranch: routing.BranchHit,
			wantOutcome: routing.HintFollowed,
		},
		"a holder that is not ready is a miss": {
			replicas: 2, tokens: 1000,
			arrange:   func(_ testing.TB, f *routing.Fleet) { f.SetReady("r0", false) },
			hint:      match(routing.Score{Replica: "r0", MatchedTokens: 800}),
			wantOneOf: []string{"r1"}, wantOrigin: routing.OriginPolicy, wantBranch: routing.BranchMiss,
			wantOutcome: routing.HintUnhealthy,
		},
		"a draining holder is a miss": {
			replicas: 2, tokens: 1000,
			arrange:   func(_ testing.TB, f *routing.Fleet) { f.SetDraining("r0", true) },
			hint:      match(routing.Score{Replica: "r0", MatchedTokens: 800}),
			wantOneOf: []string{"r1"}, wantOrigin: routing.OriginPolicy, wantBranch: routing.BranchMiss,
			wantOutcome: routing.HintDraining,
		},
		"an unknown holder is a miss": {
			replicas: 2, tokens: 1000,
			hint:      match(routing.Score{Replica: "elsewhere", MatchedTokens: 800}),
			wantOneOf: []string{"r0", "r1"}, wantOrigin: routing.OriginPolicy, wantBranch: routing.BranchMiss,
			wantOutcome: routing.HintUnplaceable,
		},
		"an affinity hint is followed on an idle fleet": {
			replicas: 4, tokens: 1000,
			hint:      routing.Hint{Reason: routing.ReasonAffinityHint, Scores: []routing.Score{{Replica: "r2"}}},
			wantOneOf: []string{"r2"}, wantOrigin: routing.OriginIndexHint, wantBranch: routing.BranchAffinity,
			wantOutcome: routing.HintFollowed,
		},
		"an affinity hint to a saturated replica is not followed": {
			replicas: 2, tokens: 1000,
			arrange:   func(t testing.TB, f *routing.Fleet) { load(t, f, "r0", 20, 4000) },
			hint:      routing.Hint{Reason: routing.ReasonAffinityHint, Scores: []routing.Score{{Replica: "r0"}}},
			wantOneOf: []string{"r1"}, wantOrigin: routing.OriginPolicy, wantBranch: routing.BranchMiss,
			wantOutcome: routing.HintOverloaded,
		},
		"an affinity hint is not worth a queue": {
			replicas: 2, tokens: 1000,
			arrange:   func(t testing.TB, f *routing.Fleet) { load(t, f, "r0", 1, 500) },
			hint:      routing.Hint{Reason: routing.ReasonAffinityHint, Scores: []routing.Score{{Replica: "r0"}}},
			wantOneOf: []string{"r1"}, wantOrigin: routing.OriginPolicy, wantBranch: routing.BranchMiss,
			wantOutcome: routing.HintSpilled,
		},
		"a hot tenant's second replica is taken when the first is saturated": {
			replicas: 3, tokens: 1000,
			arrange: func(t testing.TB, f *routing.Fleet) { load(t, f, "r0", 20, 4000) },
			hint: routing.Hint{Reason: routing.ReasonTenantHot,
				Scores: []routing.Score{{Replica: "r0"}, {Replica: "r1"}}},
			wantOneOf: []string{"r1"}, wantOrigin: routing.OriginIndexHint, wantBranch: routing.BranchTenantHot,
			wantOutcome: routing.HintFollowed,
		},
		"a novel prompt never goes to a saturated replica while one is free": {
			replicas: 2, tokens: 1000,
			arrange:   func(t testing.TB, f *routing.Fleet) { load(t, f, "r0", 20, 4000) },
			hint:      routing.Hint{Reason: "NO_HINT"},
			wantOneOf: []string{"r1"}, wantOrigin: routing.OriginPolicy, wantBranch: routing.BranchNoHint,
		},
		"an index that ran out of time is a timeout": {
			replicas: 2, tokens: 1000, hint: routing.Hint{Reason: routing.ReasonTimeout},
			wantOneOf: []string{"r0", "r1"}, wantOrigin: routing.OriginPolicy, wantBranch: routing.BranchTimeout,
		},
		"a code of the future is no hint, even with scores": {
			replicas: 2, tokens: 1000,
			hint:      routing.Hint{Reason: "PREFIX_RUMOUR", Scores: []routing.Score{{Replica: "r0", MatchedTokens: 900}}},
			wantOneOf: []string{"r0", "r1"}, wantOrigin: routing.OriginPolicy, wantBranch: routing.BranchNoHint,
			wantOutcome: routing.HintSpilled,
		},
		"a missing lookup keeps its cause": {
			replicas: 2, tokens: 1000, hint: routing.Hint{Without: routing.BranchShortRequest},
			wantOneOf: []string{"r0", "r1"}, wantOrigin: routing.OriginPolicy, wantBranch: routing.BranchShortRequest,
		},
		"one eligible replica needs no policy": {
			replicas: 1, tokens: 1000,
			wantOneOf: []string{"r0"}, wantOrigin: routing.OriginSingleCandidate,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			fleet := newFleet(t, tc.replicas, routing.Options{})
			if tc.arrange != nil {
				tc.arrange(t, fleet)
			}
			got, guard := fleet.Decide(&routing.Request{Now: start, Model: model, PromptTokens: tc.tokens, Hint: tc.hint})
			if guard == nil {
				t.Fatal("no guard")
			}
			found := false
			for _, id := range tc.wantOneOf {
				found = found || got.Replica == id
			}
			if !found {
				t.Errorf("replica %q, want one of %v", got.Replica, tc.wantOneOf)
			}
			if got.Origin != tc.wantOrigin || got.Prediction.Branch != tc.wantBranch {
				t.Errorf("origin %s branch %s, want %s %s", got.Origin, got.Prediction.Branch, tc.wantOrigin, tc.wantBranch)
			}
			if got.Hint != tc.wantOutcome {
				t.Errorf("hint outcome %q, want %q", got.Hint, tc.wantOutcome)
			}
		})
	}
}

func TestGates(t *testing.T) {
	tests := map[string]struct {
		arrange func(testing.TB, *routing.Fleet)
		request routing.Request
		want    routing.Gate
	}{
		"a ready replica is eligible": {request: routing.Request{Model: model}},
		"an adapter it has":           {request: routing.Request{Model: model, Adapter: "lora"}},
		"no model asked for":          {request: routing.Request{}},
		"not ready": {
			arrange: func(_ testing.TB, f *routing.Fleet) { f.SetReady("r0", false) },
			request: routing.Request{Model: model}, want: routing.GateNotReady,
		},
		"draining": {
			arrange: func(_ testing.TB, f *routing.Fleet) { f.SetDraining("r0", true) },
			request: routing.Request{Model: model}, want: routing.GateDraining,
		},
		"another model":   {request: routing.Request{Model: "other"}, want: routing.GateModel},
		"another adapter": {request: routing.Request{Model: model, Adapter: "other"}, want: routing.GateAdapter},
		"another role":    {request: routing.Request{Model: model, Role: routing.RoleDecode}, want: routing.GateRole},
		"excluded":        {request: routing.Request{Model: model, Exclude: []string{"r0"}}, want: routing.GateExcluded},
		"another target":  {request: routing.Request{Model: model, Target: "r1"}, want: routing.GateExcluded},
		"cordoned": {
			arrange: func(_ testing.TB, f *routing.Fleet) { f.Put(routing.Replica{ID: "r0", Cordoned: true}) },
			request: routing.Request{Model: model}, want: routing.GateCordoned,
		},
		"asleep": {
			arrange: func(_ testing.TB, f *routing.Fleet) { f.SetAsleep("r0", true) },
			request: routing.Request{Model: model}, want: routing.GateAsleep,
		},
		"awake again": {
			arrange: func(_ testing.TB, f *routing.Fleet) { f.SetAsleep("r0", true); f.SetAsleep("r0", false) },
			request: routing.Request{Model: model},
		},
		"reserved for another tenant": {
			arrange: func(_ testing.TB, f *routing.Fleet) { f.Put(routing.Replica{ID: "r0", Tenants: []string{"a", "b"}}) },
			request: routing.Request{Model: model, Tenant: "c"}, want: routing.GateTenant,
		},
		"reserved for the caller's tenant": {
			arrange: func(_ testing.TB, f *routing.Fleet) { f.Put(routing.Replica{ID: "r0", Tenants: []string{"a", "b"}}) },
			request: routing.Request{Model: model, Tenant: "b"},
		},
		"too many requests": {
			arrange: func(t testing.TB, f *routing.Fleet) {
				f.Put(routing.Replica{ID: "r0", MaxInflight: 1})
				load(t, f, "r0", 1, 10)
			},
			request: routing.Request{Model: model}, want: routing.GateInflightCap,
		},
		"failing": {
			arrange: func(_ testing.TB, f *routing.Fleet) {
				_, guard := f.Decide(&routing.Request{Now: start, Model: model})
				guard.End(start, routing.Failed)
			},
			request: routing.Request{Model: model}, want: routing.GateBreakerOpen,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			fleet := newFleet(t, 1, routing.Options{Breaker: breaker.Settings{Failures: 1}})
			if tc.arrange != nil {
				tc.arrange(t, fleet)
			}
			tc.request.Now = start
			eligible := len(fleet.Eligible(nil, &tc.request)) == 1
			decision, guard := fleet.Decide(&tc.request)
			if got := decision.Candidates[0].Gate; got != tc.want {
				t.Errorf("gate %q, want %q", got, tc.want)
			}
			if admitted := tc.want == routing.GateNone; admitted != eligible || admitted != (guard != nil) {
				t.Errorf("eligible %v, guard %v, want %v", eligible, guard != nil, admitted)
			}
			if guard == nil && decision.Origin != routing.OriginNoneEligible {
				t.Errorf("origin %s", decision.Origin)
			}
		})
	}
}

func TestPolicies(t *testing.T) {
	// r0 waits longest, r3 least.
	arrange := func(t testing.TB, name string) *routing.Fleet {
		fleet := newFleet(t, 4, routing.Options{Policy: policy(t, name)})
		for i := range 4 {
			load(t, fleet, fmt.Sprintf("r%d", i), 1, 1000*(4-i))
		}
		return fleet
	}
	counts := func(fleet *routing.Fleet, n int) map[string]int {
		chosen := map[string]int{}
		for range n {
			decision, guard := fleet.Decide(&routing.Request{Now: start, Model: model, PromptTokens: 10, Hint: routing.Hint{Reason: "NO_HINT"}})
			guard.End(start, routing.Succeeded)
			chosen[decision.Replica]++
		}
		return chosen
	}
	t.Run("round robin goes through all in turn", func(t *testing.T) {
		want := map[string]int{"r0": 25, "r1": 25, "r2": 25, "r3": 25}
		if diff := cmp.Diff(want, counts(arrange(t, routing.PolicyRoundRobin), 100)); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("least load takes the least wait", func(t *testing.T) {
		if diff := cmp.Diff(map[string]int{"r3": 100}, counts(arrange(t, routing.PolicyLeastLoad), 100)); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("power of two never takes the worst and prefers the best", func(t *testing.T) {
		got := counts(arrange(t, routing.PolicyPowerOfTwo), 1000)
		if got["r0"] != 0 || got["r3"] < got["r2"] || got["r2"] < got["r1"] || got["r1"] == 0 {
			t.Error(got)
		}
	})
	t.Run("random reaches all", func(t *testing.T) {
		if got := counts(arrange(t, routing.PolicyRandom), 1000); len(got) != 4 {
			t.Error(got)
		}
	})
	t.Run("unknown names are refused", func(t *testing.T) {
		if _, err := routing.NewPolicy("best", routing.PolicyOptions{}); err == nil {
			t.Error("no error")
		}
		if _, err := routing.NewPolicy("hint", routing.PolicyOptions{Fallback: "hint"}); err == nil {
			t.Error("no error for a fallback to itself")
		}
	})
	t.Run("requests by load ignore the policy", func(t *testing.T) {
		fleet := arrange(t, routing.PolicyRoundRobin)
		for range 10 {
			decision := fleet.Preview(&routing.Request{Now: start, LoadOnly: true})
			if decision.Replica != "r3" {
				t.Fatalf("chose %s", decision.Replica)
			}
		}
	})
}

// TestSpread checks that equal replicas get equal shares of novel prompts.
func TestSpread(t *testing.T) {
	const replicas, requests = 8, 10_000
	for _, name := range []string{routing.PolicyHint, routing.PolicyLeastLoad, routing.PolicyRandom, routing.PolicyPowerOfTwo} {
		t.Run(name, func(t *testing.T) {
			fleet := newFleet(t, replicas, routing.Options{Policy: policy(t, name)})
			chosen := map[string]int{}
			for range requests {
				decision, guard := fleet.Decide(&routing.Request{
					Now: start, Model: model, PromptTokens: 500, Hint: routing.Hint{Reason: "NO_HINT"}})
				chosen[decision.Replica]++
				guard.FirstByte(start.Add(time.Millisecond))
				guard.End(start.Add(time.Second), routing.Succeeded)
			}
			const expected = float64(requests) / replicas
			statistic := 0.0
			for i := range replicas {
				difference := float64(chosen[fmt.Sprintf("r%d", i)]) - expected
				statistic += difference * difference / expected
			}
			const critical = 24.32 // chi-square, 7 degrees of freedom, p = 0.001
			if statistic > critical {
				t.Errorf("chi-square %.1f > %.1f: %v", statistic, critical, chosen)
			}
		})
	}
}

// TestBurst checks that requests of one burst see each other's load.
func TestBurst(t *testing.T) {
	fleet := newFleet(t, 4, routing.Options{})
	chosen := map[string]int{}
	for range 40 {
		decision, _ := fleet.Decide(&routing.Request{Now: start, Model: model, PromptTokens: 1000, Hint: routing.Hint{Reason: "NO_HINT"}})
		chosen[decision.Replica]++
	}
	if diff := cmp.Diff(map[string]int{"r0": 10, "r1": 10, "r2": 10, "r3": 10}, chosen); diff != "" {
		t.Error(diff)
	}
}

// TestSharedPrefix checks that a prefix held by one replica does not pull all
// load there once that replica is saturated.
func TestSharedPrefix(t *testing.T) {
	fleet := newFleet(t, 8, routing.Options{})
	holders := []routing.Score{{Replica: "r0", MatchedTokens: 2000}}
	chosen := map[string]int{}
	for range 400 {
		decision, _ := fleet.Decide(&routing.Request{Now: start, Model: model, PromptTokens: 3000, Hint: match(holders...)})
		if chosen[decision.Replica] == 0 && decision.Replica != "r0" {
			holders = append(holders, routing.Score{Replica: decision.Replica, MatchedTokens: 2000})
		}
		chosen[decision.Replica]++
	}
	for id, n := range chosen {
		if n > 100 {
			t.Errorf("%s got %d of 400 requests, more than twice its share", id, n)
		}
	}
}

// TestCountersReturnToZero drives a fleet through any mix of outcomes.
func TestGW03CountersReturnToZero(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fleet := routing.NewFleet(routing.Options{Rand: rand.New(rand.NewPCG(1, 1)), Breaker: breaker.Settings{Failures: 1 << 30}})
		for _, id := range []string{"a", "b"} {
			fleet.Put(routing.Replica{ID: id})
			fleet.SetReady(id, true)
		}
		now := start
		var open []*routing.Guard
		end := func(i int, outcome routing.Outcome) {
			open[i].End(now, outcome)
			open[i].End(now, outcome)
			open = append(open[:i], open[i+1:]...)
		}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "millis")) * time.Millisecond)
			switch step := rapid.IntRange(0, 4).Draw(t, "step"); {
			case step == 0:
				fleet.SetReport("a", routing.Report{WaitingTokens: int64(rapid.IntRange(0, 5000).Draw(t, "waiting"))}, now)
			case step <= 2 || len(open) == 0:
				_, guard := fleet.Decide(&routing.Request{
					Now: now, Streamed: rapid.Bool().Draw(t, "streamed"), PromptTokens: rapid.IntRange(0, 5000).Draw(t, "tokens"),
					Hint: match(routing.Score{Replica: "a", MatchedTokens: rapid.IntRange(0, 6000).Draw(t, "matched")})})
				open = append(open, guard)
			case step == 3:
				open[rapid.IntRange(0, len(open)-1).Draw(t, "which")].FirstByte(now)
			default:
				end(rapid.IntRange(0, len(open)-1).Draw(t, "which"), routing.Outcome(rapid.IntRange(0, 2).Draw(t, "outcome")))
			}
		}
		for len(open) > 0 {
			end(0, routing.Succeeded)
		}
		for _, state := range fleet.States(now.Add(time.Hour)) {
			if state.View.Inflight != 0 || state.View.QueueTokens != 0 {
				t.Fatalf("load left on %s: %+v", state.ID, state.View)
			}
			if state.View.RateTokens <= 0 {
				t.Fatalf("rate of %s is %v", state.ID, state.View.RateTokens)
			}
		}
	})
}

func TestReplacedReplica(t *testing.T) {
	fleet := newFleet(t, 1, routing.Options{Breaker: breaker.Settings{Failures: 1}})
	_, old := fleet.Decide(&routing.Request{Now: start, Model: model, PromptTokens: 100})
	fleet.SetReport("r0", routing.Report{Usage: 1}, start)

	fleet.Put(routing.Replica{ID: "r0", UID: "second"})
	old.End(start, routing.Failed)

	state := fleet.States(start)[0]
	want := routing.State{ID: "r0", View: routing.View{RateTokens: 8000, HintRank: -1}}
	if diff := cmp.Diff(want, state); diff != "" {
		t.Errorf("state of the new replica (-want +got):\n%s", diff)
	}
}

func TestPrefillRate(t *testing.T) {
	run := func(tokens int, streamed, busy bool) float64 {
		fleet := newFleet(t, 1, routing.Options{})
		if busy {
			load(t, fleet, "r0", 1, 10)
		}
		_, guard := fleet.Decide(&routing.Request{Now: start, Model: model, PromptTokens: tokens, Streamed: streamed})
		guard.FirstByte(start.Add(time.Second))
		guard.End(start.Add(time.Second), routing.Succeeded)
		return fleet.States(start)[0].View.RateTokens
	}
	if got := run(4000, true, false); got != 7600 {
		t.Errorf("rate after one sample of 4,000 tokens/s: %v, want 7600", got)
	}
	for name, got := range map[string]float64{
		"short prompts":            run(500, true, false),
		"busy replicas":            run(4000, true, true),
		"answers without a stream": run(4000, false, false),
	} {
		if got != 8000 {
			t.Errorf("%s moved the rate to %v", name, got)
		}
	}
}

// TestLongAnswers checks that requests without a stream stop counting as
// prefill when that should be over, long before their answer comes.
func TestLongAnswers(t *testing.T) {
	queue := func(streamed bool, after time.Duration) int64 {
		fleet := newFleet(t, 1, routing.Options{})
		for range 2 {
			fleet.Decide(&routing.Request{Now: start, Model: model, PromptTokens: 4000, Streamed: streamed})
		}
		return fleet.States(start.Add(after))[0].View.QueueTokens
	}
	for _, tc := range []struct {
		streamed bool
		after    time.Duration
		want     int64
	}{
		{false, 0, 8000}, {false, 600 * time.Millisecond, 4000}, {false, time.Second, 0},
		{true, time.Second, 8000},
	} {
		if got := queue(tc.streamed, tc.after); got != tc.want {
			t.Errorf("streamed %v, after %v: %d tokens wait, want %d", tc.streamed, tc.after, got, tc.want)
		}
	}
}

func TestRecord(t *testing.T) {
	fleet := newFleet(t, 100, routing.Options{RecordLimit: 4})
	fleet.SetReady("r7", false)
	decision, _ := fleet.Decide(&routing.Request{Now: start, Model: model, PromptTokens: 1000, Hint: match(
		routing.Score{Replica: "r7", MatchedTokens: 900},
		routing.Score{Replica: "r42", MatchedTokens: 300},
		routing.Score{Replica: "gone", MatchedTokens: 200},
		routing.Score{Replica: "r50", MatchedTokens: 100})})
	var ids []string
	for _, c := range decision.Candidates {
		ids = append(ids, c.ID)
	}
	if diff := cmp.Diff([]string{"r42", "r7", "r50", "r0"}, ids); diff != "" {
		t.Errorf("recorded candidates (-want +got):\n%s", diff)
	}
	wantPrediction := routing.Prediction{
		Source: routing.SourceIndexLookup, Branch: routing.BranchHit, ReasonCode: "PREFIX_MATCH",
		OverlapTokens: 300, BestOverlapTokens: 900, PromptTokens: 1000, BlockSize: 16,
	}
	if diff := cmp.Diff(wantPrediction, decision.Prediction); diff != "" {
		t.Errorf("prediction (-want +got):\n%s", diff)
	}
	if decision.CandidatesTotal != 100 || decision.Unplaceable != "gone" || decision.UnplaceableCount != 1 {
		t.Errorf("total %d, unplaceable %q %d", decision.CandidatesTotal, decision.Unplaceable, decision.UnplaceableCount)
	}
}

func BenchmarkDecide(b *testing.B) {
	for _, replicas := range []int{4, 64, 2000} {
		b.Run(fmt.Sprint(replicas), func(b *testing.B) {
			fleet := newFleet(b, replicas, routing.Options{})
			hint := match(routing.Score{Replica: "r1", MatchedTokens: 900}, routing.Score{Replica: "r3", MatchedTokens: 500})
			b.ReportAllocs()
			for b.Loop() {
				_, guard := fleet.Decide(&routing.Request{Now: start, Model: model, PromptTokens: 1000, Hint: hint})
				guard.End(start, routing.Succeeded)
			}
		})
	}
}
