// SPDX-License-Identifier: Apache-2.0

package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/inferencecache/inference-cache/internal/finding"
	"github.com/inferencecache/inference-cache/internal/gateway"
	"github.com/inferencecache/inference-cache/internal/trace"
	pb "github.com/inferencecache/inference-cache/proto/inferencecache/v1alpha1/gen"
)

// finding returns the open finding of a code.
func (f *fixture) finding(code finding.Code) (finding.Finding, bool) {
	for _, found := range f.State().Findings {
		if found.Code == code {
			return found, true
		}
	}
	return finding.Finding{}, false
}

// TestGW_10_HangingTokenizer checks that at most three requests wait for a
// tokenizer that hangs; then they are routed by text at once, and say why. With
// it comes the tokenizer's part of GW-09: the state is shown, and left again
// after the repair.
func TestGW_10_HangingTokenizer(t *testing.T) {
	const limit = 200 * time.Millisecond
	var hangs atomic.Bool
	var calls atomic.Int64
	hangs.Store(true)
	hanging := func(e *engine) {
		e.tokenize = func(w http.ResponseWriter, r *http.Request) {
			if hangs.Load() {
				calls.Add(1)
				_, _ = io.Copy(io.Discard, r.Body) // only then a leaving client is noticed
				<-r.Context().Done()
				return
			}
			tokenizeBytes(w, r)
		}
	}
	a, b := newEngine(t, "a", hanging), newEngine(t, "b", hanging)
	f := start(t, gateway.Options{
		Lookuper: says("PREFIX_MATCH", "a"), ExposeReplica: true, Timeouts: gateway.Timeouts{Tokenize: limit},
	}, a, b)
	for i := range 20 {
		got := f.post("/v1/completions", completion(fmt.Sprintf("%d %s", i, strings.Repeat("p", 2000))))
		if got.status != http.StatusOK {
			t.Fatalf("request %d: status %d", i, got.status)
		}
		if reason := got.header.Get("X-Inference-Cache-Reason"); !strings.Contains(reason, "branch=tokenizer_unavailable") {
			t.Errorf("request %d was routed by %q", i, reason)
		}
	}
	if n := calls.Load(); n != 3 {
		t.Errorf("%d requests waited for the tokenizer, want 3", n)
	}
	if n := f.value("gateway_tokenize_total", "source", "engine", "result", "breaker_open"); n != 17 {
		t.Errorf("%v requests were spared the wait, want 17", n)
	}
	if n := f.value("routing_decisions_total", "origin", "policy", "branch", "tokenizer_unavailable"); n != 20 {
		t.Errorf("%v decisions name the tokenizer", n)
	}
	if n := f.value("gateway_breaker_state", "target", "tokenizer", "state", "open"); n != 1 {
		t.Error("the gauge does not show the open breaker")
	}
	if found, open := f.finding(finding.TokenizerDown); !open || found.Action == "" {
		t.Errorf("finding %+v", found)
	}
	if n := f.logs.count("tokenizer keeps failing"); n != 1 {
		t.Errorf("%d warnings, want 1", n)
	}

	hangs.Store(false)
	eventually(t, "hints are back", func() bool {
		got := f.post("/v1/completions", prompt())
		return strings.Contains(got.header.Get("X-Inference-Cache-Reason"), "code=PREFIX_MATCH")
	})
	if _, open := f.finding(finding.TokenizerDown); open {
		t.Error("the finding stays after the repair")
	}
}

// TestGW_17_BlockSizeMismatch has 16 in the configuration and 32 at the engine.
func TestGW_17_BlockSizeMismatch(t *testing.T) {
	wide := func(e *engine) { e.blockSize = 32 }
	lookups := says("PREFIX_MATCH", "a")
	f := start(t, gateway.Options{Lookuper: lookups, BlockSize: 16}, newEngine(t, "a", wide), newEngine(t, "b", wide))
	for range 5 {
		if got := f.post("/v1/completions", prompt()); got.status != http.StatusOK {
			t.Fatalf("status %d", got.status)
		}
	}
	if n := len(lookups.requests()); n != 0 {
		t.Errorf("the index was asked %d times under keys nobody has", n)
	}
	found, open := f.finding(finding.BlockSizeMismatch)
	if !open || !strings.Contains(found.Where, testModel) || found.Action == "" {
		t.Errorf("finding %+v", found)
	}
	if n := f.value("gateway_findings", "code", "block_size_mismatch"); n != 1 {
		t.Errorf("%v findings in the metric", n)
	}
	if n := f.logs.count("sources disagree about the block size"); n != 1 {
		t.Errorf("%d warnings, want 1", n)
	}
	var state struct{ Findings []finding.Finding }
	answer := f.do(http.MethodGet, f.admin+"/debug/state", "")
	if err := json.Unmarshal([]byte(answer.body), &state); err != nil || len(state.Findings) != 1 {
		t.Errorf("state %s, error %v", answer.body, err)
	}
}

