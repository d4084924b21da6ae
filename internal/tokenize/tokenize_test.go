// SPDX-License-Identifier: Apache-2.0

package tokenize_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/breaker"
	"github.com/inferencecache/inference-cache/internal/jsonscan"
	"github.com/inferencecache/inference-cache/internal/tokenize"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeEngine answers /tokenize calls and remembers them.
type fakeEngine struct {
	answer func(ctx context.Context, url string) (int, string, error)

	mu     sync.Mutex
	bodies []string
	urls   []string
}

func (f *fakeEngine) RoundTrip(request *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	f.bodies = append(f.bodies, string(body))
	f.urls = append(f.urls, request.URL.String())
	f.mu.Unlock()
	status, answer, err := 200, `{"count":3,"max_model_len":99,"tokens":[1,2,3]}`, error(nil)
	if f.answer != nil {
		status, answer, err = f.answer(request.Context(), request.URL.String())
	}
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(answer))}, nil
}

func newEngine(t *testing.T, fake *fakeEngine, change func(*tokenize.EngineOptions)) *tokenize.Engine {
	t.Helper()
	options := tokenize.EngineOptions{
		Endpoints: func(string) []tokenize.Endpoint {
			return []tokenize.Endpoint{{URL: "http://a", Runtime: "vllm"}}
		},
		Transport: fake,
	}
	if change != nil {
		change(&options)
	}
	engine, err := tokenize.NewEngine(options)
	if err != nil {
		t.Fatal(err)
	}
	return engine
}

