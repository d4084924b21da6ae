// SPDX-License-Identifier: Apache-2.0

package chatform_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/chatform"
	"github.com/inferencecache/inference-cache/internal/jsonscan"
)

func read(t *testing.T, form chatform.Form, body string) *chatform.Request {
	t.Helper()
	r := &chatform.Request{Form: form}
	if err := jsonscan.Object([]byte(body), func(key, value []byte) error {
		r.Add(key, value)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestChat(t *testing.T) {
	for name, tc := range map[string]struct {
		form            chatform.Form
		body            string
		messages, tools string // messages "" is unknown
	}{
		"a plain input": {
			form: chatform.Responses, body: `{"model":"m","input":"hi","tools":null}`, messages: `[{"role":"user","content":"hi"}]`,
		},
		"instructions come first": {
			form: chatform.Responses, body: `{"input":"hi","instructions":"be <kind>"}`,
			messages: `[{"role":"system","content":"be <kind>"},{"role":"user","content":"hi"}]`,
		},
		"items with parts, calls and results": {
			form: chatform.Responses,
			body: `{"input":[{"role":"user","content":"a"},
				{"type":"message","role":"assistant","content":[{"type":"output_text","text":"b","annotations":[]}]},
				{"type":"function_call","call_id":"1","name":"f","arguments":"{\"x\": 1}"},
				{"type":"function_call","call_id":"2","name":"g","arguments":"{}"},
				{"type":"function_call_output","call_id":"1","output":"one"},
				{"role":"user","content":[{"type":"input_text","text":"c"},{"type":"input_image","image_url":"data:x"}]}],
				"tools":[{"type":"function","name":"f","description":"d","parameters":{"b":1,"a":2},"strict":true}]}`,
			messages: `[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"text","text":"b"}]},
				{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}},
				{"id":"2","type":"function","function":{"name":"g","arguments":"{}"}}]},
				{"role":"tool","content":"one","tool_call_id":"1"},
				{"role":"user","content":[{"type":"text","text":"c"},{"type":"image_url","image_url":{"url":"data:x"}}]}]`,
			tools: `[{"type":"function","function":{"name":"f","description":"d","parameters":{"b":1,"a":2},"strict":true}}]`,
		},
		"a conversation the engine keeps": {form: chatform.Responses, body: `{"input":"hi","previous_response_id":"r"}`},
		"a stored prompt":                 {form: chatform.Responses, body: `{"input":"hi","prompt":{"id":"p"}}`},
		"items of another kind":           {form: chatform.Responses, body: `{"input":[{"type":"reasoning","summary":[]}]}`},
		"parts of another kind":           {form: chatform.Responses, body: `{"input":[{"role":"user","content":[{"type":"input_file"}]}]}`},
		"tools of the engine":             {form: chatform.Responses, body: `{"input":"hi","tools":[{"type":"web_search"}]}`},
		"no input":                        {form: chatform.Responses, body: `{"instructions":"x"}`},
		"an empty input":                  {form: chatform.Responses, body: `{"input":[]}`},
		"an input of numbers":             {form: chatform.Responses, body: `{"input":[1,2]}`},

		"plain messages": {
			form: chatform.Messages, body: `{"max_tokens":5,"system":"s","messages":[{"role":"user","content":"hi"}]}`,
			messages: `[{"role":"system","content":"s"},{"role":"user","content":"hi"}]`,
		},
		"a system in blocks": {
			form:     chatform.Messages,
			body:     `{"system":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}},{"type":"text","text":"b"}],"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}`,
			messages: `[{"role":"system","content":"ab"},{"role":"user","content":"hi"}]`,
		},
		"uses and results of tools": {
			form: chatform.Messages,
			body: `{"messages":[{"role":"assistant","content":[{"type":"text","text":"let me see"},
				{"type":"tool_use","id":"1","name":"f","input":{"a":[1,2],"b":"x, y: \u00e9 é 😀 \"q\""}}]},
				{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"l1"},{"type":"text","text":"l2"}]},
				{"type":"text","text":"and"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA"}}]}],
				"tools":[{"name":"f","input_schema":{"type":"object"}}]}`,
			messages: `[{"role":"assistant","content":"let me see","tool_calls":[{"id":"1","type":"function","function":{"name":"f",
				"arguments":"{\"a\": [1, 2], \"b\": \"x, y: \\u00e9 \\u00e9 \\ud83d\\ude00 \\\"q\\\"\"}"}}]},
				{"role":"tool","content":"l1\nl2","tool_call_id":"1"},
				{"role":"user","content":[{"type":"text","text":"and"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]}]`,
			tools: `[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]`,
		},
		"only results": {
			form:     chatform.Messages,
			body:     `{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"r"}]}]}`,
			messages: `[{"role":"tool","content":"r","tool_call_id":"1"}]`,
		},
		"thoughts":               {form: chatform.Messages, body: `{"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"x"}]}]}`},
		"results with an image":  {form: chatform.Messages, body: `{"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image"}]}]}]}`},
		"a system of numbers":    {form: chatform.Messages, body: `{"system":1,"messages":[{"role":"user","content":"hi"}]}`},
		"messages that are none": {form: chatform.Messages, body: `{"messages":"hi"}`},
	} {
		t.Run(name, func(t *testing.T) {
			messages, tools, ok := read(t, tc.form, tc.body).Chat()
			if ok != (tc.messages != "") {
				t.Fatalf("known %t: %s", ok, messages)
			}
			if !ok {
				return
			}
			for _, pair := range [][2]string{{tc.messages, string(messages)}, {tc.tools, string(tools)}} {
				if diff := cmp.Diff(decode(t, pair[0]), decode(t, pair[1])); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
		})
	}
}

func decode(t *testing.T, text string) (value any) {
	t.Helper()
	if text == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return value
}

// The text of a longer chat begins like that of a shorter one.
func TestTextGrowsWithTheChat(t *testing.T) {
	for name, tc := range map[string]struct {
		form   chatform.Form
		bodies []string
		want   string
	}{
		"responses": {chatform.Responses, []string{
			`{"instructions":"s","input":[{"a":1}]}`, `{"instructions":"s","input":[{"a":1},{"b":2}]}`,
		}, `["s",{"a":1}`},
		"messages": {chatform.Messages, []string{`{"system":"s","messages":[{"a":1}]}`, `{"messages":[{"a":1},2],"system":"s"}`}, `["s",{"a":1}`},
		"a string": {chatform.Responses, []string{`{"input":"hi"}`}, `["hi"]`},
	} {
		for _, body := range tc.bodies {
			text := string(read(t, tc.form, body).Text())
			if len(text) < len(tc.want) || text[:len(tc.want)] != tc.want || !json.Valid([]byte(text)) {
				t.Errorf("%s: %s, want %s...", name, text, tc.want)
			}
		}
	}
}

// No body may crash the reader, and what it makes of one is JSON.
func FuzzChat(f *testing.F) {
	f.Add(true, []byte(`{"input":[{"role":"user","content":[{"type":"input_text","text":"c"}]}],"tools":[{"type":"function","name":"f"}]}`))
	f.Add(false, []byte(`{"messages":[{"role":"assistant","content":[{"type":"tool_use","input":{"a":"\\"}}]}]}`))
	f.Fuzz(func(t *testing.T, responses bool, body []byte) {
		r := &chatform.Request{Form: chatform.Messages}
		if responses {
			r.Form = chatform.Responses
		}
		if jsonscan.Object(body, func(key, value []byte) error {
			r.Add(key, value)
			return nil
		}) != nil {
			return
		}
		messages, tools, ok := r.Chat()
		if ok && (!json.Valid(messages) || tools != nil && !json.Valid(tools)) {
			t.Fatalf("messages %s, tools %s", messages, tools)
		}
		_ = r.Text()
	})
}
