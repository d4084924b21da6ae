// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/trace"
)

// TestEachBoundSetsItsOwnBit checks every list just below, at and above its
// bound.
func TestEachBoundSetsItsOwnBit(t *testing.T) {
	tests := map[string]struct {
		bound int
		fill  func(q *trace.Request, n int)
		want  trace.Truncated
	}{
		"selections": {16, func(q *trace.Request, n int) {
			a := q.Attempt(0)
			for range n {
				choose(a, trace.RoleSingle, 1)
			}
			send(a, "e")
		}, trace.Truncated{Selections: true}},
		"candidates": {32, func(q *trace.Request, n int) {
			a := q.Attempt(0)
			choose(a, trace.RoleSingle, n)
			send(a, "e")
		}, trace.Truncated{Candidates: true}},
		"gates": {32, func(q *trace.Request, n int) {
			a := q.Attempt(0)
			s := a.BeginSelection(trace.RoleSingle, "hint", nil)
			for range n {
				s.Gate(trace.Gate{Kind: trace.GateOverload, Replica: "x"})
			}
			s.End("", "none_eligible", &trace.Details{})
			send(a, "e")
		}, trace.Truncated{Gates: true}},
		"scores": {64, func(q *trace.Request, n int) {
			a := q.Attempt(0)
			s := a.BeginSelection(trace.RoleSingle, "hint", nil)
			for range n {
				s.Score(trace.Score{Source: "index_lookup", Replica: "x"})
			}
			s.End("", "none_eligible", &trace.Details{})
			send(a, "e")
		}, trace.Truncated{Scores: true}},
		"ids": {32, func(q *trace.Request, n int) { send(q.Attempt(0), numbered("e", n)...) }, trace.Truncated{IDs: true}},
	}
	for name, tc := range tests {
		for n := tc.bound - 1; n <= tc.bound+1; n++ {
			t.Run(fmt.Sprintf("%d %s", n, name), func(t *testing.T) {
				f := newFixture(t, trace.Switches{Log: true, MaxLineBytes: 1 << 20})
				tc.fill(f.begin("root"), n)
				want := trace.Truncated{}
				counted := 0.0
				if n > tc.bound {
					want, counted = tc.want, 1
				}
				if diff := cmp.Diff(want, f.written()[0].Truncated); diff != "" {
					t.Errorf("truncated (-want +got):\n%s", diff)
				}
				if got := f.value("truncated_total", "list", name); got != counted {
					t.Errorf("%v counted, want %v", got, counted)
				}
			})
		}
	}
}

func TestLargeFleetKeepsChosenAndBest(t *testing.T) {
	f := newFixture(t, trace.Switches{Log: true})
	a := f.begin("root").Attempt(0)
	list := candidates(500)
	list[0].OverlapBlocks = trace.Known(0)
	list[433].OverlapBlocks = trace.Known(9)
	list[200].OverlapBlocks = trace.Known(3)
	s := a.BeginSelection(trace.RoleSingle, "hint", list)
	s.Predict(prediction(0, 9))
	s.End("pod-499", "load_spill", &trace.Details{})
	send(a, "e")
	c := f.written()[0].Dispatch.Selections[0]
	var first []trace.Text
	for _, candidate := range c.Candidates[:4] {
		first = append(first, candidate.Replica)
	}
	if diff := cmp.Diff([]trace.Text{"pod-499", "pod-433", "pod-200", "pod-0"}, first); diff != "" {
		t.Errorf("first candidates (-want +got):\n%s", diff)
	}
	if c.CandidatesTotal != 500 || c.CandidatesComplete || len(c.Candidates) != 32 {
		t.Errorf("%d of %d, complete %v", len(c.Candidates), c.CandidatesTotal, c.CandidatesComplete)
	}
}

func TestSpillGateSurvivesManyVetoes(t *testing.T) {
	f := newFixture(t, trace.Switches{Log: true})
	a := f.begin("root").Attempt(0)
	s := a.BeginSelection(trace.RoleSingle, "hint", candidates(3))
	for i := range 40 {
		s.Gate(trace.Gate{Kind: trace.GateEligibility, Replica: trace.Text(fmt.Sprintf("other-%d", i))})
	}
	s.Gate(trace.Gate{Kind: trace.GateQueuePressure, Replica: "pod-0", Observed: trace.Number(2), Threshold: trace.Number(1)})
	s.Gate(trace.Gate{Kind: trace.GateQueuePressure, Replica: "pod-2", Observed: trace.Number(0), Threshold: trace.Number(1), Pass: true})
	s.Predict(prediction(0, 4))
	s.End("pod-2", "load_spill", &trace.Details{})
	send(a, "e")
	gates := f.written()[0].Dispatch.Selections[0].Gates
	if len(gates) != 32 || gates[0].Replica != "pod-2" || gates[1].Replica != "pod-0" {
		t.Errorf("%d gates, the first of %s and %s; want those of the chosen and the best", len(gates), gates[0].Replica, gates[1].Replica)
	}
}

