// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/sim/blockhash"
	"github.com/inferencecache/inference-cache/internal/sim/engine"
	"github.com/inferencecache/inference-cache/internal/sim/eventsock"
	"github.com/inferencecache/inference-cache/internal/sim/httpapi"
	"github.com/inferencecache/inference-cache/internal/sim/sched"
	"github.com/inferencecache/inference-cache/internal/sim/tinymodel"
	"github.com/inferencecache/inference-cache/internal/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fast is a timing that makes waiting negligible.
var fast = sched.Timing{Speed: 1000}

func start(t *testing.T, config engine.Config) *engine.Engine {
	t.Helper()
	if config.Timing == (sched.Timing{}) {
		config.Timing = fast
	}
	e, err := engine.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		e.Close()
	})
	return e
}

// call sends a JSON body and returns the status and the decoded answer.
func call(t *testing.T, method, url, body string, header ...string) (int, map[string]any) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	answer := map[string]any{}
	if len(raw) > 0 && json.Unmarshal(raw, &answer) != nil {
		answer["text"] = string(raw)
	}
	return response.StatusCode, answer
}

// at walks a decoded answer.
func at(t *testing.T, value any, path ...any) any {
	t.Helper()
	for _, step := range path {
		switch step := step.(type) {
		case string:
			value = value.(map[string]any)[step]
		case int:
			value = value.([]any)[step]
		}
	}
	return value
}

func TestCompletionReportsItsOwnCache(t *testing.T) {
	e := start(t, engine.Config{Scheduler: sched.Config{BlockSize: 4}})
	body := `{"model":"sim","prompt":"abcdefghij","max_tokens":3,"ignore_eos":true}`
	var texts []any
	for i, want := range []float64{0, 8} {
		status, answer := call(t, "POST", e.URL()+"/v1/completions", body)
		if status != http.StatusOK {
			t.Fatalf("status %d: %v", status, answer)
		}
		usage := at(t, answer, "usage").(map[string]any)
		wantUsage := map[string]any{
			"prompt_tokens": 10.0, "completion_tokens": 3.0, "total_tokens": 13.0,
			"prompt_tokens_details": map[string]any{"cached_tokens": want},
		}
		if diff := cmp.Diff(wantUsage, usage); diff != "" {
			t.Errorf("request %d: %s", i, diff)
		}
		texts = append(texts, at(t, answer, "choices", 0, "text"))
	}
	if texts[0] != texts[1] {
		t.Errorf("equal prompts were answered %q and %q", texts[0], texts[1])
	}
	if got := e.HoldsPrefix(tinymodel.Encode("abcdefghij")); got != 8 {
		t.Errorf("the engine holds %d tokens, want 8", got)
	}
}

func TestHiddenCachedTokens(t *testing.T) {
	e := start(t, engine.Config{HideCachedTokens: true})
	_, answer := call(t, "POST", e.URL()+"/v1/completions", `{"prompt":"hi","max_tokens":1}`)
	if details := at(t, answer, "usage", "prompt_tokens_details"); details != nil {
		t.Errorf("details %v", details)
	}
}

func TestWithoutEvents(t *testing.T) {
	cases := map[string]struct {
		config       engine.Config
		wantEndpoint bool
	}{
		"no events": {engine.Config{NoEvents: true}, false},
		"no replay": {engine.Config{Events: eventsock.Options{Replay: eventsock.NoReplay}}, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			e := start(t, tc.config)
			if status, _ := call(t, "POST", e.URL()+"/v1/completions", `{"prompt":"hi","max_tokens":1}`); status != 200 {
				t.Errorf("status %d", status)
			}
			if got := e.EventsEndpoint() != ""; got != tc.wantEndpoint || e.ReplayEndpoint() != "" {
				t.Errorf("events at %q, replay at %q", e.EventsEndpoint(), e.ReplayEndpoint())
			}
		})
	}
}

