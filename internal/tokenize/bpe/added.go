// SPDX-License-Identifier: Apache-2.0

package bpe

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is cut out of the text before anything else.
type addedToken struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
}

// addedTokens finds the longest of a set of tokens at each position.
type addedTokens struct {
	tokens []addedToken
	// nodes[0] is the root of a trie over bytes.
	nodes []trieNode
	// first tells by which bytes a token may begin.
	first [256]bool
}

type trieNode struct {
	children map[byte]int32
	// token is an index into tokens, -1 for none.
	token int32
}

func newAddedTokens(tokens []addedToken) *addedTokens {
	a := &addedTokens{tokens: tokens, nodes: []trieNode{{token: -1}}}
	for i, token := range tokens {
		at := int32(0)
		for _, b := range []byte(token.Content) {
			child, ok := a.nodes[at].children[b]
			if !ok {
				child = int32(len(a.nodes))
				if a.nodes[at].children == nil {
					a.nodes[at].children = map[byte]int32{}
				}
				a.nodes[at].children[b] = child
				a.nodes = append(a.nodes, trieNode{token: -1})
			}
			at = child
		}
		if at != 0 {
			a.first[token.Content[0]] = true
			a.nodes[at].token = int32(i)
		}
	}
	return a
}

// match returns the longest token that begins at the start of text.
func (a *addedTokens) match(text string) *addedToken {
	best, at := int32(-1), int32(0)
	for i := range len(text) {
		child, ok := a.nodes[at].children[text[i]]
		if !ok {
			break
		}
		if at = child; a.nodes[at].token >= 0 {
			best = a.nodes[at].token
		}
	}
	if best < 0 {
		return nil
	}
	return &a.tokens[best]
}

// split calls id for each token in text and part for what lies between, in
// order.
func (a *addedTokens) split(text string, id func(uint32), part func(string) error) error {
	begin := 0
	for at := 0; len(a.tokens) > 0 && at < len(text); {
		if !a.first[text[at]] {
			at++
			continue
		}
		token := a.match(text[at:])
		if token == nil {
			at++
			continue
		}
		start, end := at, at+len(token.Content)
		at = end
		if token.SingleWord && (endsInWord(text[:start]) || startsWithWord(text[end:])) {
			continue
		}
		if token.LStrip {
			start = max(begin, len(strings.TrimRightFunc(text[:start], unicode.IsSpace)))
		}
		if token.RStrip {
			end += len(text[end:]) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
		}
		if begin < start {
			if err := part(text[begin:start]); err != nil {
				return err
			}
		}
		id(token.ID)
		begin = end
		at = max(at, end)
	}
	if begin < len(text) {
		return part(text[begin:])
	}
	return nil
}

func endsInWord(text string) bool {
	r, size := utf8.DecodeLastRuneInString(text)
	return size > 0 && isWord(r)
}

func startsWithWord(text string) bool {
	r, size := utf8.DecodeRuneInString(text)
	return size > 0 && isWord(r)
}

// isWord is the class \w of regular expressions over Unicode.
func isWord(r rune) bool {
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}
