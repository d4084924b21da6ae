// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/trace"
)

// FuzzTraceHeader checks that any request ends in a header of printable ASCII
// JSON within its bound, or in none.
func FuzzTraceHeader(f *testing.F) {
	f.Add("root", "caller", "policy", "index_hint", "e-1", "pod", 3, 2048, true)
	f.Add("gr\xfcn\x00🙂", "", "\u2028", "", "", "", 40, 300, false)
	f.Fuzz(func(t *testing.T, root, caller, policy, origin, id, replica string, n, limit int, trusted bool) {
		n = min(max(n, 0), 50)
		recorder, err := trace.New(trace.Options{Switches: trace.Switches{
			Header: trace.HeaderAny, MaxHeaderBytes: limit, HeaderReplica: trusted,
		}})
		if err != nil {
			return
		}
		q := recorder.Begin(trace.Info{RootID: root, Endpoint: policy, Trusted: trusted})
		q.Describe(policy, caller)
		a := q.Attempt(n)
		for range n {
			s := a.BeginSelection(trace.Role(origin), policy, candidates(n))
			s.Predict(&trace.Prediction{Source: policy, Branch: origin, ReasonCode: trace.Text(caller), OverlapBlocks: trace.Known(n)})
			s.Gate(trace.Gate{Kind: policy, Replica: trace.Text(replica)})
			s.End(replica, origin, &trace.Details{})
		}
		a.Dispatch(&trace.Sent{DispatchID: id, IDs: trace.EngineID{ID: id}.Children(n)})
		_, value, ok := q.Header(nil)
		if !ok {
			return
		}
		if limit == 0 {
			limit = trace.DefaultHeaderBytes
		}
		if len(value) > limit || !json.Valid([]byte(value)) {
			t.Fatalf("%d bytes with a bound of %d, valid %v", len(value), limit, json.Valid([]byte(value)))
		}
		for i := range len(value) {
			if value[i] < ' ' || value[i] > '~' {
				t.Fatalf("byte %d is %#x", i, value[i])
			}
		}
	})
}

// FuzzRecordJSON checks that what can be read is written the same again.
func FuzzRecordJSON(f *testing.F) {
	f.Add([]byte(`{"schema":1,"kind":"dispatch","root_id":"r","engine_ids":[{"id":"e","role":"single","child_index":1}],"selections":[{"prediction":{"overlap_blocks":null},"gates":[{"observed":{"ready":0},"threshold":1}]}]}`))
	f.Add([]byte(`{"schema":1,"kind":"outcome","engine_cached_tokens":null,"truncated":{"line":true}}`))
	f.Add([]byte(`{"schema":1,"kind":"failure","next_backoff_ms":5}`))
	f.Add([]byte(`{"schema":1,"kind":"header_omitted","bytes":3000}`))
	f.Add([]byte(`{"schema":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var first, second trace.Record
		if json.Unmarshal(data, &first) != nil {
			return
		}
		text, err := json.Marshal(first)
		if err != nil {
			t.Fatalf("read but not written: %v", err)
		}
		if err := json.Unmarshal(text, &second); err != nil {
			t.Fatalf("written but not read: %v: %s", err, text)
		}
		if diff := cmp.Diff(first, second, cmp.AllowUnexported(trace.Record{})); diff != "" {
			t.Fatalf("changed (-first +second):\n%s", diff)
		}
	})
}

// FuzzTraceparent checks that no header of a client breaks the reader of span
// contexts.
func FuzzTraceparent(f *testing.F) {
	f.Add("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "vendor=1")
	f.Add("ff-zz", "\x00")
	f.Fuzz(func(t *testing.T, parent, state string) {
		_ = trace.ContextOf(t.Context(), http.Header{"Traceparent": {parent}, "Tracestate": {state}})
	})
}
