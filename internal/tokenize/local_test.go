// SPDX-License-Identifier: Apache-2.0

package tokenize_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/breaker"
	"github.com/inferencecache/inference-cache/internal/tokenize"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
)

// letters is a tokenizer whose ids are the positions of letters, with a begin
// token 30 and "ab" as 31.
const letters = `{"added_tokens":[{"id":30,"content":"<s>","special":true}],"model":{"type":"BPE","unk_token":"?",
"vocab":{"?":0,"a":1,"b":2,"c":3,"u":4,"s":5,"e":6,"r":7,":":8,"ab":31},"merges":["a b"]},
"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],
"special_tokens":{"<s>":{"ids":[30]}}}}`

const lettersTemplate = `{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}{% if tools %}c{% endif %}{{ mark }}`

// modelFolder writes the files of a model.
func modelFolder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func lettersModel(t *testing.T) string {
	t.Helper()
	return modelFolder(t, map[string]string{"tokenizer.json": letters, "chat_template.jinja": lettersTemplate})
}

func newLocal(t *testing.T, change func(*tokenize.LocalOptions), folders ...string) *tokenize.Local {
	t.Helper()
	models, err := tokenize.LoadModels(folders)
	if err != nil {
		t.Fatal(err)
	}
	options := tokenize.LocalOptions{Models: models}
	if change != nil {
		change(&options)
	}
	local, err := tokenize.NewLocal(options)
	if err != nil {
		t.Fatal(err)
	}
	return local
}

