// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/breaker"
	"github.com/inferencecache/inference-cache/internal/routing"
)

// chain returns the keys of a prompt of 16-token blocks.
func chain(prompt uint64, blocks int) routing.Chain {
	keys := make([]uint64, blocks)
	for i := range keys {
		keys[i] = prompt<<32 + uint64(i) + 1
	}
	return routing.Chain{Keys: keys, KeyTokens: 16}
}

func novel(at time.Time, prompt uint64) *routing.Request {
	return &routing.Request{
		Now: at, Model: model, PromptTokens: 1000, Chain: chain(prompt, 62), Streamed: true,
		Hint: routing.Hint{Reason: routing.ReasonAffinityHint, BlockSize: 16},
	}
}

// Siblings of a burst arrive before the first event of the index.
func TestSiblingsOfABurstMeet(t *testing.T) {
	fleet := newFleet(t, 8, routing.Options{})
	first, _ := fleet.Decide(novel(start, 1))
	for i := range 10 { // beyond that, so many requests saturate the replica
		decision, _ := fleet.Decide(novel(start.Add(time.Duration(i)*3*time.Millisecond), 1))
		if decision.Replica != first.Replica {
			t.Errorf("sibling %d went to %s, the first one to %s", i, decision.Replica, first.Replica)
		}
		if decision.Prediction.Source != routing.SourceSpeculative || decision.Origin != routing.OriginPolicy ||
			decision.Prediction.Branch != routing.BranchHit || decision.Prediction.BestOverlapTokens != 0 {
			t.Errorf("sibling %d was decided by %s, %+v", i, decision.Origin, decision.Prediction)
		}
	}
	other, _ := fleet.Decide(novel(start.Add(50*time.Millisecond), 2))
	if other.Replica == first.Replica {
		t.Error("another prompt went to the busiest replica")
	}
	late := fleet.Preview(novel(start.Add(2100*time.Millisecond), 1))
	if late.Prediction.Source == routing.SourceSpeculative {
		t.Error("a speculative placement still counts after 2 s")
	}
}

func TestASaturatedReplicaKeepsNoSiblings(t *testing.T) {
	fleet := newFleet(t, 2, routing.Options{})
	first, _ := fleet.Decide(novel(start, 1))
	fleet.SetReport(first.Replica, routing.Report{Usage: 0.97}, start)
	if next, _ := fleet.Decide(novel(start, 1)); next.Replica == first.Replica {
		t.Error("the sibling followed to a replica with a full cache")
	}
}

// TestGW19FailedDispatchesLeaveNothing checks what is remembered of attempts
// without an answer.
func TestGW19FailedDispatchesLeaveNothing(t *testing.T) {
	cases := map[string]struct {
		firstByte bool
		outcome   routing.Outcome
		want      routing.Source
	}{
		"a failure before the first byte":        {false, routing.Failed, routing.SourceNone},
		"a client that left before it":           {false, routing.Ignored, routing.SourceNone},
		"a client that left while it was served": {true, routing.Ignored, routing.SourceSpeculative},
		"a stream that broke":                    {true, routing.Failed, routing.SourceSpeculative},
		"success":                                {false, routing.Succeeded, routing.SourceSpeculative},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			fleet := newFleet(t, 2, routing.Options{})
			_, guard := fleet.Decide(novel(start, 1))
			if tc.firstByte {
				guard.FirstByte(start)
			}
			guard.End(start, tc.outcome)
			if got := fleet.Preview(novel(start, 1)).Prediction.Source; got != tc.want {
				t.Errorf("source %q, want %q", got, tc.want)
			}
		})
	}
}

// TestGW21AReplacedReplicaInheritsNothing checks what is remembered of a
// replica whose cache is gone.
func TestGW21AReplacedReplicaInheritsNothing(t *testing.T) {
	cases := map[string]func(*routing.Fleet, *routing.Guard){
		"a new pod under the same name": func(f *routing.Fleet, _ *routing.Guard) {
			f.Put(routing.Replica{ID: "r0", UID: "second"})
			f.SetServes("r0", routing.Serves{model: nil})
			f.SetReady("r0", true)
		},
		"a replica that was down": func(f *routing.Fleet, _ *routing.Guard) {
			f.SetReady("r0", false)
			f.SetReady("r0", true)
		},
		"a breaker that opened": func(f *routing.Fleet, g *routing.Guard) {
			g.FirstByte(start)
			g.End(start, routing.Failed)
		},
	}
	for name, replace := range cases {
		t.Run(name, func(t *testing.T) {
			fleet := newFleet(t, 2, routing.Options{Breaker: breaker.Settings{Failures: 1, OpenFor: time.Millisecond}})
			request := novel(start, 1)
			request.Target = "r0"
			_, guard := fleet.Decide(request)
			if fleet.Preview(novel(start, 1)).Prediction.Source != routing.SourceSpeculative {
				t.Fatal("nothing was remembered")
			}
			replace(fleet, guard)
			if got := fleet.Preview(novel(start.Add(time.Second), 1)).Prediction.Source; got != routing.SourceNone {
				t.Errorf("source %q of what the old replica was given", got)
			}
		})
	}
}