// Engines differ in how they count the tokens of several answers, so such a
// request proves nothing about tokenizer or index.
func TestSeveralAnswersAreNotCompared(t *testing.T) {
	several := func(e *engine) {
		e.generate = func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"choices":[],"usage":{"prompt_tokens":128,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":96}}}`)
		}
	}
	f := start(t, gateway.Options{Lookuper: says("PREFIX_MATCH", "a")}, newEngine(t, "a", several), newEngine(t, "b", several))
	for name, tc := range map[string]struct{ n, result string }{
		"two answers": {"2", "skipped"}, "one answer": {"1", "mismatch"}, "one by default": {"null", "mismatch"},
	} {
		t.Run(name, func(t *testing.T) {
			labels := []string{"check", "count", "result", tc.result}
			before := f.value("routing_parity_total", labels...)
			f.post("/v1/completions", strings.Replace(prompt(), "{", `{"n":`+tc.n+`,`, 1))
			f.idle()
			if got := f.value("routing_parity_total", labels...) - before; got != 1 {
				t.Errorf("%v comparisons with result %s, want 1", got, tc.result)
			}
		})
	}
}

// TestCountParity checks that engines which count other numbers of tokens are
// found out over 200 answers, and that a rare difference is not.
func TestCountParity(t *testing.T) {
	var differs atomic.Int64 // one answer in this many; 0 = none
	var answers atomic.Int64
	counting := func(e *engine) {
		e.generate = func(w http.ResponseWriter, _ *http.Request) {
			n, every := 64, differs.Load()
			if every > 0 && answers.Add(1)%every == 0 {
				n = 65
			}
			fmt.Fprintf(w, `{"choices":[{"text":"x"}],"usage":{"prompt_tokens":%d,"completion_tokens":1}}`, n)
		}
	}
	f := start(t, gateway.Options{Lookuper: says("PREFIX_MATCH", "a")}, newEngine(t, "a", counting), newEngine(t, "b", counting))
	sent := 0
	send := func(n int) {
		for range n {
			f.post("/v1/completions", prompt())
		}
		sent += n
		eventually(t, "all answers are compared", func() bool {
			return f.value("routing_parity_total", "check", "count", "result", "ok")+
				f.value("routing_parity_total", "check", "count", "result", "mismatch") == float64(sent)
		})
	}
	differs.Store(100) // 1 % is tolerated
	send(200)
	if found, open := f.finding(finding.CountMismatch); open {
		t.Errorf("finding %+v for one difference in 100", found)
	}
	differs.Store(20)
	send(100)
	if found, open := f.finding(finding.CountMismatch); !open || !strings.Contains(found.Where, testModel) {
		t.Errorf("finding %+v", found)
	}
	if n := f.value("routing_parity_total", "check", "count", "result", "mismatch"); n != 7 {
		t.Errorf("%v differences were counted, want 7", n)
	}
	differs.Store(0)
	send(200)
	if _, open := f.finding(finding.CountMismatch); open {
		t.Error("the finding stays although all counts agree")
	}
}

