// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/gateway"
	"github.com/inferencecache/inference-cache/internal/trace"
	"github.com/inferencecache/inference-cache/internal/trace/report"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// traced starts a gateway whose records must keep the rules of their format.
func traced(t *testing.T, options gateway.Options, engines ...*engine) *fixture {
	t.Helper()
	options.Trace.Problem = func(problem string) { t.Errorf("record: %s", problem) }
	return start(t, options, engines...)
}

// latest returns the records of the latest requests from the admin address.
func (f *fixture) latest(query string) [][]*trace.Record {
	f.t.Helper()
	got := f.do(http.MethodGet, f.admin+"/debug/trace?"+query, "")
	var answer report.Answer
	if err := json.Unmarshal([]byte(got.body), &answer); err != nil || got.status != 200 {
		f.t.Fatalf("%d %s: %v", got.status, got.body, err)
	}
	return answer.Requests
}

// finished waits until a request's answer has been accounted for.
func (f *fixture) finished(root string) []*trace.Record {
	f.t.Helper()
	var records []*trace.Record
	eventually(f.t, "the outcome of "+root, func() bool {
		requests := f.latest("id=" + root)
		if len(requests) == 0 {
			return false
		}
		records = requests[0]
		last := records[len(records)-1]
		return last.Kind == trace.KindOutcome || last.Kind == trace.KindFailure && !last.Failure.WillRetry
	})
	return records
}

func kinds(records []*trace.Record) string {
	var out []string
	for _, r := range records {
		out = append(out, fmt.Sprintf("%s %d", r.Kind, r.Attempt.Value))
	}
	return strings.Join(out, ", ")
}

// TestF01LogAloneChangesNoByte compares whole responses with those of a gateway
// that traces nothing.
func TestF01LogAloneChangesNoByte(t *testing.T) {
	requests := map[string]string{
		"an answer": prompt(), "a stream": streamBody, "a refusal": `{"model":"none"}`, "no JSON": `{`,
	}
	respond := func(switches trace.Switches) (out map[string]string, logs *logBuffer) {
		a := newEngine(t, "a", func(e *engine) {
			e.generate = func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Date", "Mon, 01 Jan 2026 00:00:00 GMT")
				answerJSON("a", 32)(w, r)
			}
		})
		f := traced(t, gateway.Options{Lookuper: says("PREFIX_MATCH", "a"), Trace: gateway.Trace{Switches: switches}}, a)
		out = map[string]string{}
		for name, body := range requests {
			got := f.post("/v1/completions", body, "X-Request-Id", "root")
			got.header.Del("Date")
			var head strings.Builder
			_ = got.header.Write(&head) // in order of names
			out[name] = fmt.Sprintf("%d\n%s\n%s", got.status, head.String(), got.body)
		}
		if err := f.stop(); err != nil {
			t.Fatal(err)
		}
		return out, f.logs
	}
	off, quiet := respond(trace.Switches{})
	on, logs := respond(trace.Switches{Log: true, Outcome: true})
	if diff := cmp.Diff(off, on); diff != "" {
		t.Errorf("responses (-off +log):\n%s", diff)
	}
	if quiet.count("cache routing") != 0 || logs.count("cache routing dispatch") != 2 || logs.count("cache routing failure") != 2 ||
		logs.count("cache routing outcome") != 2 {
		t.Errorf("%d lines with the log off; with it on: %s", quiet.count("cache routing"), logs.text.String())
	}
}