func prompt(t *testing.T, chat bool, body string) *tokenize.Prompt {
	t.Helper()
	p := &tokenize.Prompt{Chat: chat, Model: "m"}
	err := jsonscan.Object([]byte(body), func(key, value []byte) error {
		p.Add(key, value)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestForms(t *testing.T) {
	tests := map[string]struct {
		chat     bool
		body     string
		wantCall string
		want     tokenize.Result
		wantErr  tokenize.Reason
	}{
		"messages go with every template field and nothing else": {
			chat: true,
			body: `{"model":"x","temperature":0,"chat_template_kwargs":{"a":1},"tools":[{}],"messages":[{"role":"user","content":"hi"}],
				"add_generation_prompt":false,"continue_final_message":true,"stream":true,"tool_choice":"auto","documents":[1],"chat_template":"t"}`,
			wantCall: `{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{}],"tool_choice":"auto","documents":[1],` +
				`"chat_template":"t","chat_template_kwargs":{"documents":[1],"a":1},"add_generation_prompt":false,"continue_final_message":true}`,
			want: tokenize.Result{Tokens: []uint32{1, 2, 3}, Source: tokenize.SourceEngine},
		},
		"a text prompt goes as it is": {
			body:     `{"prompt":"hi","add_special_tokens":false,"messages":[1]}`,
			wantCall: `{"model":"m","prompt":"hi","add_special_tokens":false}`,
			want:     tokenize.Result{Tokens: []uint32{1, 2, 3}, Source: tokenize.SourceEngine},
		},
		"the first of several prompts decides": {
			body:     `{"prompt":["one","two"]}`,
			wantCall: `{"model":"m","prompt":"one"}`,
			want:     tokenize.Result{Tokens: []uint32{1, 2, 3}, Source: tokenize.SourceEngine, Batch: true},
		},
		"token ids need no engine": {
			body: `{"prompt":[5,6]}`,
			want: tokenize.Result{Tokens: []uint32{5, 6}, Source: tokenize.SourceClient},
		},
		"the first of several id lists decides": {
			body: `{"prompt":[[5,6],[7]]}`,
			want: tokenize.Result{Tokens: []uint32{5, 6}, Source: tokenize.SourceClient, Batch: true},
		},
		"ids of a chat need no engine": {
			chat: true, body: `{"input_ids":[8],"messages":[]}`,
			want: tokenize.Result{Tokens: []uint32{8}, Source: tokenize.SourceClient},
		},
		"a null member is as good as absent": {
			chat: true, body: `{"messages":[],"tools":null,"truncate_prompt_tokens":null}`,
			wantCall: `{"model":"m","messages":[]}`,
			want:     tokenize.Result{Tokens: []uint32{1, 2, 3}, Source: tokenize.SourceEngine},
		},
		"truncated prompts are left to the engine": {
			body: `{"prompt":"hi","truncate_prompt_tokens":4}`, wantErr: tokenize.ReasonUnsupported,
		},
		"negative ids are not ids":    {body: `{"prompt":[-1]}`, wantErr: tokenize.ReasonUnsupported},
		"no prompt at all":            {body: `{}`, wantErr: tokenize.ReasonUnsupported},
		"no prompt in the list":       {body: `{"prompt":[]}`, wantErr: tokenize.ReasonUnsupported},
		"no messages":                 {chat: true, body: `{}`, wantErr: tokenize.ReasonUnsupported},
		"prompts over the size limit": {body: `{"prompt":"` + strings.Repeat("x", 1<<20) + `"}`, wantErr: tokenize.ReasonTooLarge},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			fake := &fakeEngine{}
			got, err := newEngine(t, fake, nil).Tokenize(t.Context(), prompt(t, tc.chat, tc.body))
			if reason := reasonOf(err); reason != tc.wantErr {
				t.Fatalf("error %v, want %q", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
			if call := strings.Join(fake.bodies, "\n"); call != tc.wantCall {
				t.Errorf("call\n%s\nwant\n%s", call, tc.wantCall)
			}
		})
	}
}

func reasonOf(err error) tokenize.Reason {
	var classified *tokenize.Error
	if errors.As(err, &classified) {
		return classified.Reason
	}
	return ""
}

func TestCache(t *testing.T) {
	fake := &fakeEngine{}
	engine := newEngine(t, fake, nil)
	ask := func(change func(*tokenize.Prompt)) tokenize.Source {
		p := prompt(t, false, `{"prompt":"hi"}`)
		if change != nil {
			change(p)
		}
		result, err := engine.Tokenize(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		return result.Source
	}
	ask(nil)
	if got := ask(nil); got != tokenize.SourceCache {
		t.Errorf("the same prompt came from %s", got)
	}
	for name, change := range map[string]func(*tokenize.Prompt){
		"model":     func(p *tokenize.Prompt) { p.Model = "other" },
		"revision":  func(p *tokenize.Prompt) { p.Revision = "2" },
		"partition": func(p *tokenize.Prompt) { p.Partition = "2" },
		"runtime":   func(p *tokenize.Prompt) { p.Runtime = "sglang" },
		"text":      func(p *tokenize.Prompt) { p.Add([]byte("prompt"), []byte(`"ho"`)) },
		"argument":  func(p *tokenize.Prompt) { p.Add([]byte("add_special_tokens"), []byte("false")) },
	} {
		if got := ask(change); got != tokenize.SourceEngine {
			t.Errorf("with another %s the result came from %s", name, got)
		}
	}
}

func TestFailures(t *testing.T) {
	tests := map[string]struct {
		status   int
		answer   string
		err      error
		want     tokenize.Reason
		wantOpen bool
	}{
		"no connection":          {err: errors.New("refused"), want: tokenize.ReasonFailed, wantOpen: true},
		"an engine error":        {status: 500, want: tokenize.ReasonFailed, wantOpen: true},
		"no such endpoint":       {status: 404, want: tokenize.ReasonFailed, wantOpen: true},
		"a redirect":             {status: 302, want: tokenize.ReasonFailed, wantOpen: true},
		"no JSON":                {status: 200, answer: "<html>", want: tokenize.ReasonMalformed, wantOpen: true},
		"no tokens":              {status: 200, answer: "{}", want: tokenize.ReasonMalformed, wantOpen: true},
		"tokens that are not":    {status: 200, answer: `{"tokens":["a"]}`, want: tokenize.ReasonMalformed, wantOpen: true},
		"a prompt it cannot use": {status: 400, want: tokenize.ReasonRejected},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			fake := &fakeEngine{answer: func(context.Context, string) (int, string, error) {
				return tc.status, tc.answer, tc.err
			}}
			engine := newEngine(t, fake, nil)
			for range 3 {
				_, err := engine.Tokenize(t.Context(), prompt(t, false, `{"prompt":"hi"}`))
				if reason := reasonOf(err); reason != tc.want {
					t.Fatalf("error %v, want %s", err, tc.want)
				}
			}
			if open := engine.BreakerState() == breaker.Open; open != tc.wantOpen {
				t.Errorf("breaker open %v, want %v", open, tc.wantOpen)
			}
		})
	}
}

// TestHangingEngine checks that at most three requests wait for an engine that
// does not answer, and that its repair is noticed.
func TestHangingEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := true
		fake := &fakeEngine{answer: func(ctx context.Context, _ string) (int, string, error) {
			if hangs {
				<-ctx.Done()
				return 0, "", ctx.Err()
			}
			return 200, `{"tokens":[1]}`, nil
		}}
		engine := newEngine(t, fake, nil)
		var waits []time.Duration
		var reasons []tokenize.Reason
		ask := func() {
			begin := time.Now()
			_, err := engine.Tokenize(t.Context(), prompt(t, false, `{"prompt":"hi"}`))
			waits = append(waits, time.Since(begin))
			reasons = append(reasons, reasonOf(err))
		}
		for range 5 {
			ask()
		}
		time.Sleep(5 * time.Second)
		ask()
		ask()
		hangs = false
		time.Sleep(5 * time.Second)
		ask()
		const wait = 100 * time.Millisecond
		if diff := cmp.Diff([]time.Duration{wait, wait, wait, 0, 0, wait, 0, 0}, waits); diff != "" {
			t.Errorf("waits (-want +got):\n%s", diff)
		}
		timeout, open := tokenize.ReasonTimeout, tokenize.ReasonBreakerOpen
		if diff := cmp.Diff([]tokenize.Reason{timeout, timeout, timeout, open, open, timeout, open, ""}, reasons); diff != "" {
			t.Errorf("reasons (-want +got):\n%s", diff)
		}
	})
}

func TestConcurrencyLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &fakeEngine{answer: func(context.Context, string) (int, string, error) {
			time.Sleep(50 * time.Millisecond)
			return 200, `{"tokens":[1]}`, nil
		}}
		engine := newEngine(t, fake, func(o *tokenize.EngineOptions) { o.MaxConcurrent = 2 })
		busy := make(chan bool, 5)
		for range 5 {
			go func() {
				_, err := engine.Tokenize(t.Context(), prompt(t, false, `{"prompt":"hi"}`))
				busy <- reasonOf(err) == tokenize.ReasonBusy
			}()
		}
		rejected := 0
		for range 5 {
			if <-busy {
				rejected++
			}
		}
		if rejected != 3 {
			t.Errorf("%d of 5 calls were turned away, want 3", rejected)
		}
		if engine.BreakerState() != breaker.Closed {
			t.Error("being busy opened the breaker")
		}
	})
}

func TestClientThatLeaves(t *testing.T) {
	fake := &fakeEngine{answer: func(ctx context.Context, _ string) (int, string, error) { return 0, "", ctx.Err() }}
	engine := newEngine(t, fake, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 5 {
		if _, err := engine.Tokenize(ctx, prompt(t, false, `{"prompt":"hi"}`)); reasonOf(err) != tokenize.ReasonCancelled {
			t.Fatal(err)
		}
	}
	if engine.BreakerState() != breaker.Closed {
		t.Error("clients that leave opened the breaker")
	}
}

func TestFailingEngineIsAvoided(t *testing.T) {
	fake := &fakeEngine{answer: func(_ context.Context, url string) (int, string, error) {
		if strings.HasPrefix(url, "http://a") {
			return 500, "", nil
		}
		return 200, `{"tokens":[1]}`, nil
	}}
	engine := newEngine(t, fake, func(o *tokenize.EngineOptions) {
		o.Endpoints = func(string) []tokenize.Endpoint {
			return []tokenize.Endpoint{{URL: "http://a"}, {URL: "http://b"}}
		}
	})
	for _, text := range []string{`"1"`, `"2"`, `"3"`, `"4"`} {
		_, _ = engine.Tokenize(t.Context(), prompt(t, false, `{"prompt":`+text+`}`))
	}
	want := []string{"http://a/tokenize", "http://b/tokenize", "http://b/tokenize", "http://b/tokenize"}
	if diff := cmp.Diff(want, fake.urls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// TestOneDyingEngine checks that calls which fail together on one engine leave
// the others in use.
func TestOneDyingEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake := &fakeEngine{answer: func(_ context.Context, url string) (int, string, error) {
			if strings.HasPrefix(url, "http://a") {
				time.Sleep(time.Millisecond)
				return 0, "", errors.New("reset")
			}
			return 200, `{"tokens":[1]}`, nil
		}}
		engine := newEngine(t, fake, func(o *tokenize.EngineOptions) {
			o.Endpoints = func(string) []tokenize.Endpoint {
				return []tokenize.Endpoint{{URL: "http://a"}, {URL: "http://b"}}
			}
		})
		for i := range 5 {
			go func() {
				_, _ = engine.Tokenize(t.Context(), prompt(t, false, fmt.Sprintf(`{"prompt":"%d"}`, i)))
			}()
		}
		time.Sleep(2 * time.Millisecond)
		if _, err := engine.Tokenize(t.Context(), prompt(t, false, `{"prompt":"next"}`)); err != nil {
			t.Error(err)
		}
	})
}