func TestPromptForms(t *testing.T) {
	e := start(t, engine.Config{})
	cases := map[string]struct {
		prompt  string
		choices int
		tokens  float64
	}{
		"a text":           {`"hi"`, 1, 2},
		"token ids":        {`[104,105]`, 1, 2},
		"a list of texts":  {`["hi","you"]`, 2, 5},
		"lists of ids":     {`[[1,2,3],[4]]`, 2, 4},
		"one text, n is 2": {`"hi","n":2`, 2, 2},
		"texts, n is 2":    {`["hi","you"],"n":2`, 4, 5},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			status, answer := call(t, "POST", e.URL()+"/v1/completions", `{"max_tokens":1,"prompt":`+tc.prompt+`}`)
			if status != http.StatusOK {
				t.Fatalf("status %d: %v", status, answer)
			}
			if got := len(at(t, answer, "choices").([]any)); got != tc.choices {
				t.Errorf("%d choices, want %d", got, tc.choices)
			}
			if got := at(t, answer, "usage", "prompt_tokens"); got != tc.tokens {
				t.Errorf("%v prompt tokens, want %v", got, tc.tokens)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	e := start(t, engine.Config{Scheduler: sched.Config{MaxModelTokens: 64}})
	long := strings.Repeat("x", 64)
	cases := map[string]struct {
		path, body  string
		status      int
		kind, param any
	}{
		"an unknown model":         {"/v1/completions", `{"model":"other","prompt":"a"}`, 404, "NotFoundError", "model"},
		"a prompt beyond the room": {"/v1/completions", `{"prompt":"` + long + `"}`, 400, "BadRequestError", "prompt"},
		"an answer beyond it":      {"/v1/completions", `{"prompt":"a","max_tokens":64}`, 400, "BadRequestError", "max_tokens"},
		"no answer":                {"/v1/completions", `{"prompt":"a","max_tokens":0}`, 400, "BadRequestError", "max_tokens"},
		"no prompt":                {"/v1/completions", `{}`, 400, "BadRequestError", "prompt"},
		"an empty prompt":          {"/v1/completions", `{"prompt":""}`, 400, "BadRequestError", "prompt"},
		"a prompt of another kind": {"/v1/completions", `{"prompt":{"a":1}}`, 400, "BadRequestError", nil},
		"an empty salt":            {"/v1/completions", `{"prompt":"a","cache_salt":""}`, 400, "BadRequestError", "cache_salt"},
		"a broken body":            {"/v1/completions", `{"prompt"`, 400, "BadRequestError", nil},
		"no messages":              {"/v1/chat/completions", `{}`, 400, "BadRequestError", "messages"},
		"an image": {
			"/v1/chat/completions", `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`,
			400, "BadRequestError", nil,
		},
		"an unknown path": {"/sleep", `{}`, 404, "NotFoundError", nil},
		"no fault without leave": {
			"/sim/fault", `{"kind":"crash"}`, 404, "NotFoundError", nil,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			status, answer := call(t, "POST", e.URL()+tc.path, tc.body)
			if status != tc.status {
				t.Fatalf("status %d, want %d: %v", status, tc.status, answer)
			}
			failure := at(t, answer, "error").(map[string]any)
			if failure["type"] != tc.kind || failure["param"] != tc.param || failure["code"] != float64(tc.status) {
				t.Errorf("error %v", failure)
			}
		})
	}
}

func TestChatStream(t *testing.T) {
	e := start(t, engine.Config{})
	body := `{"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"ignore_eos":true,"stream":true,` +
		`"stream_options":{"include_usage":true},"return_token_ids":true}`
	response, err := http.Post(e.URL()+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var chunks []map[string]any
	done := false
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		data, isData := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case data == "[DONE]":
			done = true
		case isData:
			chunk := map[string]any{}
			if err := json.Unmarshal([]byte(data), &chunk); err != nil {
				t.Fatal(err)
			}
			chunks = append(chunks, chunk)
		}
	}
	if !done || len(chunks) != 4 {
		t.Fatalf("%d chunks (want 4), done %v", len(chunks), done)
	}
	if got := at(t, chunks[0], "choices", 0, "delta", "role"); got != "assistant" {
		t.Errorf("first delta's role %v", got)
	}
	wantPrompt := []any{
		258.0, 117.0, 115.0, 101.0, 114.0, 10.0, 104.0, 105.0, 259.0, 10.0,
		258.0, 97.0, 115.0, 115.0, 105.0, 115.0, 116.0, 97.0, 110.0, 116.0, 10.0,
	}
	if diff := cmp.Diff(wantPrompt, at(t, chunks[1], "choices", 0, "prompt_token_ids")); diff != "" {
		t.Error(diff)
	}
	if got := at(t, chunks[2], "choices", 0, "finish_reason"); got != "length" {
		t.Errorf("finish reason %v", got)
	}
	if got := at(t, chunks[3], "usage", "completion_tokens"); got != 2.0 {
		t.Errorf("completion tokens %v", got)
	}
}