// TestF03HeaderOfAGateway checks that no address of an engine leaves.
func TestF03HeaderOfAGateway(t *testing.T) {
	a, b := newEngine(t, "a"), newEngine(t, "b")
	f := traced(t, gateway.Options{Lookuper: says("PREFIX_MATCH", "b"), Trace: gateway.Trace{Switches: trace.Switches{Header: trace.HeaderAny}}}, a, b)
	got := f.post("/v1/completions", prompt(), "X-Request-Id", "root")
	value := got.header.Get(trace.HeaderName)
	for _, e := range []*engine{a, b} {
		if strings.Contains(value, strings.TrimPrefix(e.URL, "http://")) {
			t.Errorf("the header tells an address: %s", value)
		}
	}
	id := b.requests()[0].header.Get("X-Request-Id")
	want := `"engine_ids":["` + id + `"],"engine_ids_complete":true,"selections":[{"role":"single","policy":"hint","origin":"index_hint",` +
		`"prediction":{"source":"index_lookup","branch":"hit","reason_code":"PREFIX_MATCH","overlap_blocks":3,"request_blocks":4,"block_size":16}}],"truncated":false}`
	if !strings.HasPrefix(value, `{"schema":1,"root_id":"root","dispatch_id":"`) || !strings.HasSuffix(value, want) {
		t.Errorf("header %s\nwant it to end in %s", value, want)
	}
	if !strings.HasSuffix(id, f.finished("root")[0].Dispatch.EngineIDs[0].ID) {
		t.Errorf("the engine got id %s, which is not in the record", id)
	}
}

// TestF04HeaderSurvivesAnyID sends ids beyond ASCII through a real connection.
func TestF04HeaderSurvivesAnyID(t *testing.T) {
	f := traced(t, gateway.Options{Trace: gateway.Trace{Switches: trace.Switches{Header: trace.HeaderAny}}}, newEngine(t, "a"))
	got := f.post("/v1/completions", prompt(), "X-Request-Id", "größe-🙂")
	if value := got.header.Get(trace.HeaderName); !strings.Contains(value, `"root_id":"gr\u00f6\u00dfe-\ud83d\ude42"`) {
		t.Errorf("header %s", value)
	}
	got = f.post("/v1/completions", prompt(), "X-Request-Id", "a\tb")
	if value := got.header.Get(trace.HeaderName); !strings.Contains(value, `"root_id":"cmpl-`) {
		t.Errorf("an id with a control character was kept: %s", value)
	}
}

// TestF08EmbeddingsListTheirID checks a request that goes by load.
func TestF08EmbeddingsListTheirID(t *testing.T) {
	a, b := newEngine(t, "a"), newEngine(t, "b")
	f := traced(t, gateway.Options{Lookuper: says("PREFIX_MATCH", "a")}, a, b)
	f.post("/v1/embeddings", `{"model":"base/model","input":"x"}`, "X-Request-Id", "root")
	d := f.finished("root")[0].Dispatch
	if len(d.EngineIDs) != 1 || !d.EngineIDsComplete || d.EngineIDsTotal.Value != 1 {
		t.Errorf("ids %+v, complete %v", d.EngineIDs, d.EngineIDsComplete)
	}
	if c := d.Selections[0]; c.Policy != "least_load" || c.Prediction == nil || c.Prediction.Source != "none" {
		t.Errorf("selection %+v with prediction %+v", c, c.Prediction)
	}
}

// TestF09FailuresOfAGateway makes requests fail at every stage.
func TestF09FailuresOfAGateway(t *testing.T) {
	breaks := events(event("data: {\"n\":1}\n\n"), crash)
	tests := map[string]struct {
		generate           http.HandlerFunc
		body               string
		want, phase, code  string
		dispatched, second bool
	}{
		"a body that is no JSON":   {body: "{", want: "failure 0", phase: "ingress", code: "invalid_request"},
		"an unknown model":         {body: `{"model":"none"}`, want: "failure 0", phase: "ingress", code: "model_not_found"},
		"an engine's own error":    {generate: answerStatus(500), want: "dispatch 0, failure 0, outcome 0", phase: "dispatch", code: "status_5xx", dispatched: true},
		"a stream that breaks":     {generate: breaks, body: streamBody, want: "dispatch 0, failure 0, outcome 0", phase: "stream", code: "upstream_failed", dispatched: true},
		"all attempts in vain":     {generate: answerStatus(503), want: "dispatch 0, failure 0, dispatch 1, failure 1, dispatch 2, failure 2, outcome 2", phase: "dispatch", code: "status_5xx", dispatched: true},
		"connections that go away": {generate: crashHandler, want: "dispatch 0, failure 0, dispatch 1, failure 1, dispatch 2, failure 2", phase: "dispatch", code: "reset", dispatched: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			change := func(e *engine) {
				if tc.generate != nil {
					e.generate = tc.generate
				}
			}
			f := traced(t, gateway.Options{Lookuper: says("PREFIX_MATCH", "a"), Trace: gateway.Trace{Switches: trace.Switches{Header: trace.HeaderAny}}},
				newEngine(t, "a", change), newEngine(t, "b", change))
			if tc.body == "" {
				tc.body = prompt()
			}
			got := f.post("/v1/completions", tc.body, "X-Request-Id", "root")
			eventually(t, tc.want, func() bool { return kinds(f.latest("id=root")[0]) == tc.want })
			for _, r := range f.latest("id=root")[0] {
				if !r.Attempt.Known || (r.DispatchID != "") != tc.dispatched {
					t.Errorf("%s: attempt %+v, dispatch id %q", r.Kind, r.Attempt, r.DispatchID)
				}
				if r.Kind == trace.KindFailure && (r.Failure.Phase != tc.phase || r.Failure.ErrorCode != tc.code || (len(r.Failure.Selections) == 1) != tc.dispatched) {
					t.Errorf("failure %+v, want phase %s and code %s", r.Failure, tc.phase, tc.code)
				}
			}
			if has := got.header.Get(trace.HeaderName) != ""; has != tc.dispatched {
				t.Errorf("header %v, want %v: errors have it once something was sent", has, tc.dispatched)
			}
		})
	}
}

