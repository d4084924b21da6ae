// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/trace"
)

// whole records a request with all that a recorder offers.
func whole(r *trace.Recorder) {
	q := r.Begin(trace.Info{Endpoint: "completions", Mode: trace.ModeRegular, RootID: "root"})
	q.Describe("m", "")
	_ = q.AskHeader("tenant")
	a := q.Attempt(0)
	s := a.BeginSelection(trace.RoleSingle, "hint", nil)
	s.Gate(trace.Gate{})
	s.Score(trace.Score{})
	s.Predict(nil)
	s.End("", "none_eligible", &trace.Details{})
	a.Dispatch(&trace.Sent{})
	a.Inject(nil)
	a.Fail(&trace.Failed{})
	a.Outcome(&trace.Outcome{})
	_, _, _ = q.Header(nil)
	q.End()
	r.CountStripped(trace.SideInbound, 1)
}

func TestOffCostsNothing(t *testing.T) {
	var off *trace.Recorder
	if got := testing.AllocsPerRun(100, func() { whole(off) }); got != 0 {
		t.Errorf("%v allocations without a recorder, want 0", got)
	}
	if off.Requests(10, "") != nil || off.Epoch() != "" || off.Set(trace.Switches{Log: true}) != nil || off.Switches().Log {
		t.Error("a recorder that is none does something")
	}
	off.Run(t.Context())
}

// TestMemoryAlwaysHoldsTheLatest checks that nothing has to be switched on for
// the records in memory.
func TestMemoryAlwaysHoldsTheLatest(t *testing.T) {
	f := newFixture(t, trace.Switches{})
	for i := range 800 { // two records each
		q := f.begin(fmt.Sprintf("root-%d", i%700))
		a := q.Attempt(0)
		choose(a, trace.RoleSingle, 1)
		send(a, "e")
		a.Outcome(&trace.Outcome{Status: 200})
		q.End()
	}
	if got := len(f.written()); got != 0 {
		t.Errorf("%d lines with the log off", got)
	}
	if got := len(f.Requests(10_000, "")); got != 512 {
		t.Errorf("%d requests in memory, want 512 of two records", got)
	}
	latest := f.Requests(2, "")
	if len(latest) != 2 || latest[1][0].RootID != "root-99" || latest[0][0].RootID != "root-98" || len(latest[1]) != 2 ||
		latest[1][0].Kind != trace.KindDispatch || latest[1][1].Kind != trace.KindOutcome {
		t.Errorf("latest requests %v", latest)
	}
	if got := f.Requests(10, "root-50"); len(got) != 1 {
		t.Errorf("%d requests under a root id whose first use is long ago, want 1", len(got))
	}
	if got := f.Requests(10, "nobody"); len(got) != 0 {
		t.Errorf("%d requests of nobody", len(got))
	}
}

func TestRetryLeavesThreeRecords(t *testing.T) {
	f := newFixture(t, trace.Switches{Log: true})
	q := f.begin("root")
	first, second := q.Attempt(0), q.Attempt(1)
	choose(first, trace.RoleSingle, 2)
	send(first, "e-0")
	first.Fail(&trace.Failed{Phase: trace.PhaseDispatch, Status: 503, ErrorCode: "status_5xx", Retryable: true, WillRetry: true, Backoff: 50 * time.Millisecond})
	choose(second, trace.RoleSingle, 2)
	send(second, "e-1")
	second.Outcome(&trace.Outcome{Status: 200}) // off by default
	q.End()
	type row struct {
		kind    trace.Kind
		attempt int
	}
	var got []row
	ids := map[trace.Text]bool{}
	for _, r := range f.written() {
		got = append(got, row{r.Kind, r.Attempt.Value})
		ids[r.DispatchID] = true
		if r.RootID != "root" {
			t.Errorf("root id %q", r.RootID)
		}
	}
	want := []row{{trace.KindDispatch, 0}, {trace.KindFailure, 0}, {trace.KindDispatch, 1}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(row{})); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if len(ids) != 2 {
		t.Errorf("%d dispatch ids, want 2", len(ids))
	}
	contains(t, f.sink.lines[1], `"status":503`, `"retryable":true,"will_retry":true,"next_backoff_ms":50`)
	f.noProblems()
}

func TestStickyAndRespill(t *testing.T) {
	f := newFixture(t, trace.Switches{Log: true})
	a := f.begin("root").Attempt(0)
	a.BeginSelection(trace.RoleSingle, "sticky", candidates(2)).End("pod-1", "sticky_hit", &trace.Details{})
	s := a.BeginSelection(trace.RoleSingle, "sticky", candidates(2))
	s.Predict(prediction(4, 4))
	s.End("pod-0", "sticky_respill", &trace.Details{DelegatedTo: "hint"})
	send(a, "e")
	choices := f.written()[0].Dispatch.Selections
	if choices[0].Prediction != nil || choices[0].DelegatedTo != "" {
		t.Errorf("sticky hit: %+v", choices[0])
	}
	if choices[1].Prediction == nil || choices[1].DelegatedTo != "hint" {
		t.Errorf("respill: %+v", choices[1])
	}
	f.noProblems()
}