func TestTokenize(t *testing.T) {
	e := start(t, engine.Config{})
	cases := map[string]struct {
		path, body string
		want       []any
	}{
		"a prompt": {"/tokenize", `{"prompt":"hi"}`, []any{104.0, 105.0}},
		"messages": {
			"/tokenize", `{"messages":[{"role":"u","content":[{"type":"text","text":"hi"}]}],"add_generation_prompt":false}`,
			[]any{258.0, 117.0, 10.0, 104.0, 105.0, 259.0, 10.0},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			_, answer := call(t, "POST", e.URL()+tc.path, tc.body)
			if diff := cmp.Diff(tc.want, answer["tokens"]); diff != "" {
				t.Error(diff)
			}
		})
	}
	if _, answer := call(t, "POST", e.URL()+"/detokenize", `{"tokens":[104,105,259]}`); answer["prompt"] != "hi<|im_end|>" {
		t.Errorf("detokenized %v", answer)
	}
}

func TestAdaptersAndSalts(t *testing.T) {
	e := start(t, engine.Config{Adapters: []string{"tuned"}, Scheduler: sched.Config{BlockSize: 4}})
	status, answer := call(t, "GET", e.URL()+"/v1/models", "")
	if status != http.StatusOK || at(t, answer, "data", 1, "id") != "tuned" || at(t, answer, "data", 1, "parent") != "sim" {
		t.Errorf("models %v", answer)
	}
	for _, body := range []string{
		`{"model":"tuned","prompt":"abcdefgh","max_tokens":1}`,
		`{"cache_salt":"s","prompt":"ABCDEFGH","max_tokens":1}`,
	} {
		if status, answer := call(t, "POST", e.URL()+"/v1/completions", body); status != http.StatusOK {
			t.Fatalf("status %d: %v", status, answer)
		}
	}
	cases := map[string]struct {
		text string
		id   blockhash.Identity
		want int
	}{
		"the adapter holds its blocks":   {"abcdefgh", blockhash.Identity{Adapter: "tuned"}, 8},
		"the base model does not":        {"abcdefgh", blockhash.Identity{}, 0},
		"the salt holds its blocks":      {"ABCDEFGH", blockhash.Identity{Salt: "s"}, 8},
		"another salt does not":          {"ABCDEFGH", blockhash.Identity{Salt: "t"}, 0},
		"neither do requests without it": {"ABCDEFGH", blockhash.Identity{}, 0},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := e.HoldsPrefixAs(tinymodel.Encode(tc.text), tc.id); got != tc.want {
				t.Errorf("%d tokens, want %d", got, tc.want)
			}
		})
	}
}