func TestRuntimesWithoutMessages(t *testing.T) {
	engine := newEngine(t, &fakeEngine{}, func(o *tokenize.EngineOptions) {
		o.Endpoints = func(string) []tokenize.Endpoint { return []tokenize.Endpoint{{URL: "http://a", Runtime: "sglang"}} }
	})
	if _, err := engine.Tokenize(t.Context(), prompt(t, true, `{"messages":[]}`)); reasonOf(err) != tokenize.ReasonUnsupported {
		t.Error(err)
	}
	if _, err := engine.Tokenize(t.Context(), prompt(t, false, `{"prompt":"hi"}`)); err != nil {
		t.Error(err)
	}
}

func TestClientIDs(t *testing.T) {
	var ids tokenize.ClientIDs
	if _, err := ids.Tokenize(t.Context(), prompt(t, false, `{"prompt":"hi"}`)); reasonOf(err) != tokenize.ReasonUnsupported {
		t.Error(err)
	}
	if got, err := ids.Tokenize(t.Context(), prompt(t, false, `{"prompt":[4]}`)); err != nil || len(got.Tokens) != 1 {
		t.Error(got, err)
	}
}

func FuzzDecodeAnswer(f *testing.F) {
	f.Add([]byte(`{"count":3,"tokens":[1,2,3]}`))
	f.Add([]byte(`{"tokens":[4294967296]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tokens, err := tokenize.DecodeAnswer(data)
		if (err == nil) == (reasonOf(err) == tokenize.ReasonMalformed) {
			t.Fatalf("%d tokens, error %v", len(tokens), err)
		}
	})
}

func FuzzPrompt(f *testing.F) {
	f.Add([]byte(`["a",[1],2]`))
	f.Add([]byte(`[[1],"a"]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		document := append(append([]byte(`{"prompt":`), data...), '}')
		p := &tokenize.Prompt{}
		if jsonscan.Object(document, func(key, value []byte) error { p.Add(key, value); return nil }) != nil {
			return
		}
		_, _, err := p.Direct()
		if err != nil && reasonOf(err) != tokenize.ReasonUnsupported {
			t.Fatal(err)
		}
	})
}
