// SPDX-License-Identifier: Apache-2.0

package lookup_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/inferencecache/inference-cache/internal/index"
	"github.com/inferencecache/inference-cache/internal/lookup"
	"github.com/inferencecache/inference-cache/internal/policy"
	"github.com/inferencecache/inference-cache/pkg/fingerprint"
)

// tokenizerFunc is a Tokenizer.
type tokenizerFunc func(ctx context.Context, model, prompt string) ([]uint32, error)

func (f tokenizerFunc) Tokenize(ctx context.Context, model, prompt string) ([]uint32, error) {
	return f(ctx, model, prompt)
}

// prompts tokenizes "N" into N tokens 1, 2, 3, ...
func prompts(lengths map[string]uint32) lookup.Tokenizer {
	return tokenizerFunc(func(_ context.Context, _, prompt string) ([]uint32, error) {
		n, ok := lengths[prompt]
		if !ok {
			return nil, errors.New("no such prompt")
		}
		return oneTo(n), nil
	})
}

// tokenFleet holds the chain of tokens 1..64 in blocks of 16 on one of two
// replicas.
func tokenFleet(declared policy.Declared, change ...func(*lookup.Options)) *fleet {
	f := newFleet(change...).policy(declared)
	f.index.Apply(&index.Batch{
		Scope: testScope, Replica: "w", AtMillis: f.now.UnixMilli(), NowMillis: f.now.UnixMilli(),
		Ops: []index.Op{{
			Tier:   index.TierT1,
			Keys:   index.Keys{Short: fingerprint.Append(nil, fingerprint.Parent{}, oneTo(64), 16)},
			Tokens: index.Tokens{First: 16, Step: 16},
		}},
	})
	return f.hold("v", holding{Chain: "z", Block: 16})
}