func TestClientThatLeavesAborts(t *testing.T) {
	e := start(t, engine.Config{Timing: sched.Timing{DecodeStep: time.Millisecond}})
	ctx, cancel := context.WithCancel(t.Context())
	body := `{"prompt":"abc","max_tokens":60000,"ignore_eos":true,"stream":true}`
	request, err := http.NewRequestWithContext(ctx, "POST", e.URL()+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := bufio.NewReader(response.Body).ReadBytes('\n'); err != nil {
		t.Fatal(err)
	}
	cancel()
	eventually(t, "the request ends", func() bool { return e.Stats().Running == 0 })
}

// eventually polls what another goroutine of the engine does.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("still waiting: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestKillAndRestartKeepPorts(t *testing.T) {
	e := start(t, engine.Config{Scheduler: sched.Config{BlockSize: 4}})
	url, events, replay := e.URL(), e.EventsEndpoint(), e.ReplayEndpoint()
	if status, _ := call(t, "POST", url+"/v1/completions", `{"prompt":"abcdefgh","max_tokens":1}`); status != 200 {
		t.Fatal(status)
	}
	e.Kill()
	if _, err := http.Get(url + "/health"); err == nil {
		t.Error("a killed engine answers")
	}
	if err := e.Restart(); err != nil {
		t.Fatal(err)
	}
	if e.URL() != url || e.EventsEndpoint() != events || e.ReplayEndpoint() != replay {
		t.Errorf("ports changed: %s %s %s", e.URL(), e.EventsEndpoint(), e.ReplayEndpoint())
	}
	if status, _ := call(t, "GET", url+"/health", ""); status != 200 {
		t.Errorf("health %d after the restart", status)
	}
	if got := e.HoldsPrefix(tinymodel.Encode("abcdefgh")); got != 0 {
		t.Errorf("%d tokens survived the restart", got)
	}
}