func TestF09NoReplicaIsASelectionFailure(t *testing.T) {
	a := newEngine(t, "a")
	f := traced(t, gateway.Options{Replicas: []gateway.Replica{{ID: "down", URL: "http://127.0.0.1:1"}}}, a)
	if err := f.SetReplicas([]gateway.Replica{{ID: "a", URL: a.URL, Cordoned: true}, {ID: "down", URL: "http://127.0.0.1:1"}}); err != nil {
		t.Fatal(err)
	}
	if got := f.post("/v1/completions", prompt(), "X-Request-Id", "root"); got.status != 503 {
		t.Fatal(got)
	}
	records := f.finished("root")
	if kinds(records) != "failure 0" || records[0].Failure.Phase != "selection" || records[0].DispatchID != "" {
		t.Fatalf("records %s: %+v", kinds(records), records[0].Failure)
	}
	c := records[0].Failure.Selections[0]
	gates := map[trace.Text]string{}
	for _, g := range c.Gates {
		gates[g.Replica] += g.Kind + " " + g.Observed.Name
	}
	want := map[trace.Text]string{"a": "eligibility cordoned", "down": "eligibility not_ready"}
	if diff := cmp.Diff(want, gates); diff != "" || c.Origin != "none_eligible" || c.Prediction != nil {
		t.Errorf("origin %s, gates (-want +got):\n%s", c.Origin, diff)
	}
}

// TestF10EveryPolicyRecordsAPrediction relies on traced to report selections
// without one.
func TestF10EveryPolicyRecordsAPrediction(t *testing.T) {
	for _, policy := range []string{"hint", "approx", "round_robin", "random", "least_load", "power_of_two", "consistent_hash", "prefix_hash"} {
		for _, reason := range []string{"PREFIX_MATCH", "NO_HINT", "AFFINITY_HINT", "TENANT_HOT", "UNKNOWN_MODEL", "TIMEOUT"} {
			t.Run(policy+" "+reason, func(t *testing.T) {
				f := traced(t, gateway.Options{Policy: policy, Lookuper: says(reason, "a"), Warmup: true}, newEngine(t, "a"), newEngine(t, "b"))
				for _, body := range []string{prompt(), completion("short")} {
					f.post("/v1/completions", body)
				}
				for _, records := range f.latest("last=2") {
					if p := records[0].Dispatch.Selections[0].Prediction; p == nil {
						t.Errorf("no prediction: %s", kinds(records))
					}
				}
			})
		}
	}
}

// TestF12SeveralChoicesAreOneRequest: a request with several choices is sent once, and
// the id it was sent under is listed.
func TestF12SeveralChoicesAreOneRequest(t *testing.T) {
	a := newEngine(t, "a")
	f := traced(t, gateway.Options{}, a)
	f.post("/v1/completions", `{"model":"base/model","prompt":["x","y"],"n":3}`, "X-Request-Id", "root")
	d := f.finished("root")[0].Dispatch
	if len(a.requests()) != 1 || len(d.EngineIDs) != 1 || d.EngineIDs[0].ID != a.requests()[0].header.Get("X-Request-Id") {
		t.Errorf("%d requests, ids %+v", len(a.requests()), d.EngineIDs)
	}
}

