// SPDX-License-Identifier: Apache-2.0

package report_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/trace"
	"github.com/inferencecache/inference-cache/internal/trace/report"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files")

// request records one request and returns its records.
func request(t *testing.T, course func(*trace.Request)) []*trace.Record {
	t.Helper()
	now := time.Unix(1_700_000_000, 0)
	r, err := trace.New(trace.Options{Now: func() time.Time { return now }, Problem: func(p string) { t.Error(p) }})
	if err != nil {
		t.Fatal(err)
	}
	q := r.Begin(trace.Info{Endpoint: "completions", Mode: trace.ModeRegular, RootID: "cmpl-1", RootIDSource: trace.RootGenerated})
	q.Describe("base/model", "")
	course(q)
	q.End()
	requests := r.Requests(1, "")
	if len(requests) == 0 {
		return nil
	}
	return requests[0]
}

// sent records an attempt with a prediction and, if cached is not negative,
// what the engine found.
func sent(q *trace.Request, number int, origin string, p *trace.Prediction, cached int, gates ...trace.Gate) {
	a := q.Attempt(number)
	s := a.BeginSelection(trace.RoleSingle, "hint", []trace.Candidate{
		{Replica: "pod-b", Load: 1, QueueTokens: trace.Known[int64](0), KVUsage: trace.Known(0.12), Circuit: trace.CircuitClosed},
		{Replica: "pod-a", Load: 12, QueueTokens: trace.Known[int64](19200), Circuit: trace.CircuitClosed, OverlapBlocks: trace.Known(48)},
	})
	for _, g := range gates {
		s.Gate(g)
	}
	s.Predict(p)
	s.End("pod-b", origin, &trace.Details{})
	a.Dispatch(&trace.Sent{DispatchID: "dispatch-1", IDs: []trace.EngineID{{ID: "e"}}})
	if cached != silent {
		o := &trace.Outcome{Status: 200, Replica: "pod-b", DurationMS: 12.34, TTFBMS: trace.Known(3.2)}
		if cached >= 0 {
			o.PromptTokens, o.EngineCachedTokens = trace.Known(1024), trace.Known(cached)
		}
		a.Outcome(o)
	}
}

// Instead of cached tokens: no outcome, or one without usage.
const (
	silent  = -2
	noUsage = -1
)

func predicted(branch string, chosen, best int) *trace.Prediction {
	return &trace.Prediction{
		Source: "index_lookup", Branch: branch, ReasonCode: "PREFIX_MATCH", LookupLatencyUS: trace.Known[int64](180),
		OverlapBlocks: trace.Known(chosen), BestOverlapBlocks: trace.Known(best), RequestBlocks: trace.Known(64), BlockSize: trace.Known(16),
	}
}

