// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"context"
	"encoding/binary"
	"math"
	"time"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
)

// input is what a request's prompt came down to.
type input struct {
	form Form
	// keys is the chain, or the one exact key when chain is false.
	keys  index.Keys
	chain bool
	// counts of the chain's blocks.
	counts index.Tokens
	// tokens is the length of the prompt once measured is set.
	tokens   int64
	measured bool
	// failed is set when the input cannot be looked up.
	failed bool
}

// buffers hold keys between decisions.
type buffers struct {
	keys  []uint64
	exact [1]uint64
	long  [1][]byte
	seed  seedBuffer
}

func (b *buffers) forget() {
	b.long[0] = nil
}

// scope of the request.
func (e *evaluation) scope() index.Scope {
	return index.Scope{Tenant: e.request.Tenant, Model: e.request.Model, Scheme: e.request.Scheme}
}

// measure finds out how long the prompt is, as far as that takes no hashing.
func (e *evaluation) measure() {
	in := &e.input
	in.form = e.request.form(e.rules.ChainMatching)
	e.out.Form = in.form
	switch in.form {
	case FormChain:
		e.measureChain()
	case FormExact, FormNothing:
		e.exactKey(e.request.PrefixHash)
		in.tokens = int64(e.request.PrefixTokens)
		if in.tokens < 0 {
			e.out.Invalid = CountNegative
			in.tokens = 0
		}
	case FormTokenIDs:
		if len(e.request.TokenIDs) > MaxTokenIDs {
			e.fail(TooManyTokens)
			return
		}
		if size := e.blockSize(e.scope()); size > 0 {
			in.tokens = int64(len(e.request.TokenIDs) / size * size)
		}
	case FormUnusable:
		in.failed = true
		return
	case FormPrompt:
		return
	}
	in.measured = !in.failed
	e.out.EffectiveTokens = in.tokens
}

// measureChain checks the chain fields and takes the hashes over.
func (e *evaluation) measureChain() {
	hashes, counts := e.request.BlockHashes, e.request.BlockTokenCounts
	if len(hashes) != len(counts) {
		e.fail(ChainMismatch)
		return
	}
	keys, short := e.buffers.keys[:0], true
	var sum int64
	for i, hash := range hashes {
		switch {
		case len(hash) == 0:
			e.fail(HashEmpty)
		case len(hash) > index.MaxKeyBytes:
			e.fail(HashTooLong)
		case counts[i] < 0:
			e.fail(CountNegative)
		}
		if e.input.failed {
			return
		}
		sum += int64(counts[i])
		if short = short && len(hash) == fingerprint.KeyBytes; short {
			keys = append(keys, binary.BigEndian.Uint64(hash))
		}
	}
	e.buffers.keys = keys
	if sum > math.MaxInt32 {
		e.fail(CountOverflow)
		return
	}
	if short {
		e.input.keys = index.Keys{Short: keys}
	} else {
		e.input.keys = index.Keys{Long: hashes}
	}
	e.input.chain = true
	e.input.counts = index.Tokens{Counts: counts}
	e.input.tokens = sum
}

func (e *evaluation) exactKey(hash []byte) {
	switch {
	case len(hash) == 0:
	case len(hash) > index.MaxKeyBytes:
		e.fail(HashTooLong)
	case len(hash) == fingerprint.KeyBytes:
		e.buffers.exact[0] = binary.BigEndian.Uint64(hash)
		e.input.keys = index.Keys{Short: e.buffers.exact[:]}
	default:
		e.buffers.long[0] = hash
		e.input.keys = index.Keys{Long: e.buffers.long[:]}
	}
}

// fail makes the request one that gets no hint.
func (e *evaluation) fail(invalid Invalid) {
	e.input.failed = true
	e.out.Invalid = invalid
}

// resolve turns token ids and text into keys; other forms are keys already.
func (e *evaluation) resolve(ctx context.Context) {
	switch {
	case e.input.failed:
	case e.input.form == FormTokenIDs:
		e.hash(e.request.TokenIDs)
	case e.input.form == FormPrompt:
		if tokens, ok := e.tokenize(ctx); ok {
			e.out.TokenIDs = tokens
			e.hash(tokens)
		}
	}
	e.out.Blocks = 0
	if e.input.chain {
		e.out.Blocks = e.input.keys.Len()
	}
	e.out.EffectiveTokens = e.input.tokens
}

// hash makes the chain of tokens. Without a full block there is nothing to
// look up.
func (e *evaluation) hash(tokens []uint32) {
	in := &e.input
	size := e.blockSize(e.scope())
	keys := fingerprint.Append(e.buffers.keys[:0], fingerprint.Parent{}, tokens, size)
	e.buffers.keys = keys
	if len(keys) == 0 {
		in.failed = true
		return
	}
	in.tokens = int64(len(keys)) * int64(size)
	in.measured = true
	if !e.rules.ChainMatching {
		in.keys = index.Keys{Short: keys[len(keys)-1:]}
		return
	}
	in.chain = true
	in.keys = index.Keys{Short: keys}
	in.counts = index.Tokens{First: int32(size), Step: int32(size)}
}

// tokenize reports false when the prompt gets no hint.
func (e *evaluation) tokenize(ctx context.Context) ([]uint32, bool) {
	if len(e.request.Prompt) > MaxPromptBytes {
		e.out.Invalid = PromptTooLong
		e.input.failed = true
		e.out.Tokenized = TokenizedTooLong
		return nil, false
	}
	start := e.now()
	tokens, result := e.runTokenizer(ctx, start)
	e.out.Timings.Tokenize = e.now().Sub(start)
	e.out.Tokenized = result
	e.input.failed = result != TokenizedOK
	return tokens, result == TokenizedOK
}

func (e *evaluation) runTokenizer(ctx context.Context, now time.Time) ([]uint32, Tokenized) {
	if e.tokenizer == nil {
		return nil, TokenizedUnavailable
	}
	select {
	case e.tokenizing <- struct{}{}:
		defer func() { <-e.tokenizing }()
	default:
		return nil, TokenizedSaturated
	}
	if e.deadlineSet {
		bounded, cancel := context.WithTimeout(ctx, e.deadline.Sub(now))
		defer cancel()
		ctx = bounded
	}
	tokens, err := e.tokenizer.Tokenize(ctx, e.request.Model, e.request.Prompt)
	switch {
	case err != nil, len(tokens) == 0:
		return nil, TokenizedError
	case len(tokens) > MaxTokenIDs:
		return nil, TokenizedTooLong
	}
	return tokens, TokenizedOK
}