// TestF16ForeignHeadersAreRemoved checks all three ways a trace header of
// somebody else could take.
func TestF16ForeignHeadersAreRemoved(t *testing.T) {
	const forged = `{"schema":1,"root_id":"forged"}`
	a := newEngine(t, "a", func(e *engine) {
		e.generate = func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(trace.HeaderName, forged)
			w.Header().Set(trace.HeaderAlias, forged)
			answerJSON("a", 0)(w, r)
		}
	})
	for _, header := range []trace.HeaderMode{trace.HeaderOff, trace.HeaderAny} {
		f := traced(t, gateway.Options{Trace: gateway.Trace{Switches: trace.Switches{Header: header}}}, a)
		got := f.post("/v1/completions", prompt(), trace.HeaderName, forged, trace.HeaderAlias, "1")
		if value := got.header.Get(trace.HeaderName); strings.Contains(value, "forged") || (value != "") != (header == trace.HeaderAny) {
			t.Errorf("%s: the client got %q", header, value)
		}
		if got.header.Get(trace.HeaderAlias) != "" {
			t.Errorf("%s: the client got the engine's header", header)
		}
		for _, r := range a.requests() {
			if r.header.Get(trace.HeaderName) != "" || r.header.Get(trace.HeaderAlias) != "" {
				t.Errorf("%s: the engine got the client's header", header)
			}
		}
		for _, side := range []string{"inbound", "upstream"} {
			if got := f.value("trace_header_stripped_total", "side", side); got != 2 {
				t.Errorf("%s: %v removed on side %s, want 2", header, got, side)
			}
		}
	}
}

// TestRequestOptin checks who may ask for a header, and how.
func TestRequestOptin(t *testing.T) {
	a := newEngine(t, "a")
	f := traced(t, gateway.Options{
		Access: gateway.Access{TrustedListen: "127.0.0.1:0", Salt: gateway.SaltOff},
		Trace:  gateway.Trace{Switches: trace.Switches{RequestOptin: true}},
	}, a)
	trusted := "http://" + f.Addresses().Trusted.String()
	for name, tc := range map[string]struct {
		url, value string
		want       bool
	}{
		"a trusted client":       {trusted, "1", true},
		"another one":            {f.url, "1", false},
		"another value":          {trusted, "true", false},
		"a trusted client's 1.0": {trusted, "1.0", false},
	} {
		got := f.do(http.MethodPost, tc.url+"/v1/completions", prompt(), trace.HeaderName, tc.value)
		if has := got.header.Get(trace.HeaderName) != ""; has != tc.want {
			t.Errorf("%s: header %v, want %v", name, has, tc.want)
		}
	}
	if got := f.value("trace_header_stripped_total", "side", "inbound"); got != 3 {
		t.Errorf("%v removed, want 3", got)
	}
	if got := f.logs.count("cache routing"); got != 0 {
		t.Errorf("%d lines although the log is off", got)
	}
}

func TestTrustedClientsSeeTheBestOverlap(t *testing.T) {
	f := traced(t, gateway.Options{
		Lookuper: says("PREFIX_MATCH", "a"), Access: gateway.Access{TrustedListen: "127.0.0.1:0", Salt: gateway.SaltOff},
		Trace: gateway.Trace{Switches: trace.Switches{Header: trace.HeaderTrusted}},
	}, newEngine(t, "a"), newEngine(t, "b"))
	got := f.do(http.MethodPost, "http://"+f.Addresses().Trusted.String()+"/v1/completions", prompt())
	if value := got.header.Get(trace.HeaderName); !strings.Contains(value, `"best_overlap_blocks":3`) {
		t.Errorf("header %q", value)
	}
	if got := f.post("/v1/completions", prompt()).header.Get(trace.HeaderName); got != "" {
		t.Errorf("an untrusted client got %q", got)
	}
}

