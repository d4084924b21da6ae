// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/inferencecache/inference-cache/internal/trace"
)

// TestF02HeaderBytes pads a header to the byte around its bound.
func TestF02HeaderBytes(t *testing.T) {
	for limit, lengths := range map[int][]int{2048: {2047, 2048, 2049}, 1024: {1023, 1024, 1025}} {
		for _, length := range lengths {
			t.Run(fmt.Sprintf("%d of %d", length, limit), func(t *testing.T) {
				f := newFixture(t, trace.Switches{Header: trace.HeaderAny, MaxHeaderBytes: limit})
				value, ok := headerOfLength(f, length)
				if wantOK := length <= limit; ok != wantOK {
					t.Fatalf("header of %d bytes: given %v, want %v", length, ok, wantOK)
				}
				if ok && len(value) != length {
					t.Fatalf("%d bytes, want %d", len(value), length)
				}
				omitted := ofKind(f.written(), trace.KindHeaderOmitted)
				if !ok && (len(omitted) != 1 || omitted[0].Omitted.Reason != trace.OmittedSize || omitted[0].Omitted.Bytes != length) {
					t.Errorf("omission %+v, want one of %d bytes by size", omitted, length)
				}
				if ok && len(omitted) != 0 {
					t.Errorf("omission reported for a header that was given")
				}
			})
		}
	}
	for bytes, wantErr := range map[int]bool{4096: false, 4097: true} {
		if _, err := trace.New(trace.Options{Switches: trace.Switches{MaxHeaderBytes: bytes}}); (err != nil) != wantErr {
			t.Errorf("%d bytes: %v, want refused %v", bytes, err, wantErr)
		}
	}
}

// headerOfLength gives a request policies of such lengths that its header has
// the given number of bytes.
func headerOfLength(f *fixture, length int) (string, bool) {
	build := func(pad int) *trace.Request {
		q := f.begin("root")
		a := q.Attempt(0)
		for range 10 {
			s := a.BeginSelection(trace.RoleSingle, strings.Repeat("p", min(pad, trace.MaxTextBytes)), nil)
			pad -= min(pad, trace.MaxTextBytes)
			s.End("", "none_eligible", &trace.Details{})
		}
		send(a, "engine-id")
		return q
	}
	bare := newFixture(f.t, trace.Switches{Header: trace.HeaderAny, MaxHeaderBytes: trace.MaxHeaderBytes})
	own := f.Recorder
	f.Recorder = bare.Recorder
	_, shortest, _ := build(0).Header(nil)
	f.Recorder = own
	_, value, ok := build(length - len(shortest)).Header(nil)
	return value, ok
}

// TestF03HeaderWhitelist fills every field of the records and checks that the
// header holds nothing beyond its list.
func TestF03HeaderWhitelist(t *testing.T) {
	allowed := []string{
		"schema", "root_id", "root_id_truncated", "dispatch_id", "attempt", "mode", "engine_ids", "engine_ids_complete",
		"selections", "selections.role", "selections.policy", "selections.origin", "selections.prediction",
		"selections.prediction.source", "selections.prediction.branch", "selections.prediction.reason_code",
		"selections.prediction.overlap_blocks", "selections.prediction.request_blocks", "selections.prediction.block_size", "truncated",
	}
	trusted := append(slices.Clone(allowed), "selections.prediction.best_overlap_blocks")
	for name, tc := range map[string]struct {
		trusted, replica bool
		allowed          []string
	}{
		"untrusted":    {allowed: allowed},
		"trusted":      {trusted: true, allowed: trusted},
		"with replica": {replica: true, allowed: append(slices.Clone(allowed), "selections.replica")},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, trace.Switches{Header: trace.HeaderAny, HeaderReplica: tc.replica, MaxHeaderBytes: 4096})
			q := f.Begin(trace.Info{Endpoint: "secret", Mode: trace.ModeRegular, RootID: strings.Repeat("r", 200), Trusted: tc.trusted})
			q.Describe("secret", "secret")
			a := q.Attempt(0)
			list := make([]trace.Candidate, 1)
			fill(reflect.ValueOf(list).Index(0))
			s := a.BeginSelection(trace.RoleSingle, "p", list)
			p := &trace.Prediction{}
			fill(reflect.ValueOf(p).Elem())
			p.Source, p.Branch, p.ReasonCode = "index_lookup", "hit", "PREFIX_MATCH"
			s.Predict(p)
			var gate trace.Gate
			var score trace.Score
			fill(reflect.ValueOf(&gate).Elem())
			fill(reflect.ValueOf(&score).Elem())
			s.Gate(gate)
			s.Score(score)
			s.End("secret", "index_hint", &trace.Details{DelegatedTo: "secret", LoadSource: "secret"})
			send(a, "e1")
			_, value, ok := q.Header(nil)
			if !ok {
				t.Fatal("no header")
			}
			got := keysOf(t, value)
			slices.Sort(tc.allowed)
			if !slices.Equal(got, tc.allowed) {
				t.Errorf("members\n%v\nwant\n%v", got, tc.allowed)
			}
			if strings.Contains(value, "secret") != tc.replica {
				t.Errorf("the header tells something it must not: %s", value)
			}
		})
	}
}

