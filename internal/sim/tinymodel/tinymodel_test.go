// SPDX-License-Identifier: Apache-2.0

package tinymodel

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestEncode(t *testing.T) {
	cases := map[string]struct {
		text string
		want []uint32
	}{
		"ids are bytes":                 {"hi", []uint32{104, 105}},
		"text beyond ASCII is UTF-8":    {"é", []uint32{0xc3, 0xa9}},
		"special names are single ids":  {"a<|eos|>b", []uint32{'a', EOS, 'b'}},
		"a name cut short stays text":   {"<|im", []uint32{'<', '|', 'i', 'm'}},
		"an empty text has no ids":      {"", []uint32{}},
		"two specials after each other": {"<|im_start|><|im_end|>", []uint32{IMStart, IMEnd}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Encode(tc.text)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDecodeReversesEncode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		if got := Decode(Encode(text), true); got != text {
			t.Fatalf("decoded %q, want %q", got, text)
		}
	})
}

func TestChat(t *testing.T) {
	hi := []uint32{258, 117, 115, 101, 114, 10, 104, 105, 259, 10}
	prompt := []uint32{258, 97, 115, 115, 105, 115, 116, 97, 110, 116, 10}
	cases := map[string]struct {
		tools      string
		generation bool
		want       []uint32
	}{
		"with the generation prompt": {"", true, append(hi[:len(hi):len(hi)], prompt...)},
		"without it":                 {"", false, hi},
		"empty tools change nothing": {"[]", false, hi},
		"tools come first": {
			`[ {"a": 1} ]`, false,
			append(append([]uint32{IMStart}, append(Encode("system\n# Tools\n[{\"a\":1}]"), IMEnd, '\n')...), hi...),
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := Chat([]Message{{Role: "user", Content: "hi"}}, json.RawMessage(tc.tools), tc.generation)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAnswer(t *testing.T) {
	prompt := Encode("a question")
	text := func(a Answer, ignoreEOS bool) (ids []uint32) {
		for i := range 300 {
			id, end := a.Token(i, ignoreEOS)
			ids = append(ids, id)
			if end {
				break
			}
		}
		return ids
	}
	first := text(NewAnswer(prompt, 1), false)
	if diff := cmp.Diff(first, text(NewAnswer(prompt, 1), false)); diff != "" {
		t.Errorf("equal prompts differ: %s", diff)
	}
	if cmp.Equal(first, text(NewAnswer(prompt, 2), false)) {
		t.Error("two seeds gave one answer")
	}
	if cmp.Equal(first, text(NewAnswer(Encode("another"), 1), false)) {
		t.Error("two prompts gave one answer")
	}
	if first[len(first)-1] != EOS {
		t.Error("the answer has no end")
	}
	if endless := text(NewAnswer(prompt, 1), true); len(endless) != 300 {
		t.Errorf("the answer ended after %d tokens although the end is ignored", len(endless))
	}
	for _, id := range first[:len(first)-1] {
		if id < ' ' || id > '~' {
			t.Errorf("token %d is not printable", id)
		}
	}
}