// TestToggleUnderLoad turns the trace on and off while requests flow.
func TestToggleUnderLoad(t *testing.T) {
	a, b := newEngine(t, "a"), newEngine(t, "b")
	options := gateway.Options{Lookuper: says("PREFIX_MATCH", "a")}
	f := traced(t, options, a, b)
	options.Replicas = replicas(a, b)
	var clients sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if got := f.post("/v1/completions", prompt()); got.status != 200 {
					t.Errorf("status %d", got.status)
				}
			}
		})
	}
	for round := range 20 {
		options.Trace.Switches = trace.Switches{}
		if round%2 == 0 {
			options.Trace.Switches = trace.Switches{Log: true, Outcome: true, Header: trace.HeaderAny}
		}
		if err := f.Apply(options); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	clients.Wait()
	options.Trace.Switches = trace.Switches{Header: trace.HeaderAny}
	if err := f.Apply(options); err != nil {
		t.Fatal(err)
	}
	if f.post("/v1/completions", prompt()).header.Get(trace.HeaderName) == "" {
		t.Error("no header after it was switched on")
	}
	options.Trace.Switches = trace.Switches{MaxHeaderBytes: 5000}
	if err := f.Apply(options); err == nil {
		t.Error("switches that cannot work were taken")
	}
}

func TestClientThatLeavesIsAborted(t *testing.T) {
	arrived := make(chan struct{})
	a := newEngine(t, "a", func(e *engine) {
		e.generate = events(event("data: 1\n\n"), func(_ io.Writer, r *http.Request) {
			close(arrived)
			<-r.Context().Done()
		})
	})
	f := traced(t, gateway.Options{}, a)
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v1/completions", strings.NewReader(streamBody))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Request-Id", "root")
	response, err := f.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	<-arrived
	cancel()
	_ = response.Body.Close()
	records := f.finished("root")
	o := records[len(records)-1].Outcome
	if kinds(records) != "dispatch 0, outcome 0" || !o.Aborted || o.EngineEvidence != trace.EvidenceNone || o.EngineCachedTokens.Known {
		t.Errorf("records %s, outcome %+v", kinds(records), o)
	}
}

// TestOutcomeBesidePrediction checks that the engine's figure and ours stay
// apart.
func TestOutcomeBesidePrediction(t *testing.T) {
	a := newEngine(t, "a", func(e *engine) { e.generate = answerJSON("a", 16) })
	f := traced(t, gateway.Options{Lookuper: says("PREFIX_MATCH", "a")}, a, newEngine(t, "b"))
	f.post("/v1/completions", `{"model":"base/model","rid":"mine","prompt":"`+strings.Repeat("p", 64)+`"}`, "X-Request-Id", "root")
	records := f.finished("root")
	p, o := records[0].Dispatch.Selections[0].Prediction, records[1].Outcome
	if p.OverlapBlocks.Value*p.BlockSize.Value != 48 || p.CreditedTokens != 48 || !p.LookupLatencyUS.Known {
		t.Errorf("prediction %+v", p)
	}
	if o.EngineCachedTokens.Value != 16 || o.PromptTokens.Value != 64 || o.EngineEvidence != trace.EvidenceUsage || o.Replica != "a" {
		t.Errorf("outcome %+v", o)
	}
	for _, r := range records {
		if r.RootID != "root" || r.CallerID != "mine" || r.Model != testModel {
			t.Errorf("join %+v", r.Join)
		}
	}
}