func TestLocal(t *testing.T) {
	tests := map[string]struct {
		chat    bool
		body    string
		want    []uint32
		wantErr tokenize.Reason
	}{
		"a text prompt gets the tokens around it": {body: `{"prompt":"cab"}`, want: []uint32{30, 3, 31}},
		"unless it asks for none":                 {body: `{"prompt":"cab","add_special_tokens":false}`, want: []uint32{3, 31}},
		"the first of several prompts decides":    {body: `{"prompt":["a","b"]}`, want: []uint32{30, 1}},
		"a chat goes through its template":        {chat: true, body: `{"messages":[{"role":"user","content":"ab"}]}`, want: []uint32{4, 5, 6, 7, 8, 31}},
		"tools reach the template":                {chat: true, body: `{"messages":[{"role":"user","content":"b"}],"tools":[{"function":{"name":"f"}}]}`, want: []uint32{4, 5, 6, 7, 8, 2, 3}},
		"and so do its arguments":                 {chat: true, body: `{"messages":[{"role":"user","content":"b"}],"chat_template_kwargs":{"mark":"a"}}`, want: []uint32{4, 5, 6, 7, 8, 2, 1}},
		"a client's template is the engine's":     {chat: true, body: `{"messages":[{"role":"user","content":"b"}],"chat_template":"x"}`, wantErr: tokenize.ReasonUnsupported},
		"so is a message to continue":             {chat: true, body: `{"messages":[{"role":"user","content":"b"}],"continue_final_message":true}`, wantErr: tokenize.ReasonUnsupported},
		"so are images":                           {chat: true, body: `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, wantErr: tokenize.ReasonUnsupported},
		"ids stay":                                {body: `{"prompt":[7]}`, want: []uint32{7}},
		"too much":                                {body: `{"prompt":"` + strings.Repeat("x", 1<<20) + `"}`, wantErr: tokenize.ReasonTooLarge},
	}
	local := newLocal(t, nil, lettersModel(t))
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for round := range 2 {
				got, err := local.Tokenize(t.Context(), prompt(t, tc.chat, tc.body))
				if reason := reasonOf(err); reason != tc.wantErr {
					t.Fatalf("error %v, want %q", err, tc.wantErr)
				}
				if diff := cmp.Diff(tc.want, got.Tokens); diff != "" {
					t.Errorf("ids (-want +got):\n%s", diff)
				}
				if err == nil && got.Source != tokenize.SourceClient && (got.Source == tokenize.SourceCache) != (round == 1) {
					t.Errorf("round %d came from %s", round, got.Source)
				}
			}
		})
	}
	if local.BreakerState() != breaker.Closed {
		t.Error("requests that cannot be tokenized opened the breaker")
	}
}

// TestFR_06_ToolsChangeTheKeys checks that equal messages with other tools,
// calls or arguments of the template have other keys.
func TestFR_06_ToolsChangeTheKeys(t *testing.T) {
	template := `{{ tools | tojson }}{{ mark }}{% for m in messages %}{{ m.tool_calls | tojson if m.tool_calls else m.content }}{% endfor %}`
	local := newLocal(t, nil, modelFolder(t, map[string]string{"tokenizer.json": letters, "chat_template.jinja": template}))
	seen := map[uint64]string{}
	for name, body := range map[string]string{
		"plain":     `{"messages":[{"role":"assistant","content":"abcabc"}]}`,
		"tools":     `{"messages":[{"role":"assistant","content":"abcabc"}],"tools":[{"function":{"name":"a"}}]}`,
		"a call":    `{"messages":[{"role":"assistant","content":"abcabc","tool_calls":[{"function":{"name":"a","arguments":"{}"}}]}]}`,
		"arguments": `{"messages":[{"role":"assistant","content":"abcabc"}],"chat_template_kwargs":{"mark":"ba"}}`,
	} {
		result, err := local.Tokenize(t.Context(), prompt(t, true, body))
		if err != nil {
			t.Fatal(err)
		}
		keys := result.AppendKeys(nil, fingerprint.Parent{}, len(result.Tokens))
		if other, known := seen[keys[0]]; known {
			t.Errorf("%s and %s have the same key", name, other)
		}
		seen[keys[0]] = name
	}
}

func TestLocalModelsByName(t *testing.T) {
	dir := lettersModel(t)
	local := newLocal(t, nil, "base="+dir, "other="+dir)
	for name, tc := range map[string]struct {
		model, base string
		want        tokenize.Reason
	}{
		"the base model":     {"base", "base", ""},
		"an adapter of it":   {"tuned", "base", ""},
		"a model without":    {"third", "third", tokenize.ReasonUnavailable},
		"an unknown base of": {"other", "", ""},
	} {
		p := prompt(t, false, `{"prompt":"a"}`)
		p.Model, p.Base = tc.model, tc.base
		if _, err := local.Tokenize(t.Context(), p); reasonOf(err) != tc.want {
			t.Errorf("%s: error %v, want %q", name, err, tc.want)
		}
	}
}

func TestModelFolders(t *testing.T) {
	llama := func(config string) map[string]string {
		return map[string]string{"tokenizer.json": letters, "tokenizer_config.json": config}
	}
	for name, tc := range map[string]struct {
		files map[string]string
		want  string // part of the error; empty if it loads
		ids   []uint32
	}{
		"no tokenizer":                  {map[string]string{}, "tokenizer.json", nil},
		"one that is unknown":           {map[string]string{"tokenizer.json": `{"model":{"type":"Unigram"}}`}, "model.type", nil},
		"a template that is broken":     {map[string]string{"tokenizer.json": letters, "chat_template.jinja": "{% if %"}, "chat template", nil},
		"a configuration that is none":  {llama(`[]`), "tokenizer_config.json", nil},
		"no default among templates":    {llama(`{"chat_template":[{"name":"rag","template":"x"}]}`), "none is named default", nil},
		"a template of no type":         {llama(`{"chat_template":5}`), "chat_template", nil},
		"a class that adds its own":     {llama(`{"tokenizer_class":"LlamaTokenizerFast","add_bos_token":false,"bos_token":"<s>"}`), "", []uint32{1}},
		"a class with an unknown token": {llama(`{"tokenizer_class":"LlamaTokenizerFast","add_bos_token":true,"bos_token":{"content":"<x>"}}`), "<x>", nil},
		"a class that does not":         {llama(`{"tokenizer_class":"PreTrainedTokenizerFast","add_bos_token":false,"bos_token":"<s>"}`), "", []uint32{30, 1}},
		"tokens on both sides":          {llama(`{"tokenizer_class":"GemmaTokenizer","add_bos_token":true,"add_eos_token":true,"bos_token":"<s>","eos_token":"<s>"}`), "", []uint32{30, 1, 30}},
	} {
		t.Run(name, func(t *testing.T) {
			models, err := tokenize.LoadModels([]string{modelFolder(t, tc.files)})
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Fatalf("error %v, want one with %q", err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			local, err := tokenize.NewLocal(tokenize.LocalOptions{Models: models})
			if err != nil {
				t.Fatal(err)
			}
			got, err := local.Tokenize(t.Context(), prompt(t, false, `{"prompt":"a"}`))
			if err != nil || !cmp.Equal(got.Tokens, tc.ids) {
				t.Errorf("ids %v, error %v, want %v", got.Tokens, err, tc.ids)
			}
		})
	}
	dir := lettersModel(t)
	for _, folders := range [][]string{{dir, dir}, {dir, "a=" + dir}, {"a=" + dir, "a=" + dir}} {
		if _, err := tokenize.LoadModels(folders); err == nil {
			t.Errorf("folders %v were accepted", folders)
		}
	}
}

// TestLocalDeadline checks that texts which take too long open the breaker and
// then cost nothing.
func TestLocalDeadline(t *testing.T) {
	local := newLocal(t, func(o *tokenize.LocalOptions) { o.Timeout = time.Nanosecond }, lettersModel(t))
	var reasons []tokenize.Reason
	for _, text := range []string{"a", "b", "c", "d"} {
		_, err := local.Tokenize(t.Context(), prompt(t, true, `{"messages":[{"role":"user","content":"`+text+`"}]}`))
		reasons = append(reasons, reasonOf(err))
	}
	timeout := tokenize.ReasonTimeout
	if diff := cmp.Diff([]tokenize.Reason{timeout, timeout, timeout, tokenize.ReasonBreakerOpen}, reasons); diff != "" {
		t.Errorf("reasons (-want +got):\n%s", diff)
	}
}

func TestRenderForms(t *testing.T) {
	image := tokenize.Feature{ID: "hash-1", Offset: 1, Length: 2}
	tests := map[string]struct {
		chat       bool
		body       string
		answer     string
		wantURL    string
		wantCall   string
		wantTokens []uint32
		wantMore   []tokenize.Feature
		wantErr    tokenize.Reason
	}{
		"a chat": {
			chat: true, body: `{"messages":[{"role":"user","content":"hi"}],"tools":[{}],"temperature":1}`,
			answer: `{"token_ids":[1,2],"cache_salt":null,"features":null}`, wantURL: "http://a/v1/chat/completions/render",
			wantCall: `{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{}]}`, wantTokens: []uint32{1, 2},
		},
		"a completion, answered by a list": {
			body: `{"prompt":"hi"}`, answer: `[{"token_ids":[3],"cache_salt":null}]`,
			wantURL: "http://a/v1/completions/render", wantCall: `{"model":"m","prompt":"hi"}`, wantTokens: []uint32{3},
		},
		"the older form": {
			chat: true, body: `{"messages":[]}`, answer: `[[{"role":"user","content":"x"}],[{"prompt_token_ids":[4,5]}]]`,
			wantURL: "http://a/v1/chat/completions/render", wantCall: `{"model":"m","messages":[]}`, wantTokens: []uint32{4, 5},
		},
		"an image": {
			chat: true, body: `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`,
			answer:  `{"token_ids":[1,9,9,2],"features":{"mm_hashes":{"image":["hash-1"]},"mm_placeholders":{"image":[{"offset":1,"length":2}]}}}`,
			wantURL: "http://a/v1/chat/completions/render", wantCall: `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`,
			wantTokens: []uint32{1, 9, 9, 2}, wantMore: []tokenize.Feature{image},
		},
		"an image the answer does not tell about": {
			chat: true, body: `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, answer: `{"token_ids":[1,9,9,2]}`,
			wantURL: "http://a/v1/chat/completions/render", wantCall: `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`,
			wantErr: tokenize.ReasonUnsupported,
		},
		"hashes without places": {
			chat: true, body: `{"messages":[]}`, answer: `{"token_ids":[1],"features":{"mm_hashes":{"image":["x"]},"mm_placeholders":{}}}`,
			wantURL: "http://a/v1/chat/completions/render", wantCall: `{"model":"m","messages":[]}`, wantErr: tokenize.ReasonMalformed,
		},
		"a place beyond the tokens": {
			chat: true, body: `{"messages":[]}`, answer: `{"token_ids":[1],"features":{"mm_hashes":{"image":["x"]},"mm_placeholders":{"image":[{"offset":0,"length":2}]}}}`,
			wantURL: "http://a/v1/chat/completions/render", wantCall: `{"model":"m","messages":[]}`, wantErr: tokenize.ReasonMalformed,
		},
		"no ids": {
			body: `{"prompt":"hi"}`, answer: `{"object":"x"}`, wantURL: "http://a/v1/completions/render",
			wantCall: `{"model":"m","prompt":"hi"}`, wantErr: tokenize.ReasonMalformed,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			fake := &fakeEngine{answer: func(context.Context, string) (int, string, error) { return 200, tc.answer, nil }}
			engine := newEngine(t, fake, func(o *tokenize.EngineOptions) { o.Form = tokenize.FormRender })
			got, err := engine.Tokenize(t.Context(), prompt(t, tc.chat, tc.body))
			if reason := reasonOf(err); reason != tc.wantErr {
				t.Fatalf("error %v, want %q", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.wantTokens, got.Tokens); diff != "" {
				t.Errorf("ids (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantMore, got.Features); diff != "" {
				t.Errorf("features (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{tc.wantURL, tc.wantCall}, append(fake.urls, fake.bodies...)); diff != "" {
				t.Errorf("call (-want +got):\n%s", diff)
			}
		})
	}
}

// TestChatsOfSGLang checks that a chat is rendered here for an engine whose
// tokenizer takes text only.
func TestChatsOfSGLang(t *testing.T) {
	models, err := tokenize.LoadModels([]string{lettersModel(t)})
	if err != nil {
		t.Fatal(err)
	}
	fake := &fakeEngine{}
	engine := newEngine(t, fake, func(o *tokenize.EngineOptions) {
		o.Renderer = models
		o.Endpoints = func(string) []tokenize.Endpoint { return []tokenize.Endpoint{{URL: "http://a", Runtime: "sglang"}} }
	})
	p := prompt(t, true, `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`)
	p.Runtime = "sglang"
	if _, err := engine.Tokenize(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	want := []string{`{"model":"m","prompt":"user:a b","add_special_tokens":false}`}
	if diff := cmp.Diff(want, fake.bodies); diff != "" {
		t.Errorf("call (-want +got):\n%s", diff)
	}
}

// TestKeysOfImages checks that equal tokens with other images have other keys
// from the first block that an image touches, and only from there.
func TestKeysOfImages(t *testing.T) {
	tokens := []uint32{1, 2, 3, 4, 9, 9, 9, 9, 9, 5, 6, 7}
	keys := func(features ...tokenize.Feature) []uint64 {
		result := tokenize.Result{Tokens: tokens, Features: features}
		return result.AppendKeys(nil, fingerprint.Parent{}, 2)
	}
	plain := fingerprint.Append(nil, fingerprint.Parent{}, tokens, 2)
	if diff := cmp.Diff(plain, keys()); diff != "" {
		t.Errorf("keys without images (-want +got):\n%s", diff)
	}
	a := keys(tokenize.Feature{ID: "a", Offset: 4, Length: 5})
	b := keys(tokenize.Feature{ID: "b", Offset: 4, Length: 5})
	for i := range plain {
		if same := i < 2; (a[i] == plain[i]) != same || (a[i] == b[i]) != same {
			t.Errorf("block %d: keys %x, %x and %x", i, plain[i], a[i], b[i])
		}
	}
	// By hand: block 2 starts with the image, block 4 holds its end.
	parent := fingerprint.Child(a[1])
	for i, offset := range []int64{0, -2, -4} {
		block := tokens[4+2*i : 6+2*i]
		want := fingerprint.Next(fingerprint.MultimodalParent(parent, []fingerprint.Identifier{{ID: "a", Offset: offset}}), fingerprint.Content(block))
		if a[2+i] != want {
			t.Errorf("block %d has key %x, want %x", 2+i, a[2+i], want)
		}
		parent = fingerprint.Child(want)
	}
	if want := fingerprint.Next(parent, fingerprint.Content(tokens[10:])); a[5] != want {
		t.Errorf("the block after the image has key %x, want %x", a[5], want)
	}
}

// TestCacheForgets checks that what a template may have made of the time is
// not used for long.
func TestCacheForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newEngine(t, &fakeEngine{}, nil)
		var sources []tokenize.Source
		for range 3 {
			got, err := engine.Tokenize(t.Context(), prompt(t, false, `{"prompt":"hi"}`))
			if err != nil {
				t.Fatal(err)
			}
			sources = append(sources, got.Source)
			if len(sources) == 2 {
				time.Sleep(15 * time.Minute)
			}
		}
		if diff := cmp.Diff([]tokenize.Source{tokenize.SourceEngine, tokenize.SourceCache, tokenize.SourceEngine}, sources); diff != "" {
			t.Errorf("sources (-want +got):\n%s", diff)
		}
	})
}

func FuzzRendered(f *testing.F) {
	f.Add([]byte(`[{"token_ids":[1,2],"features":{"mm_hashes":{"image":["x"]},"mm_placeholders":{"image":[{"offset":0,"length":2}]}}}]`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		engine := newEngine(t, &fakeEngine{answer: func(context.Context, string) (int, string, error) {
			return 200, string(answer), nil
		}}, func(o *tokenize.EngineOptions) { o.Form = tokenize.FormRender })
		got, err := engine.Tokenize(t.Context(), prompt(t, true, `{"messages":[]}`))
		if err != nil {
			return
		}
		for _, feature := range got.Features {
			if feature.Offset < 0 || feature.Offset+feature.Length > len(got.Tokens) {
				t.Fatalf("feature %+v of %d tokens", feature, len(got.Tokens))
			}
		}
		got.AppendKeys(nil, fingerprint.Parent{}, 4)
	})
}