func TestInputForms(t *testing.T) {
	wire := fingerprint.Wire(fingerprint.Append(nil, fingerprint.Parent{}, oneTo(64), 16))
	chainOff := policy.Declared{EnableChainMatching: ptr(false)}
	tokenizer := func(o *lookup.Options) {
		o.Tokenizer = prompts(map[string]uint32{"64": 64, "15": 15, "0": 0, "long": lookup.MaxTokenIDs + 1})
	}
	request := func(change func(*lookup.Request)) lookup.Request { return with(in(testScope), change) }
	withChain := func(r *lookup.Request) { r.BlockHashes, r.BlockTokenCounts = wire, []int32{16, 16, 16, 16} }
	withHash := func(r *lookup.Request) { r.PrefixHash, r.PrefixTokens = wire[3], 64 }
	withTokens := func(r *lookup.Request) { r.TokenIDs = oneTo(70) }
	withText := func(r *lookup.Request) { r.Prompt = "64" }
	both := func(a, b func(*lookup.Request)) lookup.Request {
		return request(func(r *lookup.Request) { a(r); b(r) })
	}

	type result struct {
		Reason  lookup.Reason
		Form    lookup.Form
		Invalid lookup.Invalid
		Tokens  int64
		Blocks  int
		Matched int32
		Echo    int
	}
	for name, tc := range map[string]struct {
		policy  policy.Declared
		request lookup.Request
		want    result
	}{
		"chain": {
			policy.Declared{}, request(withChain),
			result{Reason: lookup.PrefixMatch, Form: lookup.FormChain, Tokens: 64, Blocks: 4, Matched: 64},
		},
		"a chain makes prefix_hash count for nothing": {
			policy.Declared{}, both(withChain, func(r *lookup.Request) { r.PrefixHash = bytes.Repeat([]byte{1}, 65) }),
			result{Reason: lookup.PrefixMatch, Form: lookup.FormChain, Tokens: 64, Blocks: 4, Matched: 64},
		},
		"a chain comes before token ids": {
			policy.Declared{}, both(withChain, func(r *lookup.Request) { r.TokenIDs = []uint32{1} }),
			result{Reason: lookup.PrefixMatch, Form: lookup.FormChain, Tokens: 64, Blocks: 4, Matched: 64},
		},
		"hashes without counts": {
			policy.Declared{}, both(withChain, func(r *lookup.Request) { r.BlockTokenCounts = nil }),
			result{Reason: lookup.NoHint, Form: lookup.FormChain, Invalid: lookup.ChainMismatch},
		},
		"counts without hashes do not fall back to prefix_hash": {
			policy.Declared{}, both(withHash, func(r *lookup.Request) { r.BlockTokenCounts = []int32{16} }),
			result{Reason: lookup.NoHint, Form: lookup.FormChain, Invalid: lookup.ChainMismatch},
		},
		"a negative count": {
			policy.Declared{}, both(withChain, func(r *lookup.Request) { r.BlockTokenCounts[1] = -1 }),
			result{Reason: lookup.NoHint, Form: lookup.FormChain, Invalid: lookup.CountNegative},
		},
		"counts beyond 31 bits": {
			policy.Declared{}, both(withChain, func(r *lookup.Request) { r.BlockTokenCounts = []int32{math.MaxInt32, 1, 0, 0} }),
			result{Reason: lookup.NoHint, Form: lookup.FormChain, Invalid: lookup.CountOverflow},
		},
		"counts of exactly 31 bits": {
			policy.Declared{}, both(withChain, func(r *lookup.Request) { r.BlockTokenCounts = []int32{math.MaxInt32, 0, 0, 0} }),
			result{Reason: lookup.PrefixMatch, Form: lookup.FormChain, Tokens: math.MaxInt32, Blocks: 4, Matched: math.MaxInt32},
		},
		"an empty hash in a chain": {
			policy.Declared{}, both(withChain, func(r *lookup.Request) { r.BlockHashes = [][]byte{wire[0], nil, wire[2], wire[3]} }),
			result{Reason: lookup.NoHint, Form: lookup.FormChain, Invalid: lookup.HashEmpty},
		},
		"a hash of 65 bytes in a chain": {
			policy.Declared{}, both(withChain, func(r *lookup.Request) {
				r.BlockHashes = [][]byte{wire[0], bytes.Repeat([]byte{1}, 65), wire[2], wire[3]}
			}),
			result{Reason: lookup.NoHint, Form: lookup.FormChain, Invalid: lookup.HashTooLong},
		},
		"hashes of other lengths end the match": {
			policy.Declared{MinimumMatchedTokens: 1}, both(withChain, func(r *lookup.Request) {
				r.BlockHashes = [][]byte{wire[0], wire[1], {1, 2, 3}, wire[3]}
			}),
			result{Reason: lookup.PrefixMatch, Form: lookup.FormChain, Tokens: 64, Blocks: 4, Matched: 32},
		},
		"a repeated hash does not inflate": {
			policy.Declared{}, both(withChain, func(r *lookup.Request) { r.BlockHashes = [][]byte{wire[0], wire[0], wire[0], wire[0]} }),
			result{Reason: lookup.PrefixMatch, Form: lookup.FormChain, Tokens: 64, Blocks: 4, Matched: 16},
		},
		"prefix hash": {
			policy.Declared{}, request(withHash),
			result{Reason: lookup.PrefixMatch, Form: lookup.FormExact, Tokens: 64, Matched: 64},
		},
		"a prefix hash of 65 bytes": {
			policy.Declared{}, request(func(r *lookup.Request) { r.PrefixHash = bytes.Repeat([]byte{1}, 65) }),
			result{Reason: lookup.NoHint, Form: lookup.FormExact, Invalid: lookup.HashTooLong},
		},
		"a prefix hash of 64 bytes": {
			policy.Declared{}, request(func(r *lookup.Request) { r.PrefixHash = bytes.Repeat([]byte{1}, 64) }),
			result{Reason: lookup.AffinityHint, Form: lookup.FormExact},
		},
		"a negative prefix count counts as none": {
			policy.Declared{}, both(withHash, func(r *lookup.Request) { r.PrefixTokens = -5 }),
			result{Reason: lookup.PrefixMatch, Form: lookup.FormExact, Invalid: lookup.CountNegative, Matched: 64},
		},
		"chains off, prefix hash, chain of no use": {
			chainOff, both(withHash, func(r *lookup.Request) { r.BlockTokenCounts = []int32{1} }),
			result{Reason: lookup.PrefixMatch, Form: lookup.FormExact, Tokens: 64, Matched: 64},
		},
		"chains off, only a chain": {
			chainOff, request(withChain), result{Reason: lookup.NoHint, Form: lookup.FormUnusable},
		},
		"chains off, chain and token ids": {
			chainOff, both(withChain, withTokens),
			result{Reason: lookup.PrefixMatch, Form: lookup.FormTokenIDs, Tokens: 64, Matched: 64},
		},
		"chains off, chain and text": {
			chainOff, both(withChain, withText),
			result{Reason: lookup.PrefixMatch, Form: lookup.FormPrompt, Tokens: 64, Matched: 64, Echo: 64},
		},
		"token ids": {
			policy.Declared{}, request(withTokens),
			result{Reason: lookup.PrefixMatch, Form: lookup.FormTokenIDs, Tokens: 64, Blocks: 4, Matched: 64},
		},
		"token ids come before text": {
			policy.Declared{}, both(withTokens, func(r *lookup.Request) { r.Prompt = "15" }),
			result{Reason: lookup.PrefixMatch, Form: lookup.FormTokenIDs, Tokens: 64, Blocks: 4, Matched: 64},
		},
		"prefix hash comes before token ids": {
			policy.Declared{}, both(withHash, func(r *lookup.Request) { r.TokenIDs = oneTo(16) }),
			result{Reason: lookup.PrefixMatch, Form: lookup.FormExact, Tokens: 64, Matched: 64},
		},
		"token ids without a full block": {
			policy.Declared{}, request(func(r *lookup.Request) { r.TokenIDs = oneTo(15) }),
			result{Reason: lookup.NoHint, Form: lookup.FormTokenIDs},
		},
		"the most token ids": {
			policy.Declared{}, request(func(r *lookup.Request) { r.TokenIDs = oneTo(lookup.MaxTokenIDs) }),
			result{Reason: lookup.PrefixMatch, Form: lookup.FormTokenIDs, Tokens: lookup.MaxTokenIDs, Blocks: lookup.MaxTokenIDs / 16, Matched: 64},
		},
		"too many token ids": {
			policy.Declared{}, request(func(r *lookup.Request) { r.TokenIDs = oneTo(lookup.MaxTokenIDs + 1) }),
			result{Reason: lookup.NoHint, Form: lookup.FormTokenIDs, Invalid: lookup.TooManyTokens},
		},
		"text": {
			policy.Declared{}, request(withText),
			result{Reason: lookup.PrefixMatch, Form: lookup.FormPrompt, Tokens: 64, Blocks: 4, Matched: 64, Echo: 64},
		},
		"text without a full block is echoed": {
			policy.Declared{}, request(func(r *lookup.Request) { r.Prompt = "15" }),
			result{Reason: lookup.NoHint, Form: lookup.FormPrompt, Echo: 15},
		},
		"text that makes no tokens": {
			policy.Declared{}, request(func(r *lookup.Request) { r.Prompt = "0" }),
			result{Reason: lookup.NoHint, Form: lookup.FormPrompt},
		},
		"text that makes too many": {
			policy.Declared{}, request(func(r *lookup.Request) { r.Prompt = "long" }),
			result{Reason: lookup.NoHint, Form: lookup.FormPrompt},
		},
		"text the tokenizer fails on": {
			policy.Declared{}, request(func(r *lookup.Request) { r.Prompt = "?" }),
			result{Reason: lookup.NoHint, Form: lookup.FormPrompt},
		},
		"text above 1 MiB": {
			policy.Declared{}, request(func(r *lookup.Request) { r.Prompt = strings.Repeat("x", lookup.MaxPromptBytes+1) }),
			result{Reason: lookup.NoHint, Form: lookup.FormPrompt, Invalid: lookup.PromptTooLong},
		},
		"short text with affinity off": {
			policy.Declared{MinimumPrefixTokens: 65, AffinityRouting: ptr(false)}, request(withText),
			result{Reason: lookup.NoHint, Form: lookup.FormPrompt, Tokens: 64, Blocks: 4, Echo: 64},
		},
		"nothing": {
			policy.Declared{}, request(func(*lookup.Request) {}), result{Reason: lookup.NoHint, Form: lookup.FormNothing},
		},
		"an identifier above 256 bytes still gets its diagnosis": {
			policy.Declared{}, both(withChain, func(r *lookup.Request) { r.Model = strings.Repeat("m", 257) }),
			result{Reason: lookup.UnknownModel, Form: lookup.FormChain, Invalid: lookup.IdentifierLong, Tokens: 64, Blocks: 4},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := tokenFleet(tc.policy, tokenizer).ask(tc.request)
			have := result{
				Reason: got.Reason, Form: got.Form, Invalid: got.Invalid, Tokens: got.EffectiveTokens,
				Blocks: got.Blocks, Matched: got.BestMatchedTokens(), Echo: len(got.TokenIDs),
			}
			if diff := cmp.Diff(tc.want, have); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTextWithoutTokenizerGetsNoHint(t *testing.T) {
	got := tokenFleet(policy.Declared{}).ask(with(in(testScope), func(r *lookup.Request) { r.Prompt = "64" }))
	if got.Reason != lookup.NoHint || got.Tokenized != lookup.TokenizedUnavailable {
		t.Errorf("%s, tokenizer %s", got.Reason, got.Tokenized)
	}
}

func TestBlockSizeIsThatOfTheScope(t *testing.T) {
	f := tokenFleet(policy.Declared{}, func(o *lookup.Options) {
		o.BlockSize = func(scope index.Scope) int {
			if scope == testScope {
				return 16
			}
			return 0
		}
	})
	request := with(in(testScope), func(r *lookup.Request) { r.TokenIDs = oneTo(64) })
	if got := f.ask(request); got.Reason != lookup.PrefixMatch {
		t.Errorf("scope with a block size: %s", got.Reason)
	}
	request.Scheme = "other"
	if got := f.ask(request); got.Reason != lookup.NoHint || got.Asked {
		t.Errorf("scope without one: %s, index asked %v", got.Reason, got.Asked)
	}
}

func TestTokenizerIsBounded(t *testing.T) {
	type call struct {
		left    time.Duration
		bounded bool
	}
	for name, tc := range map[string]struct {
		policy  policy.Declared
		timeout time.Duration
		want    time.Duration
	}{
		"by five seconds":         {policy.Declared{}, 0, 5 * time.Second},
		"by the policy's budget":  {policy.Declared{LookupTimeoutMillis: 50}, 0, 50 * time.Millisecond},
		"by the caller's own":     {policy.Declared{}, time.Hour, time.Hour},
		"by the earlier of both":  {policy.Declared{LookupTimeoutMillis: 50}, time.Hour, 50 * time.Millisecond},
		"by the caller's, sooner": {policy.Declared{LookupTimeoutMillis: 1 << 30}, time.Hour, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			var seen call
			f := tokenFleet(tc.policy, func(o *lookup.Options) {
				o.Tokenizer = tokenizerFunc(func(ctx context.Context, _, _ string) ([]uint32, error) {
					deadline, bounded := ctx.Deadline()
					seen = call{time.Until(deadline), bounded}
					return oneTo(64), nil
				})
			})
			ctx := context.Background()
			if tc.timeout > 0 {
				bounded, cancel := context.WithTimeout(ctx, tc.timeout)
				defer cancel()
				ctx = bounded
			}
			f.askContext(ctx, with(in(testScope), func(r *lookup.Request) { r.Prompt = "64" }))
			if !seen.bounded || seen.left > tc.want || seen.left < tc.want/2 && tc.want >= time.Second {
				t.Errorf("tokenizer had %v (bounded %v), want %v", seen.left, seen.bounded, tc.want)
			}
		})
	}
}

func TestTokenizerThatOverstaysItsDeadline(t *testing.T) {
	started := time.Now()
	f := tokenFleet(policy.Declared{LookupTimeoutMillis: 1}, func(o *lookup.Options) {
		o.Tokenizer = tokenizerFunc(func(ctx context.Context, _, _ string) ([]uint32, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		now := o.Now
		o.Now = func() time.Time { return now().Add(time.Since(started)) }
	})
	got := f.ask(with(in(testScope), func(r *lookup.Request) { r.Prompt = "64" }))
	if got.Reason != lookup.Timeout || got.Tokenized != lookup.TokenizedError {
		t.Errorf("%s, tokenizer %s; want a timeout", got.Reason, got.Tokenized)
	}
}

func TestTooManyTokenizations(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	f := tokenFleet(policy.Declared{}, func(o *lookup.Options) {
		o.Tokenizer = tokenizerFunc(func(context.Context, string, string) ([]uint32, error) {
			entered <- struct{}{}
			<-leave
			return oneTo(64), nil
		})
	})
	text := with(in(testScope), func(r *lookup.Request) { r.Prompt = "64" })
	answers := make(chan lookup.Reason)
	for range 64 {
		go func() { answers <- f.ask(text).Reason }()
	}
	for range 64 {
		<-entered
	}
	if got := f.ask(text); got.Reason != lookup.NoHint || got.Tokenized != lookup.TokenizedSaturated {
		t.Errorf("the 65th: %s, tokenizer %s", got.Reason, got.Tokenized)
	}
	close(leave)
	for range 64 {
		if reason := <-answers; reason != lookup.PrefixMatch {
			t.Errorf("one of 64: %s", reason)
		}
	}
}