func TestTraceFileAndPromptData(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	const canary = "canary-text-of-the-prompt"
	var access strings.Builder
	f := traced(t, gateway.Options{
		Lookuper: says("PREFIX_MATCH", "a"), AccessLog: trace.NewWriterSink(&access),
		Trace: gateway.Trace{File: path, Switches: trace.Switches{Log: true, Outcome: true}},
	}, newEngine(t, "a"), newEngine(t, "b"))
	body := `{"model":"base/model","cache_salt":"canary-salt","prompt":"` + strings.Repeat(canary, 4) + `"}`
	f.post("/v1/completions", body, "X-Request-Id", "root", "Authorization", "Bearer canary-token")
	f.post("/v2/none", body)
	if got := f.do(http.MethodGet, f.admin+"/debug/trace?last=10", ""); strings.Contains(got.body, "canary") {
		t.Errorf("prompt data in memory: %s", got.body)
	}
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]string{"the file": string(text), "the log": f.logs.text.String(), "the access log": access.String()} {
		if strings.Contains(text, "canary") {
			t.Errorf("prompt data in %s: %s", what, text)
		}
	}
	if got := strings.Count(string(text), "\n"); got != 2 {
		t.Errorf("%d lines in the file, want 2: %s", got, text)
	}
	lines := strings.Split(strings.TrimSpace(access.String()), "\n")
	var first struct {
		RequestID    string `json:"request_id"`
		Endpoint     string
		Status       int
		Replica      string
		Attempts     int
		CachedTokens *int `json:"cached_tokens"`
	}
	if err := json.Unmarshal([]byte(lines[0]), &first); err != nil || len(lines) != 2 {
		t.Fatalf("%v: %s", err, access.String())
	}
	if first.RequestID != "root" || first.Endpoint != "completions" || first.Status != 200 || first.Replica != "a" ||
		first.Attempts != 1 || first.CachedTokens == nil || *first.CachedTokens != 0 {
		t.Errorf("access line %s", lines[0])
	}
	if !strings.Contains(lines[1], `"endpoint":"other","status":404`) {
		t.Errorf("access line %s", lines[1])
	}
}

func TestRequestIDHeaders(t *testing.T) {
	f := traced(t, gateway.Options{RequestIDHeaders: []string{"X-Amzn-Trace-Id"}}, newEngine(t, "a"))
	got := f.post("/v1/completions", prompt(), "X-Amzn-Trace-Id", "mine", "X-Request-Id", "other")
	if got.header.Get("X-Request-Id") != "mine" {
		t.Errorf("id %q", got.header.Get("X-Request-Id"))
	}
}

func TestProfilesNeedAFlag(t *testing.T) {
	for _, on := range []bool{false, true} {
		f := traced(t, gateway.Options{Profiling: on}, newEngine(t, "a"))
		want := map[bool]int{false: 404, true: 200}[on]
		if got := f.do(http.MethodGet, f.admin+"/debug/pprof/heap?debug=1", ""); got.status != want {
			t.Errorf("profiling %v: status %d, want %d", on, got.status, want)
		}
		if got := f.do(http.MethodGet, f.url+"/debug/pprof/heap", ""); got.status != 404 {
			t.Errorf("profiles on the clients' address: status %d", got.status)
		}
	}
}

func TestTraceQueries(t *testing.T) {
	f := traced(t, gateway.Options{}, newEngine(t, "a"))
	for query, want := range map[string]int{"": 200, "last=1024": 200, "last=0": 400, "last=1025": 400, "last=x": 400, "id=none": 200} {
		if got := f.do(http.MethodGet, f.admin+"/debug/trace?"+query, ""); got.status != want {
			t.Errorf("%q: status %d, want %d", query, got.status, want)
		}
	}
	if got := f.do(http.MethodGet, f.url+"/debug/trace", ""); got.status != 404 {
		t.Errorf("traces on the clients' address: status %d", got.status)
	}
}

