// SPDX-License-Identifier: Apache-2.0

package chat_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/inferencecache/inference-cache/internal/jsonscan"
	"github.com/inferencecache/inference-cache/internal/tokenize/chat"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func readJSON(t testing.TB, name string, into any) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// goldenNow is the time at which the golden texts were rendered.
func goldenNow() time.Time { return time.Date(2026, 3, 5, 14, 7, 9, 0, time.UTC) }

func variablesOf(t testing.TB, raw json.RawMessage) []chat.Variable {
	t.Helper()
	var variables []chat.Variable
	err := jsonscan.Object(raw, func(name, value []byte) error {
		variables = append(variables, chat.Variable{Name: string(name), Value: value})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return variables
}

// TestGolden compares with Python's jinja2, set up as model libraries do; see
// test/peers/tokenizers/chat_golden.py.
func TestGolden(t *testing.T) {
	var templates map[string]string
	var inputs []json.RawMessage
	var golden map[string][]*string
	readJSON(t, "templates.json", &templates)
	readJSON(t, "variables.json", &inputs)
	readJSON(t, "golden.json", &golden)
	for name, source := range templates {
		t.Run(name, func(t *testing.T) {
			template, err := chat.Compile(source, chat.Options{Now: goldenNow})
			if err != nil {
				t.Fatal(err)
			}
			if len(golden[name]) != len(inputs) {
				t.Fatal("no golden texts")
			}
			for i, input := range inputs {
				text, err := template.Render(t.Context(), variablesOf(t, input))
				want := golden[name][i]
				switch {
				case want == nil && err == nil:
					t.Errorf("variables %d: rendered %q, want an error", i, text)
				case want != nil && err != nil:
					t.Errorf("variables %d: %v", i, err)
				case want != nil:
					if diff := cmp.Diff(*want, text); diff != "" {
						t.Errorf("variables %d (-want +got):\n%s", i, diff)
					}
				}
			}
		})
	}
}

// TestRunawayTemplates checks that a template cannot take time, memory or
// stack without end.
func TestRunawayTemplates(t *testing.T) {
	options := chat.Options{MaxOutputBytes: 1 << 16, MaxSteps: 10_000}
	for name, source := range map[string]string{
		"loops within loops":          `{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}{% endfor %}{% endfor %}{% endfor %}`,
		"a long range":                `{% for a in range(1000000) %}{% endfor %}`,
		"a range from products":       `{{ range(1000000 * 1000000 * 1000000) | length }}`,
		"a macro that calls itself":   `{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}`,
		"macros that call each other": `{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}`,
		"text that doubles":           `{% set ns = namespace(s='xx') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}`,
		"a variable that doubles":     `{% set s = 'xx' %}` + strings.Repeat(`{% set s = s ~ s %}`, 64),
		"much output":                 `{% for i in range(9000) %}{{ 'xxxxxxxxxxxxxxxx' }}{% endfor %}`,
		"much text":                   `{% for i in range(9000) %}xxxxxxxxxxxxxxxx{% endfor %}`,
		"much JSON":                   `{{ (['x' * 1000] * 1) | tojson }}{% for i in range(9000) %}{{ ['xxxxxxxxxxxx'] | tojson }}{% endfor %}`,
	} {
		t.Run(name, func(t *testing.T) {
			template, err := chat.Compile(source, options)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := template.Render(t.Context(), nil); !errors.Is(err, chat.ErrBudget) {
				t.Errorf("error %v, want %v", err, chat.ErrBudget)
			}
		})
	}
}

func TestTemplatesThatAreRefused(t *testing.T) {
	for name, tc := range map[string]struct{ source, want string }{
		"a statement unknown here":   {"a\n\n{% include 'x' %}", `line 3: unknown statement "include"`},
		"a value changed in place":   {"{{ messages.append(1) }}", `"append" changes a value in place`},
		"our own names":              {"{{ ic_out(1) }}", "reserved name"},
		"special names":              {"{{ ''.__class__ }}", "reserved name"},
		"a huge number":              {"{{ 'x' * 99999999999 }}", "a number above"},
		"powers":                     {"{{ 10 ** 9 }}", "powers"},
		"several targets":            {"{% set a, b = 1, 2 %}", "one name"},
		"recursive loops":            {"{% for a in b recursive %}{% endfor %}", "recursive loops"},
		"a tag without end":          {"{{ a ", "a tag does not end"},
		"a string without end":       {"{{ 'a }}", "a tag does not end"},
		"a comment without end":      {"{# a", "a comment does not end"},
		"brackets that do not match": {"{{ (a }}", "a bracket is not closed"},
		"brackets within brackets":   {"{{ " + strings.Repeat("(", 1000) + "1" + strings.Repeat(")", 1000) + " }}", "brackets within"},
		"a loop without end":         {"{% for a in b %}", "unclosed"},
		"no text":                    {"\xff", "UTF-8"},
		"a huge file":                {strings.Repeat("x", 1<<20), "bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := chat.Compile(tc.source, chat.Options{})
			if !errors.Is(err, chat.ErrTemplate) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %v with %q", err, chat.ErrTemplate, tc.want)
			}
		})
	}
}