func TestIDsAreCut(t *testing.T) {
	for length, want := range map[int]bool{127: false, 128: false, 129: true, 4096: true} {
		f := newFixture(t, trace.Switches{Log: true})
		q := f.begin(strings.Repeat("r", length))
		q.Describe("m", strings.Repeat("c", length))
		send(q.Attempt(0), strings.Repeat("e", length*2))
		r := f.written()[0]
		if r.RootIDTruncated != want || len(r.RootID) != min(length, 128) || len(r.CallerID) != min(length, 128) ||
			len(r.Dispatch.EngineIDs[0].ID) != min(2*length, 192) {
			t.Errorf("%d bytes: truncated %v, lengths %d, %d and %d", length, r.RootIDTruncated, len(r.RootID), len(r.CallerID), len(r.Dispatch.EngineIDs[0].ID))
		}
	}
	for text, want := range map[string]string{"üüü": "üü", "aaüü": "aaü", "🙂🙂": "🙂", "short": "short"} {
		if got := trace.Cut(text, 5); got != want || !utf8.ValidString(got) {
			t.Errorf("%q cut to %q, want %q", text, got, want)
		}
	}
}

func TestBatchOfFortyPrompts(t *testing.T) {
	f := newFixture(t, trace.Switches{Log: true})
	a := f.begin("root").Attempt(0)
	a.Dispatch(&trace.Sent{DispatchID: "d", IDs: trace.EngineID{ID: "root-x", Role: trace.RoleSingle}.Children(40)})
	d := f.written()[0].Dispatch
	if len(d.EngineIDs) != 32 || d.EngineIDsTotal.Value != 40 || d.EngineIDsComplete {
		t.Errorf("%d ids of %d, complete %v, want 32 of 40 and incomplete", len(d.EngineIDs), d.EngineIDsTotal.Value, d.EngineIDsComplete)
	}
}

func TestLongLinesKeepWhatDecided(t *testing.T) {
	f := newFixture(t, trace.Switches{Log: true, MaxLineBytes: 4096})
	q := f.begin("root")
	a := q.Attempt(0)
	for i := range 12 {
		s := a.BeginSelection(trace.RoleSingle, fmt.Sprintf("policy-%d", i), candidates(32))
		for range 60 {
			s.Score(trace.Score{Source: "index_lookup", Replica: "pod-1", Value: trace.Known(0.5)})
		}
		s.Gate(trace.Gate{Kind: trace.GateOverload, Replica: "pod-1"})
		s.Predict(prediction(4, 4))
		s.End("pod-0", "index_hint", &trace.Details{})
	}
	send(a, "e")
	r := f.written()[0]
	if len(f.sink.lines[0]) > 4096 || !r.Truncated.Line {
		t.Fatalf("%d bytes, marked %v", len(f.sink.lines[0]), r.Truncated.Line)
	}
	choices := r.Dispatch.Selections
	if len(choices) < 2 || len(choices) >= 12 || choices[0].Policy != "policy-0" || choices[len(choices)-1].Policy != "policy-11" {
		t.Errorf("%d selections kept; want some, with the first and the last", len(choices))
	}
	if diff := cmp.Diff(map[string]int{"scores": 60, "candidates": 32, "gates": 1}, choices[0].Elided); diff != "" {
		t.Errorf("elided (-want +got):\n%s", diff)
	}
	if c := choices[0]; c.Replica != "pod-0" || c.Origin != "index_hint" || c.Prediction == nil || c.Prediction.ReasonCode != "PREFIX_MATCH" {
		t.Errorf("decision fields are gone: %+v", c)
	}
	if got := f.value("truncated_total", "list", "line"); got != 1 {
		t.Errorf("%v lines counted, want 1", got)
	}
}

func TestHeaderWithManyIDsIsShortened(t *testing.T) {
	f := newFixture(t, trace.Switches{Header: trace.HeaderAny})
	q := f.begin("root")
	send(q.Attempt(0), numbered(strings.Repeat("e", 100), 30)...)
	_, value, ok := q.Header(nil)
	if !ok || strings.Count(value, "eee-") != 4 || !strings.Contains(value, `"engine_ids_complete":false`) {
		t.Errorf("given %v: %s", ok, value)
	}
}
