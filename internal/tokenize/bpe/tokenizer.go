// SPDX-License-Identifier: Apache-2.0

// Package bpe turns text into token ids as a tokenizer.json file says. It
// knows the byte-pair encoders of today's language models and refuses a file
// that asks for anything else, naming the member and its value: ids that are
// nearly right are worse than none.
package bpe

import (
	"context"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Tokenizer encodes text. It does not change after Load and is safe for
// concurrent use.
type Tokenizer struct {
	// raw finds added tokens in the text as it came, normalized those that
	// are sought after normalization.
	raw, normalized *addedTokens
	normalizer      []normalizer
	splitters       []splitter
	// byteLevel is set when the model's symbols are bytes.
	byteLevel bool
	model     model
	// before and after surround a text that asks for special tokens.
	before, after []uint32
	// ids of added tokens by content, and of the vocabulary.
	added map[string]uint32
	size  int
}

// ErrInput marks text that cannot be encoded.
var ErrInput = errors.New("text cannot be encoded")

// checkEvery is the number of pieces between looks at the context.
const checkEvery = 4096

// Encode returns the ids of text. special adds the tokens that the model
// expects around a text; a rendered chat template brings its own. Invalid
// UTF-8 is ErrInput. It ends soon after ctx does, with ctx's error.
func (t *Tokenizer) Encode(ctx context.Context, text string, special bool) ([]uint32, error) {
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("%w: not UTF-8", ErrInput)
	}
	e := encoder{tokenizer: t, ctx: ctx, ids: make([]uint32, 0, len(text)/3+8)}
	if special {
		e.ids = append(e.ids, t.before...)
	}
	if err := e.text(text); err != nil {
		return nil, err
	}
	if special {
		e.ids = append(e.ids, t.after...)
	}
	return e.ids, nil
}

// Added returns the id of an added token.
func (t *Tokenizer) Added(content string) (uint32, bool) {
	id, ok := t.added[content]
	return id, ok
}

// Size is the number of ids of the vocabulary and of added tokens.
func (t *Tokenizer) Size() int { return t.size }

// Surround replaces the tokens that Encode puts around a text that asks for
// special tokens. It must be called before the first Encode.
func (t *Tokenizer) Surround(before, after []uint32) { t.before, t.after = before, after }

// encoder is one Encode under way.
type encoder struct {
	tokenizer *Tokenizer
	ctx       context.Context
	ids       []uint32
	pieces    int
	scratch   scratch
}

// text cuts out added tokens that are sought before normalization.
func (e *encoder) text(text string) error {
	return e.tokenizer.raw.split(text, e.id, func(part string) error {
		for _, n := range e.tokenizer.normalizer {
			part = n(part)
		}
		if len(part) == 0 {
			return nil
		}
		return e.tokenizer.normalized.split(part, e.id, e.plain)
	})
}

func (e *encoder) id(id uint32) { e.ids = append(e.ids, id) }

// plain encodes text without added tokens.
func (e *encoder) plain(text string) error {
	if len(text) == 0 {
		return nil
	}
	return e.cut(text, e.tokenizer.splitters)
}

// cut applies the splitters one after the other, and the model to what is left.
func (e *encoder) cut(text string, splitters []splitter) error {
	if len(splitters) > 0 {
		return splitters[0].split(e.ctx, text, func(part string) error { return e.cut(part, splitters[1:]) })
	}
	if e.pieces++; e.pieces%checkEvery == 0 && e.ctx.Err() != nil {
		return e.ctx.Err()
	}
	e.ids = e.tokenizer.model.encode(e.ctx, e.ids, text, &e.scratch)
	return e.ctx.Err()
}