// fill puts a telling value into every field.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
	case reflect.String:
		v.SetString("secret")
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Float64:
		v.SetFloat(7)
	case reflect.Bool:
		v.SetBool(true)
	}
}

func keysOf(t *testing.T, text string) []string {
	t.Helper()
	var value any
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	var walk func(prefix string, value any)
	walk = func(prefix string, value any) {
		switch v := value.(type) {
		case map[string]any:
			for key, inner := range v {
				seen[prefix+key] = true
				walk(prefix+key+".", inner)
			}
		case []any:
			for _, inner := range v {
				walk(prefix, inner)
			}
		}
	}
	walk("", value)
	var keys []string
	for key := range seen {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func TestF04NonASCIIRootID(t *testing.T) {
	const root = "größe-🙂-\u007f"
	f := newFixture(t, trace.Switches{Header: trace.HeaderAny})
	q := f.begin(root)
	a := q.Attempt(0)
	choose(a, trace.RoleSingle, 1)
	send(a, "e")
	_, value, ok := q.Header(nil)
	if !ok {
		t.Fatal("the header is missing")
	}
	for i := range len(value) {
		if value[i] < ' ' || value[i] > '~' {
			t.Fatalf("byte %d is %#x: not printable ASCII", i, value[i])
		}
	}
	var decoded struct {
		RootID string `json:"root_id"`
	}
	if err := json.Unmarshal([]byte(value), &decoded); err != nil || decoded.RootID != root {
		t.Errorf("root id %q, %v, want %q", decoded.RootID, err, root)
	}
	short := newFixture(t, trace.Switches{Header: trace.HeaderAny, MaxHeaderBytes: 10})
	q = short.begin(root)
	send(q.Attempt(0), "e")
	if _, _, ok := q.Header(nil); ok {
		t.Error("a header over its bound was given")
	}
	if got := short.value("header_omitted_total", "reason", "size"); got != 1 {
		t.Errorf("%v omissions counted, want 1", got)
	}
}

func TestF05EncodeGatesStayWithEncode(t *testing.T) {
	f := newFixture(t, trace.Switches{Log: true})
	q := f.begin("root")
	first := q.Attempt(0)
	encode := first.BeginSelection(trace.RoleEncode, "approx", candidates(2))
	encode.Gate(trace.Gate{Kind: trace.GateEligibility, Replica: "encoder"})
	encode.Predict(prediction(0, 0))
	item := 3
	encode.End("pod-1", "policy", &trace.Details{ItemIndex: &item})
	open := first.BeginSelection(trace.RoleEncode, "approx", candidates(2)) // never ended
	open.Gate(trace.Gate{Kind: trace.GateOverload, Replica: "encoder"})
	send(first, "e")
	first.Fail(&trace.Failed{Phase: trace.PhaseDispatch, WillRetry: true})
	second := q.Attempt(1)
	choose(second, trace.RolePrefill, 2)
	send(second, "e2")
	second.Fail(&trace.Failed{Phase: trace.PhaseStream})
	q.End()

	for _, r := range f.written() {
		var choices []trace.Choice
		if r.Dispatch != nil {
			choices = r.Dispatch.Selections
		} else {
			choices = r.Failure.Selections
		}
		if len(choices) != 1 {
			t.Fatalf("attempt %d: %d selections, want 1", r.Attempt.Value, len(choices))
		}
		gates, _ := json.Marshal(choices[0].Gates)
		switch r.Attempt.Value {
		case 0:
			if choices[0].Role != trace.RoleEncode || *choices[0].ItemIndex != 3 || len(choices[0].Gates) != 1 {
				t.Errorf("encode leg %+v", choices[0])
			}
		case 1:
			if strings.Contains(string(gates), "encoder") {
				t.Errorf("the retry has gates of the encode leg: %s", gates)
			}
		}
	}
	f.noProblems()
}

func TestF06SeventeenthSelection(t *testing.T) {
	f := newFixture(t, trace.Switches{Log: true})
	q := f.begin("root")
	a := q.Attempt(0)
	for i := range 17 {
		s := a.BeginSelection(trace.RoleSingle, "hint", candidates(1))
		s.Predict(prediction(4, 4))
		s.Gate(trace.Gate{Kind: trace.GateOverload, Replica: trace.Text(fmt.Sprintf("of-%d", i))})
		s.End("pod-0", "index_hint", &trace.Details{})
	}
	send(a, "e")
	a.Fail(&trace.Failed{Phase: trace.PhaseStream})
	q.Attempt(1).Fail(&trace.Failed{Phase: trace.PhaseSelection})
	f.written()
	for _, line := range f.sink.lines {
		if strings.Contains(line, "of-16") {
			t.Errorf("gates of the 17th selection: %s", line)
		}
	}
	if got := f.sink.records[0].Dispatch; got.SelectionsTotal != 17 || len(got.Selections) != 16 || !f.sink.records[0].Truncated.Selections {
		t.Errorf("%d of %d selections, truncated %+v", len(got.Selections), got.SelectionsTotal, f.sink.records[0].Truncated)
	}
}

func TestF07CompletenessOfIDs(t *testing.T) {
	for n, complete := range map[int]bool{1: true, 31: true, 32: true, 33: false, 40: false} {
		f := newFixture(t, trace.Switches{Log: true})
		q := f.begin("root")
		a := q.Attempt(0)
		send(a, numbered("e", n)...)
		record := f.written()[0]
		d := record.Dispatch
		if d.EngineIDsComplete != complete || record.Truncated.IDs == complete || d.EngineIDsTotal.Value != n || len(d.EngineIDs) != min(n, 32) {
			t.Errorf("%d ids: complete %v, cut %v, total %d, listed %d", n, d.EngineIDsComplete, record.Truncated.IDs, d.EngineIDsTotal.Value, len(d.EngineIDs))
		}
	}
}

func TestF08NoIDsAreIncomplete(t *testing.T) {
	f := newFixture(t, trace.Switches{Log: true})
	send(f.begin("known").Attempt(0))
	f.begin("unknown").Attempt(0).Dispatch(&trace.Sent{DispatchID: "d", IDsUnknown: true})
	records := f.written()
	contains(t, f.sink.lines[0], `"engine_ids":[],"engine_ids_total":0,"engine_ids_complete":false`)
	contains(t, f.sink.lines[1], `"engine_ids":[],"engine_ids_total":null,"engine_ids_complete":false`)
	if len(records) != 2 {
		t.Errorf("%d records", len(records))
	}
}

func TestF09FailuresNameTheirAttempt(t *testing.T) {
	f := newFixture(t, trace.Switches{Log: true})
	q := f.begin("root")
	q.Attempt(0).Fail(&trace.Failed{Phase: trace.PhaseIngress, Status: 400, ErrorCode: "invalid_request"})
	for number, phase := range []string{trace.PhaseDispatch, trace.PhaseStream} {
		a := q.Attempt(number + 1)
		choose(a, trace.RoleSingle, 2)
		send(a, "e")
		a.Fail(&trace.Failed{Phase: phase})
		a.Fail(&trace.Failed{Phase: phase}) // one failure, one record
	}
	failures := ofKind(f.written(), trace.KindFailure)
	if len(failures) != 3 {
		t.Fatalf("%d failures, want 3", len(failures))
	}
	dispatches := ofKind(f.sink.records, trace.KindDispatch)
	for i, r := range failures {
		if !r.Attempt.Known || r.Attempt.Value != i {
			t.Errorf("failure %d names attempt %+v", i, r.Attempt)
		}
		if i == 0 && (r.DispatchID != "" || len(r.Failure.Selections) != 0) {
			t.Errorf("a failure before any selection has dispatch id %q and %d selections", r.DispatchID, len(r.Failure.Selections))
		}
		if i > 0 && (r.DispatchID == "" || r.DispatchID != dispatches[i-1].DispatchID || len(r.Failure.Selections) != 1 || len(r.Failure.Selections[0].Candidates) != 2) {
			t.Errorf("failure %d has dispatch id %q and selections %+v", i, r.DispatchID, r.Failure.Selections)
		}
	}
}

func TestF10SelectionsWithoutPredictionAreReported(t *testing.T) {
	for origin, wantProblem := range map[string]bool{
		"sticky_hit": false, "target_header": false, "single_candidate": false, "none_eligible": false,
		"index_hint": true, "policy": true, "warmup_slice": true, "warmup_divert": true, "load_spill": true, "sticky_respill": true,
		"kv_pressure": true, "random_fallback": true, "first_healthy_fallback": true,
	} {
		f := newFixture(t, trace.Switches{})
		a := f.begin("root").Attempt(0)
		a.BeginSelection(trace.RoleSingle, "hint", nil).End("pod", origin, &trace.Details{})
		if got := len(f.problems) > 0; got != wantProblem {
			t.Errorf("%s: problems %v, want some %v", origin, f.problems, wantProblem)
		}
	}
}

func TestF11OmissionsJoin(t *testing.T) {
	f := newFixture(t, trace.Switches{Log: true, Header: trace.HeaderAny, MaxHeaderBytes: 700})
	var wanted string
	var requests sync.WaitGroup
	for i := range 50 {
		requests.Go(func() {
			q := f.begin(fmt.Sprintf("root-%d", i))
			defer q.End()
			a := q.Attempt(0)
			choose(a, trace.RoleSingle, 1)
			ids := []string{"e"}
			if i == 17 {
				ids = []string{strings.Repeat("x", 190), strings.Repeat("y", 190), strings.Repeat("z", 190)}
			}
			send(a, ids...)
			if _, _, ok := q.Header(nil); ok == (i == 17) {
				t.Errorf("request %d: header %v", i, ok)
			}
		})
	}
	requests.Wait()
	records := f.written()
	omitted := ofKind(records, trace.KindHeaderOmitted)
	if len(omitted) != 1 {
		t.Fatalf("%d omissions, want 1", len(omitted))
	}
	for _, r := range ofKind(records, trace.KindDispatch) {
		if r.RootID == "root-17" {
			wanted = string(r.DispatchID)
		}
	}
	if got := omitted[0]; string(got.DispatchID) != wanted || wanted == "" || got.RootID != "root-17" || got.Omitted.Bytes <= 700 {
		t.Errorf("omission %+v %+v, want dispatch %s", got.Join, got.Omitted, wanted)
	}
}

func TestF12FanOut(t *testing.T) {
	f := newFixture(t, trace.Switches{Log: true})
	q := f.begin("root")
	a := q.Attempt(0)
	choose(a, trace.RolePrefill, 1)
	choose(a, trace.RoleDecode, 1)
	sent := &trace.Sent{DispatchID: "d"}
	for _, leg := range []trace.EngineID{{ID: "root-p", Role: trace.RolePrefill}, {ID: "root-d", Role: trace.RoleDecode}} {
		sent.IDs = append(sent.IDs, leg.Children(3)...)
	}
	a.Dispatch(sent)
	d := f.written()[0].Dispatch
	if d.EngineIDsTotal.Value != 6 || !d.EngineIDsComplete || len(d.Selections) != 2 {
		t.Fatalf("%d ids, complete %v, %d selections, want 6, true, 2", d.EngineIDsTotal.Value, d.EngineIDsComplete, len(d.Selections))
	}
	for i, id := range d.EngineIDs {
		leg := []string{"root-p", "root-d"}[i/3]
		if id.ID != fmt.Sprintf("%s-n%d", leg, i%3) || id.Parent != leg || *id.ChildIndex != i%3 {
			t.Errorf("id %d: %+v", i, id)
		}
	}
}