// TestRenderService checks that images known to a render service choose the
// keys, and that only the service is asked.
func TestRenderService(t *testing.T) {
	var hash atomic.Value
	hash.Store("red")
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions/render" {
			http.NotFound(w, r)
			return
		}
		ids := strings.TrimSuffix(strings.Repeat("7,", 64), ",")
		fmt.Fprintf(w, `{"token_ids":[%s],"features":{"mm_hashes":{"image":[%q]},"mm_placeholders":{"image":[{"offset":20,"length":10}]}}}`, ids, hash.Load())
	}))
	defer service.Close()
	lookups := says("NO_HINT")
	f := start(t, gateway.Options{
		Lookuper: lookups, Tokenizer: gateway.TokenizeByRender, Tokenizing: gateway.TokenizerOptions{RenderURL: service.URL},
	}, newEngine(t, "a"), newEngine(t, "b"))
	chat := func(n int) *pb.LookupRouteRequest {
		f.post("/v1/chat/completions", fmt.Sprintf(
			`{"model":%q,"user":"x","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:%d"}}]}]}`, testModel, n))
		asked := lookups.requests()
		if len(asked) != n {
			t.Fatalf("the index was asked %d times, want %d", len(asked), n)
		}
		return asked[n-1]
	}
	red := chat(1)
	hash.Store("blue")
	blue := chat(2)
	if len(red.GetBlockHashes()) != 4 || string(red.GetBlockHashes()[0]) != string(blue.GetBlockHashes()[0]) ||
		string(red.GetBlockHashes()[1]) == string(blue.GetBlockHashes()[1]) {
		t.Error("an image must tell keys apart from its first block on")
	}
}

// TestCanarySkips checks that what a canary cannot show never turns hints off.
func TestCanarySkips(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*engine)
		index  *index
		want   string
	}{
		"an engine that takes no canary": {
			change: func(e *engine) { e.generate = answerStatus(http.StatusBadRequest) }, index: says("PREFIX_MATCH", "a"), want: "takes none of the canaries",
		},
		"an engine that fails": {
			change: func(e *engine) { e.generate = answerStatus(http.StatusInternalServerError) }, index: says("PREFIX_MATCH", "a"), want: "status 500",
		},
		"an index that knows nothing of the model": {
			change: answerWithoutUsage, index: says("UNKNOWN_MODEL"), want: "UNKNOWN_MODEL",
		},
		"an index that is down": {
			change: answerWithoutUsage, want: "the index does not answer",
			index: &index{answer: func(context.Context, *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
				return nil, fmt.Errorf("down")
			}},
		},
		"a tokenizer that fails": {
			change: func(e *engine) { e.tokenize = answerStatus(http.StatusInternalServerError) }, index: says("PREFIX_MATCH", "a"), want: "no token ids",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, gateway.Options{
				Lookuper: tc.index, Parity: gateway.ParityOptions{Interval: time.Hour, Appear: time.Millisecond},
			}, newEngine(t, "a", tc.change), newEngine(t, "b", tc.change))
			eventually(t, "the canary is skipped", func() bool {
				for _, state := range f.State().Parity {
					if state.State == "skipped" && strings.Contains(state.Reason, tc.want) {
						return true
					}
				}
				return false
			})
			if _, open := f.finding(finding.ParityFailed); open {
				t.Error("parity failed")
			}
			_, open := f.finding(finding.EventsMissing)
			if want := tc.want == "UNKNOWN_MODEL"; open != want {
				t.Errorf("finding about events open %v, want %v", open, want)
			}
		})
	}
}

