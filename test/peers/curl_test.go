// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// curl runs curl with a body from a file and returns the status code, the
// response's head and its body.
func curl(t *testing.T, url string, body []byte, options ...string) (code, head, text string) {
	t.Helper()
	dir := t.TempDir()
	arguments := append([]string{
		"--silent", "--show-error", "--no-buffer", "--max-time", "60", "--noproxy", "*",
		"--output", filepath.Join(dir, "body"), "--dump-header", filepath.Join(dir, "head"), "--write-out", "%{http_code}",
	}, options...)
	if body != nil {
		file := filepath.Join(dir, "request")
		if err := os.WriteFile(file, body, 0o600); err != nil {
			t.Fatal(err)
		}
		arguments = append(arguments, "--header", "content-type: application/json", "--data-binary", "@"+file)
	}
	output, exit := runProgram(t, 90*time.Second, exec.Command("curl", append(arguments, url)...))
	if exit != 0 {
		t.Fatalf("curl: exit code %d\n%s", exit, output)
	}
	for name, into := range map[string]*string{"head": &head, "body": &text} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && !os.IsNotExist(err) { // no body, no file
			t.Fatal(err)
		}
		*into = string(data)
	}
	return string(output), head, text
}

// errorCode is the code of an OpenAI error body.
func errorCode(t *testing.T, body string) string {
	t.Helper()
	var answer struct {
		Error struct{ Message, Type, Code string }
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatalf("the error is no OpenAI error: %v\n%.500s", err, body)
	}
	if answer.Error.Message == "" || answer.Error.Type == "" {
		t.Errorf("an error without message or type: %s", body)
	}
	return answer.Error.Code
}

func TestCurl(t *testing.T) {
	tools := requireTools(t)
	f := startFleet(t, tools)
	t.Run("a stream arrives event by event", f.testCurlStream)
	t.Run("a prompt of 1 MiB is served whole", f.testCurlBigPrompt)
	t.Run("bad requests are refused in words", f.testCurlRefusals)
	f.requireIdle(t)
}

func (f *fleet) testCurlStream(t *testing.T) {
	body := []byte(`{"model":"sim","stream":true,"max_tokens":5,"messages":[{"role":"user","content":"Hello, harbour."}]}`)
	code, head, text := curl(t, f.Gateway+"/v1/chat/completions", body)
	if code != "200" || !strings.Contains(strings.ToLower(head), "content-type: text/event-stream") {
		t.Fatalf("status %s, head:\n%s", code, head)
	}
	events := strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n")
	for _, event := range events {
		if !strings.HasPrefix(event, "data: ") {
			t.Errorf("not an event: %q", event)
		}
	}
	if len(events) < 4 || events[len(events)-1] != "data: [DONE]" {
		t.Errorf("%d events, the last one %q", len(events), events[len(events)-1])
	}
}

func (f *fleet) testCurlBigPrompt(t *testing.T) {
	const size = 1 << 20
	prompt := strings.Repeat("All the ships of the world come home. ", size/38+1)[:size]
	body := fmt.Appendf(nil, `{"model":"sim","max_tokens":2,"prompt":%q}`, prompt)
	for attempt := range 2 {
		code, _, text := curl(t, f.Gateway+"/v1/completions", body)
		if code != "200" {
			t.Fatalf("attempt %d: status %s: %.500s", attempt, code, text)
		}
		var answer struct {
			Usage struct {
				PromptTokens int `json:"prompt_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			t.Fatal(err)
		}
		if answer.Usage.PromptTokens != size {
			t.Errorf("attempt %d: the engine saw %d bytes of the prompt, want %d", attempt, answer.Usage.PromptTokens, size)
		}
	}
}

func (f *fleet) testCurlRefusals(t *testing.T) {
	valid := `{"model":"sim","max_tokens":1,"prompt":"x"}`
	cases := map[string]struct {
		path     string
		body     []byte
		options  []string
		wantCode string
		want     string
	}{
		"a body that is no JSON":       {"/v1/chat/completions", []byte(`{"model":"sim","messages":[`), nil, "400", "invalid_request"},
		"a body that is a list":        {"/v1/completions", []byte(`[]`), nil, "400", "invalid_request"},
		"an empty body":                {"/v1/completions", []byte{}, nil, "400", "invalid_request"},
		"an unknown model":             {"/v1/completions", []byte(`{"model":"other","prompt":"x"}`), nil, "404", "model_not_found"},
		"a field that steers engines":  {"/v1/completions", []byte(`{"model":"sim","prompt":"x","bootstrap_host":"127.0.0.1"}`), nil, "400", "forbidden_field"},
		"a body beyond the limit":      {"/v1/completions", bytes.Repeat([]byte(" "), 11<<20), nil, "413", "request_too_large"},
		"a chunked body over the same": {"/v1/completions", bytes.Repeat([]byte(" "), 11<<20), []string{"--header", "transfer-encoding: chunked"}, "413", "request_too_large"},
		"an engine's own page":         {"/metrics", nil, nil, "404", "not_found"},
		"an engine's administration":   {"/reset_prefix_cache", []byte(`{}`), nil, "404", "not_found"},
		"a path with dots":             {"/v1/../reset_prefix_cache", []byte(valid), []string{"--path-as-is", "--location"}, "404", "not_found"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			code, _, text := curl(t, f.Gateway+tc.path, tc.body, tc.options...)
			if code != tc.wantCode {
				t.Errorf("status %s, want %s: %.500s", code, tc.wantCode, text)
			}
			if got := errorCode(t, text); got != tc.want {
				t.Errorf("code %q, want %q", got, tc.want)
			}
		})
	}
}