func TestOutcomes(t *testing.T) {
	f := newFixture(t, trace.Switches{Log: true, Outcome: true})
	for _, o := range []trace.Outcome{
		{Status: 200, Replica: "pod", PromptTokens: trace.Known(64), EngineCachedTokens: trace.Known(48), TTFBMS: trace.Known(1.5), DurationMS: 9},
		{Status: 200, Replica: "pod"},
		{Status: 200, Replica: "pod", Aborted: true},
	} {
		q := f.begin("root")
		a := q.Attempt(0)
		send(a, "e")
		a.Outcome(&o)
		q.End()
	}
	f.written()
	contains(t, f.sink.lines[1], `"ttfb_ms":1.5,"duration_ms":9,"replica":"pod","aborted":false,"prompt_tokens":64,"engine_cached_tokens":48,"engine_evidence":"usage_field"`)
	contains(t, f.sink.lines[3], `"ttfb_ms":null`, `"prompt_tokens":null,"engine_cached_tokens":null,"engine_evidence":"none"`)
	contains(t, f.sink.lines[5], `"aborted":true`, `"engine_evidence":"none"`)
	for _, r := range ofKind(f.sink.records, trace.KindDispatch) {
		if r.Dispatch.CacheEvidence != "unknown" {
			t.Errorf("a dispatch claims evidence %q", r.Dispatch.CacheEvidence)
		}
	}
}

func TestCallerAndRootIDStayApart(t *testing.T) {
	f := newFixture(t, trace.Switches{Log: true})
	q := f.begin("root-id")
	q.Describe("m", "caller-id")
	send(q.Attempt(0), "e")
	send(f.begin("other").Attempt(0), "e")
	records := f.written()
	if records[0].RootID != "root-id" || records[0].CallerID != "caller-id" {
		t.Errorf("root %q, caller %q", records[0].RootID, records[0].CallerID)
	}
	contains(t, f.sink.lines[1], `"caller_id":null`)
}

// TestRecordsSurviveJSON checks that a reader gets what was written.
func TestRecordsSurviveJSON(t *testing.T) {
	f := newFixture(t, trace.Switches{Log: true, Outcome: true, Header: trace.HeaderAny, MaxHeaderBytes: 10})
	q := f.begin("root")
	a := q.Attempt(0)
	choose(a, trace.RoleSingle, 3)
	send(a, "e")
	a.Fail(&trace.Failed{Phase: trace.PhaseStream, ErrorCode: "x"})
	a.Outcome(&trace.Outcome{Status: 200})
	_, _, _ = q.Header(nil)
	records := f.written()
	made := f.Requests(1, "")[0]
	if len(made) != 4 || len(records) != 4 {
		t.Fatalf("%d made, %d read, want 4", len(made), len(records))
	}
	for i := range made {
		want := *made[i]
		if diff := cmp.Diff(want, records[i], cmp.AllowUnexported(trace.Record{}), cmp.FilterPath(
			func(p cmp.Path) bool { return p.String() == "request" }, cmp.Ignore())); diff != "" {
			t.Errorf("record %d (-made +read):\n%s", i, diff)
		}
	}
}

// TestConcurrentFanOut runs the legs of one request at once.
func TestConcurrentFanOut(t *testing.T) {
	f := newFixture(t, trace.Switches{Log: true, Outcome: true, Header: trace.HeaderAny})
	q := f.begin("root")
	var legs sync.WaitGroup
	for i := range 8 {
		legs.Go(func() {
			a := q.Attempt(i)
			for range 3 {
				choose(a, trace.RoleSingle, 4)
			}
			send(a, fmt.Sprintf("e-%d", i))
			if i%2 == 0 {
				a.Fail(&trace.Failed{Phase: trace.PhaseStream})
			}
			a.Outcome(&trace.Outcome{Status: 200})
			_, _, _ = q.Header(nil)
		})
	}
	legs.Go(func() {
		for range 50 {
			_ = f.Requests(10, "root")
			_ = f.Set(trace.Switches{Log: true, Outcome: true, Header: trace.HeaderAny})
		}
	})
	legs.Wait()
	q.End()
	for _, r := range ofKind(f.written(), trace.KindDispatch) {
		if len(r.Dispatch.Selections) != 3 || r.Dispatch.EngineIDs[0].ID != fmt.Sprintf("e-%d", r.Attempt.Value) {
			t.Errorf("attempt %d has evidence of others: %+v", r.Attempt.Value, r.Dispatch.EngineIDs)
		}
	}
	if got := len(f.sink.records); got != 20 {
		t.Errorf("%d records, want 8 dispatches, 4 failures, 8 outcomes", got)
	}
}

func TestNewID(t *testing.T) {
	id := trace.NewID(time.UnixMilli(0x0123456789ab))
	if !strings.HasPrefix(id, "01234567-89ab-7") || len(id) != 36 || !strings.ContainsAny(id[19:20], "89ab") {
		t.Errorf("%s is no version 7 UUID of that time", id)
	}
}