func TestCauses(t *testing.T) {
	unknown := &trace.Prediction{Source: "none", Branch: "timeout"}
	tests := map[string]struct {
		course func(*trace.Request)
		want   report.Cause
	}{
		"found as predicted":         {func(q *trace.Request) { sent(q, 0, "index_hint", predicted("hit", 48, 48), 768) }, report.CauseReuse},
		"found all but one block":    {func(q *trace.Request) { sent(q, 0, "index_hint", predicted("hit", 48, 48), 752) }, report.CauseReuse},
		"found less":                 {func(q *trace.Request) { sent(q, 0, "index_hint", predicted("hit", 48, 48), 0) }, report.CauseIndexError},
		"a hit a little less deep":   {func(q *trace.Request) { sent(q, 0, "index_hint", predicted("hit", 47, 48), 752) }, report.CauseReuse},
		"not told":                   {func(q *trace.Request) { sent(q, 0, "index_hint", predicted("hit", 48, 48), noUsage) }, report.CausePredicted},
		"under way":                  {func(q *trace.Request) { sent(q, 0, "index_hint", predicted("hit", 48, 48), silent) }, report.CausePredicted},
		"spilled":                    {func(q *trace.Request) { sent(q, 0, "load_spill", predicted("spill", 0, 48), 0) }, report.CauseSpill},
		"passed over by round robin": {func(q *trace.Request) { sent(q, 0, "policy", predicted("none", 0, 48), 0) }, report.CauseSpill},
		"nobody held it":             {func(q *trace.Request) { sent(q, 0, "policy", predicted("miss", 0, 0), 0) }, report.CauseNoReuse},
		"nobody, but the engine did": {func(q *trace.Request) { sent(q, 0, "policy", predicted("miss", 0, 0), 512) }, report.CauseIndexError},
		"nothing known":              {func(q *trace.Request) { sent(q, 0, "policy", unknown, 0) }, report.CauseUnknown},
		"by load":                    {func(q *trace.Request) { sent(q, 0, "policy", &trace.Prediction{Source: "none", Branch: "none"}, 0) }, report.CauseNotAsked},
		"nobody asked":               {func(q *trace.Request) { sent(q, 0, "single_candidate", nil, 0) }, report.CauseNotAsked},
		"refused":                    {func(q *trace.Request) { q.Attempt(0).Fail(&trace.Failed{Phase: trace.PhaseIngress}) }, report.CauseNotSent},
		"no choice of a prefill":     {func(q *trace.Request) { q.Attempt(0).Dispatch(&trace.Sent{DispatchID: "d"}) }, report.CauseUnknown},
		"only the end is remembered": {func(q *trace.Request) { q.Attempt(0).Outcome(&trace.Outcome{}) }, report.CauseUnknown},
		"the last attempt is counted": {func(q *trace.Request) {
			sent(q, 0, "load_spill", predicted("spill", 0, 48), silent)
			sent(q, 1, "index_hint", predicted("hit", 48, 48), 768)
		}, report.CauseReuse},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := report.Summarize(request(t, tc.course)); got.Cause != tc.want || got.Because == "" {
				t.Errorf("%s (%s), want %s", got.Cause, got.Because, tc.want)
			}
		})
	}
}

// Without a match in the answer nobody can tell an error of the index from a
// match that it withheld.
func TestWithheldMatchIsNamed(t *testing.T) {
	for reason, want := range map[trace.Text]bool{"AFFINITY_HINT": true, "TENANT_HOT": true, "NO_HINT": false} {
		p := predicted("miss", 0, 0)
		p.ReasonCode = reason
		got := report.Summarize(request(t, func(q *trace.Request) { sent(q, 0, "policy", p, 512) }))
		if strings.Contains(got.Because, "hold the prefix alike") != want || got.Cause != report.CauseIndexError {
			t.Errorf("%s: %s (%s), want the other explanation: %v", reason, got.Cause, got.Because, want)
		}
	}
}

func TestText(t *testing.T) {
	requests := [][]*trace.Record{
		request(t, func(q *trace.Request) {
			q.Attempt(0).Fail(&trace.Failed{Phase: trace.PhaseIngress, Status: 400, ErrorCode: "invalid_request"})
		}),
		request(t, func(q *trace.Request) {
			a := q.Attempt(0)
			s := a.BeginSelection(trace.RoleSingle, "hint", nil)
			s.Predict(predicted("hit", 48, 48))
			s.End("pod-a", "index_hint", &trace.Details{})
			a.Dispatch(&trace.Sent{DispatchID: "dispatch-0", IDs: []trace.EngineID{{ID: "e"}}})
			a.Fail(&trace.Failed{Phase: trace.PhaseDispatch, ErrorCode: "connect", Retryable: true, WillRetry: true, Backoff: 50 * time.Millisecond})
			sent(q, 1, "load_spill", predicted("spill", 0, 48), 0,
				trace.Gate{Kind: trace.GateQueuePressure, Replica: "pod-a", Observed: trace.Part("wait_seconds", 2.4), Threshold: trace.Part("wait_seconds", 2.05)},
				trace.Gate{Kind: trace.GateEligibility, Replica: "pod-a", Observed: trace.Part("ready", 0)},
				trace.Gate{Kind: trace.GateOverload, Replica: "pod-b", Observed: trace.Number(1), Threshold: trace.Number(2), Pass: true})
		}),
		request(t, func(q *trace.Request) {
			sent(q, 0, "policy", &trace.Prediction{Source: "none", Branch: "tokenizer_unavailable", Note: trace.NoteTokenizerUnavailable}, noUsage)
		}),
		request(t, func(q *trace.Request) {
			q.Describe("evil\x1b[31m\n", "")
			sent(q, 0, "single_candidate", nil, silent)
		}),
	}
	var got strings.Builder
	if err := report.Write(&got, requests); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "report.txt")
	if *rewrite {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
}
