// SPDX-License-Identifier: Apache-2.0

// Package tinymodel is the language model of simulated engines: a tokenizer
// whose ids are byte values, a chat template, and answers that depend on the
// prompt alone.
package tinymodel

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/zeebo/xxh3"
)

// Special token ids; smaller ids are bytes.
const (
	BOS     = 256
	EOS     = 257
	IMStart = 258
	IMEnd   = 259
	// VocabSize is the number of ids.
	VocabSize = 260
)

var special = [...]string{
	BOS - 256:     "<|bos|>",
	EOS - 256:     "<|eos|>",
	IMStart - 256: "<|im_start|>",
	IMEnd - 256:   "<|im_end|>",
}

// Encode returns the ids of text. Names of special tokens inside it become
// their single ids.
func Encode(text string) []uint32 { return appendText(make([]uint32, 0, len(text)), text) }

func appendText(dst []uint32, text string) []uint32 {
	for len(text) > 0 {
		if text[0] == '<' {
			if id, name := leadingSpecial(text); name != "" {
				dst = append(dst, id)
				text = text[len(name):]
				continue
			}
		}
		dst = append(dst, uint32(text[0]))
		text = text[1:]
	}
	return dst
}

func leadingSpecial(text string) (uint32, string) {
	for i, name := range special {
		if strings.HasPrefix(text, name) {
			return uint32(256 + i), name
		}
	}
	return 0, ""
}

// Decode returns the text of ids. Special tokens are left out unless
// withSpecial is set. Unknown ids yield nothing.
func Decode(ids []uint32, withSpecial bool) string {
	var text bytes.Buffer
	for _, id := range ids {
		switch {
		case id < 256:
			text.WriteByte(byte(id))
		case id < VocabSize && withSpecial:
			text.WriteString(special[id-256])
		}
	}
	return strings.ToValidUTF8(text.String(), string(utf8.RuneError))
}

// Message is one chat message after its content parts are joined.
type Message struct {
	Role    string
	Content string
	// ToolCalls is the request's JSON, or nil.
	ToolCalls json.RawMessage
}

// Chat returns the ids of a rendered conversation. Tools, the request's JSON,
// come first as a system message when present; tool calls follow the content
// of their message.
func Chat(messages []Message, tools json.RawMessage, generationPrompt bool) []uint32 {
	var ids []uint32
	if len(tools) > 0 && string(tools) != "null" && string(tools) != "[]" {
		ids = appendMessage(ids, "system", "# Tools\n"+compact(tools))
	}
	for _, message := range messages {
		content := message.Content
		if len(message.ToolCalls) > 0 && string(message.ToolCalls) != "null" {
			content += compact(message.ToolCalls)
		}
		ids = appendMessage(ids, message.Role, content)
	}
	if generationPrompt {
		ids = append(ids, IMStart)
		ids = appendText(ids, "assistant\n")
	}
	return ids
}

func appendMessage(ids []uint32, role, content string) []uint32 {
	ids = append(ids, IMStart)
	ids = appendText(ids, role+"\n"+content)
	return append(ids, IMEnd, '\n')
}

// compact drops insignificant space, so that equal tools give equal ids.
func compact(raw json.RawMessage) string {
	var out bytes.Buffer
	if err := json.Compact(&out, raw); err != nil {
		return string(raw)
	}
	return out.String()
}

// Answer is the deterministic continuation of one prompt.
type Answer struct {
	state  uint64
	length int // natural number of tokens, EOS included
}

const (
	shortestAnswer = 24
	answerSpread   = 104
)

// NewAnswer returns the continuation of prompt under a model seed. Equal
// arguments give equal answers on every engine.
func NewAnswer(prompt []uint32, seed uint64) Answer {
	hasher := xxh3.NewSeed(seed)
	var buffer [1024]byte
	for len(prompt) > 0 {
		n := min(len(prompt), len(buffer)/4)
		for i, id := range prompt[:n] {
			buffer[4*i], buffer[4*i+1] = byte(id), byte(id>>8)
			buffer[4*i+2], buffer[4*i+3] = byte(id>>16), byte(id>>24)
		}
		_, _ = hasher.Write(buffer[:4*n])
		prompt = prompt[n:]
	}
	state := hasher.Sum64()
	return Answer{state: state, length: shortestAnswer + int(state%answerSpread)}
}

const letters = "etaoinshrdlcumwfgypbvk"

// Token returns the token at index, from 0 up. End is true for the last one,
// which is EOS; with ignoreEOS there is no last one.
func (a Answer) Token(index int, ignoreEOS bool) (id uint32, end bool) {
	if !ignoreEOS && index >= a.length-1 {
		return EOS, true
	}
	word := mix(a.state + uint64(index))
	if index%6 == 5 || word%7 == 0 {
		return ' ', false
	}
	return uint32(letters[word%uint64(len(letters))]), false
}

// mix is the finaliser of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