func answerWithoutUsage(e *engine) {
	e.generate = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"choices":[]}`) }
}

// TestCanaryAfterAChange checks that a replica which comes back, or serves
// another build of its model, is checked anew.
func TestCanaryAfterAChange(t *testing.T) {
	var build atomic.Int64
	lookups := &index{answer: func(_ context.Context, request *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
		return &pb.LookupRouteResponse{ReasonCode: "PREFIX_MATCH", ReplicaScores: []*pb.ReplicaScore{
			{ReplicaId: "a", MatchedTokens: int32(16 * len(request.GetBlockHashes()))},
		}}, nil
	}}
	a := newEngine(t, "a", answerWithoutUsage)
	a.modelsNow = func() []string {
		return []string{fmt.Sprintf(`{"id":%q,"root":"build-%d"}`, testModel, build.Load())}
	}
	f := start(t, gateway.Options{
		Lookuper: lookups, Parity: gateway.ParityOptions{Interval: time.Hour},
		Timeouts: gateway.Timeouts{HealthInterval: 10 * time.Millisecond},
	}, a)
	passed := func(n float64) func() bool {
		return func() bool { return f.value("routing_parity_total", "check", "canary", "result", "ok") == n }
	}
	eventually(t, "the first canary passes", passed(1))
	build.Store(1)
	eventually(t, "the new build is checked", passed(2))
}

// TestParityRecovers checks that hints come back once a canary passes, and that
// a check which cannot be carried out meanwhile does not bring them back.
func TestParityRecovers(t *testing.T) {
	var held, refusing atomic.Bool
	lookups := &index{answer: func(_ context.Context, request *pb.LookupRouteRequest) (*pb.LookupRouteResponse, error) {
		if !held.Load() {
			return &pb.LookupRouteResponse{ReasonCode: "NO_HINT"}, nil
		}
		answer := &pb.LookupRouteResponse{ReasonCode: "PREFIX_MATCH"}
		for _, id := range []string{"a", "b"} {
			answer.ReplicaScores = append(answer.ReplicaScores, &pb.ReplicaScore{ReplicaId: id, MatchedTokens: int32(16 * len(request.GetBlockHashes()))})
		}
		return answer, nil
	}}
	engine := func(e *engine) {
		e.generate = func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if refusing.Load() && strings.Contains(string(body), "canary ") {
				w.WriteHeader(http.StatusBadRequest)
				return
			}
			fmt.Fprint(w, `{"choices":[]}`)
		}
	}
	f := start(t, gateway.Options{
		Lookuper: lookups, ExposeReplica: true,
		Parity: gateway.ParityOptions{Interval: time.Hour, Retry: 10 * time.Millisecond, Appear: time.Millisecond},
	}, newEngine(t, "a", engine), newEngine(t, "b", engine))
	branch := func(want string) func() bool {
		return func() bool {
			got := f.post("/v1/completions", prompt())
			return got.status == http.StatusOK && strings.Contains(got.header.Get("X-Inference-Cache-Reason"), "branch="+want)
		}
	}
	eventually(t, "hints go off", branch("parity_failed"))
	refusing.Store(true)
	skipped := f.value("routing_parity_total", "check", "canary", "result", "skipped")
	eventually(t, "canaries are skipped", func() bool {
		return f.value("routing_parity_total", "check", "canary", "result", "skipped") >= skipped+2
	})
	if !branch("parity_failed")() {
		t.Error("hints came back without a check that passed")
	}
	held.Store(true)
	refusing.Store(false)
	eventually(t, "hints come back", branch("hit"))
	if found, open := f.finding(finding.ParityFailed); open {
		t.Errorf("finding %+v stays", found)
	}
	if f.logs.count("cache hints are off for the model") != 1 || f.logs.count("cache hints are on") != 1 {
		t.Error("the log does not tell once each when hints went off and on")
	}
}

// TestNotesOfTokenization checks what the trace says of requests without ids.
func TestNotesOfTokenization(t *testing.T) {
	for name, tc := range map[string]struct {
		options gateway.Options
		change  func(*engine)
		body    string
		want    string
	}{
		"a tokenizer that fails": {
			change: func(e *engine) { e.tokenize = answerStatus(http.StatusInternalServerError) }, body: prompt(), want: trace.NoteTokenizerUnavailable,
		},
		"a prompt that is too long": {
			options: gateway.Options{Tokenizing: gateway.TokenizerOptions{MaxBytes: 10}}, body: prompt(), want: trace.NotePromptTooLong,
		},
		"ids that are not the engine's": {
			options: gateway.Options{Parity: gateway.ParityOptions{Interval: time.Hour, Appear: time.Millisecond}}, body: prompt(), want: trace.NoteParityFailed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.change == nil {
				tc.change = answerWithoutUsage
			}
			tc.options.Lookuper = says("NO_HINT")
			f := traced(t, tc.options, newEngine(t, "a", tc.change), newEngine(t, "b", tc.change))
			if tc.want == trace.NoteParityFailed {
				eventually(t, "the canary fails", func() bool { _, open := f.finding(finding.ParityFailed); return open })
			}
			f.post("/v1/completions", tc.body, "X-Request-Id", "root")
			records := f.finished("root")
			if got := string(records[0].Dispatch.Selections[0].Prediction.Note); got != tc.want {
				t.Errorf("note %q, want %q", got, tc.want)
			}
		})
	}
}