// TestGW08TheTraceAloneTellsTheCause runs requests of which each meets another
// fate, and checks that the records tell which, and that an explanation asked
// for beforehand agrees with the choice.
func TestGW08TheTraceAloneTellsTheCause(t *testing.T) {
	var mu sync.Mutex
	reason, holders := "", []string(nil)
	lookups := &index{answer: func(context.Context, *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
		mu.Lock()
		defer mu.Unlock()
		answer := &pb.LookupRouteResponse{ReasonCode: reason}
		for _, id := range holders {
			answer.ReplicaScores = append(answer.ReplicaScores, &pb.ReplicaScore{ReplicaId: id, Score: 1, MatchedTokens: 48})
		}
		return answer, nil
	}}
	cached := map[string]int{"a": 48, "b": 0}
	answer := func(id string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			found := cached[id]
			mu.Unlock()
			answerJSON(id, found)(w, r)
		}
	}
	a := newEngine(t, "a", func(e *engine) { e.generate = answer("a") })
	b := newEngine(t, "b", func(e *engine) { e.generate = answer("b") })
	c := newEngine(t, "c", func(e *engine) { e.generate = answer("c") })
	f := traced(t, gateway.Options{Lookuper: lookups}, a, b, c)
	steps := map[string]struct {
		reason   string
		holders  []string
		cached   int
		cordoned bool
		want     report.Cause
	}{
		"reuse":       {reason: "PREFIX_MATCH", holders: []string{"a"}, cached: 48, want: report.CauseReuse},
		"index error": {reason: "PREFIX_MATCH", holders: []string{"a"}, cached: 0, want: report.CauseIndexError},
		"spill":       {reason: "PREFIX_MATCH", holders: []string{"a"}, cordoned: true, want: report.CauseSpill},
		"no reuse":    {reason: "NO_HINT", want: report.CauseNoReuse},
		"unknown":     {reason: "UNKNOWN_MODEL", want: report.CauseUnknown},
	}
	for name, step := range steps {
		for round := range 3 {
			mu.Lock()
			reason, holders = step.reason, step.holders
			cached["a"] = step.cached
			mu.Unlock()
			list := replicas(a, b, c)
			list[0].Cordoned = step.cordoned
			if err := f.SetReplicas(list); err != nil {
				t.Fatal(err)
			}
			root := strings.ReplaceAll(fmt.Sprintf("%s-%d", name, round), " ", "-")
			body := completion(root + strings.Repeat(".", 64-len(root)))
			var explained gateway.Explanation
			if err := json.Unmarshal([]byte(f.do(http.MethodPost, f.admin+"/debug/explain", body).body), &explained); err != nil {
				t.Fatal(err)
			}
			if got := f.post("/v1/completions", body, "X-Request-Id", root); got.status != 200 {
				t.Fatal(got)
			}
			records := f.finished(root)
			got := report.Summarize(records)
			if got.Cause != step.want {
				t.Errorf("%s: the trace says %s (%s), want %s", root, got.Cause, got.Because, step.want)
			}
			if string(got.Choice.Origin) != explained.Origin || got.Choice.Prediction.Branch != explained.Branch ||
				string(got.Choice.Prediction.ReasonCode) != explained.ReasonCode {
				t.Errorf("%s: explained as %s %s %s, chosen as %s %s %s", root, explained.Origin, explained.Branch, explained.ReasonCode,
					got.Choice.Origin, got.Choice.Prediction.Branch, got.Choice.Prediction.ReasonCode)
			}
			// Where two are as good as each other, chance decides anew.
			tied := step.cordoned && got.Choice.Replica != "a" && explained.Replica != "a"
			if len(step.holders) > 0 && !tied && string(got.Choice.Replica) != explained.Replica {
				t.Errorf("%s: %s was explained, %s chosen", root, explained.Replica, got.Choice.Replica)
			}
		}
	}
}

// TestSpillNamesItsGate fills the holder and checks that the record says what
// spoke against it.
func TestSpillNamesItsGate(t *testing.T) {
	release := make(chan struct{})
	hold := func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
		answerJSON("a", 0)(w, r)
	}
	a := newEngine(t, "a", func(e *engine) { e.generate = hold })
	f := traced(t, gateway.Options{Lookuper: says("PREFIX_MATCH", "a")}, a, newEngine(t, "b", func(e *engine) { e.generate = hold }))
	var clients sync.WaitGroup
	const requests = 40
	for i := range requests {
		clients.Go(func() { f.post("/v1/completions", prompt(), "X-Request-Id", fmt.Sprintf("root-%d", i)) })
	}
	var spilled *trace.Choice
	eventually(t, "a spill", func() bool {
		for _, records := range f.latest("last=100") {
			if c := records[0].Dispatch.Selections[0]; c.Origin == "load_spill" {
				spilled = &c
				return true
			}
		}
		return false
	})
	close(release)
	clients.Wait()
	against := ""
	for _, g := range spilled.Gates {
		if g.Replica == "a" && !g.Pass {
			against += g.Kind + " "
		}
	}
	if against == "" || spilled.Prediction.BestOverlapBlocks.Value != 3 || spilled.Prediction.OverlapBlocks.Value >= 3 {
		t.Errorf("gates against the holder %q in %+v, prediction %+v", against, spilled.Gates, spilled.Prediction)
	}
}
