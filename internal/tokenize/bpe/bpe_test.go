// SPDX-License-Identifier: Apache-2.0

package bpe_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/inferencecache/inference-cache/internal/tokenize/bpe"
)

func read(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func load(t testing.TB, data []byte) *bpe.Tokenizer {
	t.Helper()
	tokenizer, err := bpe.Load(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return tokenizer
}

// golden is what the reference library makes of a text; see
// test/peers/tokenizers/golden.mjs.
type golden struct {
	Text           string
	Plain, Special []uint32
}

func goldens(t testing.TB) map[string][]golden {
	t.Helper()
	var all map[string][]golden
	if err := json.Unmarshal(read(t, "golden.json"), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestGolden compares with the reference library.
func TestGolden(t *testing.T) {
	all := goldens(t)
	if len(all) < 7 {
		t.Fatalf("only %d tokenizers are there", len(all))
	}
	for name, cases := range all {
		t.Run(name, func(t *testing.T) {
			tokenizer := load(t, read(t, name+".json"))
			for _, tc := range cases {
				for special, want := range map[bool][]uint32{false: tc.Plain, true: tc.Special} {
					got, err := tokenizer.Encode(t.Context(), tc.Text, special)
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
						t.Errorf("%q, special %v (-want +got):\n%s", tc.Text, special, diff)
					}
				}
			}
		})
	}
}

// change returns a tokenizer file with one member replaced.
func change(t testing.TB, path string, value any) []byte {
	t.Helper()
	var file map[string]any
	if err := json.Unmarshal(read(t, "pairs.json"), &file); err != nil {
		t.Fatal(err)
	}
	at, parts := file, strings.Split(path, ".")
	for _, part := range parts[:len(parts)-1] {
		at, _ = at[part].(map[string]any)
	}
	at[parts[len(parts)-1]] = value
	data, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

type object = map[string]any

// TestRefusals checks that what is not known is refused by name.
func TestRefusals(t *testing.T) {
	deep := any(object{"type": "NFC"})
	for range 12 {
		deep = object{"type": "Sequence", "normalizers": []any{deep}}
	}
	tests := map[string]struct {
		path  string
		value any
		want  []string
	}{
		"another model":                {"model.type", "Unigram", []string{"model.type", "Unigram", "BPE"}},
		"no model type":                {"model.type", nil, []string{"model.type", "BPE"}},
		"an unknown normalizer":        {"normalizer", object{"type": "Nmt"}, []string{"normalizer.type", "Nmt"}},
		"one within a sequence":        {"normalizer", object{"type": "Sequence", "normalizers": []any{object{"type": "BertNormalizer"}}}, []string{"normalizer.normalizers[0].type", "BertNormalizer"}},
		"sequences without end":        {"normalizer", deep, []string{"normalizer", "nested too deeply"}},
		"a replacement by pattern":     {"normalizer", object{"type": "Replace", "pattern": object{"Regex": "a"}, "content": "b"}, []string{"normalizer.pattern"}},
		"an unknown pre-tokenizer":     {"pre_tokenizer", object{"type": "Metaspace"}, []string{"pre_tokenizer.type", "Metaspace"}},
		"a pattern that is none":       {"pre_tokenizer", object{"type": "Split", "pattern": object{"Regex": "("}, "behavior": "Isolated"}, []string{"pre_tokenizer.pattern.Regex"}},
		"an unknown behaviour":         {"pre_tokenizer", object{"type": "Split", "pattern": object{"String": "a"}, "behavior": "Odd"}, []string{"pre_tokenizer.behavior", "Odd"}},
		"bytes before another step":    {"pre_tokenizer", object{"type": "Sequence", "pretokenizers": []any{object{"type": "ByteLevel"}, object{"type": "Digits"}}}, []string{"pre_tokenizer", "not the last"}},
		"an unknown post-processor":    {"post_processor", object{"type": "RobertaProcessing"}, []string{"post_processor.type", "RobertaProcessing"}},
		"a template without the text":  {"post_processor", object{"type": "TemplateProcessing", "single": []any{}}, []string{"post_processor.single"}},
		"an unknown decoder":           {"decoder", object{"type": "WordPiece"}, []string{"decoder.type", "WordPiece"}},
		"dropout":                      {"model.dropout", 0.1, []string{"model.dropout"}},
		"a prefix within words":        {"model.continuing_subword_prefix", "##", []string{"model.continuing_subword_prefix"}},
		"a suffix of words":            {"model.end_of_word_suffix", "</w>", []string{"model.end_of_word_suffix"}},
		"an unknown model member":      {"model.novel", true, []string{"novel", "unknown member"}},
		"an unknown member":            {"novel", true, []string{"novel", "unknown member"}},
		"a merge of what is not there": {"model.merges", []any{"qq zz"}, []string{"model.merges[0]"}},
		"a merge that is no pair":      {"model.merges", []any{"a b c"}, []string{"model.merges[0]"}},
		"a merge of three":             {"model.merges", []any{[]string{"a", "b", "c"}}, []string{"model.merges[0]"}},
		"an id that is no number":      {"model.vocab", object{"a": "1"}, []string{"model.vocab", "a"}},
		"a fraction as id":             {"model.vocab", object{"a": 1.5}, []string{"model.vocab", "a"}},
		"a huge id":                    {"model.vocab", object{"a": 1e9}, []string{"model.vocab", "a"}},
		"no vocabulary":                {"model.vocab", nil, []string{"model.vocab"}},
		"an unknown token that is not": {"model.unk_token", "<nothing>", []string{"model.unk_token"}},
		"bytes twice":                  {"model.byte_fallback", true, []string{"model.byte_fallback"}},
		"an added token with two ids":  {"added_tokens", []any{object{"id": 5, "content": "a"}}, []string{"added_tokens[0].id"}},
		"an empty added token":         {"added_tokens", []any{object{"id": 9999, "content": ""}}, []string{"added_tokens[0].content"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := bpe.Load(bytes.NewReader(change(t, tc.path, tc.value)))
			if !errors.Is(err, bpe.ErrFile) {
				t.Fatalf("error %v, want %v", err, bpe.ErrFile)
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not name %q", err, part)
				}
			}
		})
	}
}

func TestBrokenFiles(t *testing.T) {
	whole := read(t, "pairs.json")
	for name, data := range map[string][]byte{
		"nothing":      nil,
		"no object":    []byte("[]"),
		"cut off":      whole[:len(whole)/2],
		"more behind":  append(bytes.Clone(whole), '{'),
		"not JSON":     []byte(`{"model" "BPE"}`),
		"no members":   []byte("{}"),
		"deep nesting": []byte(`{"decoder":` + strings.Repeat("[", 100_000)),
	} {
		if _, err := bpe.Load(bytes.NewReader(data)); !errors.Is(err, bpe.ErrFile) {
			t.Errorf("%s: error %v, want %v", name, err, bpe.ErrFile)
		}
	}
}

func TestEncodeRefusesWhatIsNoText(t *testing.T) {
	if _, err := load(t, read(t, "pairs.json")).Encode(t.Context(), "a\xff", false); !errors.Is(err, bpe.ErrInput) {
		t.Errorf("error %v, want %v", err, bpe.ErrInput)
	}
}

// TestEncodeEndsWithItsContext uses a text that is one piece and one that is
// many.
func TestEncodeEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, text := range map[string]string{"one": strings.Repeat("x", 1<<16), "many": strings.Repeat("x ", 1<<16)} {
		for _, file := range []string{"pairs.json", "characters.json"} {
			if _, err := load(t, read(t, file)).Encode(ctx, text, false); !errors.Is(err, context.Canceled) {
				t.Errorf("%s piece(s), %s: error %v, want %v", name, file, err, context.Canceled)
			}
		}
	}
}

// TestRunawayPattern checks that a split pattern which backtracks without end
// costs an error, not the process.
func TestRunawayPattern(t *testing.T) {
	tokenizer := load(t, change(t, "pre_tokenizer", object{
		"type": "Split", "pattern": object{"Regex": "(a+)+$"}, "behavior": "Isolated",
	}))
	if _, err := tokenizer.Encode(t.Context(), strings.Repeat("a", 64)+"b", false); !errors.Is(err, bpe.ErrInput) {
		t.Errorf("error %v, want %v", err, bpe.ErrInput)
	}
}

func FuzzEncode(f *testing.F) {
	all := goldens(f)
	var tokenizers []*bpe.Tokenizer
	for name, cases := range all {
		tokenizers = append(tokenizers, load(f, read(f, name+".json")))
		for _, tc := range cases {
			f.Add(tc.Text)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, tokenizer := range tokenizers {
			ids, err := tokenizer.Encode(t.Context(), text, true)
			if utf8.ValidString(text) != (err == nil) {
				t.Fatalf("error %v", err)
			}
			for _, id := range ids {
				if int(id) >= tokenizer.Size() {
					t.Fatalf("id %d of %d", id, tokenizer.Size())
				}
			}
			if len(ids) > 18*len(text)+2 { // NFKC turns 3 bytes into up to 33
				t.Fatalf("%d ids of %d bytes", len(ids), len(text))
			}
		}
	})
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]},"added_tokens":[{"id":3,"content":"<x>"}]}`))
	f.Add([]byte(`{"normalizer":{"type":"Sequence","normalizers":[]},"pre_tokenizer":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{},"merges":[]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tokenizer, err := bpe.Load(bytes.NewReader(data))
		if err != nil {
			if !errors.Is(err, bpe.ErrFile) {
				t.Fatal(err)
			}
			return
		}
		_, _ = tokenizer.Encode(t.Context(), "ab <x> 12\n", true)
	})
}