// TestErrorsQuoteNothing checks that no data of a request gets into an error.
func TestErrorsQuoteNothing(t *testing.T) {
	for _, source := range []string{
		"{{ raise_exception('no: ' ~ messages[0].content) }}", "{{ messages[0].content() }}", "{{ messages[0].content | items }}",
		"{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns }}", "{{ range('secret') }}",
	} {
		template, err := chat.Compile(source, chat.Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = template.Render(t.Context(), []chat.Variable{{Name: "messages", Value: []byte(`[{"content":"secret"}]`)}})
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: error %v", source, err)
		}
	}
}

func TestRenderEndsWithItsContext(t *testing.T) {
	template, err := chat.Compile("{% for a in range(10) %}{{ a }}{% endfor %}", chat.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := template.Render(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}

const (
	// showing writes what a template is given.
	showing = `{{ messages | tojson }} {{ tools | tojson }} {{ documents | tojson }} {{ reasoning_effort }} {{ flag }} {{ add_generation_prompt }}`
	// listing is showing for a template that takes content in parts.
	listing = `{% for m in messages %}{% for part in m['content'] %}{% endfor %}{% endfor %}` + showing
)

// TestConversations checks what templates see of a request, engine by engine.
func TestConversations(t *testing.T) {
	tests := map[string]struct {
		source  string
		dialect chat.Dialect
		request chat.Request
		want    string
		wantErr error
	}{
		"plain text stays, unknown members go": {
			request: chat.Request{Messages: []byte(`[{"content":"hi","role":"user","name":"n","x":1},{"role":"assistant","content":null,"name":null}]`)},
			want:    `[{"role": "user", "content": "hi", "name": "n"}, {"role": "assistant", "content": ""}] null null   True`,
		},
		"text parts are joined by lines": {
			request: chat.Request{Messages: []byte(`[{"role":"user","content":[{"type":"text","text":"a"},"b"]}]`)},
			want:    `[{"role": "user", "content": "a\nb"}] null null   True`,
		},
		"text parts are joined by spaces for SGLang": {
			dialect: chat.SGLang,
			request: chat.Request{Messages: []byte(`[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]`)},
			want:    `[{"role": "user", "content": "a b"}] null null   True`,
		},
		"templates that take parts get parts": {
			source:  listing,
			request: chat.Request{Messages: []byte(`[{"role":"user","content":"a"}]`)},
			want:    `[{"role": "user", "content": [{"type": "text", "text": "a"}]}] null null   True`,
		},
		"plain text stays plain for SGLang": {
			source: listing, dialect: chat.SGLang,
			request: chat.Request{Messages: []byte(`[{"role":"user","content":"a"}]`)},
			want:    `[{"role": "user", "content": "a"}] null null   True`,
		},
		"arguments of calls become values": {
			request: chat.Request{Messages: []byte(`[{"role":"assistant","reasoning_content":"r","tool_calls":[{"id":"1","type":"function",` +
				`"function":{"name":"f","arguments":"{\"b\": 1, \"a\": [2]}"}},{"function":{"name":"g","arguments":""}}]},` +
				`{"role":"assistant","content":"x","tool_calls":[]},{"role":"tool","tool_call_id":"1","content":"3"}]`)},
			want: `[{"role": "assistant", "content": "", "reasoning": "r", "reasoning_content": "r", "tool_calls": [{"id": "1", "type": "function", ` +
				`"function": {"name": "f", "arguments": {"b": 1, "a": [2]}}}, {"function": {"name": "g", "arguments": {}}}]}, ` +
				`{"role": "assistant", "content": "x"}, {"role": "tool", "content": "3", "tool_call_id": "1"}] null null   True`,
		},
		"tools have all their members, in the engine's order": {
			request: chat.Request{
				Messages: []byte(`[{"role":"user","content":"a"}]`),
				Tools:    []byte(`[{"function":{"parameters":{"z":1,"a":2},"name":"f","strict":true}}]`),
			},
			want: `[{"role": "user", "content": "a"}] [{"type": "function", "function": {"name": "f", "description": null, ` +
				`"parameters": {"z": 1, "a": 2}, "strict": true}}] null   True`,
		},
		"SGLang hands over bare functions": {
			dialect: chat.SGLang,
			request: chat.Request{
				Messages: []byte(`[{"role":"user","content":"a"}]`), Tools: []byte(`[{"type":"function","function":{"name":"f"}}]`),
			},
			want: `[{"role": "user", "content": "a"}] [{"description": null, "name": "f", "parameters": null, "strict": null}] null   True`,
		},
		"arguments of the template are variables": {
			request: chat.Request{
				Messages: []byte(`[{"role":"user","content":"a"}]`), Documents: []byte(`[{"title":"t"}]`), ReasoningEffort: []byte(`"high"`),
				TemplateArguments: []byte(`{"flag":true,"messages":[]}`), AddGenerationPrompt: []byte("false"), Tools: []byte("[]"),
			},
			want: `[{"role": "user", "content": "a"}] null [{"title": "t"}] high True False`,
		},
		"images need the engine": {
			request: chat.Request{Messages: []byte(`[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]`)},
			wantErr: chat.ErrUnsupported,
		},
		"arguments that are no JSON": {
			request: chat.Request{Messages: []byte(`[{"role":"assistant","tool_calls":[{"function":{"arguments":"{"}}]}]`)},
			wantErr: chat.ErrUnsupported,
		},
		"no messages":          {request: chat.Request{Messages: []byte(`[]`)}, wantErr: chat.ErrUnsupported},
		"a message without":    {request: chat.Request{Messages: []byte(`[{"content":"a"}]`)}, wantErr: chat.ErrUnsupported},
		"messages of no type":  {request: chat.Request{Messages: []byte(`{}`)}, wantErr: chat.ErrUnsupported},
		"a number beyond Go's": {request: chat.Request{Messages: []byte(`[{"role":"user","content":"a"}]`), Documents: []byte("99999999999999999999")}, wantErr: chat.ErrRender},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if tc.source == "" {
				tc.source = showing
			}
			if tc.dialect == "" {
				tc.dialect = chat.VLLM
			}
			conversation, err := chat.NewConversation(tc.source, nil, chat.Options{})
			if err != nil {
				t.Fatal(err)
			}
			// showing asks for variables that requests may lack.
			if len(tc.request.Documents) == 0 {
				tc.request.Documents = []byte("null")
			}
			got, err := conversation.Render(t.Context(), tc.dialect, &tc.request)
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("error %v, want %v", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("text (-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzCompile(f *testing.F) {
	var templates map[string]string
	readJSON(f, "templates.json", &templates)
	for _, source := range templates {
		f.Add(source)
	}
	f.Fuzz(func(t *testing.T, source string) {
		template, err := chat.Compile(source, chat.Options{MaxOutputBytes: 1 << 16, MaxSteps: 1000})
		if err != nil {
			if !errors.Is(err, chat.ErrTemplate) {
				t.Fatal(err)
			}
			return
		}
		_, _ = template.Render(t.Context(), []chat.Variable{{Name: "messages", Value: []byte(`[{"role":"user","content":"hi"}]`)}})
	})
}

func FuzzConversation(f *testing.F) {
	conversation, err := chat.NewConversation(listing, nil, chat.Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`[{"role":"assistant","content":[{"type":"text","text":"a"}],"tool_calls":[{"function":{"arguments":"{}"}}]}]`), []byte(`[{"function":{"name":"f"}}]`))
	f.Fuzz(func(t *testing.T, messages, tools []byte) {
		for _, dialect := range []chat.Dialect{chat.VLLM, chat.SGLang} {
			_, _ = conversation.Render(t.Context(), dialect, &chat.Request{Messages: messages, Tools: tools})
		}
	})
}