func TestShutdownCutsOpenStreams(t *testing.T) {
	e := start(t, engine.Config{Timing: sched.Timing{DecodeStep: time.Millisecond}})
	response, err := http.Post(e.URL()+"/v1/completions", "application/json",
		strings.NewReader(`{"prompt":"abc","max_tokens":60000,"ignore_eos":true,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	e.Shutdown(10 * time.Millisecond)
	raw, _ := io.ReadAll(response.Body)
	if bytes.Contains(raw, []byte("[DONE]")) {
		t.Error("the stream ended as if it were complete")
	}
}

func TestRanks(t *testing.T) {
	e := start(t, engine.Config{Ranks: 3, Scheduler: sched.Config{BlockSize: 4}})
	response, err := http.Get(e.URL() + "/kv_event_sources")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var sources []httpapi.EventSource
	if err := json.NewDecoder(response.Body).Decode(&sources); err != nil {
		t.Fatal(err)
	}
	if len(sources) != 3 {
		t.Fatalf("%d sources", len(sources))
	}
	base, err := zmtp.ParseEndpoint(sources[0].Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	for n, source := range sources {
		want, _ := base.Shift(n)
		if source.Rank != n || source.Endpoint != want.String() {
			t.Errorf("source %d: %+v, want endpoint %s", n, source, want)
		}
	}
	body := `{"prompt":"abcdefgh","max_tokens":1}`
	if status, answer := call(t, "POST", e.URL()+"/v1/completions", body, "X-Data-Parallel-Rank", "3"); status != 400 {
		t.Errorf("rank 3 of 3: status %d %v", status, answer)
	}
	for range 2 {
		status, answer := call(t, "POST", e.URL()+"/v1/completions", body, "X-Data-Parallel-Rank", "2")
		if status != 200 {
			t.Fatal(answer)
		}
	}
	_, answer := call(t, "POST", e.URL()+"/v1/completions", body, "X-Data-Parallel-Rank", "1")
	if got := at(t, answer, "usage", "prompt_tokens_details", "cached_tokens"); got != 0.0 {
		t.Errorf("rank 1 reused %v tokens of rank 2", got)
	}
}

func TestMetrics(t *testing.T) {
	cases := map[string]struct {
		runtime httpapi.Runtime
		want    []string
	}{
		"vllm": {httpapi.VLLM, []string{
			`vllm:num_requests_running{engine="0",model_name="sim"} 0`,
			`vllm:num_requests_waiting{engine="0",model_name="sim"} 0`,
			`vllm:kv_cache_usage_perc{engine="0",model_name="sim"} 0`,
			`vllm:prefix_cache_queries_total{engine="0",model_name="sim"} 20`,
			`vllm:prefix_cache_hits_total{engine="0",model_name="sim"} 8`,
			`vllm:prompt_tokens_total{engine="0",model_name="sim"} 20`,
			`vllm:generation_tokens_total{engine="0",model_name="sim"} 4`,
			`vllm:prompt_tokens_by_source_total{engine="0",model_name="sim",source="local_compute"} 12`,
			`vllm:time_to_first_token_seconds_count{engine="0",model_name="sim"} 2`,
			`vllm:request_success_total{engine="0",finished_reason="length",model_name="sim"} 2`,
			`vllm:cache_config_info{block_size="4",enable_prefix_caching="True",engine="0",num_gpu_blocks="4096",prefix_caching_hash_algo="sha256_cbor"} 1`,
		}},
		"sglang": {httpapi.SGLang, []string{
			`sglang:num_running_reqs{dp_rank="0",model_name="sim"} 0`,
			`sglang:num_queue_reqs{dp_rank="0",model_name="sim"} 0`,
			`sglang:token_usage{dp_rank="0",model_name="sim"} 0`,
			`sglang:cache_hit_rate{dp_rank="0",model_name="sim"} 0.4`,
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			e := start(t, engine.Config{Runtime: tc.runtime, Scheduler: sched.Config{BlockSize: 4}})
			for range 2 {
				call(t, "POST", e.URL()+"/v1/completions", `{"prompt":"abcdefghij","max_tokens":2,"ignore_eos":true}`)
			}
			_, answer := call(t, "GET", e.URL()+"/metrics", "")
			text := "\n" + answer["text"].(string)
			for _, line := range tc.want {
				if !strings.Contains(text, "\n"+line+"\n") {
					t.Errorf("no line %s in\n%s", line, text)
				}
			}
		})
	}
}

func TestSGLangInfo(t *testing.T) {
	e := start(t, engine.Config{Runtime: httpapi.SGLang, Scheduler: sched.Config{BlockSize: 4}})
	_, answer := call(t, "GET", e.URL()+"/server_info", "")
	if got := at(t, answer, "kv_events", "block_size"); got != 4.0 {
		t.Errorf("server_info %v", answer)
	}
	_, answer = call(t, "GET", e.URL()+"/v1/loads?include=core", "")
	if got := at(t, answer, "loads", 0, "num_waiting_reqs"); got != 0.0 {
		t.Errorf("loads %v", answer)
	}
	if status, _ := call(t, "POST", e.URL()+"/flush_cache", ""); status != 200 {
		t.Errorf("flush_cache %d", status)
	}
}

func TestFaultPath(t *testing.T) {
	e := start(t, engine.Config{Faults: true})
	fault := func(body string) (int, map[string]any) { return call(t, "POST", e.URL()+"/sim/fault", body) }
	if status, answer := fault(`{"kind":"nonsense"}`); status != 400 || !strings.Contains(at(t, answer, "error", "message").(string), "malformed") {
		t.Errorf("unknown kind: %d %v", status, answer)
	}
	if status, answer := fault(`{"kind":"gap","rank":1}`); status != 400 {
		t.Errorf("unknown rank: %d %v", status, answer)
	}
	if status, answer := fault(`{"kind":"http_error","status":503,"count":1}`); status != 200 {
		t.Fatalf("http_error: %d %v", status, answer)
	}
	for _, want := range []int{503, 200} {
		if status, _ := call(t, "POST", e.URL()+"/v1/completions", `{"prompt":"a","max_tokens":1}`); status != want {
			t.Errorf("status %d, want %d", status, want)
		}
	}
	if err := e.Inject(httpapi.Fault{Kind: engine.FaultCrash}); err != nil {
		t.Errorf("crash: %v", err)
	}
	eventually(t, "the engine is down", func() bool {
		_, err := http.Get(e.URL() + "/health")
		return err != nil
	})
}

func TestStartRefuses(t *testing.T) {
	taken := start(t, engine.Config{})
	cases := map[string]engine.Config{
		"an unknown runtime": {Runtime: "other"},
		"an unknown shape":   {EventShape: "other"},
		"a taken port":       {Listen: taken.Address()},
		"a taken event port": {Events: eventsock.Options{Endpoint: taken.EventsEndpoint()}},
	}
	for name, config := range cases {
		t.Run(name, func(t *testing.T) {
			if e, err := engine.Start(t.Context(), config); err == nil {
				e.Close()
				t.Error("no error")
			}
		})
	}
}
