// SPDX-License-Identifier: Apache-2.0

package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// No body may crash the engine, and no error may repeat the prompt.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"prompt":"hi","max_tokens":3}`, `{"prompt":[1,2,3]}`, `{"prompt":["a","b"],"n":2}`,
		`{"prompt":[[1],[2]],"stream_options":{"include_usage":true}}`, `{"prompt":{"a":1}}`,
		`{"messages":[{"role":"user","content":"hi"}],"tools":[{}]}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}`,
		`{"messages":[{"role":"user","content":null,"tool_calls":[{"id":"x"}]}]}`, `[`, ``, `{"n":-1}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var completion completionRequest
		if err := readJSON(httptest.NewRequest("POST", "/", bytes.NewReader(body)), &completion); err == nil {
			prompts, err := completion.Prompt.prompts(completion.N)
			if err == nil && (len(prompts) == 0 || len(prompts) > maxPrompts) {
				t.Fatalf("%d prompts", len(prompts))
			}
			if limit, err := completion.limit(1, 100, completionTokens); err == nil && (limit < 1 || limit > 99) {
				t.Fatalf("limit %d", limit)
			}
		}
		var chat chatRequest
		if err := readJSON(httptest.NewRequest("POST", "/", bytes.NewReader(body)), &chat); err == nil {
			if tokens, err := chat.tokens(); err == nil && len(tokens) == 0 {
				t.Fatal("a chat without tokens")
			}
		}
	})
}

func TestErrorsDoNotRepeatPrompts(t *testing.T) {
	const secret = "my secret"
	cases := map[string]string{
		"a number where text belongs": `{"model":"` + secret + `","max_tokens":"` + secret + `"}`,
		"a broken body":               `{"prompt":"` + secret + `" "`,
		"content of another kind":     `{"messages":[{"content":{"text":"` + secret + `"}}]}`,
	}
	for name, body := range cases {
		t.Run(name, func(t *testing.T) {
			var request chatRequest
			err := readJSON(httptest.NewRequest("POST", "/", strings.NewReader(body)), &request)
			if err == nil {
				t.Fatal("no error")
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error repeats the body: %v", err)
			}
		})
	}
}

func TestContentForms(t *testing.T) {
	cases := map[string]struct{ raw, want string }{
		"a string":          {`"hi"`, "hi"},
		"null":              {`null`, ""},
		"parts are joined":  {`[{"type":"text","text":"a"},{"type":"text","text":"b"}]`, "ab"},
		"no parts are none": {`[]`, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var got content
			if err := json.Unmarshal([]byte(tc.raw), &got); err != nil {
				t.Fatal(err)
			}
			if string(got) != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
