// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"encoding/json"

	"github.com/inferencecache/inference-cache/internal/defaults"
)

// usage is what an engine says about the tokens of a request.
type usage struct {
	PromptTokens     int           `json:"prompt_tokens"`
	CompletionTokens int           `json:"completion_tokens"`
	Details          *tokenDetails `json:"prompt_tokens_details"`

	// The names of other chat APIs.
	InputTokens  int           `json:"input_tokens"`
	OutputTokens int           `json:"output_tokens"`
	InputDetails *tokenDetails `json:"input_tokens_details"`
	CacheRead    *int          `json:"cache_read_input_tokens"`
}

type tokenDetails struct {
	CachedTokens *int `json:"cached_tokens"`
}

// unify fills in what has another name, or was told earlier in a stream.
func (u *usage) unify(earlier *usage) {
	defaults.Set(&u.PromptTokens, u.InputTokens)
	defaults.Set(&u.CompletionTokens, u.OutputTokens)
	if u.Details == nil && u.InputDetails != nil {
		u.Details = u.InputDetails
	}
	if u.Details == nil && u.CacheRead != nil {
		u.Details = &tokenDetails{u.CacheRead}
	}
	if earlier == nil {
		return
	}
	defaults.Set(&u.PromptTokens, earlier.PromptTokens)
	if u.Details == nil {
		u.Details = earlier.Details
	}
}

// cachedTokens returns the engine's own count of reused tokens, if it tells.
func (u *usage) cachedTokens() (int, bool) {
	if u.Details == nil || u.Details.CachedTokens == nil {
		return 0, false
	}
	return *u.Details.CachedTokens, true
}

const maxUsageBytes = 4 << 10

var usageKey = []byte(`"usage"`)

// usageReader finds the last usage object in an answer that passes through in
// pieces, JSON or server-sent events. It relies on one fact: inside a JSON
// string the quotes of usageKey would be escaped.
type usageReader struct {
	state usageState
	// carry holds the end of the previous piece while searching, captured the
	// object so far.
	carry, captured  []byte
	depth            int
	inString, escape bool
	last             *usage
}

type usageState uint8

const (
	usageSearching usageState = iota
	usageAfterKey
	usageCapturing
)

// Write takes the next piece. It keeps nothing of p.
func (r *usageReader) Write(p []byte) {
	for len(p) > 0 {
		switch r.state {
		case usageSearching:
			p = r.search(p)
		case usageAfterKey:
			p = r.skipToObject(p)
		default:
			p = r.capture(p)
		}
	}
}

// search returns what follows the key, or nothing.
func (r *usageReader) search(p []byte) []byte {
	if len(r.carry) > 0 {
		joined := append(r.carry, p[:min(len(p), len(usageKey)-1)]...)
		if i := bytes.Index(joined, usageKey); i >= 0 {
			taken := i + len(usageKey) - len(r.carry)
			r.state, r.carry = usageAfterKey, r.carry[:0]
			return p[taken:]
		}
		r.carry = joined[:0]
		if len(p) < len(usageKey)-1 {
			r.carry = append(r.carry, joined[max(0, len(joined)-len(usageKey)+1):]...)
			return nil
		}
	}
	if i := bytes.Index(p, usageKey); i >= 0 {
		r.state = usageAfterKey
		return p[i+len(usageKey):]
	}
	r.carry = append(r.carry[:0], p[max(0, len(p)-len(usageKey)+1):]...)
	return nil
}

func (r *usageReader) skipToObject(p []byte) []byte {
	for i, c := range p {
		switch c {
		case ' ', '\t', '\r', '\n', ':':
		case '{':
			r.state, r.depth, r.captured = usageCapturing, 0, r.captured[:0]
			return p[i:]
		default:
			r.state = usageSearching
			return p[i:]
		}
	}
	return nil
}

func (r *usageReader) capture(p []byte) []byte {
	for i, c := range p {
		r.captured = append(r.captured, c)
		switch {
		case r.escape:
			r.escape = false
		case r.inString:
			r.escape = c == '\\'
			r.inString = c != '"'
		case c == '"':
			r.inString = true
		case c == '{':
			r.depth++
		case c == '}':
			r.depth--
		}
		if r.depth == 0 && !r.inString || len(r.captured) >= maxUsageBytes {
			r.finish()
			return p[i+1:]
		}
	}
	return nil
}

func (r *usageReader) finish() {
	var found usage
	if json.Unmarshal(r.captured, &found) == nil && found.PromptTokens >= 0 && found.CompletionTokens >= 0 {
		found.unify(r.last)
		r.last = &found
	}
	r.state, r.inString, r.escape, r.carry = usageSearching, false, false, r.carry[:0]
}
