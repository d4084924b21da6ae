// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/sim/engine"
)

// say posts a body and returns the answer.
func say(t *testing.T, e *engine.Engine, path, body string) (int, string) {
	t.Helper()
	response, err := http.Post(e.URL()+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// eventNames lists the names of events, each once in a row.
func eventNames(stream string) []string {
	var names []string
	for line := range strings.Lines(stream) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "event: ")
		if ok && (len(names) == 0 || names[len(names)-1] != name) {
			names = append(names, name)
		}
	}
	return names
}

// One conversation gives the same prompt and the same answer in every form.
func TestFormsOfAChatAgree(t *testing.T) {
	e, err := engine.Start(t.Context(), engine.Config{NoEvents: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	type counted struct {
		text   string
		tokens int
	}
	var chat struct {
		Choices []struct{ Message struct{ Content string } }
		Usage   struct {
			Prompt int `json:"prompt_tokens"`
		}
	}
	var response struct {
		Status string
		Output []struct{ Content []struct{ Text string } }
		Usage  struct {
			Input int `json:"input_tokens"`
		}
	}
	var message struct {
		StopReason string `json:"stop_reason"`
		Content    []struct{ Text string }
		Usage      struct {
			Input int `json:"input_tokens"`
		}
	}
	for path, request := range map[string]struct {
		body string
		into any
	}{
		"/v1/chat/completions": {`{"max_tokens":8,"tools":[{"type":"function","function":{"name":"f","parameters":{"a":1}}}],"messages":[
			{"role":"system","content":"s"},{"role":"user","content":"q"},
			{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\": [1, 2]}"}}]},
			{"role":"tool","content":"r"},{"role":"user","content":"and"}]}`, &chat},
		"/v1/responses": {`{"max_output_tokens":8,"instructions":"s","tools":[{"type":"function","name":"f","parameters":{"a":1}}],"input":[
			{"role":"user","content":[{"type":"input_text","text":"q"}]},
			{"type":"function_call","call_id":"1","name":"f","arguments":"{\"x\": [1, 2]}"},
			{"type":"function_call_output","call_id":"1","output":"r"},{"role":"user","content":"and"}]}`, &response},
		"/v1/messages": {`{"max_tokens":8,"system":"s","tools":[{"name":"f","input_schema":{"a":1}}],"messages":[
			{"role":"user","content":"q"},
			{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"x":[1,2]}}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"r"},{"type":"text","text":"and"}]}]}`, &message},
	} {
		status, text := say(t, e, path, request.body)
		if status != 200 {
			t.Fatalf("%s: %d %s", path, status, text)
		}
		if err := json.Unmarshal([]byte(text), request.into); err != nil {
			t.Fatalf("%s: %s: %v", path, text, err)
		}
	}
	want := counted{chat.Choices[0].Message.Content, chat.Usage.Prompt}
	for name, got := range map[string]counted{
		"responses": {response.Output[0].Content[0].Text, response.Usage.Input},
		"messages":  {message.Content[0].Text, message.Usage.Input},
	} {
		if got != want || got.text == "" {
			t.Errorf("%s: %+v, a chat completion gives %+v", name, got, want)
		}
	}
	if response.Status != "incomplete" || message.StopReason != "max_tokens" {
		t.Errorf("status %q and stop reason %q of answers that were cut", response.Status, message.StopReason)
	}
}

func TestStreamsOfOtherForms(t *testing.T) {
	e, err := engine.Start(t.Context(), engine.Config{NoEvents: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for path, tc := range map[string]struct {
		body string
		want []string
	}{
		"/v1/responses": {`{"input":"hi","stream":true,"max_output_tokens":4}`, []string{
			"response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
			"response.output_text.delta", "response.output_text.done", "response.content_part.done",
			"response.output_item.done", "response.completed",
		}},
		"/v1/messages": {`{"messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":4}`, []string{
			"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop",
		}},
	} {
		status, stream := say(t, e, path, tc.body)
		if diff := cmp.Diff(tc.want, eventNames(stream)); diff != "" || status != 200 || strings.Contains(stream, "[DONE]") {
			t.Errorf("%s: status %d, events (-want +got):\n%s", path, status, diff)
		}
	}
}

func TestOtherFormsRefuse(t *testing.T) {
	e, err := engine.Start(t.Context(), engine.Config{NoEvents: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for name, tc := range map[string]struct {
		path, body string
		status     int
	}{
		"a response nobody kept":   {"/v1/responses", `{"input":"hi","previous_response_id":"r"}`, 404},
		"no input":                 {"/v1/responses", `{}`, 400},
		"an image":                 {"/v1/responses", `{"input":[{"role":"user","content":[{"type":"input_image"}]}]}`, 400},
		"tools of the engine":      {"/v1/responses", `{"input":"hi","tools":[{"type":"web_search"}]}`, 400},
		"another model":            {"/v1/responses", `{"input":"hi","model":"other"}`, 404},
		"no limit":                 {"/v1/messages", `{"messages":[{"role":"user","content":"hi"}]}`, 400},
		"no messages":              {"/v1/messages", `{"max_tokens":1}`, 400},
		"an image in a message":    {"/v1/messages", `{"max_tokens":1,"messages":[{"role":"user","content":[{"type":"image"}]}]}`, 400},
		"a system that is no text": {"/v1/messages", `{"max_tokens":1,"system":[{"type":"image"}],"messages":[{"role":"user","content":"hi"}]}`, 400},
	} {
		if status, text := say(t, e, tc.path, tc.body); status != tc.status {
			t.Errorf("%s: %d %s, want %d", name, status, text, tc.status)
		}
	}
}
